"""Images of the training programs in examples/operators/, each built from its Dockerfile.

`python -m tests.operators.trainers` builds them once, as root, on the real node's `base` image, and
keeps them in the cache. `MPI_DELIVERY` is the init container of an MPIJob's launcher: it copies
kubectl to where the launcher expects it. The build downloads Debian packages; packages from PyPI
are downloaded before it, with this machine's settings of pip.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.cluster import images
from tests.cluster.binaries import build, cache, locked, module_of, program

EXAMPLES = images.ROOT / "examples" / "operators"
MPI_DELIVERY = "localhost/tuner-test/mpi-delivery:1"
# folders of EXAMPLES
IMAGES = {name: f"localhost/tuner-test/{name}:1" for name in ("pytorchjob", "tfjob", "mpijob")}
DELIVERY = (
    f'FROM {images.BASE}\nCOPY kubectl /bin/kubectl\nCMD ["cp", "/bin/kubectl", '
    f'"/opt/kube/kubectl"]\n'
)
BUILD_WITHIN_S = 1800


def archive(tag: str) -> Path:
    """Return the file of the image, named by a hash of everything it is built from."""
    digest = hashlib.sha256(images.folder().name.encode())
    if tag == MPI_DELIVERY:
        digest.update((DELIVERY + module_of("kubectl").folder.name).encode())
    else:
        for path in sorted(path for path in _context(tag).iterdir() if path.is_file()):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return cache() / f"image-{_name(tag)}-{digest.hexdigest()[:16]}.tar"


def missing() -> str:
    """Return in one line which are missing, with the cure, or an empty string."""
    lacking = ", ".join(
        _name(tag) for tag in (MPI_DELIVERY, *IMAGES.values()) if not archive(tag).exists()
    )
    return (
        f"images for the operators are not built ({lacking}): make operator-images, as root"
        if lacking
        else ""
    )


def build_image(tag: str) -> None:
    """Build an image unless it exists. A second process waits for the first."""
    target = archive(tag)
    if target.exists():
        return
    with (
        locked(target),
        tempfile.TemporaryDirectory(dir=cache(), prefix=f".{_name(tag)}-") as folder,
    ):
        if target.exists():
            return
        began = time.monotonic()
        print(f"building {tag} ...", file=sys.stderr, flush=True)
        scratch = Path(folder)
        context = scratch / "context"
        if tag == MPI_DELIVERY:
            context.mkdir()
            build(module_of("kubectl"))
            shutil.copy(program("kubectl"), context)
            (context / "Dockerfile").write_text(DELIVERY)
        else:
            shutil.copytree(_context(tag), context)
        flags = [
            "--layers=false",
            f"--build-arg=BASE={images.BASE}",
            *_wheels(context, scratch),
            "--tag",
            tag,
        ]
        _run(["buildah", "bud", *flags, str(context)])
        made = scratch / "image.tar"
        _run(["buildah", "push", tag, f"docker-archive:{made}:{tag}"])
        _run(["buildah", "rmi", tag])
        made.replace(target)
        print(f"built it in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def _wheels(context: Path, scratch: Path) -> list[str]:
    """Download what pip installs in the build, with this machine's pip settings."""
    wanted = context / "requirements.txt"
    if not wanted.exists():
        return []
    wheels, settings = scratch / "wheels", scratch / "pip.conf"
    # the Python version of `base`
    debian = ["--python-version=3.11", "--implementation=cp", "--only-binary=:all:"]
    _run(
        [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            *debian,
            "--dest",
            str(wheels),
            "-r",
            str(wanted),
        ]
    )
    settings.write_text("[global]\nno-index = true\nfind-links = /wheels\n")
    return [f"--volume={wheels}:/wheels:ro", f"--volume={settings}:/etc/pip.conf:ro"]


def _context(tag: str) -> Path:
    return EXAMPLES / _name(tag)


def _name(tag: str) -> str:
    return tag.rpartition("/")[2].partition(":")[0]


def _run(command: list[str]) -> None:
    environment = {**os.environ, **images.environment()}
    done = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        timeout=BUILD_WITHIN_S,
        check=False,
    )
    if done.returncode != 0:
        output = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise RuntimeError(f"{' '.join(command[:3])} ended with {done.returncode}:\n{output}")


def main() -> int:
    lacking = [tool for tool in images.TOOLS if not shutil.which(tool)]
    if missing() and (os.geteuid() != 0 or lacking):
        print(
            "building these images takes root and buildah: make cluster-packages, as root",
            file=sys.stderr,
        )
        return 1
    try:
        images.build_base()
        for tag in (MPI_DELIVERY, *IMAGES.values()):
            build_image(tag)
    except RuntimeError as failed:
        print(failed, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
