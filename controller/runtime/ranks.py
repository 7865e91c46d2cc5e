"""What the workers of a local attempt are told of each other, and what one of them that failed tells of itself. Pure.

Each is a node of its own with one process, as each pod is on a cluster (`controller.runtime.kubernetes.workers`), so
that a program, also torchrun, finds the same world in both places.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller.core.failures import INFEASIBLE_EXIT_CODE, called, class_by_itself
from controller.core.model import FailureClass
from controller.runtime.protocol import Launch

ADDRESS = "127.0.0.1"
THREADS = "OMP_NUM_THREADS"
PORT = "MASTER_PORT"  # where the file does not set it, the leader of the workers finds a free one


def world(launch: Launch, inherited: Mapping[str, str], *, cores: int) -> dict[str, str]:
    """The same for all workers; what the file sets wins. inherited: the environment that they get besides."""
    size = str(launch.workers)
    told = {
        "MASTER_ADDR": ADDRESS,
        "WORLD_SIZE": size,
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "PET_MASTER_ADDR": ADDRESS,
        "PET_NNODES": size,
        "PET_NPROC_PER_NODE": "1",
    }
    if THREADS not in inherited:
        # Each would take all cores else, and threads that wait for one that does not run spin.
        told[THREADS] = str(max(1, cores // launch.workers))
    return told | {name: value for name, value in launch.env.items() if name in told}


def workers(launch: Launch) -> list[dict[str, str]]:
    """What is each worker's own; which GPUs it gets is decided when they are free (`gpu_claims`)."""
    return [{"RANK": str(rank), "PET_NODE_RANK": str(rank)} for rank in range(launch.workers)]


def why_infeasible(end: Mapping[str, Any]) -> str:
    """What another worker than the first said of it; "": the attempt's log says it."""
    lost = end.get("lost")
    return str(lost["said"]) if lost is not None and end.get("code") == INFEASIBLE_EXIT_CODE else ""


def cause_of(end: Mapping[str, Any]) -> tuple[FailureClass, str] | None:
    """Why the attempt failed, if another worker than the first is the cause: the attempt's log does not say it."""
    lost, code = end.get("lost"), end.get("code")
    if lost is None or code in (None, 0, INFEASIBLE_EXIT_CODE):
        return None
    if end["stopped"] or end["timed_out"] or end["out_of_memory"]:
        return None
    said = f": {lost['said']}" if lost["said"] else ""
    failure_class = class_by_itself(code, lost["said"]) or FailureClass.USER_ERROR
    return failure_class, f"worker {lost['rank']} of {lost['workers']}: {called(code)}{said}"
