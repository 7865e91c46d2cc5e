"""Two controllers of one experiment: only one may write, and neither adopts objects of the other.

On a small API server in this process.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from controller.runtime.kubernetes import admission
from controller.runtime.kubernetes import lease as lease_module
from controller.runtime.kubernetes.lease import Superseded, identity
from controller.runtime.kubernetes.runtime import KubernetesRuntime
from controller.runtime.kubernetes.server_clock import ServerClock
from controller.runtime.protocol import CannotStart
from suggest.errors import FailedPrecondition
from tests.kube.experiment import ANCHOR, NAMESPACE, Experiment, look, look_until, on_a_loop, refusal_of, running
from tests.kube.fake_kubelet import Script

Raw = dict[str, Any]

LEASE = ANCHOR["metadata"]["name"]  # type: ignore[index]  # a literal
HERE, THERE = "laptop:/home/user1/.tuner 1f", "server:/srv/tuner 2e"


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
async def test_while_one_controller_runs_a_second_creates_and_removes_nothing(experiment: Experiment) -> None:
    experiment.api.kubelet.play(lambda job: Script(forever=True))
    first, second = await experiment.open(holder=HERE), await experiment.open(holder=THERE)
    await first.start(experiment.launch(0))
    await look_until(first, running(experiment.name(0)))
    await second.start(experiment.launch(1))
    refusal = await until_refused(second)
    assert refusal.startswith(
        "another controller runs this experiment: laptop:/home/user1/.tuner holds lease tiny-x7k2q"
    )
    assert "another controller" in await refusal_of(second.remove(experiment.name(0)))
    assert "another controller" in await refusal_of(second.stop(experiment.name(0), grace_s=1.0))
    assert experiment.jobs() == [experiment.name(0)]
    assert (lease(experiment)["holderIdentity"], lease(experiment)["leaseTransitions"]) == (HERE, 1)


@on_a_loop
async def test_a_controller_that_ends_releases_its_lease_at_once(experiment: Experiment) -> None:
    first, second = await experiment.open(holder=HERE), await experiment.open(holder=THERE)
    await first.start(experiment.launch(0))
    await look_until(first, lambda seen: bool(experiment.jobs()))
    await first.close()
    assert "holderIdentity" not in lease(experiment)
    await second.start(experiment.launch(1))
    await look_until(second, lambda seen: len(experiment.jobs()) == 2)
    assert (lease(experiment)["holderIdentity"], lease(experiment)["leaseTransitions"]) == (THERE, 2)


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
    await look_until(other, lambda seen: len(experiment.jobs()) == 2)
    frozen._lease._valid_until_s = 0.0  # as its clock says when it wakes
    with pytest.raises(Superseded, match="server:/srv/tuner"):
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
    await look_until(first, lambda seen: bool(experiment.jobs()))
    second = await experiment.open()
    (experiment.directory(0, 1) / "job.json").unlink()  # another state directory
    assert list(await look(second)) == [experiment.name(0)]
    with pytest.raises(CannotStart, match=r'with other parameters, \{"lr": 0.5\} and not \{"lr": 0.1\}'):
        await second.start(experiment.launch(0, lr=0.1))
    assert await look(second) == {}
    await second.remove(experiment.name(0))
    assert await look(second) == {}
    assert experiment.jobs() == [experiment.name(0)]


def test_a_copy_of_a_state_directory_elsewhere_is_another_holder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    known = identity(tmp_path / "a")
    assert identity(tmp_path / "a") == known
    assert identity(tmp_path / "b") != known


@on_a_loop
async def test_a_lost_database_is_rebuilt_only_if_no_controller_lives(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "_LOOK_S", 0.01)
    messages = list[str]()
    async with experiment.api.client() as client:

        def renew(text: str) -> None:
            messages.append(text)
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            experiment.api.change("leases", NAMESPACE, LEASE, lambda obj: obj["spec"].update(renewTime=now))

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
