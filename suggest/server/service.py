"""The gRPC servicer: each method reads its request, calls `suggest.studies`, and builds the reply.

Methods are blocking: `suggest.server.interceptor` runs them in worker threads
and maps exceptions to statuses. Requests are validated only in this module;
rules that depend on the study are in `suggest.studies`.
"""

# ruff: noqa: N802 - the methods are named as in the proto

from __future__ import annotations

import base64
import binascii
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import TypeAlias, TypeVar

from google.protobuf.empty_pb2 import Empty
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message

from suggest import deadline, names, wire
from suggest.domain import NO_MEMBER, NoMember
from suggest.errors import InvalidArgument, Problem, Problems, raise_if, under
from suggest.imports import FinishedTrial
from suggest.replies import KEEP
from suggest.server.access.caller import READABLE
from suggest.server.handlers import Handler, handlers_of
from suggest.server.rpcs import Resource
from suggest.space import Value
from suggest.studies import StudyService
from suggest.studies.dispatch import MAX_REPLY_BYTES
from suggest.studies.spec_rules import size_problems, spec_problems
from suggest.study import Study, StudyName, StudySpec
from suggest.trial import Outcome
from suggest.v1 import suggest_pb2 as pb

MAX_PAGE = 1000
MAX_SUMMARIES = 20  # studies per page when the trials are counted, too
DEFAULT_PAGE = 100
# by UpdateStudy
UPDATED = ("spec.parameters", "spec.pruning", "spec.objectives", "spec.constraints", "labels")
MIN_LEASE_S, MAX_LEASE_S = 0.1, 7 * 86400.0
_AT_A_TIME = 200  # entries of a list per read from the store


PageRequest: TypeAlias = pb.ListStudiesRequest | pb.ListTrialsRequest | pb.ListMeasurementsRequest
M = TypeVar("M", bound=Message)
T = TypeVar("T")


class SuggestServicer:
    """Implements the RPCs of `SuggestService`.

    `resource` is the call's, which the interceptor has parsed. The interceptor handles
    deadlines and cancellation; a write that has begun is finished.
    """

    def __init__(self, studies: StudyService) -> None:
        self._studies = studies

    # Studies

    def CreateStudy(self, request: pb.CreateStudyRequest, resource: Resource) -> pb.Study:
        problems = _problems(resource)
        if problem := names.label_problem(request.study_id):
            problems.add("study_id", problem)
        spec = _read_spec(request.study.spec, problems)
        labels = wire.read_labels(request.study.labels, "labels", problems)
        _check_request_id(request.request_id, problems)
        problems += size_problems("spec.parameters", "the study", request.study.ByteSize())
        raise_if(problems)
        name = StudyName(resource.namespace or "", request.study_id)
        return wire.write_study(
            self._studies.create_study(
                name,
                spec,
                request_id=request.request_id,
                labels=labels,
                validate_only=request.validate_only,
            )
        )

    def GetStudy(self, request: pb.GetStudyRequest, resource: Resource) -> pb.Study:
        return wire.write_study(self._studies.study(_study(resource)))

    def ListStudies(
        self, request: pb.ListStudiesRequest, resource: Resource
    ) -> pb.ListStudiesResponse:
        problems = _problems(resource)
        after = _reading(problems, None, lambda: _read_study_token(request))
        limit = _limit(request.page_size, problems)
        limit = min(limit, MAX_SUMMARIES) if request.summaries else limit
        labels = wire.read_labels(request.labels, "labels", problems)
        raise_if(problems)
        listed: list[Study] = []
        for namespace in _readable(resource.namespace or "", after):
            missing = limit + 1 - len(listed)
            listed += self._studies.list_studies(
                namespace, labels=labels, after=after, limit=missing
            )
            if len(listed) > limit:
                break
        page, next_token = _page(
            request, ((wire.write_study(s), str(s.name)) for s in listed), limit
        )
        studies = listed[: len(page)] if request.summaries else []
        summaries = map(wire.write_summary, studies, self._studies.summaries(studies))
        return pb.ListStudiesResponse(studies=page, next_page_token=next_token, summaries=summaries)

    def UpdateStudy(self, request: pb.UpdateStudyRequest, resource: Resource) -> pb.Study:
        problems = _problems(resource)
        paths = _read_mask(request.update_mask, UPDATED, problems)
        pruning, labels = None, wire.read_labels(request.study.labels, "study.labels", problems)
        space = wire.read_space(request.study.spec.parameters, "study.spec.parameters", problems)
        if request.study.spec.HasField("pruning"):
            pruning = wire.read_pruning(request.study.spec.pruning, "study.spec.pruning", problems)
        objectives = wire.read_objectives(
            request.study.spec.objectives, "study.spec.objectives", problems
        )
        raise_if(problems)
        study = self._studies.update_study(
            _study(resource),
            space=space if "spec.parameters" in paths else KEEP,
            pruning=pruning if "spec.pruning" in paths else KEEP,
            labels=labels if "labels" in paths else KEEP,
            objectives=objectives if "spec.objectives" in paths else KEEP,
            constraints=wire.read_constraints(request.study.spec.constraints)
            if "spec.constraints" in paths
            else KEEP,
            validate_only=request.validate_only,
            size_of=lambda study: wire.write_study(study).ByteSize(),
        )
        return wire.write_study(study)

    def DeleteStudy(self, request: pb.DeleteStudyRequest, resource: Resource) -> Empty:
        self._studies.delete_study(_study(resource))
        return Empty()

    def ValidateStudy(
        self, request: pb.ValidateStudyRequest, resource: Resource
    ) -> pb.ValidateStudyResponse:
        problems = Problems()
        _read_spec(request.spec, problems)
        raise_if(problems)
        return pb.ValidateStudyResponse()

    def ListAlgorithms(
        self, request: pb.ListAlgorithmsRequest, resource: Resource
    ) -> pb.ListAlgorithmsResponse:
        algorithms = [
            pb.AlgorithmInfo(name=a.name, description=a.description, settings=dict(a.settings))
            for a in self._studies.algorithms()
        ]
        return pb.ListAlgorithmsResponse(algorithms=algorithms)

    # Trials

    def AddTrial(self, request: pb.AddTrialRequest, resource: Resource) -> pb.Trial:
        problems = _problems(resource)
        parameters = wire.read_values(request.parameters, "parameters", problems)
        outcome = (
            wire.read_outcome(request.outcome, "outcome", problems)
            if request.HasField("outcome")
            else None
        )
        measurements = wire.read_measurements(request.measurements, "measurements", problems)
        labels = wire.read_labels(request.labels, "labels", problems)
        _check_request_id(request.request_id, problems)
        if outcome is not None:
            problems += _outcome_problems(outcome)
        elif measurements:
            problems.add("measurements", "only a finished trial has some; set outcome too")
        raise_if(problems)
        study = _study(resource)
        added = self._studies.add_trial(
            study,
            parameters,
            request_id=request.request_id,
            outcome=outcome,
            measurements=measurements,
            labels=labels,
        )
        return wire.write_trial(study, added)

    def ImportTrials(
        self, request: pb.ImportTrialsRequest, resource: Resource
    ) -> pb.ImportTrialsResponse:
        problems = _problems(resource)
        trials = wire.read_finished(request.trials, "trials", problems)
        _check_request_id(request.request_id, problems)
        _check_import(trials, request.source, problems)
        for i, trial in enumerate(request.trials):
            size = sum(len(name) + value.ByteSize() for name, value in trial.parameters.items())
            problems += size_problems(f"trials[{i}].parameters", "the trial", size)
        raise_if(problems)
        study = _study(resource)
        results = self._studies.import_trials(
            study, trials, source=request.source, request_id=request.request_id
        )
        reply = pb.ImportTrialsResponse(
            results=[wire.write_import_result(result) for result in results]
        )
        _shorten(reply)
        return reply

    def GetTrial(self, request: pb.GetTrialRequest, resource: Resource) -> pb.Trial:
        study, number = _trial(resource)
        return wire.write_trial(study, self._studies.trial(study, number))

    def ListTrials(
        self, request: pb.ListTrialsRequest, resource: Resource
    ) -> pb.ListTrialsResponse:
        problems = _problems(resource)
        states = wire.read_states(request.states, "states", problems)
        limit = _limit(request.page_size, problems)
        if request.first_number < 0:
            problems.add("first_number", f"{request.first_number} is negative; trials count from 0")
        first = request.first_number - 1
        after = _reading(problems, first, lambda: _read_position(request, first=first))
        raise_if(problems)
        study = _study(resource)
        read_part = partial(
            self._studies.list_trials, study, states=states, client_id=request.client_id
        )
        trials = _in_parts(read_part, after, limit + 1, position=lambda trial: trial.number)
        page, next_token = _page(
            request, ((wire.write_trial(study, t), str(t.number)) for t in trials), limit
        )
        return pb.ListTrialsResponse(trials=page, next_page_token=next_token)

    def UpdateTrial(self, request: pb.UpdateTrialRequest, resource: Resource) -> pb.Trial:
        problems = _problems(resource)
        _read_mask(request.update_mask, ("labels",), problems)
        labels = wire.read_labels(request.trial.labels, "trial.labels", problems)
        raise_if(problems)
        study, number = _trial(resource)
        return wire.write_trial(study, self._studies.relabel_trial(study, number, labels))

    def DeleteTrial(self, request: pb.DeleteTrialRequest, resource: Resource) -> Empty:
        study, number = _trial(resource)
        self._studies.delete_trial(study, number)
        return Empty()

    def SuggestTrials(
        self, request: pb.SuggestTrialsRequest, resource: Resource
    ) -> pb.SuggestTrialsResponse:
        problems = _problems(resource)
        labels = wire.read_labels(request.labels, "labels", problems)
        lease_s = wire.read_duration(request.lease_duration)
        if not 0 < len(request.client_id) <= 256:
            problems.add("client_id", "name the client, in 1 to 256 characters")
        if lease_s is not None and not MIN_LEASE_S <= lease_s <= MAX_LEASE_S:
            problems.add(
                "lease_duration", f"{lease_s:g} s; use 0.1 s to 7 days, or none for no lease"
            )
        _check_request_id(request.request_id, problems)
        raise_if(problems)
        study = _study(resource)
        suggestions = self._studies.suggest(
            study,
            request.count,
            client_id=request.client_id,
            request_id=request.request_id,
            labels=labels,
            lease_s=lease_s,
            expired_only=request.expired_only,
            paused_only=request.paused_only,
            size_of=lambda trial: wire.write_trial(study, trial).ByteSize(),
        )
        return pb.SuggestTrialsResponse(
            trials=[wire.write_trial(study, t) for t in suggestions.trials],
            exhausted=suggestions.exhausted,
            independent=suggestions.independent,
            waiting=suggestions.waiting,
        )

    def ReportMeasurements(
        self, request: pb.ReportMeasurementsRequest, resource: Resource
    ) -> pb.ReportMeasurementsResponse:
        problems = _problems(resource)
        measurements = wire.read_measurements(request.measurements, "measurements", problems)
        raise_if(problems)
        study, number = _trial(resource)
        advice = self._studies.report(study, number, measurements, tries=request.tries)
        return pb.ReportMeasurementsResponse(should_stop=advice.should_stop, reason=advice.reason)

    def DecideParameter(
        self, request: pb.DecideParameterRequest, resource: Resource
    ) -> pb.DecideParameterResponse:
        problems = _problems(resource)
        parameter = wire.read_parameter(request.parameter, "parameter", problems)
        given: Value | NoMember = NO_MEMBER
        if request.HasField("value"):
            given = wire.read_value(request.value, "value", problems)
        raise_if(problems)
        study, number = _trial(resource)
        value = self._studies.decide_parameter(
            study,
            number,
            parameter,
            value=given,
            tries=request.tries,
            size_of=lambda grown: wire.write_study(grown).ByteSize(),
        )
        return pb.DecideParameterResponse(value=wire.write_value(value))

    def RenewLeases(
        self, request: pb.RenewLeasesRequest, resource: Resource
    ) -> pb.RenewLeasesResponse:
        study = _study(resource)
        lost = self._studies.renew_leases(
            study, {lease.number: lease.tries for lease in request.leases}
        )
        return pb.RenewLeasesResponse(lost=sorted(lost))

    def CompleteTrial(self, request: pb.CompleteTrialRequest, resource: Resource) -> pb.Trial:
        problems = _problems(resource)
        outcome = wire.read_outcome(request.outcome, "outcome", problems)
        measurements = wire.read_measurements(request.measurements, "measurements", problems)
        problems += _outcome_problems(outcome)
        raise_if(problems)
        study, number = _trial(resource)
        completed = self._studies.complete(
            study, number, outcome, measurements=measurements, tries=request.tries
        )
        return wire.write_trial(study, completed)

    def ReopenTrials(
        self, request: pb.ReopenTrialsRequest, resource: Resource
    ) -> pb.ReopenTrialsResponse:
        problems = _problems(resource)
        if twice := [number for number, times in Counter(request.numbers).items() if times > 1]:
            problems.add("numbers", f"{twice[0]} occurs twice; send each number once")
        raise_if(problems)
        study = _study(resource)
        reopened = self._studies.reopen_trials(study, list(request.numbers))
        return pb.ReopenTrialsResponse(trials=[wire.write_trial(study, t) for t in reopened])

    def ListMeasurements(
        self, request: pb.ListMeasurementsRequest, resource: Resource
    ) -> pb.ListMeasurementsResponse:
        problems = _problems(resource)
        limit = _limit(request.page_size, problems)
        first = -1 if request.latest else 0
        after = _reading(problems, first, lambda: _read_position(request, first=first))
        raise_if(problems)
        study, number = _study(resource), resource.number
        read_part = partial(self._studies.list_measurements, study, number, latest=request.latest)
        measurements = _in_parts(read_part, after, limit + 1, position=lambda item: item[0])
        messages = (
            (pb.TrialMeasurement(trial=trial, measurement=wire.write_measurement(m)), str(position))
            for position, trial, m in measurements
        )
        page, next_token = _page(request, messages, limit)
        return pb.ListMeasurementsResponse(measurements=page, next_page_token=next_token)

    def ListOptimalTrials(
        self, request: pb.ListOptimalTrialsRequest, resource: Resource
    ) -> pb.ListOptimalTrialsResponse:
        study = _study(resource)
        front = self._studies.optimal_trials(study)
        return pb.ListOptimalTrialsResponse(trials=[wire.write_trial(study, t) for t in front])

    def EstimateStudy(
        self, request: pb.EstimateStudyRequest, resource: Resource
    ) -> pb.StudyEstimate:
        return pb.StudyEstimate(**asdict(self._studies.estimate(_study(resource))))


def handlers(studies: StudyService) -> dict[str, Handler]:
    """Return the handlers of the service's methods, by name."""
    servicer = SuggestServicer(studies)
    return handlers_of(
        {name: (getattr(servicer, name), method.request) for name, method in wire.METHODS.items()}
    )


def _reading(problems: Problems, instead: T, read: Callable[[], T]) -> T:
    """Return the result of `read`.

    If it raises, add its problems, return `instead`, and so continue reading.
    """
    try:
        return read()
    except InvalidArgument as e:
        problems += e.problems
        return instead


def _problems(resource: Resource) -> Problems:
    """Return the problems of the call's resource.

    The method adds others before raising all at once.
    """
    return Problems(resource.problems)


def _study(resource: Resource) -> StudyName:
    """Return the study that the request names. Raises InvalidArgument if there is none."""
    raise_if(_problems(resource))
    study = resource.study
    assert study is not None, "suggest.server.rpcs says that the method is about a study"
    return study


def _trial(resource: Resource) -> tuple[StudyName, int]:
    """Return the trial that the request names. Raises InvalidArgument if there is none."""
    study, number = _study(resource), resource.number
    assert number is not None, "suggest.server.rpcs says that the method is about a trial"
    return study, number


def _check_request_id(request_id: str, problems: Problems) -> None:
    if not 0 < len(request_id) <= 128:
        problems.add(
            "request_id",
            "is needed to recognize a repeated request; use 1 to 128 characters, preferably random",
        )


def _outcome_problems(outcome: Outcome) -> Iterator[Problem]:
    if outcome.value is not None and not math.isfinite(outcome.value):
        path = f"outcome.{outcome.state.value}.value"
        cure = "omit it, or complete the trial as failed"
        yield Problem(path, f"{outcome.value} is not finite; {cure}")


def _check_import(trials: Sequence[FinishedTrial], source: str, problems: Problems) -> None:
    if not 0 < len(source) <= 256:
        problems.add("source", "name their source, in 1 to 256 characters")
    for i, trial in enumerate(trials):
        problems += under(f"trials[{i}]", _outcome_problems(trial.outcome))
        if len(trial.source_id) > 128:
            problems.add(f"trials[{i}].source_id", "has more than 128 characters")
        if len(trial.labels) > 63:
            problems.add(f"trials[{i}].labels", "at most 63: one more has the source")


def _read_spec(message: pb.StudySpec, problems: Problems) -> StudySpec:
    """Read and check a spec.

    Parts that could not be read have placeholder values and are not checked.
    """
    unread = Problems()
    spec = wire.read_spec(message, unread)
    parts = {_part(p) for p in unread}
    problems += unread
    problems += [p for p in spec_problems(spec) if _part(p) not in parts]
    return spec


def _part(problem: Problem) -> str:
    """Return the part that a problem is in: `spec.parameters` for `spec.parameters[0].name`."""
    return ".".join(problem.path.split(".")[:2]).partition("[")[0]


def _readable(namespace: str, after: StudyName | None) -> list[str] | list[None]:
    """Return the namespaces to list, in order, without those before `after`; None means all."""
    if namespace != names.ALL:
        return [namespace]
    readable = READABLE.get()
    if readable is None:
        return [None]
    return sorted(name for name in readable if after is None or name >= after.namespace)


def _limit(page_size: int, problems: Problems) -> int:
    if page_size < 0:
        problems.add(
            "page_size", f"{page_size} is negative; use 0 for the default of {DEFAULT_PAGE}"
        )
    return min(page_size or DEFAULT_PAGE, MAX_PAGE)


def _shorten(reply: pb.ImportTrialsResponse) -> None:
    """Drop remarks if the reply is too large. All results stay."""
    remarks_kept = max((len(result.remarks) for result in reply.results), default=0)
    while remarks_kept > 1 and reply.ByteSize() > MAX_REPLY_BYTES:
        remarks_kept //= 2
        for result in reply.results:
            del result.remarks[remarks_kept:]


def _in_parts(
    read_part: Callable[..., list[T]], after: int, limit: int, *, position: Callable[[T], int]
) -> Iterator[T]:
    """Yield at most `limit` entries, read in parts.

    Entries may be large, and a page may end much earlier.
    """
    while limit > 0:
        part = read_part(after=after, limit=min(limit, _AT_A_TIME))
        yield from part
        if len(part) < _AT_A_TIME:
            return
        after, limit = position(part[-1]), limit - len(part)
        deadline.check()


def _page(request: Message, entries: Iterable[tuple[M, str]], limit: int) -> tuple[list[M], str]:
    """Return a page of at most `limit` messages and MAX_REPLY_BYTES, with a token for any rest."""
    page: list[M] = []
    size, last = 0, ""
    for message, position in entries:
        size += message.ByteSize()
        if page and (len(page) == limit or size > MAX_REPLY_BYTES):
            token = f"{_list_of(request)}:{last}"
            return page, base64.urlsafe_b64encode(token.encode()).decode()
        page.append(message)
        last = position
    return page, ""


def _list_of(request: Message) -> str:
    """Return a digest of what the requests for all pages of a list have in common."""
    common = type(request)()
    common.CopyFrom(request)
    common.ClearField("page_size")
    common.ClearField("page_token")
    text = common.SerializeToString(deterministic=True)
    return hashlib.sha256(request.DESCRIPTOR.name.encode() + text).hexdigest()[:16]


def _read_token(request: PageRequest) -> str:
    """Return the position in a token; "" without one. Raises InvalidArgument."""
    if not request.page_token:
        return ""
    try:
        token = base64.b64decode(request.page_token, altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        raise _bad_token() from None
    of, _, position = token.partition(":")
    if of != _list_of(request):
        raise _bad_token()
    return position


def _read_study_token(request: PageRequest) -> StudyName | None:
    text = _read_token(request)
    return names.parse_study(text, "page_token") if text else None


def _read_position(request: PageRequest, *, first: int) -> int:
    text = _read_token(request)
    if text and not (text.isascii() and text.isdigit() and len(text) < 19):
        raise _bad_token()
    return int(text) if text else first


def _bad_token() -> InvalidArgument:
    return InvalidArgument.at(
        "page_token",
        "not a token of this list; keep the parent and the filters, or omit it to start over",
    )


def _read_mask(mask: FieldMask, fields: Sequence[str], problems: Problems) -> frozenset[str]:
    if not mask.paths:
        problems.add("update_mask", f"empty; name what changes: {', '.join(fields)}")
    if unknown := [path for path in mask.paths if path not in fields]:
        message = f"{', '.join(unknown)[:200]} cannot be changed; only {', '.join(fields)}"
        problems.add("update_mask", message)
    return frozenset(mask.paths)
