"""Images for the real node, built locally: no test contacts an image registry.

`python -m tests.cluster.images` builds them once, as root, and keeps them in the cache: `pause`,
which every pod needs, and `base`, a small Debian with Python and NumPy from Debian's packages.
Further images are built on `base` by buildah in its own store, so that the machine's images are
neither used nor changed: `digits`, `server` and `collector`, as trial_image/build.sh builds them,
again after a change of their sources.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

from tests.cluster.binaries import build, cache, locked, module_of, program

RELEASE = "bookworm"
PACKAGES = "python3,python3-numpy"
PAUSE, BASE, DIGITS = (
    "localhost/tuner-test/pause:1",
    "localhost/tuner-test/base:1",
    "localhost/tuner-test/digits:1",
)
SERVER, COLLECTOR = "localhost/tuner-test/server:1", "localhost/tuner-test/collector:1"
UNNEEDED = (
    "var/cache/apt",
    "var/lib/apt/lists",
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
)
DOCKERFILES = {
    PAUSE: 'FROM scratch\nCOPY pause /pause\nUSER 65532:65532\nENTRYPOINT ["/pause"]\n',
    BASE: 'FROM scratch\nADD root.tar /\nRUN ln -s python3 /usr/bin/python\nCMD ["python3"]\n',
}
# What tuner's wheel is made of.
PACKAGED = (
    "README.md",
    "LICENSE",
    "hatch_build.py",
    "suggest",
    "controller",
    "tuner",
    "hydra_plugins",
)
# What images are built from, in the checkout. `requirements.lock` has the versions of scikit-learn
# and of the wheel's builder.
SOURCES = {
    DIGITS: ("trial_image/digits", "examples/digits", "requirements.lock"),
    COLLECTOR: ("trial_image/collector",),
    SERVER: (
        "deploy/Dockerfile",
        "deploy/requirements.lock",
        "pyproject.toml",
        "requirements.lock",
        *PACKAGED,
    ),
}
PIP = f"pip=={metadata.version('pip')}"  # in the server's image
TOOLS = ("buildah", "debootstrap")
ROOT = Path(__file__).resolve().parents[2]


def folder() -> Path:
    recipe = repr((RELEASE, PACKAGES, UNNEEDED, DOCKERFILES, module_of("pause").folder.name))
    return cache() / f"images-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}"


def archive(tag: str) -> Path:
    """Return the file of an image, which a container runtime can import."""
    return folder() / f"{tag.rpartition('/')[2].replace(':', '-')}.tar"


def missing() -> str:
    """Return one line with the cure, or an empty string if nothing is missing."""
    lacking = [tag for tag in (PAUSE, BASE) if not archive(tag).exists()]
    return "the real node's images are not built: make cluster-images, as root" if lacking else ""


def environment() -> dict[str, str]:
    """Return the environment of buildah and of scripts that call it."""
    return {
        "CONTAINERS_STORAGE_CONF": str(folder() / "storage.conf"),
        "STORAGE_DRIVER": "vfs",
        "BUILDAH_ISOLATION": "chroot",
    }


def build_base() -> None:
    """Build `pause` and `base` unless they exist. A second process waits for the first."""
    if not missing():
        return
    with locked(folder()):
        if not missing():
            return
        _check_tools()
        build(module_of("pause"))
        began = time.monotonic()
        print(f"making {PAUSE} and {BASE} ...", file=sys.stderr, flush=True)
        folder().mkdir(exist_ok=True)
        store = (
            f'[storage]\ndriver = "vfs"\ngraphroot = "{folder()}/store"\nrunroot = '
            f'"{folder()}/run"\n'
        )
        (folder() / "storage.conf").write_text(store)
        with tempfile.TemporaryDirectory(dir=cache(), prefix=".images-") as scratch:
            context = Path(scratch)
            shutil.copy(program("pause"), context / "pause")
            _debian(context)
            for tag, text in DOCKERFILES.items():
                (context / "Dockerfile").write_text(text)
                _run(
                    ["buildah", "bud", "--layers=false", "--tag", tag, str(context)], environment()
                )
                save(tag)
        print(f"made them in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def save(tag: str) -> Path:
    """Export an image from buildah's store to `archive(tag)`."""
    beside = archive(tag).with_suffix(f".{os.getpid()}")
    # Uncompressed: compression would take longer than everything else.
    _run(["buildah", "push", tag, f"docker-archive:{beside}:{tag}"], environment())
    beside.replace(archive(tag))
    return archive(tag)


def digits() -> None:
    """Build the digits trial on `base`. Needs scikit-learn beside this Python."""
    unless_kept(DIGITS, SOURCES[DIGITS], lambda: _build("digits", DIGITS))


def server() -> None:
    """Build the suggestion service on `base`, from the wheels of its lock file."""

    def build() -> None:
        _check_tools()  # before the download
        with tempfile.TemporaryDirectory() as wheels:
            download = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", wheels]
            _run(
                [
                    *download,
                    "--require-hashes",
                    "--only-binary=:all:",
                    "-r",
                    str(ROOT / "deploy/requirements.lock"),
                ]
            )
            _run([*download, "--only-binary=:all:", PIP])  # `base` has none
            _build("server", SERVER, WHEELS=wheels)

    unless_kept(SERVER, SOURCES[SERVER], build)


def collector() -> None:
    """Build the sidecar that collects metrics."""
    unless_kept(COLLECTOR, SOURCES[COLLECTOR], lambda: _build("collector", COLLECTOR))


def unless_kept(tag: str, sources: Sequence[str], build: Callable[[], None]) -> None:
    """Build an image unless the cache has it from the same sources:
    files and folders of the checkout.

    A second process waits for the first.
    """
    digest = hashlib.sha256(repr((sys.version_info[:2], PIP)).encode())
    for path in _files("trial_image/build.sh", *sources):
        digest.update(f"{os.path.relpath(path, ROOT)}\0".encode() + path.read_bytes() + b"\0")
    made_of = archive(tag).with_suffix(".sources")

    def is_kept() -> bool:
        return (
            archive(tag).exists() and made_of.exists() and made_of.read_text() == digest.hexdigest()
        )

    if is_kept():  # the lock is a file, which may be of another user
        return
    with locked(archive(tag)):
        if is_kept():
            return
        made_of.unlink(missing_ok=True)
        build()
        made_of.write_text(digest.hexdigest())


def _files(*sources: str) -> list[Path]:
    found = [path for source in sources for path in [ROOT / source, *(ROOT / source).rglob("*")]]
    return sorted(path for path in found if path.is_file() and path.suffix != ".pyc")


def _build(what: str, tag: str, **settings: str) -> None:
    """Build it as trial_image/build.sh does."""
    _check_tools()
    wanted = {
        **environment(),
        "BASE": BASE,
        "TAG": tag,
        "BUILDER": "buildah",
        "PYTHON": sys.executable,
        **settings,
    }
    _run(["sh", str(ROOT / "trial_image/build.sh"), what], wanted)
    save(tag)


def _debian(context: Path) -> None:
    """Build root.tar: the smallest Debian that runs NumPy, without documentation."""
    root = context / "root"
    _run(["debootstrap", "--variant=minbase", f"--include={PACKAGES}", RELEASE, str(root)])
    left_out = [f"--exclude=./{name}/*" for name in (*UNNEEDED, "dev", "proc", "sys")]
    _run(
        [
            "tar",
            "--numeric-owner",
            "-C",
            str(root),
            *left_out,
            "-cf",
            str(context / "root.tar"),
            ".",
        ]
    )
    shutil.rmtree(root)


def _run(command: Sequence[str], environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        command,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise RuntimeError(f"{' '.join(command[:3])} ended with {done.returncode}:\n{said}")


def _check_tools() -> None:
    """Raise RuntimeError if no image can be built here."""
    lacking = [tool for tool in TOOLS if not shutil.which(tool)]
    if os.geteuid() != 0 or lacking:
        what = (
            f"{' and '.join(lacking)}: apt-get install {' '.join(lacking)}" if lacking else "root"
        )
        raise RuntimeError(f"the images of the test cluster's real node take {what}")


def main() -> int:
    try:
        build_base()
        for build in (digits, collector, server):
            build()
    except RuntimeError as failed:
        print(failed, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
