"""`tuner controller` and what people and clusters do to it, on the small API server."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from controller.app.run import RunResult, Session
from controller.operator import managed, manager
from tests.kube.fake_kubelet import Script
from tests.kube.operated import KIND, NAMESPACE, Installation, Raw, experiment, on_a_cluster

FOREVER = Script(lines=("score=0.5",), forever=True)
KEY = ("experiments", NAMESPACE, "tiny")


def set_status(installed: Installation, **fields: object) -> None:
    installed.api.change(*KEY, lambda resource: resource["status"].update(fields))


def replace(installed: Installation, resource: Raw, *, orphans: bool = False) -> None:
    """Delete the resource at once, without its finalizers, and create another one of its name."""
    if orphans:
        installed.api.end(KEY, orphans=True)
    else:
        installed.api.remove(*KEY)
    installed.apply(resource)


# Statuses


@on_a_cluster(FOREVER)
async def test_a_condition_that_somebody_wrote_without_a_time_ends_nothing(
    installed: Installation,
) -> None:
    installed.apply(experiment(parallelism=1))
    await installed.until(lambda: installed.status().get("running") == 1)
    set_status(installed, conditions=[{"type": "Running", "status": "True"}])
    await installed.until(lambda: installed.condition("Accepted"))
    assert installed.condition("Running")["lastTransitionTime"]


@on_a_cluster()
async def test_a_controller_that_ended_before_the_last_status_leaves_it_to_the_next(
    installed: Installation,
) -> None:
    installed.apply(experiment())
    await installed.until_state("succeeded")
    right = installed.status()
    await installed.stop()
    set_status(installed, state="running", done="2/3", running=1, trials={}, best={"number": 7})
    installed.start()
    await installed.until_state("succeeded")
    status = installed.status()
    for key in ("done", "running", "trials", "best"):
        assert status.get(key) == right.get(key), (key, status, right)


@on_a_cluster()
async def test_a_result_that_somebody_changes_is_set_right_by_a_later_controller(
    installed: Installation,
) -> None:
    installed.apply(experiment())
    await installed.until_state("succeeded")
    right = installed.status()["best"]
    await installed.stop()
    installed.start()
    installed.apply(experiment("later"))
    await installed.until_state("succeeded", "later")
    set_status(installed, best={"number": 7, "value": 1e9})
    await installed.until(lambda: installed.status()["best"] == right)


# Resources that change while something is under way


@on_a_cluster(FOREVER)
async def test_what_is_suspended_while_it_is_created_starts_no_trial(
    installed: Installation,
) -> None:
    installed.api.hold("POST", "/jobs")
    installed.apply(experiment())
    await installed.until(lambda: installed.api.held)
    installed.edit("tiny", suspend=True)
    await asyncio.sleep(0)
    installed.api.release()
    await installed.until_state("suspended", within_s=10)
    assert not installed.jobs


@on_a_cluster(FOREVER)
async def test_a_refusal_is_about_the_spec_that_was_tried(installed: Installation) -> None:
    installed.api.refuse = lambda _plural, obj: "no" if "bad:1" in str(obj) else ""
    installed.api.hold("POST", "/jobs")
    trial = experiment()["spec"]["trial"]
    installed.apply(experiment(trial=trial | {"image": "bad:1"}))
    await installed.until(lambda: installed.api.held)
    installed.edit("tiny", trial=trial)
    await asyncio.sleep(0)
    installed.api.release()
    await installed.until(lambda: installed.status().get("running"), within_s=10)


@on_a_cluster(FOREVER)
async def test_a_resource_in_the_place_of_another_one_gets_nothing_of_it(
    installed: Installation,
) -> None:
    installed.apply(experiment(parallelism=1))
    await installed.until(lambda: installed.status().get("running") == 1)
    before = {job["metadata"]["name"] for job in installed.jobs}
    replace(installed, experiment(parallelism=1), orphans=True)
    await installed.until(lambda: installed.status().get("running") == 1)
    await installed.until(lambda: not before & {job["metadata"]["name"] for job in installed.jobs})
    assert len(list(installed.state.experiments.iterdir())) == 1


@on_a_cluster()
async def test_a_resource_in_the_place_of_an_ended_one_is_never_shown_as_ended(
    installed: Installation,
) -> None:
    installed.apply(experiment())
    await installed.until_state("succeeded")
    installed.api.kubelet.play(lambda _job: FOREVER)
    replace(installed, experiment(parallelism=1))
    seen: set[object] = set()

    def runs() -> bool:
        seen.add(installed.status().get("state"))
        return bool(installed.status().get("running"))

    await installed.until(runs)
    assert "succeeded" not in seen


@on_a_cluster(FOREVER)
async def test_deleting_and_applying_again_cures_a_refused_change(
    installed: Installation,
) -> None:
    installed.apply(experiment(parallelism=1))
    await installed.until(lambda: installed.status().get("running") == 1)
    objective = {"metric": "loss", "direction": "minimize"}
    installed.edit("tiny", objective=objective)
    await installed.until(lambda: installed.condition("Accepted").get("reason") == "ChangeRefused")
    replace(installed, experiment(parallelism=1, objective=objective))
    await installed.until(lambda: installed.status().get("running") == 1, within_s=10)
    assert installed.condition("Accepted")["status"] == "True"


# A controller that meets trouble


@on_a_cluster()
async def test_a_definition_that_is_missing_at_the_start_is_waited_for(
    installed: Installation,
) -> None:
    await installed.stop()
    installed.api.undefine(*KIND[:2])
    installed.start()
    path = "/apis/tuner.dev/v1/experiments"
    await installed.until(lambda: path in [request[1] for request in installed.api.requests])
    installed.api.define(*KIND)
    installed.apply(experiment())
    await installed.until_state("succeeded")


@on_a_cluster()
async def test_an_experiment_that_cannot_be_read_disturbs_no_other(
    installed: Installation,
) -> None:
    installed.apply(experiment("damaged"))
    await installed.until_state("succeeded", "damaged")
    await installed.stop()
    with closing(sqlite3.connect(installed.state.controller_db)) as database, database:
        database.execute("UPDATE revisions SET document = '{}'")
    installed.start()
    installed.apply(experiment())
    await installed.until_state("succeeded")


def test_a_session_that_does_not_end_is_told_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hangs, may_go_on = asyncio.Event(), asyncio.Event()
    go_on = Session.go_on

    async def hanging(*given: Any, **named: Any) -> RunResult:
        hangs.set()
        await may_go_on.wait()
        return await go_on(*given, **named)

    @on_a_cluster(FOREVER)
    async def check(installed: Installation) -> None:
        installed.apply(experiment(parallelism=1))
        await installed.until(lambda: installed.status().get("running") == 1)
        await installed.stop()
        monkeypatch.setattr(managed, "_DETACH_S", 0.01)
        monkeypatch.setattr(Session, "go_on", hanging)
        installed.start()
        await installed.until(hangs.is_set)
        installed.edit("tiny", parallelism=2)
        await installed.until(
            lambda: "has not let go" in installed.condition("Running").get("message", "")
        )
        may_go_on.set()
        await installed.until(lambda: installed.status().get("running") == 2)

    check(tmp_path)


def test_a_session_that_is_cancelled_is_told_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tries: list[int] = []
    run = Session.run

    async def cancelled_once(*given: Any, **named: Any) -> RunResult:
        tries.append(1)
        if len(tries) == 1:
            raise asyncio.CancelledError
        return await run(*given, **named)

    monkeypatch.setattr(Session, "run", cancelled_once)

    @on_a_cluster()
    async def check(installed: Installation) -> None:
        installed.apply(experiment())
        await installed.until_state("succeeded")

    check(tmp_path)


@on_a_cluster(FOREVER)
async def test_a_controller_ends_although_the_server_does_not_answer(
    installed: Installation,
) -> None:
    installed.apply(experiment(parallelism=1))
    await installed.until(lambda: installed.status().get("running") == 1)
    installed.api.hold("POST", "/jobs")
    installed.edit("tiny", parallelism=2)
    await installed.until(lambda: installed.api.held)
    manager._DETACH_S, before = 0.1, manager._DETACH_S
    try:
        async with asyncio.timeout(10):
            await installed.stop()
    finally:
        manager._DETACH_S = before


@on_a_cluster()
async def test_writes_that_are_made_but_answered_with_an_error_are_not_made_twice(
    installed: Installation,
) -> None:
    api = installed.api
    answers = cycle((504, 0))  # so each write has its turn, also the repeated ones
    api.hides = lambda _method, path: 0 if "/leases" in path else next(answers)
    installed.apply(experiment(parallelism=2, budget={"trials": 6}))
    await installed.until_state("succeeded")
    assert installed.status()["trials"] == {"succeeded": 6}
    await installed.until(lambda: not installed.jobs)
    created = [each.after for each in api.changes if each.plural == "jobs" and not each.before]
    assert len(created) == 6
    api.hides = lambda _method, _path: 0
    installed.delete()
    await installed.until(lambda: api.find("experiments", NAMESPACE, "tiny") is None)
