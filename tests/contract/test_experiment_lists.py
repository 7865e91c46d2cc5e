"""The list of a state directory's experiments: what it shows, and how many statements it takes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from controller.app import query
from controller.app.experiments import ControllerLease
from controller.app.local_experiments import LocalExperiments
from controller.app.state_directory import StateDirectory
from controller.app.workspace import Workspace
from controller.core.model import (
    Attempt,
    AttemptState,
    Experiment,
    ExperimentState,
    FinalRun,
    Revision,
    Stage,
    Uid,
)
from controller.experiment_store import Changes
from controller.report import description, documents, text_tables
from controller.report.record import ExperimentRecord
from controller.report.top import top
from controller.search import study_name, study_spec
from controller.spec import read
from controller.ui.board import Board
from suggest.errors import NotFound, StoreUnavailable, TunerError
from suggest.storage.opening import open_store
from suggest.storage.store import Addition, StudyRecord
from suggest.study import Study
from suggest.trial import IMPORTED_FROM, REUSED, Trial, TrialState
from tests.postgres import a_postgres
from tests.unit.builders import START

FILE = """
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {name: %s}
spec:
  objective: {metric: score, direction: %s}
  parameters: {x: {type: float, min: 0, max: 1}}
  algorithm: {name: random}
  budget: {trials: 9}
  trial: {command: [train, "--x=${x}"]}
"""
SUCCEEDED, FAILED = TrialState.SUCCEEDED, TrialState.FAILED


@pytest.fixture(params=["sqlite", "postgres"])
def storage(request: pytest.FixtureRequest) -> str:
    """Return the URL of the studies; "": in the state directory."""
    if request.param == "postgres":
        url: str = request.getfixturevalue("postgres_url")
        return url
    return ""


class Recorded:
    """A state directory with experiments that ran as a test says."""

    def __init__(self, folder: Path, storage: str) -> None:
        self.state = StateDirectory(folder)
        self.state.make()
        self.storage = storage
        self.workspace = Workspace(self.state)

    def run(self, name: str) -> ControllerLease:
        """Become the controller of an experiment."""
        with closing(LocalExperiments(self.state)) as experiments:
            return experiments.lease(Uid(f"{name:a<16}"[:16]), name)

    def add(
        self,
        name: str,
        trials: Sequence[Trial] = (),
        attempts: Sequence[Attempt] = (),
        *,
        state: ExperimentState = ExperimentState.SUCCEEDED,
        direction: str = "maximize",
        final: FinalRun | None = None,
        has_study: bool = True,
    ) -> None:
        """Record an experiment, whose uid its trials have as the client `own`."""
        spec = read(FILE % (name, direction), source="test").spec
        uid = Uid(f"{name:a<16}"[:16])
        experiment = Experiment(uid, spec, 1, "/tmp", "", server=self.storage, start_time=START)
        with closing(LocalExperiments(self.state)) as experiments:
            experiments.folders(uid).root.mkdir(exist_ok=True)
            experiments.create_experiment(experiment, Revision(1, spec, "", START))
            ended = replace(experiment, state=state, final=final)
            experiments.save(uid, Changes(ended, attempts, final=final is not None))
        if not has_study:
            return
        with closing(open_store(self.storage or self.state.storage_url)) as store:
            study = Study(study_name(experiment), f"s-{uid}", study_spec(spec), 7, {}, START)
            store.insert_study(StudyRecord(study, "request", "fingerprint"))
            lease = store.take(study.name, uid=study.uid, address="")
            own = [
                replace(each, client_id=uid if each.client_id == "own" else each.client_id)
                for each in trials
            ]
            store.add_trials(lease, [Addition(each, None) for each in own])
            store.release(lease)

    def listed(self) -> tuple[list[ExperimentRecord], list[str]]:
        """Return the list, and what could not be read for it."""
        errors: list[TunerError] = []
        records = asyncio.run(query.all_experiments(self.workspace, None, on_error=errors.append))
        return records, [str(error).partition(";")[0] for error in errors]

    def described(self, name: str) -> ExperimentRecord:
        return asyncio.run(query.look_up(self.workspace, name, None))

    def trial(self, name: str, number: int) -> ExperimentRecord:
        """Return what `describe NAME/N` reads."""
        return asyncio.run(
            query.look_up(self.workspace, name, None, trial=number, measurements=True, latest=True)
        )


def a_trial(
    number: int,
    state: TrialState = SUCCEEDED,
    value: float | None = None,
    *,
    client: str = "own",
    **labels: str,
) -> Trial:
    return Trial(
        number, state, {"x": 0.5}, value, client_id=client, labels=labels, create_time=START
    )


def an_attempt(number: int, state: AttemptState, **others: object) -> Attempt:
    end = START if state.ended else None
    return Attempt(number, 1, state, start_time=START, end_time=end, **others)  # type: ignore[arg-type]


@contextmanager
def counted_statements() -> Iterator[list[str]]:
    """Note the statements of all databases in this process."""
    statements: list[str] = []

    def note(_c: object, _cursor: object, statement: str, *_others: object) -> None:
        statements.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def test_a_list_shows_of_each_experiment_what_describe_shows(tmp_path: Path, storage: str) -> None:
    recorded = Recorded(tmp_path / "state", storage)
    values = [0.25, 0.75, 0.75]
    some = [a_trial(number, value=value) for number, value in enumerate(values)]
    recorded.add("largest", [*some, a_trial(3, FAILED), a_trial(4, TrialState.PRUNED, 0.9)])
    recorded.add("smallest", [*some, a_trial(3, value=None)], direction="minimize")
    recorded.add(
        "taken-over",
        [
            a_trial(0, value=0.5),
            a_trial(1, value=0.9, client="", **{IMPORTED_FROM: "a file"}),
            a_trial(2, value=0.5, **{REUSED: "0"}),
            a_trial(3, value=0.99, client="another"),
        ],
    )
    recorded.add(
        "interrupted",
        [*some, a_trial(3, TrialState.RUNNING), a_trial(4, TrialState.RUNNING)],
        [an_attempt(3, AttemptState.CANCELLED)],
        state=ExperimentState.STOPPED,
    )
    recorded.add(
        "left",
        [a_trial(0, TrialState.RUNNING), a_trial(1, TrialState.RUNNING)],
        [an_attempt(0, AttemptState.RUNNING), an_attempt(1, AttemptState.CREATED)],
        state=ExperimentState.RUNNING,
    )
    recorded.add(
        "again",
        [a_trial(0, FAILED), a_trial(1, FAILED)],
        [
            an_attempt(0, AttemptState.FAILED, set_aside=True),
            an_attempt(1, AttemptState.FAILED, set_aside=True),
            replace(an_attempt(1, AttemptState.FAILED), number=2),
        ],
        state=ExperimentState.PAUSED,
    )
    final = replace(an_attempt(0, AttemptState.SUCCEEDED), trial=Stage.FINAL, value=0.7)
    recorded.add("final", some, [final], final=FinalRun(1, 1))
    recorded.add("began", state=ExperimentState.RUNNING, has_study=False)

    records, errors = recorded.listed()

    assert errors == []
    shown = {record.name: documents.experiment(record) for record in records}
    described = {name: documents.experiment(recorded.described(name)) for name in shown}
    assert shown == described
    assert text_tables.experiment_csv_rows(records) == text_tables.experiment_csv_rows(
        [recorded.described(record.name) for record in records]
    )
    trials = {name: each["trials"] for name, each in shown.items()}
    assert trials == {
        "largest": {"succeeded": 3, "pruned": 1, "failed": 1},
        "smallest": {"succeeded": 4},
        "taken-over": {"succeeded": 1},
        "interrupted": {"queued": 2, "succeeded": 3},
        "left": {"queued": 1, "running": 1},
        "again": {"queued": 1, "failed": 1},
        "final": {"succeeded": 3},
        "began": {},
    }
    at = text_tables.EXPERIMENT_CSV.index("trials")
    in_csv = {row[0]: row[at] for row in text_tables.experiment_csv_rows(records)}
    assert in_csv == {name: sum(each.values()) for name, each in trials.items()}
    best = {name: each["best"]["number"] for name, each in shown.items() if "best" in each}
    assert best == {"largest": 1, "smallest": 0, "taken-over": 1, "interrupted": 1, "final": 1}


def test_an_experiment_whose_study_is_lost_is_listed_with_the_reason(
    tmp_path: Path, storage: str
) -> None:
    recorded = Recorded(tmp_path / "state", storage)
    recorded.add("kept", [a_trial(0, value=0.5)])
    recorded.add("lost", attempts=[an_attempt(0, AttemptState.SUCCEEDED)], has_study=False)
    records, errors = recorded.listed()
    assert [record.name for record in records] == ["kept", "lost"]
    assert errors == [
        "lost has run trials, but its store no longer has the study namespaces/default/studies/"
        "lost-losta"
    ]


@pytest.mark.parametrize("shown", ["an experiment", "a list"])
def test_a_watch_goes_on_after_the_database_was_away(tmp_path: Path, shown: str) -> None:
    with a_postgres() as postgres:
        recorded = Recorded(tmp_path / "state", postgres.new_database())
        recorded.add("watched", [a_trial(0, value=0.5)])
        seen: list[int] = []
        errors: list[TunerError] = []

        async def see(record: ExperimentRecord) -> bool:
            seen.append(len(record.trials))
            if len(seen) == 1:
                postgres.stop()
            return len(seen) == 2

        def start(error: TunerError) -> None:
            errors.append(error)
            postgres.start()

        async def see_all(records: Sequence[ExperimentRecord], found: Sequence[TunerError]) -> bool:
            [record] = records
            seen.append(record.counts[SUCCEEDED])
            for error in found:
                start(error)
            if len(seen) == 1:
                postgres.stop()
            return len(seen) == 3

        workspace = recorded.workspace
        if shown == "a list":
            watch = query.watch_all(workspace, None, see_all, every_s=0.05, on_error=start)
        else:
            watch = query.watch(workspace, "watched", None, see, every_s=0.05, on_error=start)
        asyncio.run(watch)
    assert set(seen) == {1}
    assert [type(error) for error in errors] == [StoreUnavailable]


def test_a_list_shows_no_numbers_of_trials_that_it_cannot_read(tmp_path: Path) -> None:
    with a_postgres() as postgres:
        recorded = Recorded(tmp_path / "state", postgres.new_database())
        recorded.add("away", [a_trial(0, value=0.5)], state=ExperimentState.PAUSED)
    [record], errors = recorded.listed()
    assert len(errors) == 1
    assert "trials" not in documents.experiment(record)
    columns, [row] = text_tables.experiment_table([record], now=START)
    assert row[columns.index("TRIALS")] == "?/9"
    assert top(record, report=None, now=START) == "away  paused  unknown trials of 9\n"


async def the_first_page(recorded: Recorded) -> list[documents.Json]:
    """Return the first list that the page of `tuner ui` gets."""
    board = Board(recorded.workspace)
    try:
        _, data = await anext(board.follow_list())
    finally:
        await board.close()
    searches: list[documents.Json] = json.loads(data.text)["searches"]
    return searches


@pytest.mark.parametrize("shown", ["a list", "a page"])
def test_the_statements_of_a_list_do_not_grow_with_it(
    tmp_path: Path, storage: str, shown: str
) -> None:
    recorded = Recorded(tmp_path / "state", storage)

    def statements(first: int, last: int) -> int:
        """Return how many the list takes after these experiments were added."""
        for number in range(first, last):
            recorded.add(
                f"e{number}",
                [a_trial(0, value=0.5), a_trial(1, FAILED)],
                [
                    an_attempt(0, AttemptState.SUCCEEDED),
                    an_attempt(1, AttemptState.FAILED),
                    replace(an_attempt(0, AttemptState.SUCCEEDED), trial=Stage.FINAL),
                ],
                direction="minimize" if number % 2 else "maximize",
                final=FinalRun(0, 1),
            )
        with counted_statements() as found:
            if shown == "a list":
                trials = [documents.experiment(each)["trials"] for each in recorded.listed()[0]]
            else:
                trials = [each["trials"] for each in asyncio.run(the_first_page(recorded))]
        assert trials == [{"succeeded": 1, "failed": 1}] * last
        return len(found)

    assert statements(0, 2) == statements(2, 20)


def test_the_statements_of_a_list_do_not_grow_with_experiments_that_run(
    tmp_path: Path, storage: str
) -> None:
    recorded = Recorded(tmp_path / "state", storage)
    leases: list[ControllerLease] = []

    def statements(first: int, last: int) -> int:
        for number in range(first, last):
            leases.append(recorded.run(f"e{number}"))
            recorded.add(
                f"e{number}",
                [a_trial(0, value=0.5), *(a_trial(n, TrialState.RUNNING) for n in range(1, 5))],
                [
                    an_attempt(0, AttemptState.SUCCEEDED),
                    an_attempt(1, AttemptState.CANCELLED),
                    replace(an_attempt(1, AttemptState.RUNNING), number=2),
                    an_attempt(2, AttemptState.STOPPING),
                    an_attempt(3, AttemptState.CREATED),
                ],
                state=ExperimentState.RUNNING,
            )
        with counted_statements() as found:
            records, _ = recorded.listed()
        shown = [documents.experiment(each) for each in records]
        assert [each["trials"] for each in shown] == [
            {"queued": 2, "running": 2, "succeeded": 1}
        ] * last
        assert shown == [documents.experiment(recorded.described(each.name)) for each in records]
        return len(found)

    assert statements(0, 2) == statements(2, 20)
    for lease in leases:
        lease.release()


def test_top_reads_only_experiments_that_have_not_ended(tmp_path: Path, storage: str) -> None:
    recorded = Recorded(tmp_path / "state", storage)
    recorded.add("paused", [a_trial(0, value=0.5)], state=ExperimentState.PAUSED)

    def statements() -> int:
        errors: list[TunerError] = []
        with counted_statements() as found:
            records = asyncio.run(
                query.all_experiments(
                    recorded.workspace, None, on_error=errors.append, at_work=True
                )
            )
        assert ([record.name for record in records], errors) == (["paused"], [])
        return len(found)

    alone = statements()
    recorded.add("ended", [a_trial(0, value=0.5)])
    assert statements() == alone


def test_the_statements_for_one_trial_do_not_grow_with_the_others(
    tmp_path: Path, storage: str
) -> None:
    recorded = Recorded(tmp_path / "state", storage)

    def statements(name: str, trials: int) -> int:
        recorded.add(
            name,
            [a_trial(number, value=1 / (number + 1)) for number in range(trials)],
            [an_attempt(number, AttemptState.SUCCEEDED) for number in range(trials)],
        )
        with counted_statements() as found:
            record = recorded.trial(name, 0)
        assert len(record.trials) == 1
        return len(found)

    assert statements("few", 2) == statements("many", 2500)


def test_one_trial_is_described_as_among_all(tmp_path: Path, storage: str) -> None:
    recorded = Recorded(tmp_path / "state", storage)
    recorded.add(
        "some",
        [
            a_trial(0, value=0.5),
            a_trial(1, value=0.75),
            a_trial(2, FAILED),
            a_trial(3, TrialState.RUNNING),
            a_trial(4, value=0.1, client="another"),
        ],
        [
            an_attempt(0, AttemptState.SUCCEEDED),
            an_attempt(1, AttemptState.SUCCEEDED),
            an_attempt(2, AttemptState.FAILED, set_aside=True),
            an_attempt(3, AttemptState.RUNNING),
        ],
        state=ExperimentState.RUNNING,
    )
    whole = recorded.described("some")
    for number in range(4):
        alone, among = (
            description.describe_trial(each, query.find_trial(each, number), log=None, now=START)
            for each in (replace(recorded.trial("some", number), events=()), whole)
        )
        assert alone == among
    for number in (4, 9):
        with pytest.raises(NotFound, match=f"some has no trial {number}; its trials are 0 to 3"):
            query.find_trial(recorded.trial("some", number), number)


@pytest.mark.anyio
async def test_a_page_reads_a_store_of_others_once_a_second_and_after_its_own_changes(
    tmp_path: Path, postgres_url: str
) -> None:
    recorded = Recorded(tmp_path / "state", postgres_url)
    recorded.add("labeled", [a_trial(0, value=0.5)])
    board = Board(recorded.workspace)
    experiment = board.find("default", "labeled")

    def is_unchanged_by_a_turn() -> bool:
        before = board.mark(experiment)
        board.experiments().save(experiment.uid, Changes(experiment))
        return board.mark(experiment) == before

    try:
        # The next second may begin in between.
        assert any(is_unchanged_by_a_turn() for _ in range(3))
        for label in ("first", "second"):
            await board.label("default", "labeled", 0, {label: "yes"})
            record = await board.record("default", "labeled")
            assert label in record.trials[0].trial.labels
    finally:
        await board.close()


@pytest.mark.anyio
async def test_a_page_lists_experiments_before_their_trials_are_read(
    tmp_path: Path, postgres_url: str
) -> None:
    recorded = Recorded(tmp_path / "state", postgres_url)
    recorded.add("large", [a_trial(0, value=0.5)])
    board = Board(recorded.workspace)
    pages = [board.follow_list(), board.follow_list()]
    try:
        with psycopg.connect(postgres_url.replace("+psycopg", "")) as other:
            other.execute("LOCK TABLE trials IN ACCESS EXCLUSIVE MODE")
            shown = [json.loads((await anext(page))[1].text)["searches"] for page in pages]
            assert [[each["loaded"] for each in page] for page in shown] == [[False], [False]]
            assert board.readers == {}
        for page in pages:
            (search,) = json.loads((await anext(page))[1].text)["searches"]
            assert (search["loaded"], search["trials"]) == (True, {"succeeded": 1})
    finally:
        await board.close()
