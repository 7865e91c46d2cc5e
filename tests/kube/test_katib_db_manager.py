"""Katib's DBManager of the cluster: who reads which values, and that nobody writes any."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from controller.kube.client import KubernetesClient
from controller.operator.db_manager import Peers
from controller.runtime.kubernetes.labels import COLLECTOR_CONTAINER
from suggest.errors import PermissionDenied
from suggest.katib.v1beta1 import api_pb2 as pb
from tests.katib_stubs import DBManagerStub
from tests.kube.fake_api import FakeApi, kubeconfig_of
from tests.kube.fake_kubelet import Script
from tests.kube.operated import NAMESPACE
from tests.kube.test_katib_in_the_cluster import (
    CURVE,
    FOREVER,
    KatibInstallation,
    katib,
    on_katibs_cluster,
)

AT_ONCE = Script(lines=("score=0.2", "score=0.4"), forever=True)


async def asked(
    installed: KatibInstallation, trial: str, **fields: str
) -> list[tuple[str, str, str]]:
    """Return metric, value and time stamp of each line, as Katib's SDK gets them."""
    async with grpc.aio.insecure_channel(f"localhost:{installed.db_manager_port}") as channel:
        request = pb.GetObservationLogRequest(trial_name=trial, **fields)
        reply = await DBManagerStub(channel).GetObservationLog(request, timeout=20)
    lines = reply.observation_log.metric_logs
    return [(each.metric.name, each.metric.value, each.time_stamp) for each in lines]


async def values(installed: KatibInstallation, trial: str, **fields: str) -> list[tuple[str, str]]:
    return [(metric, value) for metric, value, _ in await asked(installed, trial, **fields)]


async def one_trial(installed: KatibInstallation) -> str:
    """Run an experiment of one trial to its end, and return the trial's name."""
    resource = katib(maxTrialCount=1, parallelTrialCount=1)
    resource["spec"]["objective"]["additionalMetricNames"] = ["loss"]
    installed.apply(resource)
    await installed.until_last("Succeeded")
    (trial,) = installed.trials
    return str(trial["metadata"]["name"])


@on_katibs_cluster(CURVE)
async def test_all_values_of_a_log_are_there_in_their_order(installed: KatibInstallation) -> None:
    trial = await one_trial(installed)
    both = await values(installed, trial)
    assert [value for metric, value in both if metric == "score"] == ["0.2", "0.9", "0.5"]
    assert [value for metric, value in both if metric == "loss"] == ["3", "2", "1"]


@on_katibs_cluster(CURVE)
async def test_a_metric_and_an_interval_select_values(installed: KatibInstallation) -> None:
    trial = await one_trial(installed)
    scores = await asked(installed, trial, metric_name="score")
    times = [time for _, _, time in scores]
    assert times == sorted(set(times))
    last_two = await values(installed, trial, metric_name="score", start_time=times[1])
    assert last_two == [("score", "0.9"), ("score", "0.5")]
    assert await values(installed, trial, end_time="2001-01-01T00:00:00Z") == []


@on_katibs_cluster(AT_ONCE)
async def test_values_of_a_running_trial_are_there(installed: KatibInstallation) -> None:
    installed.apply(katib(maxTrialCount=1, parallelTrialCount=1))
    await installed.until(lambda: installed.trials)
    (trial,) = installed.trials
    wanted = [("score", "0.2"), ("score", "0.4")]
    while await values(installed, trial["metadata"]["name"]) != wanted:
        pass  # each answer takes a turn of the controller's loop; the test ends after its timeout


@on_katibs_cluster(AT_ONCE)
async def test_a_trial_that_runs_again_has_its_values_under_its_new_name(
    installed: KatibInstallation,
) -> None:
    resource = katib(maxTrialCount=1, parallelTrialCount=1)
    resource["spec"]["trialTemplate"]["retain"] = True
    installed.apply(resource)
    await installed.until(lambda: installed.trials)
    name = str(installed.jobs[0]["metadata"]["name"])
    installed.api.remove("jobs", NAMESPACE, name)
    while await values(installed, f"{name}-r2") != [("score", "0.2"), ("score", "0.4")]:
        pass  # see above


@on_katibs_cluster()
async def test_reports_of_a_trial_that_no_controller_sees_are_there_after_a_restart(
    installed: KatibInstallation,
) -> None:
    kubelet = installed.api.kubelet
    kubelet.play(lambda _job: None)
    resource = katib(maxTrialCount=1, parallelTrialCount=1)
    resource["spec"]["metricsCollectorSpec"] = {"collector": {"kind": "Push"}}
    installed.apply(resource)
    await installed.until(lambda: installed.jobs)
    trial = str(installed.jobs[0]["metadata"]["name"])
    pod = NAMESPACE, kubelet.make_pod(NAMESPACE, trial)
    kubelet.start(pod)
    kubelet.print(pod, '{"score": 0.2}', container=COLLECTOR_CONTAINER)
    while await values(installed, trial) != [("score", "0.2")]:
        pass  # see above

    await installed.stop()
    # As the sidecar does, which answers a report once it has printed it.
    kubelet.print(pod, '{"score": 0.9}', container=COLLECTOR_CONTAINER)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await values(installed, trial)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    kubelet.print(pod, '{"score": 0.5}', container=COLLECTOR_CONTAINER)
    kubelet.end(pod, sidecars_too=False)
    kubelet.end_sidecars(pod)
    kubelet.finish_job(NAMESPACE, trial)

    installed.start()
    await installed.until_last("Succeeded")
    assert await values(installed, trial) == [("score", "0.2"), ("score", "0.9"), ("score", "0.5")]
    optimum = installed.whole()["currentOptimalTrial"]["observation"]["metrics"][0]
    assert (optimum["max"], optimum["latest"]) == ("0.9", "0.5")


@on_katibs_cluster(CURVE)
async def test_a_deleted_experiment_has_no_values(installed: KatibInstallation) -> None:
    trial = await one_trial(installed)
    installed.delete()
    await installed.until(lambda: not installed.trials)
    # Its study is deleted once nothing runs any more.
    while await values(installed, trial) != []:
        pass  # see above


@pytest.mark.parametrize("name", ["", "tiny", "-", "tiny-xaaaa-0", "tiny-xaaaa-١", "a" * 9000])
def test_an_unknown_trial_has_no_values(name: str, tmp_path: Path) -> None:
    @on_katibs_cluster(FOREVER)
    async def claim(installed: KatibInstallation) -> None:
        await installed.until(lambda: installed.serves)
        assert await values(installed, name) == []

    claim(tmp_path)


@on_katibs_cluster(CURVE)
async def test_nobody_reports_or_deletes_values(installed: KatibInstallation) -> None:
    trial = await one_trial(installed)
    line = pb.MetricLog(
        time_stamp="2026-01-02T03:04:05Z", metric=pb.Metric(name="score", value="99")
    )
    log = pb.ObservationLog(metric_logs=[line])
    before = await asked(installed, trial)
    async with grpc.aio.insecure_channel(f"localhost:{installed.db_manager_port}") as channel:
        stub = DBManagerStub(channel)
        for call, request in (
            (
                stub.ReportObservationLog,
                pb.ReportObservationLogRequest(trial_name=trial, observation_log=log),
            ),
            (stub.DeleteObservationLog, pb.DeleteObservationLogRequest(trial_name=trial)),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(request, timeout=20)
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
            assert "in its own pod" in str(refused.value.details())
    assert await asked(installed, trial) == before


@on_katibs_cluster(CURVE)
async def test_a_time_that_is_none_is_named(installed: KatibInstallation) -> None:
    await installed.until(lambda: installed.serves)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await asked(installed, "tiny", start_time="yesterday")
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "start_time: 'yesterday' is not a time" in str(refused.value.details())


# Who asks


def pod(name: str, namespace: str, address: str, **status: object) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"containers": []},
        "status": {"podIP": address, "phase": "Running", **status},
    }


PODS = (
    pod("mine", NAMESPACE, "10.1.0.1"),
    pod("before", NAMESPACE, "10.1.0.2", phase="Succeeded"),
    pod("after", "user2", "10.1.0.2"),
    {**pod("node", "user2", "10.0.0.1"), "spec": {"containers": [], "hostNetwork": True}},
    pod("six", "user2", "fd00::7"),
)


def namespace_of(peer: str, *namespaces: str) -> str | None:
    async def main() -> str | None:
        async with FakeApi() as api:
            api.put("namespaces", {"metadata": {"name": "user2"}})
            for each in PODS:
                api.put("pods", each)
            with kubeconfig_of(api.kubeconfig()):
                async with await KubernetesClient.connect() as client:
                    return await Peers(client, namespaces).namespace_of(peer)

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("peer", "namespace"),
    [
        ("ipv4:10.1.0.1:4711", NAMESPACE),
        ("ipv6:%5B::ffff:10.1.0.1%5D:4711", NAMESPACE),
        ("ipv4:10.1.0.2:4711", "user2"),  # the address of a pod that has ended
        ("ipv6:%5Bfd00::7%5D:4711", "user2"),
        ("ipv4:127.0.0.1:4711", None),
        ("ipv6:%5B::1%5D:4711", None),
    ],
)
def test_the_address_of_a_pod_says_whose_values_it_reads(peer: str, namespace: str | None) -> None:
    assert namespace_of(peer) == namespace


@pytest.mark.parametrize("peer", ["ipv4:10.0.0.1:4711", "ipv4:10.9.9.9:4711"])
def test_who_is_no_pod_or_shares_the_address_of_its_node_reads_nothing(peer: str) -> None:
    with pytest.raises(PermissionDenied, match="no pod has the address 10"):
        namespace_of(peer)


def test_a_controller_of_some_namespaces_knows_only_their_pods() -> None:
    assert namespace_of("ipv4:10.1.0.2:4711", NAMESPACE, "user2") == "user2"
    with pytest.raises(PermissionDenied):
        namespace_of("ipv4:10.1.0.2:4711", NAMESPACE)


def test_a_pod_of_another_namespace_reads_no_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @on_katibs_cluster(CURVE)
    async def claim(installed: KatibInstallation) -> None:
        trial = await one_trial(installed)
        asks = NAMESPACE

        async def namespace_of(_self: Peers, _peer: str) -> str:
            return asks

        monkeypatch.setattr(Peers, "namespace_of", namespace_of)
        assert await values(installed, trial) != []
        asks = "user2"
        assert await values(installed, trial) == []

    claim(tmp_path)
