"""Two controllers of one experiment: only one may write, and neither adopts objects of the other.

On a small API server in this process.
"""

from __future__ import annotations

import json
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from controller.core.model import ExperimentState
from controller.kube.server_clock import ServerClock
from controller.runtime.kubernetes import admission
from controller.runtime.kubernetes import lease as lease_module
from controller.runtime.kubernetes.lease import LeaseHolder, Superseded
from controller.runtime.kubernetes.runtime import KubernetesRuntime
from controller.runtime.protocol import CannotStart, Conclusion
from suggest.errors import FailedPrecondition
from tests.kube.experiment import (
    ANCHOR,
    NAMESPACE,
    Experiment,
    look,
    look_until,
    on_a_loop,
    refusal_of,
    running,
)
from tests.kube.fake_kubelet import Script

Raw = dict[str, Any]

LEASE = ANCHOR["metadata"]["name"]  # type: ignore[index]  # a literal
HERE, THERE, ELSEWHERE = "laptop", "server", "desktop"  # state directories
SUCCEEDED = Conclusion(
    ExperimentState.SUCCEEDED,
    "all 2 trials are done",
    {"trial": 1, "values": {"score": 0.9}, "parameters": {"lr": 0.1}},
)
OLD = {"renewTime": "2020-01-01T00:00:00.000000Z"}


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    monkeypatch.setattr(admission, "_AGAIN_S", 0.05)  # time is not what is claimed here
    return Experiment(tmp_path)


def lease(experiment: Experiment) -> Raw:
    spec: Raw = experiment.api.get("leases", NAMESPACE, LEASE)["spec"]
    return spec


async def until_refused(runtime: KubernetesRuntime) -> str:
    while not (refusal := await refusal_of(look(runtime))):
        await runtime.wait(0.05, log_growth=False)
    return refusal


@on_a_loop
async def test_while_one_controller_runs_a_second_creates_and_removes_nothing(
    experiment: Experiment,
) -> None:
    experiment.api.kubelet.play(lambda job: Script(forever=True))
    first, second = await experiment.open(holder=HERE), await experiment.open(holder=THERE)
    await first.start(experiment.launch(0))
    await look_until(first, running(experiment.name(0)))
    await second.start(experiment.launch(1))
    refusal = await until_refused(second)
    assert refusal.startswith("another controller runs this experiment: ")
    assert f"{HERE} holds lease tiny-x7k2q" in refusal
    assert refusal.endswith("wait until the lease has run out, 30 s after its last renewal"), (
        "no time that is left"
    )
    assert "another controller" in await refusal_of(second.remove(experiment.name(0)))
    assert "another controller" in await refusal_of(second.stop(experiment.name(0), grace_s=1.0))
    assert experiment.jobs() == [experiment.name(0)]
    expected = (experiment.holder(HERE).identity, 1)
    assert (lease(experiment)["holderIdentity"], lease(experiment)["leaseTransitions"]) == expected


@on_a_loop
async def test_a_controller_that_ends_releases_its_lease_at_once(experiment: Experiment) -> None:
    first, second = await experiment.open(holder=HERE), await experiment.open(holder=THERE)
    await first.start(experiment.launch(0))
    await look_until(first, lambda seen: bool(experiment.jobs()))
    await first.close()
    assert "holderIdentity" not in lease(experiment)
    await second.start(experiment.launch(1))
    await look_until(second, lambda seen: len(experiment.jobs()) == 2)
    expected = (experiment.holder(THERE).identity, 2)
    assert (lease(experiment)["holderIdentity"], lease(experiment)["leaseTransitions"]) == expected


@on_a_loop
async def test_after_a_kill_a_controller_of_the_same_state_directory_takes_over_at_once(
    experiment: Experiment,
) -> None:
    killed, successor = await experiment.open(holder=HERE), await experiment.open(holder=HERE)
    await killed.start(experiment.launch(0))
    await look_until(killed, lambda seen: bool(experiment.jobs()))
    await successor.start(experiment.launch(1))
    await look_until(successor, lambda seen: len(experiment.jobs()) == 2)
    assert lease(experiment)["leaseTransitions"] == 2


@on_a_loop
async def test_a_frozen_controller_writes_nothing_after_another_has_taken_over(
    experiment: Experiment,
) -> None:
    frozen, other = await experiment.open(holder=HERE), await experiment.open(holder=THERE)
    await frozen.start(experiment.launch(0))
    await look_until(frozen, lambda seen: bool(experiment.jobs()))
    old = {"renewTime": "2020-01-01T00:00:00.000000Z"}
    experiment.api.change("leases", NAMESPACE, LEASE, lambda obj: obj["spec"].update(old))
    await other.start(experiment.launch(1))
    await look_until(frozen, lambda seen: experiment.name(1) in seen)
    frozen._lease._valid_until_s = 0.0  # as its clock says when it wakes
    with pytest.raises(Superseded, match=f"/{THERE}"):
        await frozen.remove(experiment.name(1))
    with pytest.raises(Superseded):
        await look(frozen)
    assert len(experiment.jobs()) == 2


@on_a_loop
async def test_a_lease_costs_no_request_for_each_trial(experiment: Experiment) -> None:
    experiment.api.kubelet.play(lambda job: Script(forever=True))
    runtime = await experiment.open(holder=HERE)
    names = [experiment.name(trial) for trial in range(20)]
    for trial in range(20):
        await runtime.start(experiment.launch(trial))
    await look_until(runtime, running(*names))
    for name in names:
        await runtime.remove(name)
    assert sum("/leases" in path for _, path, _ in experiment.api.requests) == 2


@on_a_loop
async def test_a_holder_that_is_refused_for_a_moment_still_finds_its_successor(
    experiment: Experiment,
) -> None:
    experiment.api.kubelet.play(lambda job: Script(forever=True))
    first, second = await experiment.open(holder=HERE), await experiment.open(holder=THERE)
    await first.start(experiment.launch(0))
    await look_until(first, running(experiment.name(0)))
    experiment.api.forbid("get", "leases")  # as a server does that has just started
    first._lease._valid_until_s = 0.0
    assert "cannot get resource" in await refusal_of(first.stop(experiment.name(0), grace_s=1.0))
    experiment.api.permit()
    experiment.api.change("leases", NAMESPACE, LEASE, lambda obj: obj["spec"].update(OLD))
    await second.start(experiment.launch(1))
    await look_until(second, lambda seen: len(experiment.jobs()) == 2)
    with pytest.raises(Superseded, match=f"/{THERE}"):
        await first.stop(experiment.name(0), grace_s=1.0)


@on_a_loop
async def test_a_holder_for_which_leases_are_not_served_for_a_moment_renews_its_lease_then(
    experiment: Experiment,
) -> None:
    experiment.api.kubelet.play(lambda job: Script(forever=True))
    runtime = await experiment.open(holder=HERE)
    await runtime.start(experiment.launch(0))
    await look_until(runtime, running(experiment.name(0)))
    experiment.api.answer(404, times=2, path="/leases")
    runtime._lease._valid_until_s = 0.0
    assert "refuses" in await refusal_of(runtime.stop(experiment.name(0), grace_s=1.0))
    await runtime.stop(experiment.name(0), grace_s=1.0)
    assert runtime._lease._valid_until_s > 0.0


@on_a_loop
async def test_a_holder_that_has_lost_the_right_to_leases_goes_on_after_a_while(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "LEASE_SETTLE_S", 0.0)
    runtime = await experiment.open(holder=HERE)
    await runtime.start(experiment.launch(0))
    await look_until(runtime, lambda seen: bool(experiment.jobs()))
    experiment.api.forbid("get", "leases")
    runtime._lease._valid_until_s = 0.0
    await runtime.start(experiment.launch(1))
    await look_until(runtime, lambda seen: len(experiment.jobs()) == 2)


@on_a_loop
async def test_without_the_right_to_leases_trials_still_run(experiment: Experiment) -> None:
    experiment.api.forbid("get", "leases")
    runtime = await experiment.open(holder=HERE)
    await runtime.start(experiment.launch(0))
    await look_until(runtime, lambda seen: bool(experiment.jobs()))


@on_a_loop
async def test_a_job_with_the_same_number_and_other_parameters_is_neither_adopted_nor_removed(
    experiment: Experiment,
) -> None:
    first = await experiment.open()
    await first.start(experiment.launch(0, lr=0.5))
    await look_until(first, lambda seen: (0, 1) in experiment.records.rows)
    second = await experiment.open()
    experiment.records.rows.clear()  # another state directory
    assert list(await look(second)) == [experiment.name(0)]
    with pytest.raises(
        CannotStart, match=r'with other parameters, \{"lr": 0.5\} and not \{"lr": 0.1\}'
    ):
        await second.start(experiment.launch(0, lr=0.1))
    assert await look(second) == {}
    await second.remove(experiment.name(0))
    assert await look(second) == {}
    assert experiment.jobs() == [experiment.name(0)]


def test_a_copy_of_a_state_directory_elsewhere_is_another_holder(tmp_path: Path) -> None:
    known = LeaseHolder(tmp_path / "a").identity
    assert LeaseHolder(tmp_path / "a").identity == known
    assert LeaseHolder(tmp_path / "b").identity != known


# After the lease was released


async def ran(
    experiment: Experiment, holder: str, trial: int, conclusion: Conclusion | None = None
) -> None:
    """Let a controller of this state directory start an attempt,
    record the end if there is one, and end itself.
    """
    runtime = await experiment.open(holder=holder)
    await runtime.start(experiment.launch(trial))
    await look_until(runtime, lambda seen: experiment.name(trial) in experiment.jobs())
    if conclusion is not None:
        await runtime.conclude(conclusion)
    await runtime.close()


async def starts(experiment: Experiment, holder: str, trial: int) -> str:
    """Return why a controller of this state directory starts nothing; "" if it does."""
    runtime = await experiment.open(holder=holder)
    try:
        await runtime.start(experiment.launch(trial))
        await look_until(runtime, lambda seen: experiment.name(trial) in experiment.jobs())
    except FailedPrecondition as refusal:
        return str(refusal)
    finally:
        await runtime.close()
    return ""


@on_a_loop
async def test_a_directory_whose_experiment_another_one_finished_starts_nothing(
    experiment: Experiment,
) -> None:
    await ran(experiment, HERE, 0)
    await ran(experiment, THERE, 1, SUCCEEDED)
    refusal = await starts(experiment, HERE, 2)
    assert (
        f"tiny has succeeded elsewhere ({socket.gethostname()}:{experiment.folder}/{THERE}): "
        in refusal
    )
    assert (
        "all 2 trials are done; best: score 0.9 (trial 1); to forget what is here: `tuner delete "
        in refusal
    )
    assert len(experiment.jobs()) == 2
    assert "has succeeded elsewhere" in await starts(experiment, ELSEWHERE, 2), (
        "nor does one that never ran it"
    )
    assert len(experiment.jobs()) == 2


@on_a_loop
async def test_a_directory_whose_experiment_another_one_ran_since_starts_nothing(
    experiment: Experiment,
) -> None:
    """It was not finished, but the results of its trials are elsewhere, too."""
    await ran(experiment, HERE, 0)
    await ran(experiment, THERE, 1)
    refusal = await starts(experiment, HERE, 2)
    assert (
        f"/{THERE} has run tiny since, and the results of its trials are not here; continue it "
        f"there" in refusal
    )
    assert len(experiment.jobs()) == 2
    assert await starts(experiment, THERE, 2) == ""
    assert await starts(experiment, ELSEWHERE, 3) == "", (
        "it lacks nothing: it rebuilds what the cluster has"
    )


@on_a_loop
async def test_a_moved_directory_goes_on_and_the_one_it_was_copied_from_does_not(
    experiment: Experiment,
) -> None:
    await ran(experiment, HERE, 0)
    (experiment.folder / THERE).mkdir()
    (experiment.folder / THERE / "holder").write_bytes(
        (experiment.folder / HERE / "holder").read_bytes()
    )
    assert await starts(experiment, THERE, 1) == ""
    assert f"/{THERE} has run tiny since" in await starts(experiment, HERE, 2)


@on_a_loop
async def test_a_directory_beside_its_living_successor_is_refused_at_once(
    experiment: Experiment,
) -> None:
    await ran(experiment, HERE, 0)
    other = await experiment.open(holder=THERE)
    await other.start(experiment.launch(1))
    await look_until(other, lambda seen: len(experiment.jobs()) == 2)
    assert f"/{THERE} holds lease" in await starts(experiment, HERE, 2)


@on_a_loop
async def test_a_finished_experiment_goes_on_where_it_finished(experiment: Experiment) -> None:
    """As `extend` and `retry` do, or after a kill between the record of the end
    and its row in the database.
    """
    await ran(experiment, HERE, 0, SUCCEEDED)
    about = experiment.api.get("leases", NAMESPACE, LEASE)["metadata"]
    assert (about["labels"]["tuner.dev/ended"], "holderIdentity" in lease(experiment)) == (
        "succeeded",
        False,
    )
    assert await starts(experiment, HERE, 1) == ""
    about = experiment.api.get("leases", NAMESPACE, LEASE)["metadata"]
    assert "tuner.dev/ended" not in {**about["labels"], **about["annotations"]}, "it runs again"


@on_a_loop
async def test_a_controller_that_lost_its_lease_records_no_end(experiment: Experiment) -> None:
    frozen = await experiment.open(holder=HERE)
    await frozen.start(experiment.launch(0))
    await look_until(frozen, lambda seen: bool(experiment.jobs()))
    experiment.api.change("leases", NAMESPACE, LEASE, lambda obj: obj["spec"].update(OLD))
    other = await experiment.open(holder=THERE)
    await other.start(experiment.launch(1))
    await look_until(other, lambda seen: len(experiment.jobs()) == 2)
    with pytest.raises(Superseded):  # although its clock says that it still holds the lease
        await frozen.conclude(SUCCEEDED)
    assert (
        "tuner.dev/ended"
        not in experiment.api.get("leases", NAMESPACE, LEASE)["metadata"]["annotations"]
    )


@on_a_loop
async def test_a_kill_before_the_end_is_recorded_lets_another_directory_go_on(
    experiment: Experiment,
) -> None:
    killed = await experiment.open(holder=HERE)
    await killed.start(experiment.launch(0))
    await look_until(killed, lambda seen: bool(experiment.jobs()))
    experiment.api.change("leases", NAMESPACE, LEASE, lambda obj: obj["spec"].update(OLD))
    assert await starts(experiment, THERE, 1) == ""


@on_a_loop
async def test_an_experiment_that_created_nothing_leaves_nothing(experiment: Experiment) -> None:
    runtime = await experiment.open(holder=HERE)
    await runtime.conclude(SUCCEEDED)
    assert experiment.api.all("leases") == []


@on_a_loop
async def test_without_the_right_to_leases_an_experiment_ends(experiment: Experiment) -> None:
    runtime = await experiment.open(holder=HERE)
    await runtime.start(experiment.launch(0))
    await look_until(runtime, lambda seen: bool(experiment.jobs()))
    experiment.api.forbid("patch", "leases")
    await runtime.conclude(SUCCEEDED)


def aged(experiment: Experiment, name: str, days: int) -> None:
    """Set the recorded end back."""
    ended = (datetime.now(UTC) - timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def change(obj: Raw) -> None:
        record = json.loads(obj["metadata"]["annotations"]["tuner.dev/ended"])
        obj["metadata"]["annotations"]["tuner.dev/ended"] = json.dumps(record | {"time": ended})

    experiment.api.change("leases", NAMESPACE, name, change)


@on_a_loop
async def test_what_ended_long_ago_is_swept_by_the_next_controller_of_the_namespace(
    experiment: Experiment,
) -> None:
    await ran(experiment, HERE, 0, SUCCEEDED)
    for days, left in ((29, 1), (31, 0)):
        aged(experiment, LEASE, days)
        async with experiment.api.client() as client:
            await lease_module.sweep(client, NAMESPACE, datetime.now(UTC))
        assert [len(experiment.api.all(kind, NAMESPACE)) for kind in ("configmaps", "leases")] == [
            left,
            left,
        ]


@on_a_loop
async def test_a_controller_sweeps_when_it_ends_and_not_what_still_runs(
    experiment: Experiment,
) -> None:
    old = {
        "name": "old-aaaaa",
        "labels": {"app.kubernetes.io/managed-by": "tuner", "tuner.dev/uid": "a"},
    }
    anchor = experiment.api.put("configmaps", {"metadata": old | {"namespace": NAMESPACE}})
    owner = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "old-aaaaa",
        "uid": anchor["metadata"]["uid"],
    }
    about = old | {"namespace": NAMESPACE, "ownerReferences": [owner]}
    # a mapping
    about["labels"] = old["labels"] | {"tuner.dev/ended": "stopped"}  # type: ignore[operator]
    about["annotations"] = {"tuner.dev/ended": json.dumps({"time": "2020-01-01T00:00:00Z"})}
    experiment.api.put("leases", {"metadata": about, "spec": {}})
    await ran(experiment, HERE, 0)
    assert [each["metadata"]["name"] for each in experiment.api.all("configmaps", NAMESPACE)] == [
        LEASE
    ]


@on_a_loop
async def test_a_directory_that_was_away_longer_than_an_end_is_kept_starts_nothing(
    experiment: Experiment,
) -> None:
    await ran(experiment, HERE, 0)
    await ran(experiment, THERE, 1, SUCCEEDED)
    for kind in ("configmaps", "leases"):
        experiment.api.remove(kind, NAMESPACE, LEASE)  # as the sweep
    file = experiment.folder / HERE / "holder"
    remembered = json.loads(file.read_text())
    file.write_text(json.dumps(remembered | {"time": "2020-01-01T00:00:00Z"}))
    assert "the cluster has nothing of tiny any more" in await starts(experiment, HERE, 2)
    assert experiment.api.all("configmaps", NAMESPACE) == []
    assert await starts(experiment, THERE, 3) == "", (
        "it ended it itself, and nobody has run it since"
    )


@on_a_loop
async def test_a_lost_database_is_rebuilt_only_if_no_controller_lives(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "_POLL_S", 0.01)
    messages = list[str]()
    async with experiment.api.client() as client:

        def renew(text: str) -> None:
            messages.append(text)
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            experiment.api.change(
                "leases", NAMESPACE, LEASE, lambda obj: obj["spec"].update(renewTime=now)
            )

        await lease_module.wait_until_free(client, NAMESPACE, LEASE, print_line=messages.append)
        alive = await experiment.open(holder=HERE)
        await alive.start(experiment.launch(0))
        await look_until(alive, lambda seen: bool(experiment.jobs()))
        with pytest.raises(FailedPrecondition, match="another controller runs this experiment"):
            await lease_module.wait_until_free(client, NAMESPACE, LEASE, print_line=renew)
        assert len(messages) == 1
        old = {"renewTime": "2020-01-01T00:00:00.000000Z"}
        experiment.api.change("leases", NAMESPACE, LEASE, lambda obj: obj["spec"].update(old))
        await lease_module.wait_until_free(client, NAMESPACE, LEASE, print_line=renew)


@on_a_loop
async def test_the_time_on_a_lease_is_the_servers_whatever_this_machines_wall_clock_does(
    experiment: Experiment,
) -> None:
    experiment.api.ahead_s = 300.0
    elapsed_s = [50.0]
    async with experiment.api.client() as client:
        clock = ServerClock(client, lambda: elapsed_s[0])
        await clock.read()
        first = clock.now()
        assert timedelta(seconds=290) < first - datetime.now(UTC) < timedelta(seconds=310)
        elapsed_s[0] += 40.0  # the only thing that moves it
        assert clock.now() - first == timedelta(seconds=40)
        experiment.api.ahead_s = -3600.0
        await clock.read()
        assert clock.now() - first == timedelta(seconds=40), "it is read once"
