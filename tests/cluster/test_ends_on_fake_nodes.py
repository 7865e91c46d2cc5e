"""The status of Jobs that end in every way on a real control plane is read correctly."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from controller.core.attempt import AttemptStatus, Exit
from controller.core.model import FailureClass, Resources
from controller.runtime.kubernetes.attempt_status import log_source, status_of
from controller.runtime.kubernetes.job_builder import build_objects
from tests.cluster.api import CORE, RequestRefused
from tests.cluster.controlplane import ControlPlane
from tests.cluster.objects import jobs, pods
from tests.cluster.waiting import eventually
from tests.unit.launches import a_launch


def made(level_b: ControlPlane, namespace: str, **cluster: Any) -> str:
    """Create the objects of an attempt without the runtime; return its name."""
    launch = a_launch(namespace=namespace, **cluster)
    for manifest in build_objects(launch):
        kind = (
            f"{CORE}/namespaces/{namespace}/services"
            if manifest["kind"] == "Service"
            else jobs(namespace)
        )
        level_b.api().post(kind, manifest)
    return launch.name


def look(
    level_b: ControlPlane, namespace: str, name: str, *, stopped: bool = False
) -> AttemptStatus:
    api = level_b.api()
    try:
        obj = api.get(jobs(namespace, name))
    except RequestRefused:
        obj = None
    return status_of(name, obj, api.items(pods(namespace)), stopped=stopped, now=datetime.now(UTC))


def end_of(level_b: ControlPlane, namespace: str, name: str, **how: Any) -> Exit:
    def ended() -> Exit | None:
        return look(level_b, namespace, name, **how).exit

    return eventually(ended, within_s=180)  # type: ignore[no-any-return]  # what the condition gave


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, {"code": 0}),
        ({"KWOK_EXIT": "137"}, {"failure_class": FailureClass.INFRASTRUCTURE}),
        (
            {"KWOK_EXIT": "137", "KWOK_POD_REASON": "Evicted"},
            {"failure_class": FailureClass.INFRASTRUCTURE},
        ),
    ],
)
def test_the_end_of_a_pod_becomes_the_exit_of_its_attempt(
    level_b: ControlPlane, namespace: str, env: dict[str, object], expected: dict[str, object]
) -> None:
    name = made(level_b, namespace, env={"KWOK_RUN": "200ms", **env})
    found = end_of(level_b, namespace, name)
    # a table
    assert found == Exit(found.time, reason=found.reason, **expected)  # type: ignore[arg-type]


def test_an_attempt_whose_image_cannot_be_pulled_waits_first(
    level_b: ControlPlane, namespace: str
) -> None:
    name = made(level_b, namespace, env={"KWOK_WAITING": "ImagePullBackOff"})
    waits = eventually(lambda: look(level_b, namespace, name).waiting, within_s=180)
    assert waits.startswith("ImagePullBackOff")


def test_a_pod_that_fits_no_node_waits_with_the_schedulers_message(
    level_b: ControlPlane, namespace: str
) -> None:
    name = made(level_b, namespace, resources=Resources(gpu=9))
    waits = eventually(lambda: look(level_b, namespace, name).waiting, within_s=180)
    assert "Insufficient nvidia.com/gpu" in waits


def test_workers_end_as_one_attempt_and_the_log_is_that_of_the_first(
    level_b: ControlPlane, namespace: str
) -> None:
    name = made(level_b, namespace, distributed={"workers": 2}, env={"KWOK_RUN": "200ms"})
    assert end_of(level_b, namespace, name).code == 0
    api = level_b.api()
    source = log_source(api.get(jobs(namespace, name)), api.items(pods(namespace)))
    assert source is not None
    assert source.pod.startswith(f"{name}-0-")


def test_a_deleted_pod_was_stopped_if_we_deleted_it_and_is_lost_otherwise(
    level_b: ControlPlane, namespace: str
) -> None:
    name = made(level_b, namespace, env={"KWOK_RUN": "60s"})
    eventually(lambda: look(level_b, namespace, name).start_time, within_s=180)
    for pod in level_b.api().items(pods(namespace)):
        level_b.api().delete(pods(namespace, pod["metadata"]["name"]))
    assert end_of(level_b, namespace, name, stopped=True).stopped
    assert end_of(level_b, namespace, name).failure_class is FailureClass.INFRASTRUCTURE
