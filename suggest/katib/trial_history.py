"""Histories of Katib's callers: compares them with a study, and updates the study to match them.

A caller sends its whole history each time. `StudyIndex` knows which bytes the study has
learned from, so that only new trials are read, and which suggestion each of the caller's
trials is. Trials are told apart by Katib's names; the first time that a name appears, it
takes the suggestion whose texts it brings, or it is a trial that was never suggested here.
Writes go to the store first, as everywhere.
"""

from __future__ import annotations

import enum
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain, repeat
from typing import NamedTuple

from suggest.errors import InvalidArgument, Problem
from suggest.katib.experiment import KatibExperiment
from suggest.katib.hyperband import Training, next_trainings
from suggest.katib.trial_reader import HistoryColumns, Point, TrialReader
from suggest.samplers import PointRequest
from suggest.samplers.uniform import draw_point
from suggest.space import Value
from suggest.studies.sessions import Writer
from suggest.trial import IMPORTED_FROM, NO_LABELS, Trial, TrialBatch, TrialState

TRIAL = "katib.kubeflow.org/trial"  # the label with a trial's name in Katib
FAILED_IN_KATIB = "katib"  # the failure class of trials that Katib's clients tell as failed
_SOURCE = "katib"  # of trials outside of the space, which count as imported ones
GONE = "the caller no longer sends it: its metrics are unavailable"


class TrialHistory:
    """The trials of one request, each of which is parsed at most once."""

    def __init__(self, experiment: KatibExperiment, raws: Sequence[bytes]) -> None:
        self.hashes = list(map(hash, raws))
        self._reader = TrialReader(experiment)
        self._raws = raws
        self._columns = self._reader.read({})
        self._rows: dict[int, int] = {}  # of `_columns`, by index
        # instead of these two, if all trials were read together
        self._all: HistoryColumns | None = None
        self._seen: Mapping[int, str] = {}
        self._known = [""] * len(raws)  # the names of trials that are in `_seen`, "" for the others
        self._fresh: Sequence[int] = range(len(raws))  # the indexes of the others

    def __len__(self) -> int:
        return len(self._raws)

    def trials_at(self, indexes: Sequence[int]) -> HistoryColumns:
        """Return the trials at these indexes, which ascend.

        Raises InvalidArgument with the indexes of problems.
        """
        rows = self._rows
        if not rows and len(indexes) == len(self):
            self._all = self._all or self._reader.read(dict(enumerate(self._raws)))
        if self._all is not None:
            return self._all.take(indexes)
        if unread := {index: self._raws[index] for index in indexes if index not in rows}:
            read = self._reader.read(unread)
            rows.update(
                zip(unread, range(len(self._columns), len(self._columns) + len(read)), strict=True)
            )
            self._columns = self._columns.plus(read)
        return self._columns.take([rows[index] for index in indexes])

    def fresh(self, seen: Mapping[int, str]) -> Sequence[int]:
        """Return the indexes of trials whose hashes are not in `seen`, names by their hashes."""
        if not seen:
            return range(len(self))
        self._look_up(seen)
        return self._fresh

    def _look_up(self, seen: Mapping[int, str]) -> None:
        if seen is not self._seen:
            self._seen = seen
            known = self._known = list(map(seen.get, self.hashes, repeat("")))
            self._fresh = (
                [index for index, name in enumerate(known) if not name] if "" in known else ()
            )

    def names(self, seen: Mapping[int, str]) -> set[str]:
        """Return the names of all trials.

        `seen` has those of trials that are not parsed, by their hashes.

        Raises:
            InvalidArgument: two trials have the same name.
        """
        if self._all is not None:
            names = self._all.names
        else:
            self._look_up(seen)
            names = self._known.copy()
            for index, name in zip(self._rows, self._columns.names, strict=True):
                names[index] = name
        different = set(names)
        if len(different) < len(names):
            twice, _ = Counter(names).most_common(1)[0]
            raise InvalidArgument(
                [Problem("trials", f"{twice} is there twice; each trial has a name of its own")]
            )
        return different


Texts = tuple[str, ...]  # in the order of the space


class _KnownTrial(NamedTuple):
    number: int
    point: Point
    state: TrialState
    value: float | None

    @property
    def result(self) -> float | None:
        """Return the value of a trial that was not stopped early."""
        return self.value if self.state is TrialState.SUCCEEDED else None


class _KnownTrials:
    """Trials of a study by Katib's names, as columns.

    Otherwise every garbage collection would visit thousands of objects. The row of a name that was
    deleted stays, unused.
    """

    def __init__(self, parameters: int) -> None:
        self._rows: dict[str, int] = {}
        self._numbers: list[int] = []
        self._points: list[list[Value]] = [[] for _ in range(parameters)]
        self._states: list[TrialState] = []
        self._values: list[float | None] = []

    def __getitem__(self, name: str) -> _KnownTrial:
        row = self._rows[name]
        point = tuple(column[row] for column in self._points)
        return _KnownTrial(self._numbers[row], point, self._states[row], self._values[row])

    def __setitem__(self, name: str, known: _KnownTrial) -> None:
        row = self._rows.setdefault(name, len(self._numbers))
        here = slice(row, row + 1)  # an empty slice at the end if the name is new
        self._numbers[here] = [known.number]
        self._states[here] = [known.state]
        self._values[here] = [known.value]
        for column, value in zip(self._points, known.point, strict=True):
            column[here] = [value]

    def __delitem__(self, name: str) -> None:
        del self._rows[name]

    def __contains__(self, name: str) -> bool:
        return name in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def shared(self, columns: HistoryColumns) -> list[tuple[int, int]]:
        """Return the rows there, and here, of trials that are known."""
        return [
            (row, mine)
            for row, mine in enumerate(map(self._rows.get, columns.names))
            if mine is not None
        ]

    def have_points_of(self, columns: HistoryColumns, shared: Sequence[tuple[int, int]]) -> bool:
        return all(
            [parameter.values[row] for row, _ in shared] == [column[mine] for _, mine in shared]
            for column, parameter in zip(self._points, columns.parameters, strict=True)
        )

    def changed(self, columns: HistoryColumns) -> list[int]:
        """Return the rows there of known trials that have another state or value."""
        states, values = self._states, self._values
        return [
            row
            for row, mine in self.shared(columns)
            if columns.states[row] is not states[mine] or columns.values[row] != values[mine]
        ]

    def add(self, columns: HistoryColumns, first: int) -> None:
        """Add trials that are not known, whose numbers begin with `first`."""
        self._rows.update(
            zip(
                columns.names,
                range(len(self._numbers), len(self._numbers) + len(columns)),
                strict=True,
            )
        )
        self._numbers += range(first, first + len(columns))
        self._states += columns.states
        self._values += columns.values
        for column, parameter in zip(self._points, columns.parameters, strict=True):
            column += parameter.values


class Suggestion(NamedTuple):
    """What Katib gets for one trial. `parent`: the trial from whose checkpoint it continues."""

    number: int
    point: Point
    texts: Texts
    parent: int | None = None


class HistoryMatch(enum.Enum):
    """Whether a history belongs to a study, the surest first."""

    SAME = "they have trials with the same names"
    LIKELY = "no trial of the study has a name, and the history fits its suggestions"
    POSSIBLE = "no trial of the study has a name"
    OTHER = "the trials of the study have other names"


@dataclass(slots=True)
class StudyIndex:
    """The trials of one study by Katib's names, and its suggestions by position.

    Valid while nothing else writes it.
    """

    experiment: KatibExperiment
    # the name that a trial was suggested with; "" if its caller names it
    name_of: Callable[[int], str]
    # Suggestions that no trial has taken: trial numbers by the points
    # that callers send back, and by trial number.
    free: dict[Point, list[int]] = field(default_factory=dict)
    offers: dict[int, Suggestion] = field(default_factory=dict)
    # by position, also those that a trial has taken
    answers: dict[int, Suggestion] = field(default_factory=dict)
    given: int = 0  # one more than the highest position that was answered
    # names of trials by the hashes of their bytes
    seen: dict[int, str] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    next_number: int = 0  # of the study, when the index was last updated
    known: _KnownTrials = field(init=False)

    def __post_init__(self) -> None:
        self.known = _KnownTrials(len(self.experiment.texts))

    @classmethod
    def of(
        cls, experiment: KatibExperiment, name_of: Callable[[int], str], trials: Iterable[Trial]
    ) -> StudyIndex:
        """Build the index from all trials of the study, in the order of their numbers."""
        study_index = cls(experiment, name_of)
        space = experiment.spec.space
        of_request: Counter[str] = Counter()
        for trial in trials:
            study_index.next_number = trial.number + 1
            position = None
            if trial.request_id.startswith(_REQUEST):
                positions, rank = positions_of(trial.request_id), of_request[trial.request_id]
                of_request[trial.request_id] += 1
                if rank < len(positions):
                    position = positions[rank]
                    study_index.given = max(study_index.given, position + 1)
            name = trial.labels.get(TRIAL)
            if trial.state is TrialState.CANCELLED:
                continue
            point = experiment.point(space.canonical(trial.parameters))
            if position is not None:
                answer = study_index._answer(trial.number, position, point, trial.parent)
                if name is None and trial.state is TrialState.RUNNING:
                    study_index._offer(answer)
            if name is not None:
                study_index._know(name, _KnownTrial(trial.number, point, trial.state, trial.value))
        return study_index

    def _know(self, name: str, known: _KnownTrial) -> None:
        self.known[name] = known
        (self.running.discard if known.state.finished else self.running.add)(name)

    def _answer(self, number: int, position: int, point: Point, parent: int | None) -> Suggestion:
        texts = self.experiment.texts
        written = tuple(text.text(value) for text, value in zip(texts, point, strict=True))
        answer = self.answers[position] = Suggestion(number, point, written, parent)
        self.given = max(self.given, position + 1)
        return answer

    def _offer(self, answer: Suggestion) -> None:
        self.free.setdefault(answer.point, []).append(answer.number)
        self.offers[answer.number] = answer

    def offered(self, trials: Sequence[Trial], positions: Sequence[int]) -> None:
        """Add trials that the study has just handed out."""
        for trial, position in zip(trials, positions, strict=False):
            point = self.experiment.point(trial.parameters)
            self._offer(self._answer(trial.number, position, point, trial.parent))
            self.next_number = max(self.next_number, trial.number + 1)

    def replay(self, position: int) -> Suggestion | None:
        """Return the suggestion for a position, None if there is none or a trial has taken it."""
        answer = self.answers.get(position)
        return answer if answer is not None and answer.number in self.offers else None

    def compare(self, columns: HistoryColumns, *, others: bool, taken: int) -> HistoryMatch:
        """Return whether a history belongs to this study.

        `columns` are its new trials; with `others`, it also has trials with known bytes. `taken` is
        the number of suggestions that the caller has accepted. Two experiments may have the same
        name and space, but their trials have different names.
        """
        shared = self.known.shared(columns)
        if not self.known.have_points_of(columns, shared):
            return HistoryMatch.OTHER
        if shared or others:
            return HistoryMatch.SAME
        if self.known:
            return HistoryMatch.OTHER
        if taken <= self.given and (not columns or not self.free.keys().isdisjoint(columns.points)):
            return HistoryMatch.LIKELY
        return HistoryMatch.POSSIBLE

    def inherited_count(self, columns: HistoryColumns, taken: int) -> int:
        """Return how many of the `taken` suggestions a caller with other trials may have got."""
        answers = [answer.point for position, answer in self.answers.items() if position < taken]
        return len(answers) if not columns or not set(columns.points).isdisjoint(answers) else 0

    def copy_answers(self, writer: Writer, parent: StudyIndex, below: int) -> None:
        """Begin a study with the suggestions that its caller got from another study.

        Those at positions below `below` are copied. Two experiments with the same name and search
        get the same suggestions until their trials have names. Then the second one needs a study
        that knows what it has been given.
        """
        positions = sorted(position for position in parent.answers if position < below)
        if not positions:
            return
        self._hand_out(
            writer, [parent.answers[position].point for position in positions], positions
        )

    def hand_out_trainings(self, writer: Writer, positions: Sequence[int]) -> None:
        """Hand out hyperband's next trainings.

        A new configuration is drawn with its trial's random numbers.
        """
        fidelity, spec = self.experiment.fidelity, self.experiment.spec
        assert fidelity is not None
        index = self.experiment.names.index(fidelity.parameter)

        def training(point: Point, value: float | None) -> Training:
            return Training((*point[:index], *point[index + 1 :]), float(str(point[index])), value)

        known_trials = map(self.known.__getitem__, self.known)
        trainings = [training(known.point, known.result) for known in known_trials]
        trainings += [training(answer.point, None) for answer in self.offers.values()]
        points: list[Point] = []
        chosen = next_trainings(fidelity, spec.objective.direction, trainings, len(positions))
        for number, (configuration, resource) in enumerate(chosen, writer.engine.next_number):
            if configuration is None:
                fixed = {fidelity.parameter: resource}
                drawn = draw_point(
                    spec.space, writer.engine.study.seed, PointRequest(number, fixed)
                )
                points.append(tuple(drawn.values()))
            else:
                points.append((*configuration[:index], resource, *configuration[index:]))
        self._hand_out(writer, points, positions)

    def _hand_out(self, writer: Writer, points: Sequence[Point], positions: Sequence[int]) -> None:
        """Hand out these points, of no sampler, at these positions."""
        first, now = writer.engine.next_number, datetime.now(UTC)
        request_id = request_of(positions, first)
        trials = [
            self._begun(number, point, now, request_id=request_id)
            for number, point in enumerate(points, first)
        ]
        writer.hand_out(trials)
        self.offered(trials, positions)

    def _begun(
        self,
        number: int,
        point: Point,
        now: datetime,
        *,
        request_id: str = "",
        labels: Mapping[str, str] = NO_LABELS,
    ) -> Trial:
        return Trial(
            number,
            TrialState.RUNNING,
            self.experiment.parameters(point),
            request_id=request_id,
            labels=labels,
            create_time=now,
            tries=1,
        )

    # Learning

    def learn(
        self, writer: Writer, history: TrialHistory, stopped: Callable[[Sequence[str]], set[str]]
    ) -> None:
        """Update the study to match the history.

        `stopped` returns those of some trials that were stopped early.

        Raises:
            InvalidArgument: the history is wrong, and nothing was changed.
        """
        fresh, hashes = history.fresh(self.seen), history.hashes
        columns = history.trials_at(fresh)
        columns = columns.stopped(stopped(columns.succeeded) | self._pruned(columns))
        names = history.names(self.seen)
        new = columns.take(self._unknown(columns))
        for row in self.known.changed(columns):
            self._change(writer, columns, row)
        self._take_free(writer, new)
        self._add(writer, columns.take(self._unknown(columns)))
        if len(self.seen) > 4 * len(hashes) + 1000:
            self.seen = {one: self.seen[one] for one in hashes if one in self.seen}
        new_hashes = hashes if len(fresh) == len(hashes) else [hashes[index] for index in fresh]
        self.seen.update(zip(new_hashes, columns.names, strict=True))
        gone = sorted(self.running.difference(names))
        waited_for = stopped(gone)  # their observations are still to come
        for name in gone:
            if name not in waited_for:
                self._end(writer, name, TrialState.FAILED, None, GONE)

    def _pruned(self, columns: HistoryColumns) -> set[str]:
        """Return the names of trials known to be stopped early, even if their logs are deleted."""
        shared = [name for name in columns.names if name in self.known]
        return {name for name in shared if self.known[name].state is TrialState.PRUNED}

    def _unknown(self, columns: HistoryColumns) -> Sequence[int]:
        """Return the rows of the trials whose names are not known, and whose points are."""
        if not self.known and all(columns.are_whole):
            return range(len(columns))
        names = zip(columns.names, columns.are_whole, strict=True)
        return [
            row for row, (name, is_whole) in enumerate(names) if is_whole and name not in self.known
        ]

    def _change(self, writer: Writer, columns: HistoryColumns, row: int) -> None:
        one = columns.trial(row)
        known = self.known[one.name]
        engine = writer.engine
        if known.state is TrialState.FAILED:
            writer.reopen([engine.trial(known.number)])
            self._know(one.name, known._replace(state=TrialState.RUNNING))
        elif known.state.finished:
            # A succeeded trial cannot change, so it is replaced by another trial.
            before = engine.trial(known.number)
            with writer.changing():
                writer.store.delete_trial(writer.lease, known.number)
                engine.put(replace(before, state=TrialState.CANCELLED, value=None))
            del self.known[one.name]
            self._add(writer, columns.take([row]))
            return
        if one.state.finished:
            self._end(writer, one.name, one.state, one.value, one.reason)

    def _end(
        self, writer: Writer, name: str, state: TrialState, value: float | None, reason: str
    ) -> None:
        known = self.known[name]
        self._finish(writer, known.number, state, value, reason)
        self._know(name, known._replace(state=state, value=value))

    def _finish(
        self, writer: Writer, number: int, state: TrialState, value: float | None, reason: str
    ) -> None:
        trial = writer.engine.open_trial(number)
        if trial is None:
            return  # another client of the API has ended it
        failed = FAILED_IN_KATIB if state is TrialState.FAILED else ""
        ended = replace(
            trial,
            state=state,
            value=value,
            reason=reason,
            failure_class=failed,
            end_time=datetime.now(UTC),
        )
        writer.finish(ended)

    def _take_free(self, writer: Writer, new: HistoryColumns) -> None:
        """Match new trials with suggestions that have the same texts, and record their names."""
        if not self.offers:
            return
        for one in map(new.trial, new.by_time()):
            numbers = self.free.get(one.point)
            if not numbers:
                continue
            number = next((each for each in numbers if self.name_of(each) == one.name), numbers[0])
            trial = writer.engine.open_trial(number)
            self._forget_offer(number)
            if trial is None:
                continue
            writer.relabel(replace(trial, labels={**trial.labels, TRIAL: one.name}))
            self._know(one.name, _KnownTrial(number, one.point, TrialState.RUNNING, None))
            if one.state.finished:
                self._end(writer, one.name, one.state, one.value, one.reason)

    def _forget_offer(self, number: int) -> None:
        point = self.offers.pop(number).point
        self.free[point].remove(number)
        if not self.free[point]:
            del self.free[point]

    def abandon(self, writer: Writer, below: int) -> None:
        """Cancel the free suggestions at positions below `below`: the caller ran other points."""
        for position, answer in list(self.answers.items()):
            if position < below and answer.number in self.offers:
                del self.answers[position]
                self._finish(
                    writer,
                    answer.number,
                    TrialState.CANCELLED,
                    None,
                    "the caller ran another point",
                )
                self._forget_offer(answer.number)

    def _add(self, writer: Writer, new: HistoryColumns) -> None:
        """Add trials never suggested here: the finished ones, then the running ones, by time."""
        if not new:
            return
        rows = new.by_time()
        if ended := [row for row in rows if new.states[row].finished]:
            # Networks have different parameters, and the trials of a batch have the same.
            size = len(ended) if self.experiment.network is None else 1
            for first in range(0, len(ended), size):
                self._add_ended(writer, new.take(ended[first : first + size]))
        if begun := [row for row in rows if not new.states[row].finished]:
            self._add_running(writer, new.take(begun))
        self.next_number = writer.engine.next_number
        writer.warm_up()

    def _add_ended(self, writer: Writer, ended: HistoryColumns) -> None:
        labels: dict[str, Sequence[str | None]] = {TRIAL: ended.names}
        if not all(ended.are_inside):
            labels[IMPORTED_FROM] = [
                None if is_inside else _SOURCE for is_inside in ended.are_inside
            ]
        batch = TrialBatch(
            writer.engine.next_number,
            ended.states,
            parameters=self.experiment.columns(ended.parameters),
            values=ended.values,
            reasons=ended.reasons,
            failure_classes=[
                FAILED_IN_KATIB if state is TrialState.FAILED else "" for state in ended.states
            ],
            labels=labels,
            time=datetime.now(UTC),
        )
        with writer.changing():
            writer.store.add_batch(writer.lease, batch)
            writer.engine.take_batch(batch)
        self.known.add(ended, batch.first)

    def _add_running(self, writer: Writer, begun: HistoryColumns) -> None:
        first, now = writer.engine.next_number, datetime.now(UTC)
        trials = []
        for number, one in enumerate(map(begun.trial, range(len(begun))), first):
            labels = (
                {TRIAL: one.name} if one.is_inside else {TRIAL: one.name, IMPORTED_FROM: _SOURCE}
            )
            trials.append(self._begun(number, one.point, now, labels=labels))
        writer.hand_out(trials)
        self.known.add(begun, first)
        self.running.update(begun.names)


# Requests for suggestions, by the positions that they are for

_REQUEST = "katib/"
_REQUEST_ID = re.compile(r"katib/(\d+-\d+(?:,\d+-\d+)*)/\d+", re.ASCII)


def request_of(positions: Sequence[int], number: int) -> str:
    """Return a request id for suggestions at these positions.

    The number of the first trial makes it unique.
    """
    runs: list[list[int]] = []
    for position in positions:
        if runs and runs[-1][1] == position - 1:
            runs[-1][1] = position
        else:
            runs.append([position, position])
    ranges = ",".join(f"{first}-{last}" for first, last in runs)
    return f"{_REQUEST}{ranges}/{number}"


def positions_of(request_id: str) -> Sequence[int]:
    """Return the positions that `request_of` was given, none for a request id of another form."""
    found = _REQUEST_ID.fullmatch(request_id)
    if found is None:
        return ()
    ranges: list[range] = []
    for run in found[1].split(","):
        first, last = run.split("-")
        ranges.append(range(int(first), int(last) + 1))
    return ranges[0] if len(ranges) == 1 else list(chain.from_iterable(ranges))
