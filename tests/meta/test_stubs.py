"""The generated code is what the proto says, and fits every protobuf that pyproject.toml allows."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GENERATED = ROOT / "suggest" / "v1"
needs_generator = pytest.mark.skipif(
    not (ROOT / ".venv-proto").exists(),
    reason="its environment is made by `python proto/generate.py` (make check)",
)


def check(root: Path) -> tuple[int, str]:
    command = [sys.executable, "proto/generate.py", "--check"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@needs_generator
def test_the_stubs_are_fresh() -> None:
    assert check(ROOT) == (0, "")


@needs_generator
def test_stale_stubs_are_named_with_the_cure(tmp_path: Path) -> None:
    for folder in ("proto", "suggest/v1"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    (tmp_path / ".venv-proto").symlink_to(ROOT / ".venv-proto")
    with (tmp_path / "proto/suggest/v1/suggest.proto").open("a") as proto:
        proto.write("message More {}\n")
    code, said = check(tmp_path)
    assert code == 1
    assert "suggest_pb2.py" in said
    assert "run `python proto/generate.py` and commit the result" in said


def test_the_proto_folder_is_not_a_package() -> None:
    assert not list((ROOT / "proto").rglob("__init__.py")), "it would shadow Google's proto-plus"


def test_generated_code_imports_by_the_packages_own_name() -> None:
    text = (GENERATED / "suggest_pb2_grpc.py").read_text()
    assert "from suggest.v1 import suggest_pb2" in text


def test_the_least_protobuf_allowed_is_the_one_the_code_was_made_for() -> None:
    made_for = re.search(
        r"# Protobuf Python Version: (\S+)", (GENERATED / "suggest_pb2.py").read_text()
    )
    assert made_for is not None
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    [protobuf] = [d for d in dependencies if d.startswith("protobuf")]
    assert f">={made_for[1]}" in protobuf
