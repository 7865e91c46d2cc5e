"""Katib's Suggestion service: answers any history of an experiment,
from a study that it keeps for the experiment.

Thread-safe and blocking. A study is found by what is searched (`KatibExperiment.key`) and by the
names of the trials: experiments of the same name that search the same have studies of their own.
Suggestions have positions: those that the caller has taken already come before those that it asks
for, so that a repeated request gets what it got before.
"""

from __future__ import annotations

import hashlib
import re
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from suggest import events
from suggest.deadline import locked
from suggest.engine import Engine
from suggest.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Problems,
    Unavailable,
    raise_if,
)
from suggest.katib import NAMESPACE
from suggest.katib.experiment import KatibExperiment, read_experiment, validate
from suggest.katib.population import GENERATION, PARENT, Checkpoints, generation, trial_name
from suggest.katib.trial_history import (
    TRIAL,
    HistoryMatch,
    StudyIndex,
    Suggestion,
    TrialHistory,
    request_of,
)
from suggest.katib.v1beta1 import api_pb2 as pb
from suggest.katib.v1beta1.frames_pb2 import SuggestionsFrame
from suggest.storage.observation_log import ObservationLog
from suggest.studies import StudyService
from suggest.studies.sessions import Writer
from suggest.study import StudyName

EXPERIMENT = "katib.kubeflow.org/experiment"  # the label with the experiment's name
MAX_TRIALS = 50_000  # of a request
MAX_COUNT = 1000  # suggestions of a reply
MAX_EXPERIMENT_BYTES = 1 << 20
LOOKED_AT = 8  # newest studies of a search that are compared with a history
REMEMBERED = 256  # parsed experiments, and searches with known studies
REMEMBERED_BYTES = 64 << 10  # of an experiment
CLIENT = "katib"
M = TypeVar("M", bound=Message)
_UNSAFE = re.compile(r"[^a-z0-9]+")


@dataclass(slots=True)
class _Search:
    """All studies of one key. The lock orders the requests for them."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    studies: list[_KeptStudy] | None = None  # the oldest first; None: not looked up yet


@dataclass(slots=True)
class _KeptStudy:
    name: StudyName
    study_index: StudyIndex | None = None
    # a weak reference to the engine whose trials the index knows
    engine: Callable[[], Engine | None] = lambda: None

    def forget(self) -> None:
        """Release the memory of the study_index, because the study was closed."""
        self.study_index = None


class KatibSuggestions:
    """Implements the RPCs of the service on `studies`. Thread-safe and blocking.

    `log` knows which trials were stopped early.
    """

    def __init__(
        self, studies: StudyService, log: ObservationLog, checkpoints: Checkpoints | None = None
    ) -> None:
        self._studies = studies
        self._log = log
        self._checkpoints = checkpoints
        self._searches: OrderedDict[str, _Search] = OrderedDict()
        self._lock = threading.Lock()  # of the searches

    def validate(self, request: pb.ValidateAlgorithmSettingsRequest) -> None:
        """Check an experiment. Raises InvalidArgument."""
        self._check_checkpoints(validate(request.experiment))

    def _check_checkpoints(self, experiment: KatibExperiment) -> None:
        if not experiment.is_population:
            return
        if self._checkpoints is None:
            cure = (
                "start tuner serve with --katib-checkpoints DIRECTORY, a volume that the "
                "trials also mount"
            )
            raise InvalidArgument.at(
                "", f"pbt copies checkpoints, and this server has no folder for them; {cure}"
            )
        self._checkpoints.check(experiment.name)

    def suggest(self, frame: SuggestionsFrame) -> pb.GetSuggestionsReply:
        """Answer a request.

        Raises:
            InvalidArgument: the request or the experiment is wrong.
            FailedPrecondition: the search is finished.
        """
        experiment = _experiment(frame.experiment)
        self._check_checkpoints(experiment)
        count, total = frame.current_request_number, frame.total_request_number
        _check_numbers(count, total, len(frame.trials))
        history = TrialHistory(experiment, list(frame.trials))
        search = self._search(experiment)
        late = Unavailable(
            f"experiment {experiment.name} is busy with other requests; send it again"
        )
        with locked(search.lock, late=late):
            kept = self._study_of(search, experiment, history, taken=total - count)
            answers = self._answers(kept, experiment, history, count=count, taken=total - count)
            reply = _reply(experiment, answers)
            if self._checkpoints is not None and experiment.is_population:
                self._continue(kept, experiment, answers, reply, self._checkpoints)
        return reply

    def _continue(
        self,
        kept: _KeptStudy,
        experiment: KatibExperiment,
        answers: Sequence[Suggestion],
        reply: pb.GetSuggestionsReply,
        checkpoints: Checkpoints,
    ) -> None:
        """Name the trials of pbt in the reply, and give each a copy of its parent's checkpoint."""
        parents: list[str] = []
        with self._studies.sessions.writing(kept.name) as writer:
            for answer, each in zip(answers, reply.parameter_assignments, strict=True):
                each.trial_name = trial_name(experiment.name, writer.lease.uid, answer.number)
                each.labels[GENERATION] = str(generation(writer.engine, answer.number))
                parent = (
                    ""
                    if answer.parent is None
                    else writer.engine.trial(answer.parent).labels.get(TRIAL, "")
                )
                if parent:
                    each.labels[PARENT] = parent
                parents.append(parent)
        for each, parent in zip(reply.parameter_assignments, parents, strict=True):
            checkpoints.prepare(experiment.name, each.trial_name, parent)

    def _search(self, experiment: KatibExperiment) -> _Search:
        with self._lock:
            search = self._searches.setdefault(experiment.key, _Search())
            self._searches.move_to_end(experiment.key)
            for key, other in list(self._searches.items()):
                if len(self._searches) <= REMEMBERED:
                    break
                if other is not search and not other.lock.locked():
                    del self._searches[key]
            return search

    # Whose history it is

    def _study_of(
        self, search: _Search, experiment: KatibExperiment, history: TrialHistory, *, taken: int
    ) -> _KeptStudy:
        if search.studies is None:
            search.studies = list(self._existing(experiment))
        found: dict[HistoryMatch, _KeptStudy] = {}
        parent: StudyIndex | None = None
        inherited = 0
        for kept in reversed(search.studies[-LOOKED_AT:]):
            try:
                with self._studies.sessions.writing(kept.name) as writer:
                    study_index = self._study_index(kept, experiment, writer)
            except NotFound:  # it was deleted
                search.studies = None
                return self._study_of(search, experiment, history, taken=taken)
            fresh = history.fresh(study_index.seen)
            columns = history.trials_at(fresh)
            matching = study_index.compare(columns, others=len(fresh) < len(history), taken=taken)
            if matching is HistoryMatch.SAME:
                return kept
            found.setdefault(matching, kept)
            if (
                matching is HistoryMatch.OTHER
                and (count := study_index.inherited_count(columns, taken)) > inherited
            ):
                parent, inherited = study_index, count
        if HistoryMatch.LIKELY in found:
            return found[HistoryMatch.LIKELY]
        if parent is None and HistoryMatch.POSSIBLE in found:
            return found[HistoryMatch.POSSIBLE]
        history.trials_at(range(len(history)))
        history.names({})  # a request that is refused creates nothing
        made = self._new(search, experiment)
        if parent is not None:
            with self._studies.sessions.writing(made.name) as writer:
                self._study_index(made, experiment, writer).copy_answers(writer, parent, taken)
        return made

    def _existing(self, experiment: KatibExperiment) -> Iterator[_KeptStudy]:
        place = 0
        while True:
            name = _study_name(experiment, place)
            try:
                self._studies.study(name)
            except NotFound:
                return
            yield _KeptStudy(name)
            place += 1

    def _new(self, search: _Search, experiment: KatibExperiment) -> _KeptStudy:
        assert search.studies is not None
        name = _study_name(experiment, len(search.studies))
        label = experiment.name[:63]
        self._studies.create_study(
            name, experiment.spec, request_id=CLIENT, labels={EXPERIMENT: label}
        )
        events.log_event(
            "katib_study", study=name, experiment=label, studies=len(search.studies) + 1
        )
        if experiment.unused:
            events.log_event(
                "katib_settings_unused", study=name, settings=" ".join(experiment.unused)
            )
        kept = _KeptStudy(name)
        search.studies.append(kept)
        return kept

    def _study_index(
        self, kept: _KeptStudy, experiment: KatibExperiment, writer: Writer
    ) -> StudyIndex:
        """Return the study_index, built again if the study was closed or others changed it."""
        engine, study_index = writer.engine, kept.study_index
        if (
            study_index is None
            or kept.engine() is not engine
            or study_index.next_number != engine.next_number
        ):
            study_index = StudyIndex.of(
                experiment, _names(writer.lease.uid, experiment), writer.trials_at_first()
            )
            kept.study_index = study_index
            kept.engine = weakref.ref(engine, lambda _: kept.forget())
        return study_index

    # The answer

    def _answers(
        self,
        kept: _KeptStudy,
        experiment: KatibExperiment,
        history: TrialHistory,
        *,
        count: int,
        taken: int,
    ) -> list[Suggestion]:
        with self._studies.sessions.writing(kept.name) as writer:
            study_index = self._study_index(kept, experiment, writer)
            try:
                study_index.learn(writer, history, self._log.stopped)
                if len(history) >= taken:
                    study_index.abandon(writer, len(history))
            except InvalidArgument:
                raise
            except BaseException:
                kept.study_index = None  # it may be ahead of the store
                raise
            study_index.next_number = writer.engine.next_number
            first = max(taken, len(history))
            wanted = range(first, first + count)
            missing = [position for position in wanted if study_index.replay(position) is None]
            if missing and experiment.fidelity is not None:
                study_index.hand_out_trainings(writer, missing)
                missing = []
        is_finished = is_waiting = False
        while missing and not is_finished:
            suggested = self._studies.suggest(
                kept.name,
                len(missing),
                client_id=CLIENT,
                request_id=request_of(missing, study_index.next_number),
            )
            trials = sorted(suggested.trials, key=lambda trial: trial.number)
            is_finished, is_waiting = suggested.exhausted or not trials, suggested.waiting
            study_index.offered(trials, missing)
            missing = missing[len(trials) :]
        answers = [
            answer for position in wanted if (answer := study_index.replay(position)) is not None
        ]
        if is_waiting and len(answers) < count:
            raise Unavailable(
                f"experiment {experiment.name}: trials of this generation have to end before more "
                "of the next begin; ask again"
            )
        if count and not answers:
            raise FailedPrecondition(
                f"experiment {experiment.name}: every point of its space has been suggested; the "
                f"search is finished"
            )
        return answers


def _experiment(raw: bytes) -> KatibExperiment:
    """Read an experiment; one of usual size is kept. Raises InvalidArgument."""
    if len(raw) <= REMEMBERED_BYTES:
        return _remembered_experiment(raw)
    return read_experiment(parsed_experiment(raw))


@lru_cache(REMEMBERED)
def _remembered_experiment(raw: bytes) -> KatibExperiment:
    return read_experiment(parsed_experiment(raw))


def parsed_experiment(raw: bytes) -> pb.Experiment:
    """Parse the experiment of a request. Raises InvalidArgument."""
    if len(raw) > MAX_EXPERIMENT_BYTES:
        raise InvalidArgument.at(
            "experiment",
            f"{len(raw):,} bytes; at most {MAX_EXPERIMENT_BYTES:,}: use shorter values",
        )
    return parsed(pb.Experiment, raw, "experiment")


def parsed(kind: type[M], raw: bytes, path: str) -> M:
    """Parse a message at a field of the request. Raises InvalidArgument."""
    try:
        return kind.FromString(raw)
    except DecodeError:
        raise InvalidArgument.at(
            path, f"its bytes are not an {kind.DESCRIPTOR.full_name}"
        ) from None


def _check_numbers(count: int, total: int, trials: int) -> None:
    """Check the numbers of a request. Raises InvalidArgument."""
    problems = Problems()
    if not 0 <= count <= MAX_COUNT:
        problems.add("current_request_number", f"{count} suggestions; ask for 0 to {MAX_COUNT}")
    if total < 0:
        problems.add(
            "total_request_number", f"{total} is negative; send how many were wanted in all"
        )
    if trials > MAX_TRIALS:
        problems.add("trials", f"{trials:,} trials; at most {MAX_TRIALS:,}")
    raise_if(problems)


def _study_name(experiment: KatibExperiment, place: int) -> StudyName:
    """Return the name of a study; `place` is its index among the studies of one search."""
    readable = _UNSAFE.sub("-", experiment.name.lower())[:40].strip("-") or "experiment"
    digest = hashlib.sha256(experiment.key.encode()).hexdigest()[:12]
    return StudyName(NAMESPACE, f"{readable}-{digest}-{place}")


def _names(study_uid: str, experiment: KatibExperiment) -> Callable[[int], str]:
    """Return a function that returns the name that a trial was suggested with."""
    if not experiment.is_population:
        return lambda number: ""
    return lambda number: trial_name(experiment.name, study_uid, number)


def _reply(experiment: KatibExperiment, answers: Sequence[Suggestion]) -> pb.GetSuggestionsReply:
    names = experiment.names
    reply = pb.GetSuggestionsReply()
    for answer in answers:
        assignments = reply.parameter_assignments.add().assignments
        for name, text in zip(names, answer.texts, strict=True):
            assignments.add(name=name, value=text)
    return reply
