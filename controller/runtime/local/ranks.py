"""The environment variables of the workers of a local attempt, and the failure of one of them.
Pure.

Each worker is a node with one process, like a pod on a cluster
(`controller.runtime.kubernetes.job_builder`), so that a program, including torchrun, finds the same
environment in both places.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller.core.failures import INFEASIBLE_EXIT_CODE, class_by_itself, describe_exit_code
from controller.core.model import FailureClass
from controller.runtime.protocol import Launch

ADDRESS = "127.0.0.1"
THREADS = "OMP_NUM_THREADS"
PORT = "MASTER_PORT"  # if the file does not set it, the leader of the workers finds a free one


def world(launch: Launch, inherited: Mapping[str, str], *, cores: int) -> dict[str, str]:
    """Return the variables that are the same for all workers; those of the file take precedence.

    `inherited` is the environment that the workers inherit.
    """
    size = str(launch.workers)
    environment = {
        "MASTER_ADDR": ADDRESS,
        "WORLD_SIZE": size,
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "PET_MASTER_ADDR": ADDRESS,
        "PET_NNODES": size,
        "PET_NPROC_PER_NODE": "1",
    }
    if THREADS not in inherited:
        # Otherwise each worker would use all cores, and threads would spin while they wait for one
        # that does not run.
        environment[THREADS] = str(max(1, cores // launch.workers))
    return environment | {name: value for name, value in launch.env.items() if name in environment}


def workers(launch: Launch) -> list[dict[str, str]]:
    """Return the variables of each worker. Its GPUs are added when they are free (`gpu_claims`)."""
    return [{"RANK": str(rank), "PET_NODE_RANK": str(rank)} for rank in range(launch.workers)]


def why_infeasible(end: Mapping[str, Any]) -> str:
    """Return why a worker other than rank 0 called the parameters infeasible.

    "" if the attempt's log says it.
    """
    lost = end.get("lost")
    return str(lost["said"]) if lost is not None and end.get("code") == INFEASIBLE_EXIT_CODE else ""


def cause_of(end: Mapping[str, Any]) -> tuple[FailureClass, str] | None:
    """Return why the attempt failed if the cause is a worker other than rank 0.

    The attempt's log does not show it.
    """
    lost, code = end.get("lost"), end.get("code")
    if lost is None or code in (None, 0, INFEASIBLE_EXIT_CODE):
        return None
    if end["stopped"] or end["timed_out"] or end["out_of_memory"]:
        return None
    message = f": {lost['said']}" if lost["said"] else ""
    failure_class = class_by_itself(code, lost["said"]) or FailureClass.USER_ERROR
    return (
        failure_class,
        f"worker {lost['rank']} of {lost['workers']}: {describe_exit_code(code)}{message}",
    )
