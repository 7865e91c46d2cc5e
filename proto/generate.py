"""Generates the modules of SOURCES from their protos. `--check` generates them elsewhere,
compares, and exits 1 if they differ.

Needs only Python and pip. The pinned generator has its own environment (.venv-proto), because
grpcio-tools 1.75.1 requires an older protobuf than the service. The code that 1.75.1 generates
works with protobuf 6.31 to 7.
"""

from __future__ import annotations

import argparse
import filecmp
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

PINS = ("grpcio-tools==1.75.1", "mypy-protobuf==4.0.0", "protobuf==6.33.6", "setuptools<81")
ROOT = Path(__file__).resolve().parent.parent
PROTO_DIR = ROOT / "proto"
# A proto's path below proto/ is that of its modules: suggest/v1/suggest_pb2.py.
WITHOUT_STUBS = (
    "suggest/katib/v1beta1/api.proto",  # Katib's clients have their own
    "suggest/katib/v1beta1/frames.proto",
    "controller/runtime/local/collectors/tensorboard/event.proto",
)
SOURCES = ("suggest/v1/suggest.proto", *WITHOUT_STUBS)
ENVIRONMENT = ROOT / ".venv-proto"
MESSAGES, STUBS = ("_pb2.py", "_pb2.pyi"), ("_pb2_grpc.py", "_pb2_grpc.pyi")


def _outputs(source: str) -> list[str]:
    endings = MESSAGES if source in WITHOUT_STUBS else MESSAGES + STUBS
    return [source.removesuffix(".proto") + ending for ending in endings]


def _generator() -> Path:
    """Return the Python of an environment with exactly PINS, creating it if it is missing or the
    pins have changed.
    """
    python = ENVIRONMENT / "bin" / "python"
    made_of = ENVIRONMENT / "pins.txt"
    if not (made_of.exists() and made_of.read_text() == "\n".join(PINS)):
        shutil.rmtree(ENVIRONMENT, ignore_errors=True)
        venv.create(ENVIRONMENT, with_pip=True)
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PINS],
            check=True,
        )
        made_of.write_text("\n".join(PINS))
    return python


def generate(into: Path) -> None:
    """Write the modules below `into`, each at the path of its proto."""
    python = _generator()
    # protoc finds the mypy plug-ins on PATH.
    path = os.pathsep.join([str(python.parent), os.environ.get("PATH", "")])
    outputs = [f"--{kind}_out={into}" for kind in ("python", "grpc_python")]
    outputs += [f"--{kind}_out=quiet:{into}" for kind in ("mypy", "mypy_grpc")]
    subprocess.run(
        [
            python,
            "-m",
            "grpc_tools.protoc",
            f"-I{PROTO_DIR}",
            *outputs,
            *(str(PROTO_DIR / s) for s in SOURCES),
        ],
        check=True,
        env={**os.environ, "PATH": path},
    )
    for source, ending in itertools.product(WITHOUT_STUBS, STUBS):
        (into / (source.removesuffix(".proto") + ending)).unlink(missing_ok=True)


def stale() -> list[str]:
    """Return the generated files that differ from the proto."""
    with tempfile.TemporaryDirectory() as fresh:
        generate(Path(fresh))
        made = [path for source in SOURCES for path in _outputs(source)]
        _, differing, missing = filecmp.cmpfiles(fresh, ROOT, made, shallow=False)
        return [*differing, *missing]


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the modules of all protos.")
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit 1 if the stubs are not fresh"
    )
    if not parser.parse_args().check:
        generate(ROOT)
        return 0
    if names := stale():
        print(
            f"{', '.join(names)}: not what the protos say; run `python proto/generate.py` and "
            f"commit the result",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
