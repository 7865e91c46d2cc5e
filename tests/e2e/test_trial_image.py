"""The script that builds the images: the choice of the builder, its arguments, and errors.

The builders are replaced by programs that print their arguments. A real buildah builds digits and
the server in tests/cluster.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from suggest.distribution import VERSION

BUILD = Path(__file__).resolve().parents[2] / "trial_image" / "build.sh"
TOOLS = ("basename", "cat", "cp", "dirname", "ls", "mkdir", "mktemp", "rm", "sh")
WORKING = """#!/bin/sh
echo "$(basename "$0")" "$@"
for last in "$@"; do :; done
[ ! -d "$last" ] || ls "$last"
for folder in programs wheels data context context/wheels; do
  [ ! -d "$last/$folder" ] || echo "$folder:" $(ls "$last/$folder")
done
"""


def build(
    folder: Path, *builders: str, trial: str = "digits", **settings: str
) -> subprocess.CompletedProcess[str]:
    """Run the script with these builders installed;
    `docker-client` is docker without its daemon.
    """
    path = folder / "bin"
    path.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (path / tool).symlink_to(found)
    for builder in builders:
        stand_in = path / builder.removesuffix("-client")
        stand_in.write_text("#!/bin/sh\nexit 1\n" if builder == "docker-client" else WORKING)
        stand_in.chmod(0o755)
    env = {
        **{name: os.environ[name] for name in ("TMPDIR",) if name in os.environ},
        "PATH": str(path),
    }
    return subprocess.run(
        ["sh", BUILD, trial],
        env={**env, "PYTHON": sys.executable, **settings},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_builder_gets_the_programs_and_the_images_and_nothing_else(tmp_path: Path) -> None:
    done = build(tmp_path, "docker")
    call, *context, last = done.stdout.splitlines()
    assert call.startswith("docker build --build-arg BASE=python:3.11-slim --tag tuner/digits:1 /")
    assert context == [
        "Dockerfile",
        "digits.csv.gz",
        "parallel.py",
        "train.py",
        "train_generations.py",
    ]
    assert last == "built tuner/digits:1 on python:3.11-slim with docker"
    assert (done.returncode, done.stderr) == (0, "")
    assert not Path(call.split()[-1]).exists()


@pytest.mark.parametrize(
    ("builders", "settings", "expected"),
    [
        (["docker", "podman", "buildah"], {}, "docker build"),
        (["docker-client", "podman", "buildah"], {}, "podman build"),
        (["docker-client", "buildah"], {}, "buildah bud"),
        (["docker", "buildah"], {"BUILDER": "buildah"}, "buildah bud"),
    ],
)
def test_the_first_working_builder_is_used(
    builders: list[str], settings: dict[str, str], expected: str, tmp_path: Path
) -> None:
    assert build(tmp_path, *builders, **settings).stdout.startswith(expected + " --build-arg ")


@pytest.mark.parametrize(
    ("tag", "tags"),
    [
        ("tuner/digits:1", ["tuner/digits:1", "docker.io/tuner/digits:1"]),
        ("digits", ["digits", "docker.io/library/digits"]),
        ("registry.example/digits:1", ["registry.example/digits:1"]),
        ("localhost:5000/digits:1", ["localhost:5000/digits:1"]),
    ],
)
def test_podman_and_buildah_use_the_image_name_that_a_kubelet_looks_up(
    tag: str, tags: list[str], tmp_path: Path
) -> None:
    words = build(tmp_path, "podman", TAG=tag, BASE="localhost/base").stdout.splitlines()[0].split()
    assert words[3] == "BASE=localhost/base"
    assert [words[i + 1] for i, word in enumerate(words) if word == "--tag"] == tags


@pytest.mark.parametrize(
    ("builders", "settings", "problem"),
    [
        (
            ["docker-client"],
            {},
            "it takes docker with its daemon running, podman or buildah, and none is here",
        ),
        (
            ["buildah"],
            {"BUILDER": "docker"},
            "docker does not work here; is it installed, and its daemon running?",
        ),
        (
            ["buildah"],
            {"BUILDER": "kaniko"},
            "BUILDER=kaniko is none of docker, podman and buildah",
        ),
    ],
)
def test_missing_requirements_are_reported(
    builders: list[str], settings: dict[str, str], problem: str, tmp_path: Path
) -> None:
    done = build(tmp_path, *builders, **settings)
    assert done.stderr.startswith(f"trial_image/build.sh: {problem}")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)


def test_the_cifar10_image_gets_only_its_programs(tmp_path: Path) -> None:
    done = build(tmp_path, "docker", trial="cifar10")
    call, *context, last = done.stdout.splitlines()
    settings = "--build-arg BASE=python:3.11-slim --build-arg TORCH=cuda"
    assert call.startswith(f"docker build {settings} --tag tuner/cifar10:1 /")
    programs = sorted(path.name for path in BUILD.parent.glob("*.py"))
    assert context == [
        "Dockerfile",
        "data",
        "programs",
        "wheels",
        f"programs: {' '.join(programs)}",
        "wheels:",
        "data:",
    ]
    assert last == "built tuner/cifar10:1 on python:3.11-slim with docker"
    assert (done.returncode, done.stderr) == (0, "")
    assert not Path(call.split()[-1]).exists()


def test_the_cifar10_image_can_include_wheels_and_data(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "torch-2.15.0.whl").touch()
    (tmp_path / "wheels" / "notes.txt").touch()
    (tmp_path / "my data" / "cifar-10-batches-py").mkdir(parents=True)
    settings = {
        "WHEELS": str(tmp_path / "wheels"),
        "DATA": str(tmp_path / "my data"),
        "TORCH": "cpu",
    }
    done = build(tmp_path, "podman", trial="cifar10", TAG="registry.example/cifar10:1", **settings)
    call, *context, _ = done.stdout.splitlines()
    assert "--build-arg TORCH=cpu --tag registry.example/cifar10:1 /" in call
    assert context[-2:] == ["wheels: torch-2.15.0.whl", "data: cifar-10-batches-py"]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"trial": "mnist"}, "mnist is none of digits, cifar10, server and collector"),
        ({"TORCH": "rocm"}, "TORCH=rocm is neither cuda nor cpu"),
        ({"WHEELS": "/"}, "WHEELS=/ is not a folder with wheels (*.whl)"),
        ({"DATA": "/gone"}, "DATA=/gone is not a folder with cifar-10-batches-py"),
    ],
)
def test_invalid_settings_of_the_cifar10_image_are_reported(
    settings: dict[str, str], problem: str, tmp_path: Path
) -> None:
    done = build(tmp_path, "docker", **{"trial": "cifar10", **settings})
    assert (done.returncode, done.stdout, done.stderr) == (
        1,
        "",
        f"trial_image/build.sh: {problem}\n",
    )


DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize("trial", ["digits", "cifar10", "server"])
def test_a_base_image_by_digest_reaches_the_builder_unchanged(trial: str, tmp_path: Path) -> None:
    base = f"registry.example:5000/python:3.11-slim@{DIGEST}"
    done = build(tmp_path, "docker", trial=trial, BASE=base)
    assert f" --build-arg BASE={base} " in done.stdout.splitlines()[0]
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("digest", ["sha256:abc", DIGEST.upper(), DIGEST + "0", "md5:" + "0" * 64])
def test_a_base_image_with_a_truncated_digest_is_refused_before_building(
    digest: str, tmp_path: Path
) -> None:
    done = build(tmp_path, "docker", BASE=f"python@{digest}")
    problem = f"BASE=python@{digest}: a digest is sha256: and 64 hexadecimal digits"
    assert (done.returncode, done.stdout, done.stderr) == (
        1,
        "",
        f"trial_image/build.sh: {problem}\n",
    )


def test_the_server_gets_its_wheel_its_lock_file_and_its_bill_of_materials(tmp_path: Path) -> None:
    (tmp_path / "sbom.json").write_text("{}")
    done = build(tmp_path, "docker", trial="server", SBOM=str(tmp_path / "sbom.json"))
    call, *context, last = done.stdout.splitlines()
    version = f"--build-arg VERSION={VERSION}"
    assert call.startswith(
        f"docker build --build-arg BASE=python:3.11-slim {version} --tag tuner/server:1 /"
    )
    wheel = f"tuner_hpo-{VERSION}-py3-none-any.whl"
    contents = f"context: requirements.lock sbom.cdx.json {wheel} wheels"
    assert context == ["Dockerfile", "context", contents, "context/wheels:"]
    assert last == "built tuner/server:1 on python:3.11-slim with docker"


def test_every_image_names_the_base_that_it_was_built_on_by_an_argument() -> None:
    root = BUILD.parents[1]
    for dockerfile in (
        root / "trial_image/Dockerfile",
        root / "trial_image/digits/Dockerfile",
        root / "deploy/Dockerfile",
    ):
        lines = dockerfile.read_text(encoding="utf-8").splitlines()
        assert [line for line in lines if line.startswith("FROM ")] == ["FROM ${BASE}"]


def test_the_images_run_as_a_number_that_is_not_root() -> None:
    root = BUILD.parents[1]
    for dockerfile in (
        root / "trial_image/Dockerfile",
        root / "trial_image/digits/Dockerfile",
        root / "deploy/Dockerfile",
    ):
        lines = dockerfile.read_text(encoding="utf-8").splitlines()
        assert [line for line in lines if line.startswith("USER ")] == ["USER 65532:65532"]
