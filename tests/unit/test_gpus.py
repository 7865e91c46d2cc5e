"""Which GPUs are available, how many attempts fit, and how they are assigned."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.runtime.local.gpu_claims import assign, assign_all, folder_for
from controller.runtime.local.gpus import Device, pool, slots, unavailable

# As NVIDIA's drivers print it, without MIG and with.
TWO = """\
GPU 0: NVIDIA H200 (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
GPU 1: NVIDIA H200 (UUID: GPU-90f1a4a3-0f4e-4a60-8b47-0e0c1b6f5b11)
"""
DIVIDED = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)
  MIG 1g.5gb      Device  1: (UUID: MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-90f1a4a3-0f4e-4a60-8b47-0e0c1b6f5b11)
"""
GPU_0, GPU_1 = (
    "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77",
    "GPU-90f1a4a3-0f4e-4a60-8b47-0e0c1b6f5b11",
)
MIG_0, MIG_1 = (
    "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f",
    "MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb",
)


def _ids(environment: dict[str, str], *wanted: str) -> tuple[str, ...]:
    return tuple(device.id for device in pool(environment, wanted))


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
def test_the_environment_says_which_gpus_may_be_used(
    setting: str, ids: tuple[str, ...], tmp_path: Path
) -> None:
    assert _ids({"PATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": setting}) == ids
    assert (
        _ids({"PATH": str(tmp_path), "TUNER_GPUS": setting, "CUDA_VISIBLE_DEVICES": "8,9"}) == ids
    )


def _nvidia_smi(folder: Path, text: str) -> dict[str, str]:
    (folder / "listed").write_text(text)
    return _program(
        folder, f'[ "$*" = -L ] && while read -r line; do echo "$line"; done < {folder}/listed'
    )


def _program(folder: Path, text: str) -> dict[str, str]:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nIFS=\n{text}\n")
    program.chmod(0o755)
    return {"PATH": str(folder)}


def test_otherwise_nvidia_smi_says_it(tmp_path: Path) -> None:
    assert pool(_nvidia_smi(tmp_path, TWO)) == (Device("0", GPU_0), Device("1", GPU_1))


def test_a_gpu_with_mig_instances_is_lent_as_those(tmp_path: Path) -> None:
    environment = _nvidia_smi(tmp_path, DIVIDED)
    assert pool(environment) == (Device(MIG_0, MIG_0), Device(MIG_1, MIG_1), Device("1", GPU_1))
    assert pool(environment | {"TUNER_GPUS": f"0,{MIG_1}"}) == (
        Device("0", MIG_0),
        Device(MIG_1, MIG_1),
    )


def test_the_names_of_one_gpu_are_recognized_as_one(tmp_path: Path) -> None:
    environment = _nvidia_smi(tmp_path, TWO)
    assert pool(environment | {"TUNER_GPUS": f"0,{GPU_0},GPU-5d5b,1"}) == (
        Device("0", GPU_0),
        Device("1", GPU_1),
    )
    assert pool(environment, ["GPU-90f1", "0"]) == (Device("GPU-90f1", GPU_1), Device("0", GPU_0))


def test_a_failing_nvidia_smi_means_no_gpus(tmp_path: Path) -> None:
    assert pool(_program(tmp_path, "echo 'No devices were found'; exit 6")) == ()


def test_a_machine_without_nvidia_smi_has_no_gpus(tmp_path: Path) -> None:
    assert pool({"PATH": str(tmp_path)}) == ()


def test_a_file_may_name_some_of_the_gpus_that_are_lent(tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path), "TUNER_GPUS": "2,3"}
    assert _ids(environment, "3", "0") == ("3",)
    assert unavailable(environment, ["3", "0"]) == ["0"]


def test_without_detected_gpus_those_of_the_file_are_used(tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path)}
    assert _ids(environment, "0", "1") == ("0", "1")
    assert unavailable(environment, ["0", "1"]) == []


def test_claims_are_in_one_place_for_every_session() -> None:
    assert folder_for({"XDG_RUNTIME_DIR": "/run/user/7"}) == folder_for({})
    assert folder_for({"TUNER_LOCK_DIR": "/locks"}) == "/locks"


@pytest.mark.parametrize(
    ("count", "gpu", "fit"),
    [
        (4, 1, 4),
        (4, 2, 2),
        (4, 3, 1),
        (4, 5, 0),
        (0, 1, 0),
        (0, 0.5, 0),
        (2, 0.5, 4),
        (2, 0.3, 6),
        (1, 0.1, 10),
        (1, 1 / 3, 3),
        (1, 0.6, 1),
    ],
)
def test_slots_are_derived_from_gpus(count: int, gpu: float, fit: int) -> None:
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
        (
            "three thirds are one",
            [(1 / 3, ["0"]), (1 / 3, ["0"]), (1, ["1"]), (1, ["2"])],
            1 / 3,
            ("0",),
        ),
        ("one that is no longer lent does not matter", [(1, ["9"])], 3, ("0", "1", "2")),
    ],
)
def test_gpus_are_assigned_to_slots(
    case: str, in_use: list[tuple[float, list[str]]], gpu: float, given: tuple[str, ...] | None
) -> None:
    assert assign(("0", "1", "2"), in_use, gpu) == given, case


@pytest.mark.parametrize(
    ("gpu", "workers", "given"),
    [(1, 2, ("1", "2")), (1, 3, None), (0.5, 4, ("1", "2", "1", "2")), (2, 1, ("1", "2"))],
)
def test_every_worker_gets_its_gpus_or_none_does(
    gpu: float, workers: int, given: tuple[str, ...] | None
) -> None:
    assert assign_all(("0", "1", "2"), [(1, ["0"])], gpu, workers) == given
