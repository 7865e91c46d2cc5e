"""Histories of Katib's callers: reads the trials of a request, and updates a study to match them.

A caller sends its whole history each time. `TrialReader` reads a trial from its bytes; `StudyIndex` knows which bytes
the study has learned from, so that only new ones are read, and which suggestion each of the caller's trials is. Trials
are told apart by Katib's names; the first time that a name appears, it takes the suggestion whose texts it brings, or
it is a trial that was never suggested here. Writes go to the store first, as everywhere.
"""

from __future__ import annotations

import enum
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from operator import attrgetter
from typing import NamedTuple

from google.protobuf.message import DecodeError

from suggest.errors import InvalidArgument, Problem
from suggest.katib.experiment import MAX_NAME, KatibExperiment
from suggest.katib.hyperband import Training, next_trainings
from suggest.katib.v1beta1 import api_pb2 as pb
from suggest.katib.v1beta1.frames_pb2 import SuggestionsFrame, TrialFrame, TrialsFrame
from suggest.samplers import PointRequest
from suggest.samplers.uniform import draw_point
from suggest.space import Value
from suggest.storage.store import StudyStore
from suggest.studies.sessions import Writer
from suggest.trial import IMPORTED_FROM, Trial, TrialBatch, TrialState

TRIAL = "katib.kubeflow.org/trial"  # the label with a trial's name in Katib
STOPPED = "katib.kubeflow.org/early-stopped"  # the label of a trial that a sidecar has stopped
FAILED_IN_KATIB = "katib"  # the failure class of trials that Katib's clients tell as failed
MOST_PROBLEMS = 20  # that a refusal names
GONE = "the caller no longer sends it: its metrics are unavailable"

# In the order of the space.
Point = tuple[Value, ...]
Texts = tuple[str, ...]


class ToldTrial(NamedTuple):
    """A trial of a caller's history. `is_inside`: its point is in the space."""

    name: str
    point: Point
    is_inside: bool
    state: TrialState
    value: float | None
    reason: str
    moment: str  # when it ended or began, in RFC 3339


class TrialReader:
    """Reads trials of one experiment."""

    def __init__(self, experiment: KatibExperiment) -> None:
        self._metric = experiment.spec.objective.metric
        self._texts = experiment.texts
        self._names = experiment.names

    def read(self, raws: Mapping[int, bytes]) -> dict[int, ToldTrial]:
        """Parse the trials at these places of a request. Raises InvalidArgument.

        Everything is read column by column: a history has thousands of trials.
        """
        places, frames = list(raws), _frames(raws)
        points, outside = self._points(places, frames)
        statuses = [frame.status for frame in frames]
        texts = [status.observation.values.get(self._metric, "") for status in statuses]
        outcomes = map(self._outcome, [status.condition for status in statuses], texts)
        moments = [status.completion_time or status.start_time for status in statuses]
        return {
            place: ToldTrial(frame.name, point, place not in outside, state, value, reason, moment)
            for place, frame, point, (state, value, reason), moment in zip(
                places, frames, points, outcomes, moments, strict=True
            )
        }

    def _points(self, places: Sequence[int], frames: Sequence[TrialFrame]) -> tuple[Iterable[Point], set[int]]:
        """Return the point of each trial, and the places of those whose point is outside of the space."""
        given = [frame.spec.parameter_assignments.values for frame in frames]
        columns = [[values.get(text.name, "") for values in given] for text in self._texts]
        if any("" in column for column in columns) or any(len(values) != len(self._texts) for values in given):
            _refuse([p for place, values in zip(places, given, strict=True) for p in self._misnamed(values, place)])
        problems: list[Problem] = []
        read: list[Sequence[Value]] = []
        outside: set[int] = set()
        for text, column in zip(self._texts, columns, strict=True):
            found = text.values(column)
            for k in found.unreadable[:MOST_PROBLEMS]:
                told = f"{column[k][:80]!r} is not a value of this parameter"
                problems.append(Problem(f"trials[{places[k]}].{text.name}", told))
            read.append(found.values)
            outside.update(places[k] for k in found.outside)
        _refuse(problems)
        return zip(*read, strict=True), outside

    def _outcome(self, condition: int, text: str) -> tuple[TrialState, float | None, str]:
        """Return the state, value and reason of a trial with this text as its objective's value."""
        if condition in _ENDED_WELL:
            value = finite(text)
            if value is not None:
                return TrialState.SUCCEEDED, value, ""
            return TrialState.FAILED, None, f"has no finite value of {self._metric}"
        if condition in _FAILED:
            return TrialState.FAILED, None, f"{_FAILED[condition]} in Katib"
        return TrialState.RUNNING, None, ""

    def _misnamed(self, given: Mapping[str, str], place: int) -> Iterator[Problem]:
        """Yield the problem of a trial whose parameters are not those of the experiment."""
        unknown = next((name for name in given if name not in self._names), None)
        if unknown is not None:
            yield Problem(f"trials[{place}].{unknown[:80]}", "is not a parameter of the experiment")
        elif missing := next((name for name in self._names if name not in given), None):
            yield Problem(f"trials[{place}].{missing}", "has no value; each trial has one for each parameter")


def _frames(raws: Mapping[int, bytes]) -> Sequence[TrialFrame]:
    """Parse the trials at these places of a request. Raises InvalidArgument."""
    try:
        frames = list(TrialsFrame.FromString(SuggestionsFrame(trials=raws.values()).SerializeToString()).trials)
    except DecodeError:
        told = "is not a trial: its bytes cannot be read"
        _refuse([Problem(f"trials[{place}]", told) for place, raw in raws.items() if not _is_readable(raw)])
        raise
    told = f"give each trial its name, of 1 to {MAX_NAME} characters"
    _refuse(
        [
            Problem(f"trials[{place}].name", told)
            for place, frame in zip(raws, frames, strict=True)
            if not 0 < len(frame.name) <= MAX_NAME or "\0" in frame.name
        ]
    )
    return frames


def _is_readable(raw: bytes) -> bool:
    try:
        TrialFrame.FromString(raw)
    except DecodeError:
        return False
    return True


def _refuse(problems: list[Problem]) -> None:
    if problems:
        raise InvalidArgument(problems[:MOST_PROBLEMS])


_ENDED_WELL = (pb.TrialStatus.SUCCEEDED, pb.TrialStatus.EARLYSTOPPED)
_FAILED: Mapping[int, str] = {
    condition: pb.TrialStatus.TrialConditionType.Name(condition)
    for condition in (pb.TrialStatus.KILLED, pb.TrialStatus.FAILED, pb.TrialStatus.METRICSUNAVAILABLE)
}


def finite(text: str) -> float | None:
    """Return the number in a metric's text, None if it is not a finite number."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


class TrialHistory:
    """The trials of one request, each of which is parsed at most once."""

    def __init__(self, experiment: KatibExperiment, raws: Sequence[bytes]) -> None:
        self.hashes = list(map(hash, raws))
        self._reader = TrialReader(experiment)
        self._raws = raws
        self._told: dict[int, ToldTrial] = {}

    def __len__(self) -> int:
        return len(self._raws)

    def told(self, places: Sequence[int]) -> list[ToldTrial]:
        """Return the trials at these places. Raises InvalidArgument with the places of problems."""
        if unread := {place: self._raws[place] for place in places if place not in self._told}:
            self._told |= self._reader.read(unread)
        return [self._told[place] for place in places]

    def names(self, seen: Mapping[int, str]) -> list[str]:
        """Return the names of all trials; `seen` has those of trials that are not parsed, by their hashes.

        Raises:
            InvalidArgument: two trials have the same name.
        """
        names = [seen.get(one, "") for one in self.hashes]
        for place, told in self._told.items():
            names[place] = told.name
        if len(set(names)) < len(names):
            twice, _ = Counter(names).most_common(1)[0]
            raise InvalidArgument([Problem("trials", f"{twice} is there twice; each trial has a name of its own")])
        return names


class _KnownTrial(NamedTuple):
    number: int
    point: Point
    state: TrialState
    value: float | None


class Suggestion(NamedTuple):
    """What Katib gets for one trial. `parent`: the trial from whose checkpoint it continues."""

    number: int
    point: Point
    texts: Texts
    parent: int | None = None


class Kinship(enum.Enum):
    """Whether a history belongs to a study, the surest first."""

    SAME = "they have trials with the same names"
    LIKELY = "no trial of the study has a name, and the history fits its suggestions"
    POSSIBLE = "no trial of the study has a name"
    OTHER = "the trials of the study have other names"


@dataclass(slots=True)
class StudyIndex:
    """The trials of one study by Katib's names, and its suggestions by position. Valid while nothing else writes it."""

    experiment: KatibExperiment
    name_of: Callable[[int], str]  # the name that a trial was suggested with; "" if its caller names it
    known: dict[str, _KnownTrial] = field(default_factory=dict)  # by Katib's name
    # Suggestions that no trial has taken: trial numbers by the points that callers send back, and by trial number.
    free: dict[Point, list[int]] = field(default_factory=dict)
    offers: dict[int, Suggestion] = field(default_factory=dict)
    answers: dict[int, Suggestion] = field(default_factory=dict)  # by position, also those that a trial has taken
    given: int = 0  # one more than the highest position that was answered
    seen: dict[int, str] = field(default_factory=dict)  # names of trials by the hashes of their bytes
    running: set[str] = field(default_factory=set)
    next_number: int = 0  # of the study, when the index was last updated

    @classmethod
    def of(cls, experiment: KatibExperiment, name_of: Callable[[int], str], trials: Iterable[Trial]) -> StudyIndex:
        """Build the index from all trials of the study, in the order of their numbers."""
        study_index = cls(experiment, name_of)
        order = experiment.names
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
            point = tuple(trial.parameters.get(name) for name in order)
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
        order = self.experiment.names
        for trial, position in zip(trials, positions, strict=False):
            point = tuple(trial.parameters[name] for name in order)
            self._offer(self._answer(trial.number, position, point, trial.parent))
            self.next_number = max(self.next_number, trial.number + 1)

    def replay(self, position: int) -> Suggestion | None:
        """Return the suggestion for a position, None if there is none or a trial has taken it."""
        answer = self.answers.get(position)
        return answer if answer is not None and answer.number in self.offers else None

    def fresh(self, history: TrialHistory) -> list[int]:
        """Return the places of trials whose bytes are new."""
        seen = self.seen
        return [place for place, one in enumerate(history.hashes) if one not in seen]

    def kinship(self, told: Sequence[ToldTrial], *, others: bool, taken: int) -> Kinship:
        """Return whether a history belongs to this study.

        `told` are its new trials; with `others`, it also has trials with known bytes. `taken` is the number of
        suggestions that the caller has accepted. Two experiments may have the same name and space, but their trials
        have different names.
        """
        shared = others
        for one in told:
            known = self.known.get(one.name)
            if known is not None:
                if known.point != one.point:
                    return Kinship.OTHER
                shared = True
        if shared:
            return Kinship.SAME
        if self.known:
            return Kinship.OTHER
        if taken <= self.given and (not told or any(one.point in self.free for one in told)):
            return Kinship.LIKELY
        return Kinship.POSSIBLE

    def taken_here(self, told: Sequence[ToldTrial], taken: int) -> int:
        """Return how many of the `taken` suggestions a caller with other trials may have got from this study."""
        answers = [answer.point for position, answer in self.answers.items() if position < taken]
        return len(answers) if not told or not {one.point for one in told}.isdisjoint(answers) else 0

    def copy_answers(self, store: StudyStore, writer: Writer, parent: StudyIndex, below: int) -> None:
        """Begin a study with the suggestions that its caller got from another study, at positions below `below`.

        Two experiments with the same name and search get the same suggestions until their trials have names. Then the
        second one needs a study that knows what it has been given.
        """
        positions = sorted(position for position in parent.answers if position < below)
        if not positions:
            return
        self._hand_out(store, writer, [parent.answers[position].point for position in positions], positions)

    def hand_out_trainings(self, store: StudyStore, writer: Writer, positions: Sequence[int]) -> None:
        """Hand out hyperband's next trainings. A new configuration is drawn with its trial's random numbers."""
        fidelity, spec = self.experiment.fidelity, self.experiment.spec
        assert fidelity is not None
        place = self.experiment.names.index(fidelity.parameter)

        def training(point: Point, value: float | None) -> Training:
            return Training((*point[:place], *point[place + 1 :]), float(str(point[place])), value)

        trainings = [training(known.point, known.value) for known in self.known.values()]
        trainings += [training(answer.point, None) for answer in self.offers.values()]
        points: list[Point] = []
        chosen = next_trainings(fidelity, spec.objective.direction, trainings, len(positions))
        for number, (configuration, resource) in enumerate(chosen, writer.engine.next_number):
            if configuration is None:
                fixed = {fidelity.parameter: resource}
                drawn = draw_point(spec.space, writer.engine.study.seed, PointRequest(number, fixed))
                points.append(tuple(drawn.values()))
            else:
                points.append((*configuration[:place], resource, *configuration[place:]))
        self._hand_out(store, writer, points, positions)

    def _hand_out(self, store: StudyStore, writer: Writer, points: Sequence[Point], positions: Sequence[int]) -> None:
        """Hand out these points, of no sampler, at these positions."""
        order, first = self.experiment.names, writer.engine.next_number
        request_id, now = request_of(positions, first), datetime.now(UTC)
        trials = [
            Trial(
                number,
                TrialState.RUNNING,
                dict(zip(order, point, strict=True)),
                request_id=request_id,
                create_time=now,
                tries=1,
            )
            for number, point in enumerate(points, first)
        ]
        with writer.changing():
            store.hand_out(writer.lease, trials)
            for trial in trials:
                writer.engine.put(trial)
        self.offered(trials, positions)

    # Learning

    def learn(self, store: StudyStore, writer: Writer, history: TrialHistory) -> None:
        """Update the study to match the history.

        Raises:
            InvalidArgument: the history is wrong, and nothing was changed.
        """
        fresh, hashes = self.fresh(history), history.hashes
        told = history.told(fresh)
        names = history.names(self.seen)
        changed = [one for one in told if one.name in self.known]
        new = [one for one in told if one.name not in self.known]
        for one in changed:
            self._change(store, writer, one)
        self._take_free(store, writer, new)
        self._add(store, writer, [one for one in new if one.name not in self.known])
        if len(self.seen) > 4 * len(hashes) + 1000:
            self.seen = {one: self.seen[one] for one in hashes if one in self.seen}
        self.seen.update((hashes[place], one.name) for place, one in zip(fresh, told, strict=True))
        for name in sorted(self.running.difference(names)):
            trial = writer.engine.open_trial(self.known[name].number)
            if trial is None or STOPPED not in trial.labels:  # its observation is still to come
                self._end(store, writer, name, TrialState.FAILED, None, GONE)

    def _change(self, store: StudyStore, writer: Writer, one: ToldTrial) -> None:
        known = self.known[one.name]
        if (one.state, one.value) == (known.state, known.value):
            return
        engine = writer.engine
        if known.state is TrialState.FAILED:
            with writer.changing():
                store.reopen_trials(writer.lease, [known.number])
                engine.reopen(
                    [
                        replace(
                            engine.trial(known.number),
                            state=TrialState.RUNNING,
                            reason="",
                            failure_class="",
                            end_time=None,
                        )
                    ]
                )
            self._know(one.name, known._replace(state=TrialState.RUNNING))
        elif known.state.finished:
            # A succeeded trial cannot change, so it is replaced by another trial.
            before = engine.trial(known.number)
            with writer.changing():
                store.delete_trial(writer.lease, known.number)
                engine.put(replace(before, state=TrialState.CANCELLED, value=None))
            del self.known[one.name]
            self._add(store, writer, [one])
            return
        if one.state.finished:
            self._end(store, writer, one.name, one.state, one.value, one.reason)

    def _end(
        self, store: StudyStore, writer: Writer, name: str, state: TrialState, value: float | None, reason: str
    ) -> None:
        known = self.known[name]
        self._finish(store, writer, known.number, state, value, reason)
        self._know(name, known._replace(state=state, value=value))

    def _finish(
        self, store: StudyStore, writer: Writer, number: int, state: TrialState, value: float | None, reason: str
    ) -> None:
        trial = writer.engine.open_trial(number)
        if trial is None:
            return  # another client of the API has ended it
        failed = FAILED_IN_KATIB if state is TrialState.FAILED else ""
        ended = replace(
            trial, state=state, value=value, reason=reason, failure_class=failed, end_time=datetime.now(UTC)
        )
        with writer.changing():
            store.finish_trial(writer.lease, ended, ())
            writer.engine.put(ended)
        writer.drop(number)

    def _take_free(self, store: StudyStore, writer: Writer, new: Sequence[ToldTrial]) -> None:
        """Match new trials with suggestions that have the same texts, and record their names."""
        if not self.offers:
            return
        for one in sorted(new, key=_BY_TIME):
            numbers = self.free.get(one.point)
            if not numbers:
                continue
            number = next((each for each in numbers if self.name_of(each) == one.name), numbers[0])
            trial = writer.engine.open_trial(number)
            self._forget_offer(number)
            if trial is None:
                continue
            named = replace(trial, labels={**trial.labels, TRIAL: one.name})
            with writer.changing():
                store.relabel_trial(writer.lease, number, named.labels)
                writer.engine.put(named)
            self._know(one.name, _KnownTrial(number, one.point, TrialState.RUNNING, None))
            if one.state.finished:
                self._end(store, writer, one.name, one.state, one.value, one.reason)

    def _forget_offer(self, number: int) -> None:
        point = self.offers.pop(number).point
        self.free[point].remove(number)
        if not self.free[point]:
            del self.free[point]

    def abandon(self, store: StudyStore, writer: Writer, below: int) -> None:
        """Cancel the free suggestions at positions below `below`: the caller has run other points instead."""
        for position, answer in list(self.answers.items()):
            if position < below and answer.number in self.offers:
                del self.answers[position]
                self._finish(store, writer, answer.number, TrialState.CANCELLED, None, "the caller ran another point")
                self._forget_offer(answer.number)

    def _add(self, store: StudyStore, writer: Writer, new: Sequence[ToldTrial]) -> None:
        """Add trials that were never suggested here: the finished ones, then the running ones, each by time."""
        if not new:
            return
        if ended := sorted((one for one in new if one.state.finished), key=_BY_TIME):
            self._add_ended(store, writer, ended)
        if begun := sorted((one for one in new if not one.state.finished), key=_BY_TIME):
            self._add_running(store, writer, begun)
        self.next_number = writer.engine.next_number
        writer.warm_up()

    def _add_ended(self, store: StudyStore, writer: Writer, ended: Sequence[ToldTrial]) -> None:
        order, states = self.experiment.names, [one.state for one in ended]
        batch = TrialBatch(
            writer.engine.next_number,
            states,
            parameters=[dict(zip(order, one.point, strict=True)) for one in ended],
            values=[one.value for one in ended],
            reasons=[one.reason for one in ended],
            failure_classes=[FAILED_IN_KATIB if state is TrialState.FAILED else "" for state in states],
            labels=list(map(_labels, ended)),
            time=datetime.now(UTC),
        )
        with writer.changing():
            store.add_batch(writer.lease, batch)
            writer.engine.take_batch(batch)
        self._learned(ended, batch.first)

    def _add_running(self, store: StudyStore, writer: Writer, begun: Sequence[ToldTrial]) -> None:
        engine, order, now = writer.engine, self.experiment.names, datetime.now(UTC)
        first = engine.next_number
        trials = [
            Trial(
                number,
                TrialState.RUNNING,
                dict(zip(order, one.point, strict=True)),
                labels=_labels(one),
                create_time=now,
                tries=1,
            )
            for number, one in enumerate(begun, first)
        ]
        with writer.changing():
            store.hand_out(writer.lease, trials)
            for trial in trials:
                engine.put(trial)
        self._learned(begun, first)
        self.running.update(one.name for one in begun)

    def _learned(self, told: Sequence[ToldTrial], first: int) -> None:
        """Know these trials, whose numbers begin with `first`."""
        for number, one in enumerate(told, first):
            self.known[one.name] = _KnownTrial(number, one.point, one.state, one.value)


_BY_TIME = attrgetter("moment", "name")


def _labels(one: ToldTrial) -> dict[str, str]:
    return {TRIAL: one.name} if one.is_inside else {TRIAL: one.name, IMPORTED_FROM: "katib"}


# Requests for suggestions, by the positions that they are for

_REQUEST = "katib/"
_REQUEST_ID = re.compile(r"katib/(\d+-\d+(?:,\d+-\d+)*)/\d+", re.ASCII)


def request_of(positions: Sequence[int], number: int) -> str:
    """Return a request id for suggestions at these positions. The number of the first trial makes it unique."""
    runs: list[list[int]] = []
    for position in positions:
        if runs and runs[-1][1] == position - 1:
            runs[-1][1] = position
        else:
            runs.append([position, position])
    return f"{_REQUEST}{','.join(f'{first}-{last}' for first, last in runs)}/{number}"


def positions_of(request_id: str) -> Sequence[int]:
    """Return the positions that `request_of` was given, none for a request id of another form."""
    found = _REQUEST_ID.fullmatch(request_id)
    if found is None:
        return ()
    runs = found[1].split(",")
    ends = [run.split("-") for run in runs]
    if len(ends) == 1:
        return range(int(ends[0][0]), int(ends[0][1]) + 1)
    return [position for first, last in ends for position in range(int(first), int(last) + 1)]
