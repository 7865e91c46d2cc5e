"""Which GPUs there are, how many attempts fit on them, and who gets which."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.runtime.gpus import assign, slots, visible_gpus


@pytest.mark.parametrize(
    ("setting", "ids"),
    [
        ("0,1", ("0", "1")),
        (" 3 ", ("3",)),
        ("GPU-5a,MIG-7b", ("GPU-5a", "MIG-7b")),
        ("", ()),
        ("-1", ()),
        ("2,-1,3", ("2",)),
    ],
)
def test_the_environment_says_which_gpus_may_be_used(setting: str, ids: tuple[str, ...]) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": setting}) == ids


def _nvidia_smi(folder: Path, text: str) -> dict[str, str]:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return {"PATH": str(folder)}


def test_otherwise_nvidia_smi_says_it(tmp_path: Path) -> None:
    assert visible_gpus(_nvidia_smi(tmp_path, "printf '0\\n1\\n'")) == ("0", "1")


def test_a_failing_nvidia_smi_means_no_gpus(tmp_path: Path) -> None:
    assert visible_gpus(_nvidia_smi(tmp_path, "echo 'No devices were found'; exit 6")) == ()


def test_a_machine_without_nvidia_smi_has_no_gpus(tmp_path: Path) -> None:
    assert visible_gpus({"PATH": str(tmp_path)}) == ()


@pytest.mark.parametrize(
    ("count", "gpu", "fit"),
    [(4, 1, 4), (4, 2, 2), (4, 3, 1), (4, 5, 0), (0, 1, 0), (0, 0.5, 0), (2, 0.5, 4), (2, 0.3, 6), (1, 0.1, 10),
     (1, 1 / 3, 3), (1, 0.6, 1)],
)  # fmt: skip
def test_slots(count: int, gpu: float, fit: int) -> None:
    assert slots(count, gpu) == fit


@pytest.mark.parametrize(
    ("case", "in_use", "gpu", "given"),
    [
        ("a whole one", [], 1, ("0",)),
        ("the next whole one", [(1, ["0"])], 1, ("1",)),
        ("two", [(1, ["0"])], 2, ("1", "2")),
        ("no room for three", [(1, ["0"])], 3, None),
        ("shares spread before they pile up", [(0.5, ["0"])], 0.5, ("1",)),
        ("shares pile up when they must", [(0.5, ["0"]), (1, ["1"]), (1, ["2"])], 0.5, ("0",)),
        ("a shared one is not whole", [(0.5, ["0"]), (0.5, ["1"]), (0.5, ["2"])], 1, None),
        ("no share is left", [(0.7, ["0"]), (0.7, ["1"]), (0.7, ["2"])], 0.5, None),
        ("three thirds are one", [(1 / 3, ["0"]), (1 / 3, ["0"]), (1, ["1"]), (1, ["2"])], 1 / 3, ("0",)),
        ("one that is no longer lent does not matter", [(1, ["9"])], 3, ("0", "1", "2")),
    ],
)
def test_assign(case: str, in_use: list[tuple[float, list[str]]], gpu: float, given: tuple[str, ...] | None) -> None:
    assert assign(("0", "1", "2"), in_use, gpu) == given, case
