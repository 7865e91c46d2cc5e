"""The operators beside the test cluster: a test of each property that the other tests rely on."""

from __future__ import annotations

import pytest

from tests.cluster.api import Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.objects import conditions, pods
from tests.cluster.waiting import eventually
from tests.operators.kinds import KINDS, QUEUED, Kind
from tests.operators.operators import Operators
from tests.operators.queues import LOCAL_QUEUE, QUEUE_LABEL, add_queue

SHORT = {"KWOK_RUN": "300ms"}


def an_object(kind: Kind, **labels: str) -> Object:
    made = kind.template(SHORT, SHORT, "Never")
    return {**made, "metadata": {"name": "one", "labels": labels}}


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_kind_runs_to_its_end(cluster: ControlPlane, namespace: str, kind: Kind) -> None:
    api = cluster.api()
    api.post(kind.objects(namespace), an_object(kind))
    found = eventually(lambda: api.items(pods(namespace)))
    api.until(kind.objects(namespace, "one"), lambda now: kind.success in conditions(now))
    assert sum(kind.is_main(pod) for pod in found) <= 1
    api.delete(kind.objects(namespace, "one") + "?propagationPolicy=Background")


@pytest.mark.parametrize("kind", QUEUED, ids=str)
def test_kueue_admits_every_kind_that_it_takes(
    cluster: ControlPlane, namespace: str, kind: Kind
) -> None:
    api = cluster.api()
    add_queue(api, namespace, gpus=2)
    api.post(kind.objects(namespace), an_object(kind, **{QUEUE_LABEL: LOCAL_QUEUE}))
    api.until(kind.objects(namespace, "one"), lambda now: kind.success in conditions(now))


@pytest.mark.parametrize("name", ["kueue", "jobset", "training-operator", "trainer"])
def test_a_killed_operator_serves_again_after_a_restart(fakes: Operators, name: str) -> None:
    fakes.restart(name)
    fakes.cluster.processes.check()
