"""The contract of every study store: subclass it,
and define how a store is opened on existing data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from sqlalchemy import select, update

from suggest.errors import NotFound, NotOwner
from suggest.space import Choice, Condition, Float, Int, Parameter, Scale, Space
from suggest.storage.database import Database
from suggest.storage.page_sessions import PageSessions
from suggest.storage.sql_store import StudyStore
from suggest.storage.store import MAX_METRICS, Addition, Counts, Lease, Observed, StudyRecord
from suggest.storage.study_json import fingerprint
from suggest.storage.study_tables import studies
from suggest.study import (
    Algorithm,
    Direction,
    Objective,
    PastSpace,
    Pruning,
    Study,
    StudyName,
    StudySpec,
    ValueRule,
)
from suggest.trial import Measurement, RungResult, Trial, TrialBatch, TrialState
from tests.unit.searches import a_column

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
NAME = StudyName("default", "digits")
SPEC = StudySpec(
    Space(
        (
            Parameter("lr", Float(1e-4, 1.0, Scale.LOG)),
            Parameter("wide", Float(0.0, 1.0, step=0.25)),
            Parameter("grid", Float(0.0, 1.0, points=5)),
            Parameter("layers", Int(1, 9, step=2)),
            Parameter("kind", Choice(("a", 1, 1.5, True))),
            Parameter("drop", Float(0.0, 0.5), (Condition("kind", ("a", True)),)),
        )
    ),
    (Objective("accuracy", Direction.MAXIMIZE, ValueRule.BEST),),
    Algorithm("random", 7, {"window": 3, "share": 0.5, "plain": True}),
    Pruning("median", {"warmupSteps": 2}),
)


def a_study(study: str = "digits", *, namespace: str = "default", **labels: str) -> StudyRecord:
    name = StudyName(namespace, study)
    made = Study(
        name, uid=f"{namespace}-{study}", spec=SPEC, seed=2**40, labels=labels, create_time=NOW
    )
    return StudyRecord(made, "request", fingerprint(SPEC))


def running(number: int, *, request_id: str = "r", client_id: str = "c") -> Trial:
    return Trial(
        number,
        TrialState.RUNNING,
        {"lr": 0.1, "layers": 3, "kind": True, "exact": 1.0},
        client_id=client_id,
        request_id=request_id,
        labels={"team": "vision"},
        create_time=NOW,
    )


def queued(number: int) -> Trial:
    return Trial(number, TrialState.QUEUED, {"lr": 0.5}, create_time=NOW)


def succeeded(trial: Trial, value: float) -> Trial:
    return replace(trial, state=TrialState.SUCCEEDED, value=value, step=4, end_time=NOW)


def measured(step: int, value: float, *, metric: str = "accuracy", attempt: int = 1) -> Measurement:
    return Measurement(attempt, metric, step, value)


def begin(
    sessions: PageSessions,
    key: str,
    sealed: bytes,
    used_s: float,
    *,
    owner: str = "me",
    oldest_s: float = 0.0,
) -> None:
    """Begin a session of the page, of which two of an owner and three in all are kept."""
    sessions.begin(key, sealed, owner, used_s, oldest_s=oldest_s, most=3, most_of_owner=2)


class StoreContract:
    """`opening()` may be entered several times at once;
    each store then acts like another process.
    """

    def opening(self) -> AbstractContextManager[StudyStore]:
        raise NotImplementedError

    @pytest.fixture
    def store(self) -> Iterator[StudyStore]:
        with self.opening() as store:
            yield store

    @contextmanager
    def a_leased_study(self, store: StudyStore) -> Iterator[Lease]:
        assert store.insert_study(a_study())
        lease = store.take(NAME, uid="default-digits", address="here")
        yield lease

    @pytest.fixture
    def lease(self, store: StudyStore) -> Iterator[Lease]:
        with self.a_leased_study(store) as lease:
            yield lease

    def test_a_study_reads_back_as_it_was_written(self, store: StudyStore) -> None:
        record = a_study(team="vision")
        assert store.insert_study(record)
        assert store.study(NAME) == record
        read = store.study(NAME)
        assert read is not None
        kinds = read.study.spec.space.parameters[4].domain
        assert isinstance(kinds, Choice)
        assert [type(v) for v in kinds.values] == [str, int, float, bool]

    def test_creating_a_study_with_a_taken_name_changes_nothing(self, store: StudyStore) -> None:
        store.insert_study(a_study())
        assert not store.insert_study(a_study(other="yes"))
        assert store.study(NAME) == a_study()

    def test_the_same_name_in_two_namespaces_is_two_studies(self, store: StudyStore) -> None:
        assert store.insert_study(a_study())
        assert store.insert_study(a_study(namespace="other"))

    def test_an_unknown_study_reads_as_none_and_cannot_be_taken(self, store: StudyStore) -> None:
        assert store.study(NAME) is None
        with pytest.raises(NotFound):
            store.contents(NAME)
        with pytest.raises(NotFound):
            store.take(NAME, uid="nobody", address="")

    def test_studies_are_listed_in_order_by_namespace_labels_and_page(
        self, store: StudyStore
    ) -> None:
        for namespace, study, team in (
            ("b", "x", "1"),
            ("a", "y", "1"),
            ("a", "x", "2"),
            ("a", "z", "1"),
        ):
            store.insert_study(a_study(study, namespace=namespace, team=team))

        def names(
            namespace: str | None, after: StudyName | None = None, **labels: str
        ) -> list[str]:
            found = store.studies(namespace, labels=labels, after=after, limit=2)
            return [f"{s.name.namespace}/{s.name.study}" for s in found]

        assert names(None) == ["a/x", "a/y"]
        assert names(None, StudyName("a", "y")) == ["a/z", "b/x"]
        assert names("b") == ["b/x"]
        assert names(None, team="1") == ["a/y", "a/z"]
        assert names(None, **{"it's": '"odd"'}) == []

    def test_the_usage_of_a_namespace_is_counted(self, store: StudyStore, lease: Lease) -> None:
        assert store.insert_study(a_study("second"))
        assert store.insert_study(a_study(namespace="other"))
        store.hand_out(lease, [running(0), running(1)])
        store.add_measurements(lease, 0, [measured(0, 0.5), measured(1, 0.5)])
        store.finish_trial(lease, replace(running(1), state=TrialState.CANCELLED), [])
        store.delete_trial(lease, 1)
        assert store.counts(NAME.namespace) == Counts(studies=2, trials=2, measurements=2)
        assert store.counts("other") == Counts(studies=1)
        assert store.counts("nobody") == Counts()

    def test_labels_with_any_characters_are_found(self, store: StudyStore) -> None:
        labels = {"équipe": "研究 🂡", "a.b\"c'd": "\\", "$": "[0]", "": ""}
        store.insert_study(a_study(**labels))
        store.insert_study(a_study("other", **dict.fromkeys(labels, "else")))
        for key, value in labels.items():
            found = store.studies(None, labels={key: value}, after=None, limit=9)
            assert [study.name for study in found] == [NAME], key

    def test_an_update_changes_spec_and_labels(self, store: StudyStore, lease: Lease) -> None:
        changed = replace(a_study().study, spec=replace(SPEC, pruning=None), labels={"a": "b"})
        store.update_study(lease, changed)
        read = store.study(NAME)
        assert read is not None
        assert (read.study.spec, read.study.labels) == (changed.spec, changed.labels)

    def test_a_renamed_metric_keeps_its_measurements(self, store: StudyStore, lease: Lease) -> None:
        store.hand_out(lease, [running(0), running(1)])
        for number, metrics in enumerate((["accuracy"], ["accuracy", "acc"])):
            store.add_measurements(
                lease, number, [measured(0, 0.5, metric=metric) for metric in metrics]
            )
        store.update_study(lease, a_study().study, renamed={"accuracy": "acc"})
        kept = [
            (trial, m.metric) for _, trial, m in store.measurements(NAME, None, after=0, limit=9)
        ]
        assert kept == [(0, "acc"), (1, "accuracy"), (1, "acc")], (
            "trial 1 has reported the new name itself"
        )

    def test_a_grown_space_is_stored_with_the_earlier_ones(
        self, store: StudyStore, lease: Lease
    ) -> None:
        grown = replace(
            SPEC, space=Space((*SPEC.space.parameters, Parameter("more", Choice((True, 1.0, "x")))))
        )
        store.update_study(
            lease, replace(a_study().study, spec=grown, past=(PastSpace(SPEC.space, 7, NOW),))
        )
        contents = store.contents(NAME)
        assert (contents.study.spec, contents.study.past) == (
            grown,
            (PastSpace(SPEC.space, 7, NOW),),
        )
        read = store.study(NAME)
        assert read is not None
        assert read.fingerprint == fingerprint(SPEC), "by which a repeated CreateStudy is known"

    def test_trials_and_measurements_read_back_as_they_were_written(
        self, store: StudyStore, lease: Lease
    ) -> None:
        reports = [
            measured(0, 0.5),
            measured(2, math.inf),
            measured(1, -math.inf, attempt=2),
            measured(1, 1e-300),
        ]
        store.hand_out(lease, [running(0), running(1)])
        store.add_measurements(lease, 1, reports)
        contents = store.contents(NAME)
        assert list(contents.trials) == [running(0), running(1)]
        assert [type(v) for v in contents.trials[0].parameters.values()] == [
            float,
            int,
            bool,
            float,
        ]
        assert list(contents.measurements) == [(1, m) for m in reports]

    @pytest.mark.parametrize("count", [2, 99, 100, 101, 700, 1000, 2345])
    def test_many_measurements_read_back_in_order(
        self, store: StudyStore, lease: Lease, count: int
    ) -> None:
        reports = [measured(step, 0.1 * step) for step in reversed(range(count))]
        store.hand_out(lease, [running(0), running(1)])
        store.add_measurements(lease, 1, reports)
        found = store.measurements(NAME, None, after=0, limit=count + 1)
        assert [(trial, m) for _, trial, m in found] == [(1, m) for m in reports]

    def test_the_latest_of_each_metric_is_of_the_newest_attempt_at_its_last_step(
        self, store: StudyStore, lease: Lease
    ) -> None:
        store.hand_out(lease, [running(n) for n in range(4)])
        store.add_measurements(
            lease, 0, [measured(5, 0.5), measured(3, 0.3), measured(1, 0.1, metric="loss")]
        )
        store.add_measurements(
            lease,
            2,
            [measured(9, 0.9), measured(1, 0.2, attempt=2), measured(9, 0.8, metric="loss")],
        )
        store.add_measurements(lease, 3, [measured(0, math.nan)])
        first, second, third, fourth = store.latest_measurements(NAME, None, after=-1, limit=9)
        assert [(trial, m) for _, trial, m in (first, second, third)] == [
            (0, measured(5, 0.5)),
            (0, measured(1, 0.1, metric="loss")),
            (2, measured(1, 0.2, attempt=2)),
        ]
        assert fourth[1] == 3
        assert math.isnan(fourth[2].value)
        assert store.latest_measurements(NAME, 2, after=-1, limit=9) == [third]
        assert store.latest_measurements(NAME, 1, after=-1, limit=9) == []

    def test_the_latest_measurements_come_in_pages_of_any_size(
        self, store: StudyStore, lease: Lease
    ) -> None:
        store.hand_out(lease, [running(n) for n in range(250)])
        for number in range(250):
            kinds = "abc" if number % 5 else [f"m{i:02}" for i in range(70)]
            store.add_measurements(lease, number, [measured(0, 0.5, metric=kind) for kind in kinds])
        whole = store.latest_measurements(NAME, None, after=-1, limit=10_000)
        assert len(whole) == 200 * 3 + 50 * MAX_METRICS
        for size in (1, 63, 1000):
            pages: list[tuple[int, int, Measurement]] = []
            for _ in range(9):
                after = pages[-1][0] if pages else -1
                pages += store.latest_measurements(NAME, None, after=after, limit=size)
            assert pages == whole[: size * 9]

    def test_trials_are_counted_by_state(self, store: StudyStore, lease: Lease) -> None:
        store.hand_out(lease, [running(n) for n in range(4)])
        store.add_trials(lease, [Addition(queued(4), "add")])
        store.delete_trial(lease, 4)
        other = StudyName("default", "nothing-here")
        assert store.trial_counts([NAME, other]) == {NAME: {TrialState.RUNNING: 4}, other: {}}

    def test_metrics_with_any_characters_are_stored(self, store: StudyStore, lease: Lease) -> None:
        odd = ['a"b', "a\\b", "a,b", "{a}", "NULL", " a ", "'a'", "é%s:a", "?", "line\nline"]
        reports = [measured(0, 0.5, metric=metric) for metric in odd]
        store.hand_out(lease, [running(0)])
        store.add_measurements(lease, 0, reports)
        assert [m for _, _, m in store.measurements(NAME, 0, after=0, limit=100)] == reports

    def test_nan_is_stored(self, store: StudyStore, lease: Lease) -> None:
        store.hand_out(lease, [running(0)])
        store.add_measurements(lease, 0, [measured(0, math.nan)])
        [(_, _, read)] = store.measurements(NAME, 0, after=0, limit=10)
        assert math.isnan(read.value)

    def test_a_queued_trial_is_handed_out_once(self, store: StudyStore, lease: Lease) -> None:
        store.add_trials(lease, [Addition(queued(0), "add")])
        store.hand_out(lease, [running(0), running(1)])
        assert store.trials(NAME, states=[], client_id="", after=-1, limit=9) == [
            running(0),
            running(1),
        ]
        assert store.trial_added_by(NAME, "add") == running(0)
        with pytest.raises(NotOwner):
            store.hand_out(lease, [running(0, request_id="again")])
        assert store.trial(NAME, 0) == running(0)

    def test_a_finished_trial_has_its_outcome_and_last_measurements(
        self, store: StudyStore, lease: Lease
    ) -> None:
        store.hand_out(lease, [running(0)])
        done = succeeded(running(0), 0.75)
        store.finish_trial(lease, done, [measured(4, 0.75)])
        assert store.trial(NAME, 0) == done
        assert [m for _, _, m in store.measurements(NAME, 0, after=0, limit=9)] == [
            measured(4, 0.75)
        ]

    def test_a_finished_trial_never_changes(self, store: StudyStore, lease: Lease) -> None:
        store.hand_out(lease, [running(0)])
        store.finish_trial(lease, succeeded(running(0), 0.75), [])
        with pytest.raises(NotOwner):
            store.finish_trial(lease, succeeded(running(0), 0.9), [measured(9, 0.9)])
        assert store.trial(NAME, 0) == succeeded(running(0), 0.75)
        assert store.measurements(NAME, 0, after=0, limit=9) == []

    def test_a_decided_parameter_is_stored_with_the_space_that_has_it(
        self, store: StudyStore, lease: Lease
    ) -> None:
        study = a_study().study
        store.hand_out(lease, [running(0)])
        having = replace(running(0), parameters={"x": 0.5, "met": 3})
        space = Space((*study.spec.space.parameters, Parameter("met", Int(1, 4))))
        store.decide(lease, having, replace(study, spec=replace(study.spec, space=space)))
        assert store.trial(NAME, 0) == having
        record = store.study(NAME)
        assert record is not None
        assert record.study.spec.space == space
        store.decide(lease, running(0), None)
        assert store.trial(NAME, 0) == running(0)

    def test_parameters_that_join_one_by_one_are_stored_like_the_whole_space(
        self, store: StudyStore, lease: Lease
    ) -> None:
        study, trial = a_study().study, running(0)
        store.hand_out(lease, [trial])
        joining = [
            Parameter("a", Float(1e-05, 1e22, Scale.LOG)),
            Parameter('"quoted"', Int(-3, 2**53)),
            Parameter("größe", Choice((True, 1, 1.0, "1", None, [0.5, {"a": [2]}]))),
        ]
        for parameter in joining:
            space = study.spec.space.joined_by(parameter)
            study = replace(study, spec=replace(study.spec, space=space))
            trial = replace(trial, parameters={**trial.parameters, parameter.name: 1})
            store.decide(lease, trial, study, joining=parameter)
        record = store.study(NAME)
        assert record is not None
        assert record.study.spec.space == study.spec.space
        assert fingerprint(record.study.spec) == fingerprint(study.spec)
        assert store.trial(NAME, 0) == trial

    def test_a_parameter_joins_only_under_the_lease(self, store: StudyStore, lease: Lease) -> None:
        study = a_study().study
        store.hand_out(lease, [running(0)])
        parameter = Parameter("a", Int(0, 1))
        space = study.spec.space.joined_by(parameter)
        grown = replace(study, spec=replace(study.spec, space=space))
        with pytest.raises(NotOwner):
            store.decide(
                replace(lease, epoch=lease.epoch - 1), running(0), grown, joining=parameter
            )
        record = store.study(NAME)
        assert record is not None
        assert record.study.spec.space == study.spec.space

    def test_a_trial_that_has_ended_gets_no_parameter(
        self, store: StudyStore, lease: Lease
    ) -> None:
        store.hand_out(lease, [running(0)])
        store.finish_trial(lease, succeeded(running(0), 0.75), [])
        with pytest.raises(NotOwner):
            store.decide(lease, running(0), None)

    def test_an_imported_trial_is_stored_with_its_measurements(
        self, store: StudyStore, lease: Lease
    ) -> None:
        done = succeeded(running(0), 0.5)
        store.add_trials(lease, [Addition(done, "add", [measured(0, 0.5)])])
        assert store.trial_added_by(NAME, "add") == done
        assert store.trial_added_by(NAME, "r") is None
        assert len(store.measurements(NAME, None, after=0, limit=9)) == 1

    def test_trials_are_added_many_at_once_and_known_by_their_requests(
        self, store: StudyStore, lease: Lease
    ) -> None:
        done = [
            succeeded(replace(running(n), request_id="", client_id=""), n / 2) for n in range(3)
        ]
        reports = [measured(k, math.nan if k else 0.5) for k in range(2)]
        store.add_trials(
            lease, [Addition(done[0], "a"), Addition(done[1], "b", reports), Addition(done[2], "c")]
        )
        assert store.trials(NAME, states=[], client_id="", after=-1, limit=9) == done
        assert [
            (trial, m.step) for _, trial, m in store.measurements(NAME, None, after=0, limit=9)
        ] == [(1, 0), (1, 1)]
        store.delete_trial(lease, 2)
        assert store.numbers_added_by(NAME, ["c", "x", "a"]) == {"a": 0, "c": 2}
        assert store.numbers_added_by(StudyName("default", "other"), ["a"]) == {}

    def test_a_long_history_keeps_the_type_of_each_value(
        self, store: StudyStore, lease: Lease
    ) -> None:
        values = [True, 1, 1.0, "1", None, [1], {"a": 1.0}]
        done = [
            succeeded(
                replace(running(n), parameters={"x": values[n % 7]}, request_id="", client_id=""),
                0.1 + 0.2 * n,
            )
            for n in range(600)
        ]
        store.add_trials(lease, [Addition(trial, None) for trial in done])
        assert repr(store.trials(NAME, states=[], client_id="", after=-1, limit=600)) == repr(done)
        with pytest.raises(NotOwner):
            store.add_trials(
                replace(lease, epoch=lease.epoch - 1),
                [Addition(replace(done[0], number=600), None)] * 2,
            )

    @pytest.mark.parametrize("more", [{}, {"odd": [str(n) if n % 2 else None for n in range(600)]}])
    def test_a_batch_is_stored_as_its_trials(
        self, store: StudyStore, lease: Lease, more: dict[str, list[str | None]]
    ) -> None:
        states = [TrialState.SUCCEEDED if n % 3 else TrialState.FAILED for n in range(600)]
        batch = TrialBatch(
            2,
            states,
            parameters={
                "lr": a_column(*(0.1 + 0.2 * n for n in range(600))),
                "100%": a_column(*(f'"{n}%\n' for n in range(600))),
            },
            values=[
                0.1 + 0.2 * n if state is TrialState.SUCCEEDED else None
                for n, state in enumerate(states)
            ],
            reasons=["" if state is TrialState.SUCCEEDED else "broken" for state in states],
            failure_classes=["" if state is TrialState.SUCCEEDED else "katib" for state in states],
            labels={"name": [f"search-{n}" for n in range(600)], **more},
            time=datetime(2026, 1, 2, tzinfo=UTC),
        )
        store.add_batch(lease, batch)
        assert repr(store.trials(NAME, states=[], client_id="", after=-1, limit=600)) == repr(
            list(batch.trials())
        )
        with pytest.raises(NotOwner):
            store.add_batch(replace(lease, epoch=lease.epoch - 1), replace(batch, first=1000))

    def test_trials_of_one_history_with_equal_parameters_differ_by_type(
        self, store: StudyStore, lease: Lease
    ) -> None:
        done = [
            succeeded(
                replace(running(n), parameters={"x": value}, request_id="", client_id=""), 0.5
            )
            for n, value in enumerate((True, 1, 1.0))
        ]
        store.add_trials(lease, [Addition(trial, None) for trial in done])
        assert [
            repr(t.parameters["x"])
            for t in store.trials(NAME, states=[], client_id="", after=-1, limit=9)
        ] == [
            "True",
            "1",
            "1.0",
        ]

    def test_trials_are_filtered_and_paged(self, store: StudyStore, lease: Lease) -> None:
        store.hand_out(lease, [running(n, client_id=f"c{n % 2}") for n in range(6)])
        store.finish_trial(lease, succeeded(running(2, client_id="c0"), 1.0), [])

        def numbers(*states: TrialState, client_id: str = "", after: int = -1) -> list[int]:
            found = store.trials(NAME, states=states, client_id=client_id, after=after, limit=3)
            return [t.number for t in found]

        assert numbers() == [0, 1, 2]
        assert numbers(after=2) == [3, 4, 5]
        assert numbers(TrialState.SUCCEEDED) == [2]
        assert numbers(TrialState.RUNNING, client_id="c0") == [0, 4]

    def test_measurements_are_paged_in_the_order_of_reports(
        self, store: StudyStore, lease: Lease
    ) -> None:
        store.hand_out(lease, [running(0), running(1)])
        for step in (3, 1, 2):
            store.add_measurements(lease, 0, [measured(step, 0.0)])
            store.add_measurements(lease, 1, [measured(step, 0.0)])
        first = store.measurements(NAME, None, after=0, limit=4)
        rest = store.measurements(NAME, None, after=first[-1][0], limit=4)
        assert [(trial, m.step) for _, trial, m in first + rest] == [
            (0, 3),
            (1, 3),
            (0, 1),
            (1, 1),
            (0, 2),
            (1, 2),
        ]

    def test_finished_trials_are_returned_as_curves_and_not_as_measurements(
        self, store: StudyStore, lease: Lease
    ) -> None:
        store.hand_out(lease, [running(n) for n in range(5)])
        store.add_measurements(
            lease, 0, [measured(2, 0.5), measured(0, math.nan), Measurement(1, "other", 1, 9.0)]
        )
        store.finish_trial(lease, succeeded(running(0), 0.5), [measured(3, 0.75)])
        store.add_measurements(
            lease, 1, [measured(0, 0.1), measured(1, 0.2), measured(1, 0.3, attempt=2)]
        )
        store.finish_trial(lease, succeeded(running(1), 0.3), [])
        store.add_measurements(lease, 2, [measured(0, 0.1), Measurement(2, "other", 0, 1.0)])
        store.finish_trial(lease, succeeded(running(2), 0.1), [])
        failed = replace(succeeded(running(3), 0.0), state=TrialState.FAILED, value=None)
        store.finish_trial(lease, failed, [measured(0, 0.9)])
        store.add_measurements(lease, 4, [measured(0, 0.4)])
        assert list(store.contents(NAME).measurements) == [(4, measured(0, 0.4))]
        pruned = replace(succeeded(running(5), 0.2), state=TrialState.PRUNED)
        store.hand_out(lease, [running(5)])
        store.finish_trial(lease, pruned, [measured(0, 0.2)])
        rows = [
            (t.number, t.state, list(t.curve.steps), [repr(v) for v in t.curve.values], t.value)
            for t in store.curves(NAME, "accuracy")
        ]
        assert rows == [
            (0, TrialState.SUCCEEDED, [0, 2, 3], ["nan", "0.5", "0.75"], 0.5),
            (1, TrialState.SUCCEEDED, [1], ["0.3"], 0.3),
            (5, TrialState.PRUNED, [0], ["0.2"], 0.2),
        ]

    def test_the_best_is_the_first_of_the_best_succeeded(
        self, store: StudyStore, lease: Lease
    ) -> None:
        store.hand_out(lease, [running(n) for n in range(4)])
        for number, value in enumerate((0.5, 0.9, 0.9, 0.1)):
            store.finish_trial(lease, succeeded(running(number), value), [])
        best = store.best_trials({NAME: Direction.MAXIMIZE})[NAME]
        worst = store.best_trials({NAME: Direction.MINIMIZE})[NAME]
        assert (best.number, worst.number) == (1, 3)

    def test_a_deleted_trial_is_hidden_but_keeps_its_number(
        self, store: StudyStore, lease: Lease
    ) -> None:
        done = succeeded(running(0), 0.5)
        store.add_trials(lease, [Addition(done, "add", [measured(0, 0.5)])])
        store.delete_trial(lease, 0)
        assert store.trial(NAME, 0) is None
        assert store.trials(NAME, states=[], client_id="", after=-1, limit=9) == []
        assert store.best_trials({NAME: Direction.MAXIMIZE}) == {}
        contents = store.contents(NAME)
        assert [(t.number, t.state, t.value) for t in contents.trials] == [
            (0, TrialState.CANCELLED, None)
        ]
        assert list(contents.measurements) == []

    def test_choices_of_any_json_value_keep_their_types(self, store: StudyStore) -> None:
        values = (
            None,
            [1, 2.5, None, [True]],
            {"b": {"c": []}, "a": "ü\u2028"},
            "null",
            0.1,
            1,
            True,
            {},
        )
        space = Space(
            (
                Parameter("x", Choice(values)),
                Parameter("y", Float(0, 1), (Condition("x", (None, values[2])),)),
            )
        )
        record = a_study()
        record = replace(record, study=replace(record.study, spec=replace(SPEC, space=space)))
        assert store.insert_study(record)
        lease = store.take(NAME, uid="default-digits", address="here")
        trials = [
            replace(running(number), parameters={"x": value}) for number, value in enumerate(values)
        ]
        store.hand_out(lease, trials)
        read = store.study(NAME)
        assert read is not None
        assert read.study.spec.space == space
        assert repr(
            [
                t.parameters["x"]
                for t in store.trials(NAME, states=(), client_id="", after=-1, limit=100)
            ]
        ) == repr(list(values))

    def test_failed_trials_are_reopened_all_or_none(self, store: StudyStore, lease: Lease) -> None:
        store.hand_out(lease, [running(0), running(1), running(2)])
        for number in (0, 1):
            failed = replace(
                running(number),
                state=TrialState.FAILED,
                reason="exit code 1",
                failure_class="userError",
            )
            store.finish_trial(
                lease, replace(failed, end_time=failed.create_time), [measured(0, 0.5)]
            )
        before = store.contents(NAME)
        with pytest.raises(NotOwner):
            store.reopen_trials(lease, [0, 1, 2])
        assert store.contents(NAME) == before
        store.reopen_trials(lease, [0, 1])
        assert store.trials(NAME, states=[], client_id="", after=-1, limit=9) == [
            running(0),
            running(1),
            running(2),
        ]
        assert len(store.measurements(NAME, None, after=0, limit=9)) == 2

    def test_a_reopened_trial_keeps_nothing_of_its_outcome_but_what_it_was_on_rungs(
        self, store: StudyStore, lease: Lease
    ) -> None:
        leased = replace(running(0), lease_s=30.0)
        store.hand_out(lease, [leased])
        failed = replace(
            leased,
            state=TrialState.FAILED,
            value=0.5,
            step=4,
            reason="exit code 1",
            failure_class="userError",
            end_time=NOW,
            further=(0.25,),
            constraint_values=(0.75,),
            rungs=(RungResult(1.0, 0.5),),
        )
        store.finish_trial(lease, failed, [])
        assert store.trial(NAME, 0) == failed
        store.reopen_trials(lease, [0])
        assert store.trial(NAME, 0) == failed.reopened() == replace(running(0), rungs=failed.rungs)

    def test_a_trial_is_relabeled(self, store: StudyStore, lease: Lease) -> None:
        store.hand_out(lease, [running(0)])
        store.relabel_trial(lease, 0, {"new": "label"})
        assert store.trial(NAME, 0) == replace(running(0), labels={"new": "label"})

    def test_a_deleted_study_takes_everything_with_it(
        self, store: StudyStore, lease: Lease
    ) -> None:
        added = Addition(succeeded(running(0), 0.5), "add", [measured(0, 0.5)])
        store.add_trials(lease, [added])
        store.delete_study(lease)
        assert store.study(NAME) is None
        store.insert_study(a_study())
        assert list(store.contents(NAME).trials) == []
        assert store.measurements(NAME, None, after=0, limit=9) == []

    def test_written_data_is_visible_to_the_next_process(
        self, store: StudyStore, lease: Lease
    ) -> None:
        store.hand_out(lease, [running(0)])
        store.close()
        with self.opening() as other:
            assert other.trial(NAME, 0) == running(0)

    def test_each_takeover_raises_the_epoch_and_names_the_owner(
        self, store: StudyStore, lease: Lease
    ) -> None:
        assert lease.epoch == 1
        store.release(lease)
        assert store.take(NAME, uid="default-digits", address="there").epoch == 2
        read = store.study(NAME)
        assert read is not None
        assert (read.study.owner_address, read.study.owner_epoch) == ("there", 2)

    def test_only_one_process_at_a_time_may_take_a_study(
        self, store: StudyStore, lease: Lease
    ) -> None:
        with self.opening() as other:
            with pytest.raises(NotOwner) as refused:
                other.take(NAME, uid="default-digits", address="there")
            assert refused.value.address == "here"
            assert other.study(NAME) is not None, "reading needs no lease"
            store.close()
            assert other.take(NAME, uid="default-digits", address="there").epoch == 2

    def test_a_leased_trial_comes_back_with_its_tries_and_is_queued_again(
        self, store: StudyStore, lease: Lease
    ) -> None:
        leased = replace(running(0), tries=1, lease_s=0.25)
        store.hand_out(lease, [leased, running(1)])
        assert store.trials(NAME, states=(), client_id="", after=-1, limit=9) == [
            leased,
            running(1),
        ]
        store.requeue(lease, [0])
        again = replace(leased, state=TrialState.QUEUED)
        assert store.trial(NAME, 0) == again
        assert list(store.contents(NAME).trials) == [again, running(1)]
        taken = replace(leased, request_id="another", client_id="other", tries=2, lease_s=None)
        store.hand_out(lease, [taken], queued=1)
        assert store.trial(NAME, 0) == taken

    def test_only_running_trials_are_queued_again_and_all_or_none(
        self, store: StudyStore, lease: Lease
    ) -> None:
        store.hand_out(lease, [running(0), running(1)])
        store.finish_trial(lease, succeeded(running(1), 0.5), ())
        with pytest.raises(NotOwner):
            store.requeue(lease, [0, 1])
        assert store.trial(NAME, 0) == running(0)

    def test_many_trials_are_queued_again_at_once(self, store: StudyStore, lease: Lease) -> None:
        store.hand_out(lease, [running(number) for number in range(1200)])
        store.requeue(lease, range(1200))
        assert (
            len(store.trials(NAME, states=(TrialState.QUEUED,), client_id="", after=-1, limit=2000))
            == 1200
        )

    def test_an_outdated_lease_changes_nothing(self, store: StudyStore, lease: Lease) -> None:
        store.hand_out(lease, [running(0)])
        store.add_trials(lease, [Addition(queued(1), "add")])
        store.hand_out(lease, [running(4)])
        store.finish_trial(lease, replace(running(4), state=TrialState.FAILED), [])
        store.release(lease)
        store.take(NAME, uid="default-digits", address="there")
        before = store.contents(NAME)
        writes = [
            lambda: store.hand_out(lease, [running(2)]),
            lambda: store.hand_out(lease, [running(1)]),
            lambda: store.add_trials(lease, [Addition(queued(2), "more")]),
            lambda: store.add_trials(
                lease, [Addition(queued(2), "more", [measured(0, 1.0)]), Addition(queued(3), "")]
            ),
            lambda: store.add_measurements(lease, 0, [measured(0, 1.0)]),
            lambda: store.add_measurements(lease, 0, [measured(step, 1.0) for step in range(1234)]),
            lambda: store.finish_trial(lease, succeeded(running(0), 1.0), [measured(0, 1.0)]),
            lambda: store.requeue(lease, [0]),
            lambda: store.reopen_trials(lease, [4]),
            lambda: store.relabel_trial(lease, 0, {}),
            lambda: store.delete_trial(lease, 0),
            lambda: store.update_study(lease, replace(before.study, labels={"x": "y"})),
            lambda: store.delete_study(lease),
        ]
        for write in writes:
            with pytest.raises(NotOwner):
                write()
        assert store.contents(NAME) == before

    def test_a_lease_from_before_a_restore_changes_nothing_even_if_its_epoch_repeats(
        self, store: StudyStore, lease: Lease
    ) -> None:
        store.release(lease)
        earlier = self.ownership_of(store)
        outdated = store.take(NAME, uid="default-digits", address="here")
        store.release(outdated)
        self.restore_ownership(store, earlier)
        with self.opening() as other:
            current = other.take(NAME, uid="default-digits", address="there")
            assert current.epoch == outdated.epoch
            with pytest.raises(NotOwner):
                store.hand_out(outdated, [running(0)])
            with pytest.raises(NotOwner):
                store.add_measurements(outdated, 0, [measured(0, 1.0)])
            assert store.still_held(outdated) is False or self.lock_is_enough
            store.release(outdated)
            other.hand_out(current, [running(0)])
            other.finish_trial(current, succeeded(running(0), 0.5), [measured(0, 0.5)])
            other.release(current)

    def test_observations_are_ordered_by_time_then_by_arrival(self, store: StudyStore) -> None:
        log = store.observations
        lines = [
            Observed(us, f"at {us}", "accuracy", value)
            for us, value in ((2, "c"), (1, "a"), (1, "b"), (3, ""))
        ]
        for line in lines:
            log.report("one", [line])
        log.report("one", [Observed(1, "at 1", "loss", "nan")])
        log.report("other", [])
        ordered = [lines[1], lines[2], lines[0], lines[3]]
        assert log.read("one", metric="accuracy", first_us=None, last_us=None) == ordered
        assert log.read("one", metric="accuracy", first_us=2, last_us=2) == [lines[0]]
        assert len(log.read("one", metric="", first_us=None, last_us=None)) == 5
        assert log.read("other", metric="", first_us=None, last_us=None) == []
        with self.opening() as another:
            assert (
                another.observations.read("one", metric="accuracy", first_us=None, last_us=None)
                == ordered
            )

    def test_the_first_values_of_many_trials_are_read_at_once(self, store: StudyStore) -> None:
        log = store.observations
        for trial in range(600):
            log.report(str(trial), [Observed(k, "", "accuracy", str(k)) for k in range(3)])
        found = log.first_values([str(trial) for trial in range(700)], "accuracy", 2)
        assert found == {str(trial): ["0", "1"] for trial in range(600)}
        assert log.first_values(["0"], "loss", 2) == log.first_values([], "accuracy", 2) == {}

    def test_deleted_observations_are_gone(self, store: StudyStore) -> None:
        log = store.observations
        for trial in ("one", "other"):
            log.report(trial, [Observed(1, "", "accuracy", "0.5")])
        for _ in range(2):
            log.delete("one")
        assert log.first_values(["one", "other"], "accuracy", 1) == {"other": ["0.5"]}

    def test_sessions_of_the_page_are_shared_and_limited(self, store: StudyStore) -> None:
        sessions = store.page_sessions
        for place in range(4):
            begin(sessions, f"key{place}", bytes([place, 0, 255]), 1000.0 + place, oldest_s=1001.0)
        with self.opening() as another:
            assert another.page_sessions.find("key3") == (b"\x03\x00\xff", 1003.0)
            assert another.page_sessions.find("key2") == (b"\x02\x00\xff", 1002.0)
        assert sessions.find("key0") is None, "too old"
        assert sessions.find("key1") is None, "the longest unused"
        sessions.use("key2", 1010.25)
        sessions.use("key2", 1009.0)  # by a server whose clock is behind
        sessions.use("key0", 1010.25)
        begin(sessions, "key4", b"", 1011.0)
        assert [sessions.find(key) for key in ("key0", "key2", "key3", "key4")] == [
            None,
            (b"\x02\x00\xff", 1010.25),
            None,
            (b"", 1011.0),
        ]
        for _ in range(2):
            sessions.end("key2")
        assert sessions.find("key2") is None

    def test_an_owner_of_many_sessions_of_the_page_ends_none_of_another(
        self, store: StudyStore
    ) -> None:
        sessions = store.page_sessions
        keys = ["key0", "key1", "key2", "key3"]
        begin(sessions, "mine", b"", 1000.0)
        for place, key in enumerate(keys):
            begin(sessions, key, b"", 1001.0 + place, owner="another")
        assert [key for key in ("mine", *keys) if sessions.find(key)] == ["mine", "key2", "key3"]
        begin(sessions, "third", b"", 1010.0, owner="third")
        assert [key for key in ("mine", *keys, "third") if sessions.find(key)] == [
            "key2",
            "key3",
            "third",
        ]

    lock_is_enough = False  # nobody can take a study from a living owner, so that it need not look

    def ownership_of(self, store: StudyStore) -> dict[str, object]:
        """Return the ownership columns of the study's row."""
        with self.connections(store).reading() as connection:
            columns = [studies.c.owner_epoch, studies.c.owner_nonce, studies.c.owner_address]
            return dict(connection.execute(select(*columns)).mappings().one())

    def restore_ownership(self, store: StudyStore, earlier: dict[str, object]) -> None:
        with self.connections(store).writing() as connection:
            connection.execute(update(studies).values(earlier))

    def connections(self, store: StudyStore) -> Database:
        assert isinstance(store, StudyStore)
        return store._database
