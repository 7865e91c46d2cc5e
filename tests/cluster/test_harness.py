"""The test cluster without root: a test of each property that other tests rely on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.cluster.api import CORE, RequestRefused
from tests.cluster.controlplane import ControlPlane
from tests.cluster.kwok import uid_number
from tests.cluster.objects import conditions, ended, job, jobs, pod_of, pods, quota, terminated
from tests.cluster.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
INDEX = "batch.kubernetes.io/job-completion-index"


def test_a_fake_pod_with_a_gpu_runs_as_long_as_it_is_told(
    level_b: ControlPlane, namespace: str
) -> None:
    api = level_b.api()
    api.post(jobs(namespace), job("short", gpus=1, KWOK_RUN="2s"))
    api.until(jobs(namespace, "short"), ended)
    status = pod_of(api, namespace, "short")["status"]
    run = terminated({"status": status})
    assert (status["phase"], run["exitCode"], run["reason"]) == ("Succeeded", 0, "Completed")
    assert run["startedAt"] < run["finishedAt"]


@pytest.mark.parametrize(
    ("options", "exit_code", "reason", "reason_of_the_pod"),
    [
        ({"KWOK_EXIT": "3"}, 3, "Error", None),
        ({"KWOK_REASON": "OOMKilled"}, 137, "OOMKilled", None),
        ({"KWOK_POD_REASON": "Evicted"}, 137, "Error", "Evicted"),
    ],
)
def test_a_fake_pod_fails_as_it_is_told(
    level_b: ControlPlane,
    namespace: str,
    options: dict[str, str],
    exit_code: int,
    reason: str,
    reason_of_the_pod: str,
) -> None:
    api = level_b.api()
    api.post(jobs(namespace), job("bad", KWOK_RUN="100ms", **options))
    assert api.until(jobs(namespace, "bad"), ended) == {"Failed": "BackoffLimitExceeded"}
    pod = pod_of(api, namespace, "bad")
    end = terminated(pod)
    assert (end["exitCode"], end["reason"], pod["status"].get("reason")) == (
        exit_code,
        reason,
        reason_of_the_pod,
    )


def test_a_fake_pod_may_wait_forever(level_b: ControlPlane, namespace: str) -> None:
    api = level_b.api()
    api.post(jobs(namespace), job("stuck", KWOK_WAITING="ImagePullBackOff"))

    def reason() -> str | None:
        found = pod_of(api, namespace, "stuck") or {}
        status = found.get("status", {}).get("containerStatuses")
        return status and status[0]["state"]["waiting"]["reason"]

    assert eventually(reason) == "ImagePullBackOff"


def test_more_gpus_than_a_node_has_are_never_scheduled(
    level_b: ControlPlane, namespace: str
) -> None:
    api = level_b.api()
    api.post(jobs(namespace), job("greedy", gpus=9))
    pod = eventually(lambda: pod_of(api, namespace, "greedy"))["metadata"]["name"]
    conditions = api.until(pods(namespace, pod), lambda now: now["status"].get("conditions"))
    assert conditions[0]["reason"] == "Unschedulable"
    assert "Insufficient nvidia.com/gpu" in conditions[0]["message"]


def test_a_quota_refuses_the_pod_and_not_the_job(level_b: ControlPlane, namespace: str) -> None:
    api = level_b.api()
    path = f"{CORE}/namespaces/{namespace}/resourcequotas"
    api.post(path, quota("room", gpus="1"))
    api.until(f"{path}/room", lambda now: now.get("status", {}).get("hard"))
    api.post(jobs(namespace), job("first", KWOK_RUN="1h"))
    eventually(lambda: pod_of(api, namespace, "first"))
    api.post(jobs(namespace), job("second"))

    def refusals() -> list[str]:
        events = api.items(
            f"{CORE}/namespaces/{namespace}/events", fieldSelector="involvedObject.name=second"
        )
        return [event["message"] for event in events if event["reason"] == "FailedCreate"]

    assert "exceeded quota: room, requested: requests.nvidia.com/gpu=1" in eventually(refusals)[0]
    assert pod_of(api, namespace, "second") is None
    assert conditions(api.get(jobs(namespace, "second"))) == {}


def test_fake_logs_have_the_lines_and_times_of_the_file(
    level_b: ControlPlane, namespace: str
) -> None:
    api = level_b.api()
    settings = {"KWOK_RUN": "1500ms", "KWOK_LOG": "hello\n+500ms loss={n}", "KWOK_LOG_EVERY": "1s"}
    api.post(jobs(namespace), job("talks", **settings))
    name = eventually(lambda: pod_of(api, namespace, "talks"))["metadata"]["name"]
    api.until(pods(namespace, name), lambda now: now["status"]["phase"] == "Running")
    followed = list(eventually_streams(level_b, namespace, name))
    assert followed[:3] == ["hello", "loss=1", "hello"]
    assert api.get(pods(namespace, name))["status"]["phase"] == "Succeeded"
    assert api.logs(namespace, name).splitlines() == followed
    stamped = api.logs(namespace, name, timestamps="true").splitlines()
    # The API server truncates sinceTime to whole seconds before it asks the node.
    second = stamped[2].partition(".")[0]
    since = [line.partition(" ")[2] for line in stamped if line.partition(".")[0] >= second]
    assert api.logs(namespace, name, sinceTime=stamped[2].partition(" ")[0]).splitlines() == since
    assert api.logs(namespace, name, tailLines="1").splitlines() == followed[-1:]


def test_pods_of_an_indexed_job_can_be_told_apart(level_b: ControlPlane, namespace: str) -> None:
    api = level_b.api()
    settings = {
        "KWOK_LOG": "I am {uid}",
        "KWOK_LOG_1": "the other",
        "KWOK_RUN": "300ms",
        "KWOK_EXIT_1": "4",
    }
    pair = job("pair", **settings)
    pair["spec"] |= {"completions": 2, "parallelism": 2, "completionMode": "Indexed"}
    api.post(jobs(namespace), pair)
    api.until(jobs(namespace, "pair"), ended)
    found = {
        pod["metadata"]["labels"][INDEX]: pod["metadata"] for pod in api.items(pods(namespace))
    }
    output = {
        index: "\n".join(eventually_streams(level_b, namespace, pod["name"]))
        for index, pod in found.items()
    }
    assert output == {"0": f"I am {uid_number(found['0']['uid'])}", "1": "the other"}
    assert terminated(api.get(pods(namespace, found["1"]["name"])))["exitCode"] == 4


def test_a_fake_pod_crashes_as_often_as_it_is_told_and_then_ends(
    level_b: ControlPlane, namespace: str
) -> None:
    api = level_b.api()
    api.post(jobs(namespace), job("crashes", KWOK_CRASHES="2", KWOK_RUN="300ms"))
    waited = set()

    def ran_to_its_end() -> bool:
        for pod in api.items(pods(namespace)):
            for status in pod["status"].get("containerStatuses", ()):
                waited.add(status["state"].get("waiting", {}).get("reason"))
        return bool(ended(api.get(jobs(namespace, "crashes"))))

    eventually(ran_to_its_end)
    assert "CrashLoopBackOff" in waited
    assert ended(api.get(jobs(namespace, "crashes"))) == {"Complete": "CompletionsReached"}


def eventually_streams(cluster: ControlPlane, namespace: str, pod: str) -> list[str]:
    """Return the lines of a followed log.

    The log server may see that the pod runs later than the test does.
    """
    path = f"{pods(namespace, pod)}/log"

    def lines() -> list[str]:
        try:
            return list(cluster.api().stream(path, follow="true"))
        except RequestRefused:  # it waits to start
            return []

    return eventually(lines)


def test_a_service_account_has_the_rights_it_was_granted_and_no_others(
    level_b: ControlPlane, namespace: str
) -> None:
    account = level_b.api(token=level_b.service_account_token(namespace, "default"))
    with pytest.raises(RequestRefused, match="cannot list resource"):
        account.items(pods(namespace))
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    level_b.api().post(
        f"{rbac}/roles",
        {
            "metadata": {"name": "sees"},
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}],
        },
    )
    level_b.api().post(
        f"{rbac}/rolebindings",
        {
            "metadata": {"name": "sees"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "sees"},
            "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}],
        },
    )

    def sees() -> bool:
        try:
            return account.items(pods(namespace)) == []
        except RequestRefused:
            return False

    assert eventually(sees)


def test_the_api_server_restarts_on_its_port_with_its_objects(
    level_b: ControlPlane, namespace: str
) -> None:
    api = level_b.api()
    api.post(jobs(namespace), job("meanwhile", KWOK_RUN="1s"))
    level_b.stop_api_server()
    try:
        with pytest.raises(OSError, match="refused"):
            api.text("/readyz")
    finally:
        level_b.start_api_server()
    api.until(jobs(namespace, "meanwhile"), ended)


def test_a_watch_from_before_a_compaction_gets_410(level_b: ControlPlane, namespace: str) -> None:
    api = level_b.api()
    before = api.get(jobs(namespace))["metadata"]["resourceVersion"]
    level_b.compact()
    event = next(api.watch(jobs(namespace), resourceVersion=before))
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)


def test_pods_leave_a_drained_node(level_b: ControlPlane, namespace: str) -> None:
    api = level_b.api()
    (node,) = level_b.add_nodes("leaving", 1, labels={"only": namespace})
    long = job("long", KWOK_RUN="1h")
    long["spec"]["template"]["spec"]["nodeSelector"] = {"only": namespace}
    api.post(jobs(namespace), long)
    name = eventually(lambda: pod_of(api, namespace, "long"))["metadata"]["name"]
    api.until(pods(namespace, name), lambda now: now["status"]["phase"] == "Running")
    drained = [{"key": "away", "effect": "NoExecute"}]
    api.patch(f"{CORE}/nodes/{node}", {"spec": {"taints": drained, "unschedulable": True}})
    eventually(lambda: api.find(pods(namespace, name)) is None)
    api.delete(f"{CORE}/nodes/{node}")


def test_a_cluster_whose_tests_were_killed_leaves_nothing_behind(level_b: ControlPlane) -> None:
    program = (
        "from tests.cluster.controlplane import *; c = ControlPlane(); print(c.folder, "
        "*map(c.processes.pid, "
    )
    program += "c.processes.names()), flush=True); input()"
    tests = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with tests:
        assert tests.stdout is not None
        watchdog = threading.Timer(120, tests.kill)
        watchdog.start()
        folder, *pids = tests.stdout.readline().split()
        watchdog.cancel()
        assert len(pids) == 4
        tests.send_signal(signal.SIGKILL)
    eventually(lambda: not Path(folder).exists())
    assert not [pid for pid in pids if alive(int(pid))]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
