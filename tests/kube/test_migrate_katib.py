"""`tuner migrate katib`: searches of a real Katib go on as Tuner's, and back.

Katib's objects are here as its controller writes them (`katib_objects`).
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from controller.app import katib_migration
from controller.kube.custom_resource import KATIB_SUGGESTIONS, KATIB_TRIALS
from controller.operator.katib import KatibSelection
from tests.kube import katib_objects
from tests.kube.fake_api import FakeApi, kubeconfig_of
from tests.kube.fake_kubelet import Script
from tests.kube.katib_database import database
from tests.kube.katib_objects import EXPERIMENTS, KatibController, condition
from tests.kube.operated import KIND, NAMESPACE, SCORED, Installation
from tests.kube.operated import experiment as our_experiment
from tests.kube.test_cluster_commands import Outcome, Terminal

Raw = dict[str, Any]
FOREVER = Script(lines=("score=0.5",), forever=True)


class BesideKatib(Terminal):
    """A person's terminal, at a cluster with a real Katib and Tuner's controller."""

    @property
    def api(self) -> FakeApi:
        return self.installed.api

    def katib(self, name: str = "tiny", **changes: Any) -> Raw:
        """Have an Experiment that Katib runs, with two ended Trials and two that run."""
        one = self.api.put(EXPERIMENTS, katib_objects.experiment(name, **changes))
        ended = ("Succeeded",)
        for each in (
            katib_objects.trial(one, "aaaaaaaa", 0.25, *ended, score="0.7", loss="1.5"),
            katib_objects.trial(one, "bbbbbbbb", 0.5, "Failed"),
            katib_objects.trial(one, "cccccccc", 0.75, "Running"),
            katib_objects.trial(one, "dddddddd", 0.125, "Running"),
        ):
            self.api.put("trials", each)
        self.api.change(
            EXPERIMENTS, NAMESPACE, name, lambda each: each["status"].update(trialsRunning=2)
        )
        running = [condition("Running", of="Suggestion")]
        about = {"name": name, "namespace": NAMESPACE}
        self.api.put("suggestions", {"metadata": about, "status": {"conditions": running}})
        return self.katibs(name)

    def katibs(self, name: str = "tiny") -> Raw:
        return dict(self.api.get(EXPERIMENTS, NAMESPACE, name))

    def ours(self, name: str = "tiny") -> Raw | None:
        return self.api.find("experiments", NAMESPACE, name)

    def end(self, trial: str, score: str) -> None:
        """Let one of Katib's running Trials succeed."""

        def ended(each: Raw) -> None:
            metric = {"name": "score", "min": score, "max": score, "latest": score}
            each["status"]["observation"] = {"metrics": [metric]}
            each["status"]["conditions"] = [
                condition("Created"),
                condition("Running", is_true=False),
                condition("Succeeded"),
            ]

        self.api.change("trials", NAMESPACE, trial, ended)

    async def migrate(self, *words: str) -> Outcome:
        return await self.tuner("migrate", "katib", *words)


Claim = Callable[[BesideKatib], Coroutine[Any, Any, None]]


def beside_katib(
    script: Script = SCORED, *, runs: bool = True
) -> Callable[[Claim], Callable[[Path], None]]:
    """Run a coroutine test at such a cluster. runs: whether Katib's controller does."""

    def decorate(claim: Claim) -> Callable[[Path], None]:
        def run(tmp_path: Path) -> None:
            async def main() -> None:
                async with FakeApi() as api:
                    api.define(*KIND)
                    api.define(KATIB_TRIALS.api_version, EXPERIMENTS, "Experiment")
                    for kind in (KATIB_TRIALS, KATIB_SUGGESTIONS):
                        api.define(kind.api_version, kind.plural, kind.kind)
                    api.kubelet.play(lambda _job: script)
                    installed = Installation(api, tmp_path)
                    installed.katib = KatibSelection.ANNOTATED
                    with kubeconfig_of(api.kubeconfig()):
                        installed.start()
                        try:
                            await installed.until(lambda: installed.serves)
                            terminal = BesideKatib(installed)
                            if runs:
                                async with KatibController(api).running():
                                    await claim(terminal)
                            else:
                                await claim(terminal)
                        finally:
                            await installed.stop()

            asyncio.run(main())

        run.__name__, run.__doc__ = claim.__name__, claim.__doc__
        return run

    return decorate


@beside_katib()
async def test_without_yes_nothing_is_changed(terminal: BesideKatib) -> None:
    before = terminal.katib()
    said = await terminal.migrate()
    assert said.code == 0, said.err
    assert said.out.splitlines()[1].split() == [
        NAMESPACE,
        "tiny",
        "to",
        "take",
        "over",
        "2",
        "2",
        "2",
    ]
    assert "dry run" in said.err
    assert terminal.ours() is None
    assert terminal.katibs() == before


@beside_katib()
async def test_what_is_left_of_the_budget_runs_here(terminal: BesideKatib) -> None:
    terminal.katib()
    said = await terminal.migrate("--yes")
    assert said.code == 0, said.err
    ours = terminal.ours()
    assert ours is not None
    assert ours["spec"]["budget"]["trials"] == 2
    assert ours["spec"]["budget"]["failedTrials"] == "none"
    terminal.end("tiny-cccccccc", "0.9")
    terminal.end("tiny-dddddddd", "0.1")
    await terminal.installed.until_state("succeeded")
    listed = json.loads((await terminal.tuner("get", "trials", "tiny", "-o", "json")).out)
    states = Counter((each["state"], not each["attempts"]) for each in listed)
    assert states == {("succeeded", True): 3, ("failed", True): 1, ("succeeded", False): 2}


@beside_katib()
async def test_a_search_without_a_limit_goes_on_without_one(terminal: BesideKatib) -> None:
    terminal.katib(maxTrialCount=None)
    assert "no limit" in (await terminal.migrate()).out
    said = await terminal.migrate("--yes")
    assert said.code == 0, said.err
    ours = terminal.ours()
    assert ours is not None
    assert ours["spec"]["budget"]["trials"] == "none"

    def succeeded() -> int:
        told = terminal.installed.status().get("trials") or {}
        return int(told.get("succeeded", 0))

    # Katib's limit was 6.
    await terminal.installed.until(lambda: succeeded() > 6)


@beside_katib()
async def test_the_best_of_all_trials_is_best_whoever_ran_it(terminal: BesideKatib) -> None:
    terminal.katib()
    await terminal.migrate("--yes")
    terminal.end("tiny-dddddddd", "0.1")
    terminal.end("tiny-cccccccc", "0.9")
    await terminal.installed.until_state("succeeded")
    best = await terminal.tuner("best", "tiny", "-o", "json")
    assert '"value": 0.9' in best.out


@beside_katib()
async def test_values_over_time_come_from_katibs_database(terminal: BesideKatib) -> None:
    """Katib's Trials have only the least, the greatest and the last."""
    with database(lambda _trial: ["0.3", "0.7"]) as variables:
        os.environ.update(variables)
        try:
            terminal.katib()
            await terminal.migrate("--yes")
            for each in ("tiny-cccccccc", "tiny-dddddddd"):
                terminal.end(each, "0.1")
            await terminal.installed.until_state("succeeded")
        finally:
            for name in variables:
                del os.environ[name]
    exported = json.loads((await terminal.tuner("export", "tiny", "--format", "json")).out)
    curves = [
        [each["value"] for each in trial["measurements"] if each["metric"] == "score"]
        for trial in exported["trials"]
        if trial["parameters"]["x"] == 0.25
    ]
    assert curves == [[0.3, 0.7]]


@beside_katib(FOREVER)
async def test_katibs_running_trials_count_in_parallelism(terminal: BesideKatib) -> None:
    terminal.katib(maxTrialCount=20)
    await terminal.migrate("--yes")
    await terminal.installed.until(lambda: len(terminal.installed.jobs) == 1)
    await terminal.installed.until(
        lambda: "2 Trials of Katib" in terminal.installed.condition("Running").get("message", "")
    )
    assert len(terminal.installed.jobs) == 1


@beside_katib()
async def test_it_ends_only_after_katibs_last_trial(terminal: BesideKatib) -> None:
    terminal.katib(maxTrialCount=5)
    await terminal.migrate("--yes")
    await terminal.installed.until(
        lambda: [each["status"].get("succeeded") for each in terminal.installed.jobs] == [1]
    )
    terminal.end("tiny-cccccccc", "0.9")
    await terminal.installed.until(
        lambda: "1 Trial of Katib" in terminal.installed.condition("Running").get("message", "")
    )
    assert terminal.installed.status()["state"] == "running"
    terminal.end("tiny-dddddddd", "0.8")
    await terminal.installed.until_state("succeeded")


@beside_katib(FOREVER)
async def test_a_later_controller_counts_them_again(terminal: BesideKatib) -> None:
    terminal.katib(maxTrialCount=20)
    await terminal.migrate("--yes")
    await terminal.installed.until(lambda: len(terminal.installed.jobs) == 1)
    await terminal.installed.stop()
    terminal.end("tiny-cccccccc", "0.9")
    terminal.installed.start()
    await terminal.installed.until(lambda: len(terminal.installed.jobs) == 2)
    await terminal.installed.until(
        lambda: "1 Trial of Katib" in terminal.installed.condition("Running").get("message", "")
    )
    assert len(terminal.installed.jobs) == 2


@beside_katib(FOREVER)
async def test_katib_is_told_that_it_has_ended(terminal: BesideKatib) -> None:
    terminal.katib()
    await terminal.migrate("--yes")
    said = terminal.katibs()["status"]["conditions"]
    assert [(each["type"], each["status"]) for each in said] == [
        ("Created", "True"),
        ("Running", "False"),
        ("Failed", "True"),
    ]
    assert said[-1]["reason"] == "TakenOverByTuner"
    assert "experiments.tuner.dev tiny" in said[-1]["message"]
    again = await terminal.migrate()
    assert "taken over" in again.out


@beside_katib(FOREVER)
async def test_undo_gives_it_back(terminal: BesideKatib) -> None:
    before = terminal.katib()
    await terminal.migrate("--yes")
    tried = await terminal.migrate("tiny", "--undo")
    assert "dry run" in tried.err
    assert terminal.ours() is not None
    said = await terminal.migrate("tiny", "--undo", "--yes")
    assert said.code == 0, said.err
    assert terminal.ours() is None
    after = terminal.katibs()
    types = [(each["type"], each["status"]) for each in after["status"]["conditions"]]
    assert types == [("Created", "True"), ("Running", "True")]
    assert after["spec"] == before["spec"]
    suggestion = terminal.api.get("suggestions", NAMESPACE, "tiny")
    types = [each["type"] for each in suggestion["status"]["conditions"]]
    assert "Succeeded" not in types
    await terminal.installed.until(lambda: not terminal.installed.jobs)


@beside_katib(FOREVER)
async def test_a_search_that_tuner_refuses_stays_with_katib(terminal: BesideKatib) -> None:
    """The policy of the cluster refuses it only when it is there."""
    before = terminal.katib()
    template = before["spec"]["trialTemplate"]
    template["trialSpec"]["spec"]["template"]["spec"]["hostNetwork"] = True
    terminal.api.change(
        EXPERIMENTS, NAMESPACE, "tiny", lambda each: each["spec"].update(trialTemplate=template)
    )
    before = terminal.katibs()
    said = await terminal.migrate("--yes")
    assert said.code == 2
    assert "hostNetwork" in said.err
    assert terminal.ours() is None
    assert terminal.katibs() == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"algorithm": {"algorithmName": "pbt"}}, "checkpoints"),
        ({"algorithm": {"algorithmName": "nosuch"}}, "nosuch"),
        ({"maxTrialCount": 4}, "begun all 4 trials"),
    ],
)
def test_what_cannot_be_taken_over_is_named(tmp_path: Path, changes: Raw, words: str) -> None:
    @beside_katib()
    async def claim(terminal: BesideKatib) -> None:
        terminal.katib("other")
        terminal.katib(**changes)
        said = await terminal.migrate()
        assert said.code == 2
        assert "other" in said.out
        (reason,) = [line for line in said.err.splitlines() if f"{NAMESPACE}/tiny" in line][:1]
        assert words in said.err, reason

    claim(tmp_path)


@beside_katib()
async def test_one_that_ends_meanwhile_has_ended(terminal: BesideKatib) -> None:
    terminal.katib()
    over = condition("Succeeded", of="Experiment")

    def ends(method: str, path: str) -> int:
        if method == "PATCH" and "/apis/tuner.dev/" in path:
            terminal.api.fails = lambda _method, _path: 0
            terminal.api.change(
                EXPERIMENTS,
                NAMESPACE,
                "tiny",
                lambda each: each["status"]["conditions"].append(over),
            )
        return 0

    terminal.api.fails = ends
    said = await terminal.migrate("--yes")
    assert said.code == 6
    assert "has ended meanwhile" in said.err
    assert terminal.ours() is None
    assert terminal.katibs()["status"]["conditions"][-1] == over


@beside_katib()
async def test_a_name_that_is_taken_is_refused(terminal: BesideKatib) -> None:
    terminal.installed.apply(our_experiment())
    await terminal.installed.until_state("succeeded")
    terminal.katib()
    said = await terminal.migrate("--yes")
    assert said.code == 2
    assert "experiments.tuner.dev tiny already" in said.err


@beside_katib()
async def test_who_may_not_list_all_sees_the_namespaces_that_they_may_read(
    terminal: BesideKatib,
) -> None:
    terminal.katib()
    everywhere = "/apis/kubeflow.org/v1beta1/experiments"
    terminal.api.fails = lambda _method, path: 403 * (path == everywhere)
    said = await terminal.migrate("-A")
    assert said.code == 0, said.err
    assert said.out.splitlines()[1].split()[:2] == [NAMESPACE, "tiny"]


@beside_katib()
async def test_words_that_do_not_fit_are_refused(terminal: BesideKatib) -> None:
    terminal.katib()
    assert (await terminal.migrate("--undo")).code == 2
    assert (await terminal.migrate("tiny", "-A")).code == 2
    assert (await terminal.migrate("nosuch")).code == 5
    kept = await terminal.migrate("tiny", "--undo", "--yes")
    assert (kept.code, "is not taken over" in kept.err) == (0, True)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait less for what does not come."""
    monkeypatch.setattr(katib_migration, "_NOTICED_S", 2.0)
    monkeypatch.setattr(katib_migration, "_UNCOUNTED_S", 0.1)


@beside_katib()
async def test_a_search_without_a_trial_is_taken_over_whole(terminal: BesideKatib) -> None:
    terminal.api.put(EXPERIMENTS, katib_objects.experiment(maxTrialCount=2, parallelTrialCount=2))
    said = await terminal.migrate("--yes")
    assert said.code == 0, said.err
    assert "trialsRunning" not in terminal.katibs()["status"]
    await terminal.installed.until_state("succeeded")
    assert terminal.installed.status()["trials"]["succeeded"] == 2


@beside_katib(runs=False)
async def test_without_running_trials_katibs_controller_may_be_gone(terminal: BesideKatib) -> None:
    terminal.katib()
    terminal.end("tiny-cccccccc", "0.9")
    terminal.end("tiny-dddddddd", "0.1")
    said = await terminal.migrate("--yes")
    assert said.code == 0, said.err
    assert terminal.katibs()["status"]["trialsRunning"] == 0
    await terminal.installed.until_state("succeeded")


@beside_katib(runs=False)
async def test_without_katibs_controller_its_running_trials_would_never_end(
    terminal: BesideKatib,
) -> None:
    terminal.katib()
    said = await terminal.migrate("--yes")
    assert said.code == 7
    assert "start it" in said.err
    assert terminal.ours() is None
    types = [each["type"] for each in terminal.katibs()["status"]["conditions"]]
    assert types == ["Created", "Running"]


@beside_katib(FOREVER)
async def test_who_may_not_stop_katib_leaves_all_as_it_was(terminal: BesideKatib) -> None:
    before = terminal.katib()
    status = f"/apis/kubeflow.org/v1beta1/namespaces/{NAMESPACE}/experiments/tiny/status"
    terminal.api.fails = lambda _method, path: 403 * (path == status)
    said = await terminal.migrate("--yes")
    assert said.code != 0
    assert terminal.ours() is None
    assert terminal.katibs() == before


@beside_katib(FOREVER)
async def test_a_take_over_that_was_killed_goes_on(terminal: BesideKatib) -> None:
    """Killed when Katib has stopped, and before Tuner's experiment may begin."""
    terminal.katib(maxTrialCount=20)
    await terminal.migrate("--yes")
    terminal.installed.edit("tiny", suspend=True)
    terminal.installed.edit("tiny", budget={"trials": 20})
    said = await terminal.migrate("--yes")
    assert said.code == 0, said.err
    ours = terminal.ours()
    assert ours is not None
    assert (ours["spec"]["budget"]["trials"], ours["spec"]["suspend"]) == (16, False)


@beside_katib(FOREVER)
async def test_two_commands_at_once_take_over_once(terminal: BesideKatib) -> None:
    terminal.katib(maxTrialCount=20)
    status = f"/apis/kubeflow.org/v1beta1/namespaces/{NAMESPACE}/experiments/tiny/status"

    def goes_on(method: str, path: str) -> int:
        if (method, path) == ("PATCH", status):
            terminal.api.fails = lambda _method, _path: 0
            terminal.installed.edit("tiny", suspend=False)  # by the other command
        return 0

    terminal.api.fails = goes_on
    said = await terminal.migrate("--yes")
    assert said.code == 0, said.err
    assert terminal.ours() is not None
    assert terminal.katibs()["status"]["conditions"][-1]["reason"] == katib_migration.TAKEN_OVER


def last_looks(terminal: BesideKatib, method: str, path: str) -> bool:
    """Whether this is the look at our experiment after Katib has stopped its own."""
    is_stopped = terminal.katibs()["status"]["conditions"][-1]["type"] == "Failed"
    is_ours = "tuner.dev" in path and path.endswith(f"/namespaces/{NAMESPACE}/experiments/tiny")
    return method == "GET" and is_ours and is_stopped


@beside_katib(FOREVER)
async def test_a_command_that_fails_leaves_alone_what_another_one_has_taken_over(
    terminal: BesideKatib,
) -> None:
    terminal.katib(maxTrialCount=20)

    def fails_late(method: str, path: str) -> int:
        if last_looks(terminal, method, path):
            terminal.api.fails = lambda _method, _path: 0
            terminal.installed.edit("tiny", suspend=False)  # by the other command
            return 403
        return 0

    terminal.api.fails = fails_late
    said = await terminal.migrate("--yes")
    assert said.code != 0
    found = terminal.ours()
    assert found is not None
    assert not found["spec"].get("suspend")
    assert terminal.katibs()["status"]["conditions"][-1]["reason"] == katib_migration.TAKEN_OVER


@beside_katib(FOREVER)
async def test_what_another_command_has_given_back_meanwhile_stays_with_katib(
    terminal: BesideKatib,
) -> None:
    terminal.katib(maxTrialCount=20)

    def gives_back(method: str, path: str) -> int:
        if last_looks(terminal, method, path):
            terminal.api.fails = lambda _method, _path: 0
            running = condition("Running", of="Experiment")
            terminal.api.change(
                EXPERIMENTS,
                NAMESPACE,
                "tiny",
                lambda each: each["status"].update(conditions=[running]),
            )
        return 0

    terminal.api.fails = gives_back
    said = await terminal.migrate("--yes")
    assert "was given back meanwhile by another command" in said.err
    assert terminal.ours() is None
    assert terminal.katibs()["status"]["conditions"][-1]["type"] == "Running"


@beside_katib()
async def test_ended_experiments_are_listed_if_asked(terminal: BesideKatib) -> None:
    terminal.katib()
    over = condition("Succeeded", of="Experiment")
    terminal.api.change(
        EXPERIMENTS, NAMESPACE, "tiny", lambda each: each["status"]["conditions"].append(over)
    )
    assert (await terminal.migrate()).out == ""
    said = await terminal.migrate("--ended")
    assert said.out.splitlines()[1].split()[:3] == [NAMESPACE, "tiny", "succeeded"]
    assert said.code == 0
