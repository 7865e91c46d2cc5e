"""Every connection between the tuner and a cluster broken during a run:
what a user sees, and what is left.

One test for each row about clusters in docs/faults.md, on a real control plane with fake containers
(kwok). Tests that take too long to run on every change are marked `soak`.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.core.model import attempt_name
from tests.cluster.api import BATCH, CORE, Api
from tests.cluster.controlplane import ControlPlane
from tests.cluster.jobset import define
from tests.cluster.kwok import GPU
from tests.cluster.objects import job, jobs, pods, quota
from tests.cluster.searcher import Searcher
from tests.cluster.waiting import eventually

RIGHTS = Path(__file__).resolve().parents[2] / "deploy" / "rbac.yaml"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
SEED = random.randrange(1 << 30)
# The failpoints that a search passes repeatedly; tests/e2e covers all of them.
REACHED = (
    "controller.store.save",
    "study.suggest",
    "study.complete",
    "runtime.start",
    "runtime.remove",
    "cluster.note",
    "cluster.delete",
    "store.hand_out",
    "store.finish_trial",
)


@pytest.fixture
def api(level_b: ControlPlane) -> Api:
    return level_b.api()


@pytest.fixture
def tenant(level_b: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Searcher]:
    """A user with the rights of deploy/rbac.yaml and no others."""
    for document in yaml.safe_load_all(
        RIGHTS.read_text(encoding="utf-8").replace("user1", namespace)
    ):
        level_b.api().post(_rights(namespace, document["kind"]), document)
    token = level_b.service_account_token(namespace, "tuner")
    person = Searcher(
        tmp_path, level_b.kubeconfig("tuner", namespace=namespace, token=token), namespace
    )
    yield person
    person.close()


def _rights(namespace: str, kind: str, name: str = "") -> str:
    root = (
        f"{CORE}/namespaces/{namespace}"
        if kind == "ServiceAccount"
        else f"{RBAC}/namespaces/{namespace}"
    )
    return f"{root}/{kind.lower()}s" + (f"/{name}" if name else "")


def names(api: Api, namespace: str) -> list[str]:
    return sorted(found["metadata"]["name"] for found in api.items(jobs(namespace)))


def running(api: Api, namespace: str, count: int = 1) -> list[dict[str, Any]]:
    """Return this many pods once they run."""

    def run() -> list[dict[str, Any]]:
        found = [pod for pod in api.items(pods(namespace)) if pod["status"]["phase"] == "Running"]
        return found if len(found) >= count else []

    return eventually(run, within_s=180, shows=lambda: api.items(pods(namespace)))


def history(person: Searcher) -> list[list[str]]:
    """Return how the attempts of each trial ended."""
    trials = person.trials()
    # shown if the test fails
    print(*(attempt for trial in trials for attempt in trial["attempts"]), sep="\n")
    return [
        [attempt.get("failureClass") or attempt["state"] for attempt in trial["attempts"]]
        for trial in trials
    ]


def told(person: Searcher, words: str) -> str:
    """Return the line of `describe` with this text, once there is one."""

    def found() -> str:
        code, out, _ = person.tuner("describe", "tiny")
        return next((line for line in out.splitlines() if code == 0 and words in line), "")

    return eventually(
        found, every_s=0.2, within_s=180, shows=lambda: person.tuner("describe", "tiny")
    )


def kueue_definition(plural: str, kind: str) -> dict[str, Any]:
    """Return the minimal definition that lets the server store objects of Kueue's kinds."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.kueue.x-k8s.io"},
        "spec": {
            "group": "kueue.x-k8s.io",
            "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind},
            "versions": [{"name": "v1beta1", "served": True, "storage": True, "schema": schema}],
        },
    }


def finish(process: Any, within_s: float = 120) -> tuple[int, str]:
    _, err = process.communicate(timeout=within_s)
    return process.returncode, err


# The API server


def test_a_watch_whose_history_was_compacted_lists_again(
    level_b: ControlPlane, api: Api, me: Searcher
) -> None:
    process = me.start("run", me.file(trials=8, spec="  parallelism: 2\n", env={"KWOK_RUN": "1s"}))
    running(api, me.namespace)
    level_b.compact()
    code, err = finish(process)
    assert code == 0, err
    assert history(me) == [["succeeded"]] * 8
    assert names(api, me.namespace) == []


@pytest.mark.parametrize("outage_s", [4, pytest.param(20, marks=pytest.mark.soak)])
def test_an_outage_of_the_api_server_is_waited_out(
    level_b: ControlPlane, api: Api, me: Searcher, outage_s: int
) -> None:
    process = me.start("run", me.file(trials=8, spec="  parallelism: 4\n", env={"KWOK_RUN": "3s"}))
    running(api, me.namespace)
    level_b.stop_api_server()
    time.sleep(outage_s)
    level_b.start_api_server()
    code, err = finish(process)
    assert code == 0, err
    assert outage_s < 20 or "waiting: " in err
    assert history(me) == [["succeeded"]] * 8


# Nodes


def test_a_drained_nodes_trial_runs_again_elsewhere(api: Api, me: Searcher) -> None:
    process = me.start("run", me.file(trials=1, env={"KWOK_RUN": "4s"}))
    (pod,) = running(api, me.namespace)
    node = pod["spec"]["nodeName"]
    api.patch(
        f"{CORE}/nodes/{node}", {"spec": {"taints": [{"key": "drained", "effect": "NoExecute"}]}}
    )
    try:
        code, err = finish(process)
    finally:
        api.patch(f"{CORE}/nodes/{node}", {"spec": {"taints": []}})
    assert code == 0, err
    assert history(me) == [["infrastructure", "succeeded"]]
    first, second = me.trials()[0]["attempts"]
    assert first["node"] == node != second["node"]
    assert "taint" in first["reason"]


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_trial_of_a_lost_node_runs_again_elsewhere(
    level_b: ControlPlane, api: Api, me: Searcher
) -> None:
    both = level_b.add_nodes("mortal", 2, labels={"mortal": "yes"})
    # A fake pod would succeed without its node: it must run for longer
    # than the cluster takes to give it up.
    path = me.file(trials=1, env={"KWOK_RUN": "90s"}, trial="    nodeSelector: {mortal: 'yes'}\n")
    process = me.start("run", path)
    (pod,) = running(api, me.namespace)
    node = pod["spec"]["nodeName"]
    api.delete(f"{CORE}/nodes/{node}")
    code, err = finish(process, within_s=400)
    for name in both:
        api.delete(f"{CORE}/nodes/{name}")
    assert code == 0, err
    assert history(me) == [["infrastructure", "succeeded"]]
    first, second = me.trials()[0]["attempts"]
    assert [first["node"], {first["node"], second["node"]}] == [node, set(both)]


def test_a_trial_whose_pod_was_evicted_through_the_api_runs_again(api: Api, me: Searcher) -> None:
    process = me.start("run", me.file(trials=1, env={"KWOK_RUN": "3s"}))
    (pod,) = running(api, me.namespace)
    about = {"name": pod["metadata"]["name"], "namespace": me.namespace}
    api.post(pods(me.namespace, about["name"]) + "/eviction", {"metadata": about})
    code, err = finish(process)
    assert code == 0, err
    assert history(me) == [["infrastructure", "succeeded"]]
    assert "evict" in me.trials()[0]["attempts"][0]["reason"].lower()


# Room


def test_a_smaller_quota_keeps_running_trials_and_a_larger_one_admits_more(
    api: Api, me: Searcher
) -> None:
    room = f"{CORE}/namespaces/{me.namespace}/resourcequotas"
    api.post(room, quota("gpus", gpus="2"))
    process = me.start("run", me.file(trials=6, spec="  parallelism: 4\n", env={"KWOK_RUN": "3s"}))
    running(api, me.namespace, 2)
    api.patch(f"{room}/gpus", {"spec": {"hard": {f"requests.{GPU}": "1"}}})
    told(me, "QuotaExceeded: requests.nvidia.com/gpu")
    eventually(lambda: len(alive(api, me.namespace)) == 1)
    api.patch(f"{room}/gpus", {"spec": {"hard": {f"requests.{GPU}": "4"}}})
    running(api, me.namespace, 3)
    code, err = finish(process)
    assert code == 0, err
    assert history(me) == [["succeeded"]] * 6


def alive(api: Api, namespace: str) -> list[dict[str, Any]]:
    return [
        pod
        for pod in api.items(pods(namespace))
        if pod["status"]["phase"] in ("Pending", "Running")
    ]


def test_a_quota_reduced_to_zero_makes_trials_wait_and_not_fail(api: Api, me: Searcher) -> None:
    room = f"{CORE}/namespaces/{me.namespace}/resourcequotas"
    api.post(room, quota("gpus", gpus="1"))
    process = me.start("run", me.file(trials=3, env={"KWOK_RUN": "1s"}))
    running(api, me.namespace)
    api.patch(f"{room}/gpus", {"spec": {"hard": {f"requests.{GPU}": "0"}}})
    told(me, "QuotaExceeded")
    eventually(lambda: not alive(api, me.namespace))
    api.patch(f"{room}/gpus", {"spec": {"hard": {f"requests.{GPU}": "1"}}})
    code, err = finish(process)
    assert code == 0, err
    assert history(me) == [["succeeded"]] * 3


def test_a_job_refused_by_a_quota_waits_even_without_the_right_to_read_quotas(
    api: Api, tenant: Searcher
) -> None:
    role = _rights(tenant.namespace, "Role", "tuner")
    rules = [rule for rule in api.get(role)["rules"] if "resourcequotas" not in rule["resources"]]
    api.patch(role, {"rules": rules})
    api.post(f"{CORE}/namespaces/{tenant.namespace}/resourcequotas", quota("few", jobs="1"))
    process = tenant.start(
        "run", tenant.file(trials=3, spec="  parallelism: 2\n", env={"KWOK_RUN": "2s"})
    )
    line = told(tenant, "QuotaExceeded")
    code, err = finish(process)
    assert code == 0, err
    assert "count/jobs.batch" in line
    assert history(tenant) == [["succeeded"]] * 3


@pytest.mark.parametrize(
    ("kind", "made", "words"),
    [
        (
            "limitranges",
            {"spec": {"limits": [{"type": "Pod", "max": {"memory": "1Gi"}}]}},
            "a limit of memory",
        ),
        (
            "limitranges",
            {"spec": {"limits": [{"type": "Container", "maxLimitRequestRatio": {"cpu": "2"}}]}},
            "LimitRange room requires a limit of cpu",
        ),
        ("resourcequotas", {"spec": {"hard": {"limits.cpu": "8"}}}, "quota room counts limits.cpu"),
    ],
)
def test_a_request_that_the_namespace_requires_and_the_file_lacks_is_reported_before_anything_runs(
    api: Api, me: Searcher, kind: str, made: dict[str, Any], words: str
) -> None:
    api.post(f"{CORE}/namespaces/{me.namespace}/{kind}", {"metadata": {"name": "room"}, **made})
    eventually(
        lambda: (
            kind != "resourcequotas"
            or api.get(f"{CORE}/namespaces/{me.namespace}/{kind}/room").get("status")
        )
    )
    code, _, err = me.tuner("run", me.file(trials=4))
    assert code in (2, 8), err
    assert words in err
    assert names(api, me.namespace) == []


# Changes by other users


def test_a_namespace_deleted_during_a_run_ends_it_with_that_reason(api: Api, me: Searcher) -> None:
    process = me.start("run", me.file(trials=8, spec="  parallelism: 2\n", env={"KWOK_RUN": "20s"}))
    running(api, me.namespace, 2)
    api.delete(f"{CORE}/namespaces/{me.namespace}")
    code, err = finish(process, within_s=180)
    assert code == 8, err
    assert (
        f"namespace {me.namespace} is being deleted" in err
        or f'namespaces "{me.namespace}" not found' in err
    )


def test_after_its_anchor_is_deleted_an_experiment_creates_another_and_retries(
    api: Api, me: Searcher
) -> None:
    process = me.start("run", me.file(trials=3, env={"KWOK_RUN": "2s"}))
    running(api, me.namespace)
    anchors = f"{CORE}/namespaces/{me.namespace}/configmaps"
    (anchor,) = api.items(anchors, labelSelector="tuner.dev/experiment=tiny")
    api.delete(f"{anchors}/{anchor['metadata']['name']}", propagationPolicy="Background")
    code, err = finish(process)
    assert code == 0, err
    assert history(me) == [["infrastructure", "succeeded"], ["succeeded"], ["succeeded"]]
    assert anchor["metadata"]["uid"] not in [each["metadata"]["uid"] for each in api.items(anchors)]


def test_revoked_rights_end_the_controller_and_a_resumed_one_continues_once_they_are_restored(
    api: Api, tenant: Searcher
) -> None:
    process = tenant.start(
        "run", tenant.file(trials=6, spec="  parallelism: 2\n", env={"KWOK_RUN": "4s"})
    )
    running(api, tenant.namespace, 2)
    binding = api.get(_rights(tenant.namespace, "RoleBinding", "tuner"))
    api.delete(_rights(tenant.namespace, "RoleBinding", "tuner"))
    code, err = finish(process, within_s=180)
    assert code == 4, err
    assert "the missing rule: - {apiGroups: [" in err
    left = names(api, tenant.namespace)
    assert left, "what ran continues"
    fresh = {key: binding[key] for key in ("roleRef", "subjects")} | {"metadata": {"name": "tuner"}}
    api.post(_rights(tenant.namespace, "RoleBinding"), fresh)
    code, _, err = tenant.tuner("resume", "tiny")
    assert code == 0, err
    assert history(tenant) == [["succeeded"]] * 6
    assert names(api, tenant.namespace) == []


@pytest.mark.soak
def test_a_revoked_right_to_create_is_named_and_running_trials_continue(
    api: Api, tenant: Searcher
) -> None:
    process = tenant.start("run", tenant.file(trials=3, env={"KWOK_RUN": "3s"}))
    running(api, tenant.namespace)
    role = _rights(tenant.namespace, "Role", "tuner")
    rules = api.get(role)["rules"]
    less = [
        {**rule, "verbs": [verb for verb in rule["verbs"] if verb != "create"]} for rule in rules
    ]
    api.patch(role, {"rules": less})
    code, err = finish(process, within_s=180)
    assert code == 4, err
    assert "the missing rule: - {apiGroups: [batch], resources: [jobs], verbs: [create]}" in err
    api.patch(role, {"rules": rules})
    code, _, err = tenant.tuner("resume", "tiny")
    assert code == 0, err
    assert history(tenant) == [["succeeded"]] * 3


def test_no_value_is_lost_when_the_right_to_read_logs_is_revoked(
    api: Api, tenant: Searcher
) -> None:
    process = tenant.start(
        "run", tenant.file(trials=3, spec="  parallelism: 2\n", env={"KWOK_RUN": "3s"})
    )
    running(api, tenant.namespace, 2)
    role = _rights(tenant.namespace, "Role", "tuner")
    rules = api.get(role)["rules"]
    api.patch(role, {"rules": [rule for rule in rules if "pods/log" not in rule["resources"]]})
    code, err = finish(process, within_s=180)
    assert code == 4, err
    assert 'the missing rule: - {apiGroups: [""], resources: [pods/log], verbs: [get]}' in err
    api.patch(role, {"rules": rules})
    code, _, err = tenant.tuner("resume", "tiny")
    assert code == 0, err
    assert history(tenant) == [["succeeded"]] * 3


@pytest.mark.soak
def test_revoked_credentials_end_the_controller_and_running_trials_continue(
    level_b: ControlPlane, api: Api, tenant: Searcher
) -> None:
    process = tenant.start("run", tenant.file(trials=4, env={"KWOK_RUN": "8s"}))
    running(api, tenant.namespace)
    account = f"{CORE}/namespaces/{tenant.namespace}/serviceaccounts"
    api.delete(f"{account}/tuner")  # the server caches tokens for about ten seconds
    code, err = finish(process, within_s=180)
    assert code == 4, err
    assert "does not accept the credentials" in err
    assert names(api, tenant.namespace), "what ran continues"
    api.post(account, {"metadata": {"name": "tuner"}})
    level_b.kubeconfig(
        "tuner",
        namespace=tenant.namespace,
        token=level_b.service_account_token(tenant.namespace, "tuner"),
    )
    code, _, err = tenant.tuner("resume", "tiny")
    assert code == 0, err
    assert history(tenant) == [["succeeded"]] * 4


def test_a_foreign_job_with_the_name_of_an_attempt_is_reported_and_not_changed(
    api: Api, me: Searcher
) -> None:
    room = f"{CORE}/namespaces/{me.namespace}/resourcequotas"
    api.post(room, quota("gpus", gpus="1"))
    api.post(jobs(me.namespace), job("other", KWOK_RUN="600s"))
    running(api, me.namespace)
    # The cluster counts pods that were there before the quota a moment later.
    api.until(f"{room}/gpus", lambda found: "1" in found.get("status", {}).get("used", {}).values())
    process = me.start("run", me.file(trials=2))
    told(me, "QuotaExceeded")
    name = attempt_name("tiny", me.json("get", "experiments")[0]["uid"], 0, 1)
    stranger = job(name, gpus=0)
    stranger["spec"]["suspend"] = True
    api.post(jobs(me.namespace), stranger)
    before = api.until(jobs(me.namespace, name), lambda found: found.get("status") and found)
    api.delete(jobs(me.namespace, "other"), propagationPolicy="Background")
    code, err = finish(process)
    assert code == 8, err
    assert f"has a Job {name} that is not of this experiment; delete it" in err
    assert api.get(jobs(me.namespace, name)) == before


def test_a_job_suspended_by_kueue_waits_until_it_is_admitted(api: Api, me: Searcher) -> None:
    for plural, kind in (("workloads", "Workload"), ("localqueues", "LocalQueue")):
        define(api, kueue_definition(plural, kind))
    kueue = {"apiVersion": "kueue.x-k8s.io/v1beta1"}
    path = f"/apis/kueue.x-k8s.io/v1beta1/namespaces/{me.namespace}"
    api.post(
        f"{path}/localqueues",
        kueue | {"kind": "LocalQueue", "metadata": {"name": "team-a"}, "spec": {}},
    )
    process = me.start(
        "run", me.file(trials=2, spec="  parallelism: 2\n", trial="    queue: team-a\n")
    )
    held = eventually(
        lambda: names(api, me.namespace) if len(names(api, me.namespace)) == 2 else []
    )
    told(me, "queued by Kueue (queue team-a)")
    for name in held:
        uid = api.get(jobs(me.namespace, name))["metadata"]["uid"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid}
        pending = {
            "type": "QuotaReserved",
            "status": "False",
            "reason": "Pending",
            "message": "no quota left",
        }
        about = {"name": name, "ownerReferences": [owner]}
        workload = {
            "kind": "Workload",
            "metadata": about,
            "spec": {},
            "status": {"conditions": [pending]},
        }
        api.post(f"{path}/workloads", kueue | workload)
    told(me, "queued by Kueue (queue team-a): no quota left")
    assert api.items(pods(me.namespace)) == []
    for name in held:
        api.patch(jobs(me.namespace, name), {"spec": {"suspend": False}})
    code, err = finish(process)
    assert code == 0, err
    assert history(me) == [["succeeded"]] * 2


# Trials that end, hang or are refused


@pytest.mark.parametrize(
    ("env", "state", "failure_class", "words"),
    [
        ({"KWOK_EXIT": "3"}, "failed", "userError", "exit code 3"),
        ({"KWOK_EXIT": "137", "KWOK_REASON": "OOMKilled"}, "failed", "outOfMemory", "memory"),
        ({"KWOK_EXIT": "42"}, "infeasible", None, ""),
        ({"KWOK_LOG": "nothing"}, "failed", "metricsMissing", "no line of its log"),
    ],
)
def test_the_end_of_a_pod_determines_the_failure_class(
    me: Searcher, env: dict[str, str], state: str, failure_class: str | None, words: str
) -> None:
    code, _, err = me.tuner("run", me.file(trials=1, env=env))
    assert code == 3, err
    (trial,) = me.trials()
    assert trial["state"] == state
    assert trial["attempts"][0].get("failureClass") == failure_class
    assert words in trial["reason"]


def test_a_job_deleted_by_hand_is_run_again_as_the_next_attempt(api: Api, me: Searcher) -> None:
    process = me.start("run", me.file(trials=2, env={"KWOK_RUN": "2s"}))
    running(api, me.namespace)
    (name,) = names(api, me.namespace)
    api.delete(jobs(me.namespace, name), propagationPolicy="Background")
    code, err = finish(process)
    assert code == 0, err
    assert history(me) == [["infrastructure", "succeeded"], ["succeeded"]]
    assert "deleted" in me.trials()[0]["attempts"][0]["reason"]


def test_a_hanging_trial_ends_at_its_timeout(api: Api, me: Searcher) -> None:
    code, _, err = me.tuner(
        "run", me.file(trials=1, env={"KWOK_RUN": "120s"}, trial="    timeout: 2s\n")
    )
    assert code == 3, err
    assert history(me) == [["timeout"]]
    assert "its timeout of 2 s" in me.trials()[0]["reason"]
    assert names(api, me.namespace) == []


def test_a_timeout_that_expires_without_a_controller_is_enforced_by_the_next_one(
    api: Api, me: Searcher
) -> None:
    process = me.start(
        "run", me.file(trials=1, env={"KWOK_RUN": "120s"}, trial="    timeout: 3s\n")
    )
    running(api, me.namespace)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    time.sleep(4)
    code, _, err = me.tuner("resume", "tiny")
    assert code == 3, err
    assert history(me) == [["timeout"]]
    assert names(api, me.namespace) == []


def test_a_pod_that_pod_security_refuses_pauses_the_experiment_with_the_message(
    api: Api, me: Searcher
) -> None:
    api.patch(
        f"{CORE}/namespaces/{me.namespace}",
        {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}},
    )
    template = {
        "apiVersion": BATCH.removeprefix("/apis/"),
        "kind": "Job",
        "spec": {
            "backoffLimit": 0,
            "template": {
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [
                        {
                            "name": "trial",
                            "image": "tiny:1",
                            "env": [{"name": "X", "value": "${x}"}],
                        }
                    ],
                }
            },
        },
    }
    path = me.file(trials=4)
    document = yaml.safe_load(path.read_text())
    document["spec"]["trial"] = {"template": template}
    path.write_text(yaml.safe_dump(document))
    code, _, err = me.tuner("run", path)
    assert code == 8, err
    assert "the namespace's pod security profile does not allow it" in err
    assert "allowPrivilegeEscalation" in err


# The controller


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kills", "trials"), [(5, 20), pytest.param(20, 60, marks=pytest.mark.soak)]
)
def test_a_controller_killed_at_random_moments_loses_and_repeats_nothing(
    api: Api, me: Searcher, kills: int, trials: int
) -> None:
    path = me.file(trials=trials, spec="  parallelism: 4\n", env={"KWOK_RUN": "700ms"})
    code, err = me.killed(path, times=kills, moments=random.Random(SEED), least_s=0.5)
    assert code == 0, (SEED, err)
    assert [trial["number"] for trial in me.trials()] == list(range(trials)), SEED
    assert history(me) == [["succeeded"]] * trials, SEED
    assert names(api, me.namespace) == [], SEED


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_controller_killed_at_every_named_write_and_call_loses_and_repeats_nothing(
    api: Api, me: Searcher
) -> None:
    code, out, _ = me.tuner("debug", "failpoints")
    assert code == 0
    path = me.file(trials=40, spec="  parallelism: 3\n", env={"KWOK_RUN": "300ms"})
    points = [point for point in out.split() if point.rpartition(".")[0] in REACHED]
    assert len(points) == 2 * len(REACHED)
    for point in points:
        me.env["TUNER_FAILPOINT"] = point
        code, _, err = me.tuner("run", path)
        assert code == -signal.SIGKILL, (point, err)
    del me.env["TUNER_FAILPOINT"]
    code, _, err = me.tuner("run", path)
    assert code == 0, err
    assert history(me) == [["succeeded"]] * 40
    assert names(api, me.namespace) == []
