"""What ties a runtime to what is on the cluster: nothing is kept of what is over, what stands
there is adopted only if it is the same attempt, and the log follows whichever pod speaks for it.
On a small API server in this process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized
from pathlib import Path
from typing import Any

import pytest

from controller.core.model import FailureClass
from controller.runtime.kubernetes import admission, logs, records
from controller.runtime.kubernetes.job_builder import build_objects
from controller.runtime.kubernetes.records import Records
from controller.runtime.kubernetes.runtime import KubernetesRuntime
from controller.runtime.protocol import Launch
from tests.kube.experiment import NAMESPACE, Experiment, ended, look, look_until, on_a_loop, running
from tests.kube.fake_kubelet import Script, stamp

Raw = dict[str, Any]

FOREVER = Script(forever=True)
JOB: Raw = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "spec": {
        "backoffLimit": 3,
        "template": {
            "spec": {"containers": [{"name": "trial", "image": "tiny:1", "command": ["true"]}]}
        },
    },
}
WIDGET: Raw = {"apiVersion": "example.dev/v1", "kind": "Widget", "spec": {}}


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    monkeypatch.setattr(admission, "_AGAIN_S", 0.05)  # time is not what is claimed here
    return Experiment(tmp_path)


# What is kept


def held(
    of: object, at: str = "runtime", known: set[int] | None = None
) -> Iterator[tuple[str, int]]:
    """Return the size of each mapping, set and list inside, except the records,
    which another test covers.
    """
    known = set() if known is None else known
    if id(of) in known or isinstance(of, Records):
        return
    known.add(id(of))
    if isinstance(of, dict | set | list):
        yield at, len(of)
    elif isinstance(of, tuple):
        for index, each in enumerate(of):
            yield from held(each, f"{at}[{index}]", known)
    elif type(of).__module__.startswith(
        ("controller.kube", "controller.runtime.kubernetes")
    ) and hasattr(of, "__dict__"):
        for key, each in vars(of).items():
            if key not in ("_client", "_owner"):  # the owner is one object
                yield from held(each, f"{at}.{key}", known)
    if at.endswith(("._objects", "._watched")) and isinstance(of, dict):
        for key, each in of.items():
            yield from held(each, f"{at}[{getattr(key, 'plural', key)}]", known)


def grown(runtime: KubernetesRuntime, before: dict[str, int]) -> dict[str, int]:
    """Return the containers that have grown.

    Events are watched only from then on, and the kinds of requests are counted.
    """
    of_each_watch = ("._selection", "._reflectors", "._views", "._connection.requests")
    return {
        at: size
        for at, size in held(runtime)
        if size > before.get(at, 0) and not at.endswith(of_each_watch)
    }


def records_of(runtime: KubernetesRuntime) -> Sized:
    return runtime._records._removed


@on_a_loop
async def test_only_a_bounded_number_of_records_of_removed_attempts_is_kept(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "_REMOVED_IN_MEMORY", 20)
    api = experiment.api
    api.kubelet.play(
        lambda job: (
            FOREVER
            if int(job["metadata"]["labels"]["tuner.dev/trial"]) % 5 == 0
            else Script(("x=1",))
        )
    )
    quota = {"requests.cpu": "60", "count/jobs.batch": "60"}
    used = dict.fromkeys(quota, "0")
    api.put(
        "resourcequotas",
        {
            "metadata": {"name": "team", "namespace": NAMESPACE},
            "spec": {"hard": quota},
            "status": {"hard": quota, "used": used},
        },
    )
    runtime = await experiment.open()
    assert await look(runtime) == {}
    before = dict(held(runtime))
    assert {
        "runtime._attempts",
        "runtime._opened[0].pods.deleted",
        "runtime._opened[0]._objects[jobs].reflector._dropped",
        "runtime._queue._reservations._launched",
        "runtime._deletions._under_way",
    } <= set(before)
    # Otherwise events are watched only if a Job is seen before its pod.
    assert runtime._opened is not None
    runtime._opened[0].events._watched["FailedCreate"].open()
    events = "runtime._opened[0].events._watched[FailedCreate]._view.deleted"
    await look_until(runtime, lambda _seen: events in dict(held(runtime)))
    names = [experiment.name(trial) for trial in range(50)]
    for trial in range(50):
        await runtime.start(experiment.launch(trial))
    await look_until(runtime, running(*names))
    for name in names[::5]:
        await runtime.stop(name, grace_s=1.0)
    await look_until(runtime, ended(*names))
    event = {
        "metadata": {"name": "e", "namespace": NAMESPACE},
        "reason": "FailedCreate",
        "message": "away",
    }
    api.put("events", event)
    api.remove("events", NAMESPACE, "e")
    for name in names:
        await runtime.remove(name)
    await look_until(runtime, lambda seen: seen == {} and not grown(runtime, before))
    assert events in dict(held(runtime))
    assert experiment.jobs() == []
    await look_until(runtime, lambda seen: len(records_of(runtime)) == 20)


@on_a_loop
async def test_an_attempt_that_is_removed_while_it_waits_leaves_nothing(
    experiment: Experiment,
) -> None:
    experiment.api.put(
        "resourcequotas",
        {
            "metadata": {"name": "team", "namespace": NAMESPACE},
            "spec": {"hard": {"requests.cpu": "8"}},
            "status": {"hard": {"requests.cpu": "8"}, "used": {"requests.cpu": "8"}},
        },
    )
    runtime, name = await experiment.open(), experiment.name(0)
    assert await look(runtime) == {}
    before = dict(held(runtime))
    await runtime.start(experiment.launch(0))
    assert "requests.cpu" in (await look(runtime))[name].waiting
    await runtime.remove(name)
    assert await look(runtime) == {}
    assert dict(held(runtime)) == before


@on_a_loop
async def test_observe_only_reads_and_reconcile_starts_what_has_room(
    experiment: Experiment,
) -> None:
    quota = {
        "metadata": {"name": "team", "namespace": NAMESPACE},
        "spec": {"hard": {"requests.cpu": "8"}},
    }
    full = {"hard": {"requests.cpu": "8"}, "used": {"requests.cpu": "8"}}
    experiment.api.put("resourcequotas", {**quota, "status": full})
    runtime, name = await experiment.open(), experiment.name(0)
    await runtime.start(experiment.launch(0))
    await look(runtime)
    experiment.api.put(
        "resourcequotas", {**quota, "status": {**full, "used": {"requests.cpu": "0"}}}
    )
    await runtime.wait(5.0, log_growth=False)
    assert [list(await runtime.observe()) for _ in range(3)] == [[name]] * 3
    assert experiment.jobs() == []
    await look_until(runtime, lambda seen: experiment.jobs() != [])


# What stands there already


def put_behind_our_back(experiment: Experiment, launch: Launch, **about: Any) -> Raw:
    """Create the Job of an earlier controller, which this one has not observed yet."""
    job = build_objects(launch)[-1]
    job["metadata"] |= about
    experiment.api.lose_events(1)
    return experiment.api.put("jobs", job)


@on_a_loop
async def test_the_same_attempt_is_adopted(experiment: Experiment) -> None:
    runtime, name = await experiment.open(), experiment.name(0)
    assert await look(runtime) == {}
    there = put_behind_our_back(experiment, experiment.launch(0))
    await runtime.start(experiment.launch(0))
    await look_until(runtime, lambda seen: name in seen and (0, 1) in experiment.records.rows)
    assert (
        experiment.api.get("jobs", NAMESPACE, name)["metadata"]["uid"] == there["metadata"]["uid"]
    )
    experiment.api.kubelet.start(experiment.api.kubelet.make_pod(NAMESPACE, name))
    await look_until(runtime, running(name))


@on_a_loop
async def test_the_same_number_with_other_parameters_is_refused_and_left_alone(
    experiment: Experiment,
) -> None:
    runtime, name = await experiment.open(), experiment.name(0)
    assert await look(runtime) == {}
    there = put_behind_our_back(experiment, experiment.launch(0, lr=0.5))
    await runtime.start(experiment.launch(0, lr=0.1))
    exit = (await look_until(runtime, ended(name)))[name].exit
    assert exit is not None
    assert exit.failure_class is FailureClass.CONFIGURATION
    assert exit.reason == (
        f'namespace user1 has a Job {name} with other parameters, {{"lr": 0.5}} and not {{"lr": '
        f"0.1}}: "
        "it belongs to an earlier numbering of the trials; delete it"
    )
    assert experiment.api.get("jobs", NAMESPACE, name) == there


@on_a_loop
async def test_an_object_being_deleted_is_not_adopted_but_created_again_when_it_is_gone(
    experiment: Experiment,
) -> None:
    runtime, name = await experiment.open(), experiment.name(0)
    assert await look(runtime) == {}
    experiment.api.kubelet.play(
        lambda job: None if "deletionTimestamp" in job["metadata"] else FOREVER
    )
    there = put_behind_our_back(experiment, experiment.launch(0), deletionTimestamp=stamp())
    await runtime.start(experiment.launch(0))
    seen = await look_until(runtime, lambda seen: "being deleted" in seen[name].waiting)
    assert (seen[name].exit, seen[name].start_time) == (None, None)
    experiment.api.remove("jobs", NAMESPACE, name)
    await look_until(runtime, running(name))
    assert (
        experiment.api.get("jobs", NAMESPACE, name)["metadata"]["uid"] != there["metadata"]["uid"]
    )


# Kinds of a file's own


@on_a_loop
async def test_a_kind_is_discovered_once(experiment: Experiment) -> None:
    experiment.api.define("example.dev/v1", "widgets", "Widget")
    runtime = await experiment.open(template=WIDGET)
    for trial in range(5):
        await runtime.start(experiment.launch(trial, manifest=WIDGET))
    await look_until(runtime, lambda seen: len(experiment.api.all("widgets")) == len(seen) == 5)
    assert [path for _, path, _ in experiment.api.requests].count("/apis/example.dev/v1") == 1


@on_a_loop
async def test_a_failed_discovery_is_retried_and_an_unknown_kind_is_refused(
    experiment: Experiment,
) -> None:
    runtime, name, refusals = await experiment.open(), experiment.name(0), list[str]()
    assert await look(runtime) == {}
    experiment.api.answer(500, times=3, method="GET", path="/apis/example.dev/v1")
    await runtime.start(experiment.launch(0, manifest=WIDGET))
    exit = (await look_until(runtime, ended(name), refusals=refusals))[name].exit
    assert exit is not None
    assert len(refusals) == 2  # no caller waits for the first
    assert exit.reason == "the cluster has no kind Widget in example.dev/v1; install its operator"


# A Job that would try again by itself


@on_a_loop
async def test_a_job_that_would_replace_its_pod_is_deleted_when_it_is_stopped(
    experiment: Experiment,
) -> None:
    api, kubelet = experiment.api, experiment.api.kubelet
    runtime, name = await experiment.open(template=JOB), experiment.name(0)
    await runtime.start(experiment.launch(0, manifest=JOB))
    await look_until(runtime, lambda seen: name in seen and bool(experiment.jobs()))
    kubelet.start(kubelet.make_pod(NAMESPACE, name))
    await look_until(runtime, running(name))
    await runtime.stop(name, grace_s=1.0)
    assert experiment.jobs() == []
    exit = (await look_until(runtime, ended(name)))[name].exit
    assert exit is not None
    assert exit.stopped
    assert api.all("pods", NAMESPACE) == []


@on_a_loop
async def test_a_job_that_would_replace_its_pod_is_deleted_at_its_timeout(
    experiment: Experiment,
) -> None:
    kubelet = experiment.api.kubelet
    runtime, name = await experiment.open(template=JOB), experiment.name(0)
    await runtime.start(experiment.launch(0, manifest=JOB, timeout_s=0.3))
    await look_until(runtime, lambda seen: name in seen and bool(experiment.jobs()))
    kubelet.start(kubelet.make_pod(NAMESPACE, name))
    exit = (await look_until(runtime, ended(name)))[name].exit
    assert exit is not None
    assert (exit.timed_out, experiment.jobs()) == (True, [])


# A Job that was deleted without its pod


@on_a_loop
async def test_an_orphaned_pod_counts_as_its_attempt_until_it_ends_and_its_log_is_read(
    experiment: Experiment,
) -> None:
    api, kubelet = experiment.api, experiment.api.kubelet
    kubelet.play(lambda job: Script(("epoch=1",), forever=True))
    runtime, name = await experiment.open(), experiment.name(0)
    await runtime.start(experiment.launch(0))
    await runtime.wait(0.01, log_growth=False)
    await look_until(runtime, running(name))
    (pod,) = (each["metadata"]["name"] for each in api.all("pods", NAMESPACE))
    api.end(("jobs", NAMESPACE, name), orphans=True)
    seen = await look_until(runtime, lambda seen: name in seen and seen[name].exit is None)
    assert seen[name].start_time is not None
    kubelet.print(pod, "accuracy=0.9")
    kubelet.end(pod)
    exit = (await look_until(runtime, ended(name)))[name].exit
    assert exit is not None
    assert (exit.code, exit.reason) == (0, "")
    assert await runtime.read_log(name, 0) == b"epoch=1\naccuracy=0.9\n"
    await runtime.remove(name)
    assert api.all("pods", NAMESPACE) == []


@on_a_loop
async def test_an_orphaned_pod_can_be_stopped(experiment: Experiment) -> None:
    experiment.api.kubelet.play(lambda job: FOREVER)
    runtime, name = await experiment.open(), experiment.name(0)
    await runtime.start(experiment.launch(0))
    await look_until(runtime, running(name))
    experiment.api.end(("jobs", NAMESPACE, name), orphans=True)
    await look_until(runtime, lambda seen: not experiment.jobs() and running(name)(seen))
    await runtime.stop(name, grace_s=1.0)
    exit = (await look_until(runtime, ended(name)))[name].exit
    assert exit is not None
    assert exit.stopped


# Whose log it is


@on_a_loop
async def test_the_log_of_a_replacement_pod_follows_that_of_the_first(
    experiment: Experiment,
) -> None:
    api, kubelet = experiment.api, experiment.api.kubelet
    runtime, name = await experiment.open(template=JOB), experiment.name(0)

    async def log_is(text: bytes) -> None:
        for _ in range(400):
            if await runtime.read_log(name, 0) == text:
                return
            await look(runtime)
            await runtime.wait(0.05, log_growth=True)
        raise AssertionError(await runtime.read_log(name, 0))

    await runtime.start(experiment.launch(0, manifest=JOB))
    await look_until(runtime, lambda seen: name in seen and bool(experiment.jobs()))
    first = kubelet.make_pod(NAMESPACE, name)
    kubelet.start(first)
    kubelet.print(first, "epoch=1")
    await log_is(b"epoch=1\n")
    kubelet.end(first, exit_code=1)
    second = kubelet.make_pod(NAMESPACE, name)
    api.remove("pods", NAMESPACE, first)
    kubelet.start(second)
    kubelet.print(second, "accuracy=0.9")
    await log_is(b"epoch=1\naccuracy=0.9\n")
    kubelet.end(second)
    kubelet.finish_job(NAMESPACE, name)
    exit = (await look_until(runtime, ended(name)))[name].exit
    assert exit is not None
    assert (exit.code, exit.reason) == (0, "")


# Whose log is asked for when


def logs_asked(experiment: Experiment) -> list[bool]:
    """Return for each request for a log whether it follows the log."""
    return [
        "follow" in query for _, path, query in experiment.api.requests if path.endswith("/log")
    ]


async def begun(experiment: Experiment, lines: tuple[str, ...]) -> tuple[KubernetesRuntime, str]:
    """Start a trial that has printed these lines, for which no reader waits."""
    experiment.api.kubelet.play(lambda job: Script(lines, forever=True))
    runtime, name = await experiment.open(), experiment.name(0)
    await look(runtime)
    await runtime.wait(0.01, log_growth=False)
    await runtime.start(experiment.launch(0))
    await look_until(runtime, running(name))
    return runtime, name


@on_a_loop
async def test_the_log_of_a_short_trial_without_a_waiting_reader_is_read_once(
    experiment: Experiment,
) -> None:
    runtime, name = await begun(experiment, ("epoch=1", "epoch=2"))
    assert (logs_asked(experiment), await runtime.read_log(name, 0)) == ([], b"")
    (pod,) = experiment.api.all("pods", NAMESPACE)
    experiment.api.kubelet.end(pod["metadata"]["name"])
    await look_until(runtime, ended(name))
    assert logs_asked(experiment) == [False]
    assert await runtime.read_log(name, 0) == b"epoch=1\nepoch=2\n"


@on_a_loop
async def test_the_log_of_a_longer_trial_is_followed_from_its_first_line(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "SOON_S", 0.2)
    runtime, name = await begun(experiment, ("epoch=1",))
    while await runtime.read_log(name, 0) != b"epoch=1\n":
        await runtime.wait(0.05, log_growth=False)
        await look(runtime)
    assert logs_asked(experiment) == [True]


@on_a_loop
async def test_a_waiting_reader_gets_lines_at_once(experiment: Experiment) -> None:
    runtime, name = await begun(experiment, ("epoch=1",))
    assert logs_asked(experiment) == []
    while await runtime.read_log(name, 0) != b"epoch=1\n":
        await runtime.wait(1.0, log_growth=True)
    assert logs_asked(experiment) == [True]


@on_a_loop
async def test_the_logs_of_pods_in_quick_succession_are_read_in_order(
    experiment: Experiment,
) -> None:
    kubelet = experiment.api.kubelet
    runtime, name = await experiment.open(template=JOB), experiment.name(0)
    await look(runtime)
    await runtime.wait(0.01, log_growth=False)
    await runtime.start(experiment.launch(0, manifest=JOB))
    await look_until(runtime, lambda seen: name in seen and bool(experiment.jobs()))
    first = kubelet.make_pod(NAMESPACE, name)
    kubelet.start(first)
    kubelet.print(first, "epoch=1")
    await look_until(runtime, running(name))
    kubelet.end(first, exit_code=1)
    second = kubelet.make_pod(NAMESPACE, name)
    kubelet.start(second)
    kubelet.print(second, "accuracy=0.9")
    kubelet.end(second)
    kubelet.finish_job(NAMESPACE, name)
    await look_until(runtime, ended(name))
    assert await runtime.read_log(name, 0) == b"epoch=1\naccuracy=0.9\n"
