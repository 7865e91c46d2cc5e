"""Requests of a client and the reading of replies: one function per method of the API, without any I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from suggest import names, wire
from suggest.estimate import Estimate
from suggest.imports import FinishedTrial, ImportResult
from suggest.replies import KEEP, AlgorithmInfo, Keep, StudySummary, Suggestions
from suggest.space import Assignment, Space
from suggest.study import Pruning, Study, StudyName, StudySpec
from suggest.trial import Measurement, Outcome, StopAdvice, Trial, TrialState
from suggest.v1 import suggest_pb2 as pb

PAGE = 1000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A method's name, its request, and a function that reads the reply.

    The types of request and reply are Any, because the method of the stub is looked up by name.
    """

    method: str
    request: Message
    read: Callable[[Any], T]


@dataclass(frozen=True, slots=True)
class Pages(Generic[T]):
    """A list that is returned in pages: `request` takes the page token, `read` returns the items of a reply."""

    method: str
    request: Callable[[str], Message]
    read: Callable[[Any], list[T]]

    def page(self, token: str) -> Call[tuple[list[T], str]]:
        return Call(self.method, self.request(token), lambda reply: (self.read(reply), reply.next_page_token))


def create_study(name: StudyName, spec: StudySpec, *, request_id: str, labels: Mapping[str, str]) -> Call[Study]:
    request = pb.CreateStudyRequest(
        parent=names.namespace_name(name.namespace),
        study_id=name.study,
        study=pb.Study(spec=wire.write_spec(spec), labels=dict(labels)),
        request_id=request_id,
    )
    return Call("CreateStudy", request, wire.read_study)


def get_study(name: StudyName) -> Call[Study]:
    return Call("GetStudy", pb.GetStudyRequest(name=str(name)), wire.read_study)


def list_studies(namespace: str) -> Pages[Study]:
    parent = names.namespace_name(namespace)
    return Pages(
        "ListStudies",
        lambda token: pb.ListStudiesRequest(parent=parent, page_size=PAGE, page_token=token),
        lambda reply: [wire.read_study(s) for s in reply.studies],
    )


def study_summaries(namespace: str) -> Pages[tuple[Study, StudySummary | None]]:
    parent = names.namespace_name(namespace)

    def read(reply: pb.ListStudiesResponse) -> list[tuple[Study, StudySummary | None]]:
        studies = [wire.read_study(study) for study in reply.studies]
        if not reply.summaries:  # an older server
            return [(study, None) for study in studies]
        return list(zip(studies, map(wire.read_summary, reply.summaries), strict=True))

    return Pages(
        "ListStudies",
        lambda token: pb.ListStudiesRequest(parent=parent, page_size=PAGE, page_token=token, summaries=True),
        read,
    )


def update_study(
    name: StudyName,
    *,
    space: Space | Keep,
    pruning: Pruning | Keep | None,
    labels: Mapping[str, str] | Keep,
    validate_only: bool,
) -> Call[Study]:
    request = pb.UpdateStudyRequest(study=pb.Study(name=str(name)), validate_only=validate_only)
    if space is not KEEP:
        request.update_mask.paths.append("spec.parameters")
        request.study.spec.parameters.extend(wire.write_space(space))
    if pruning is not KEEP:
        request.update_mask.paths.append("spec.pruning")
        if pruning is not None:
            request.study.spec.pruning.CopyFrom(wire.write_pruning(pruning))
    if labels is not KEEP:
        request.update_mask.paths.append("labels")
        request.study.labels.update(labels)
    return Call("UpdateStudy", request, wire.read_study)


def delete_study(name: StudyName) -> Call[None]:
    return Call("DeleteStudy", pb.DeleteStudyRequest(name=str(name)), _nothing)


def validate(spec: StudySpec) -> Call[None]:
    return Call("ValidateStudy", pb.ValidateStudyRequest(spec=wire.write_spec(spec)), _nothing)


def algorithms() -> Call[list[AlgorithmInfo]]:
    return Call(
        "ListAlgorithms",
        pb.ListAlgorithmsRequest(),
        lambda reply: [AlgorithmInfo(a.name, a.description, dict(a.settings)) for a in reply.algorithms],
    )


def add_trial(
    name: StudyName,
    parameters: Assignment,
    *,
    request_id: str,
    outcome: Outcome | None,
    measurements: Sequence[Measurement],
    labels: Mapping[str, str],
) -> Call[Trial]:
    request = pb.AddTrialRequest(
        parent=str(name),
        outcome=None if outcome is None else wire.write_outcome(outcome),
        measurements=[wire.write_measurement(m) for m in measurements],
        labels=dict(labels),
        request_id=request_id,
    )
    wire.write_values(parameters, request.parameters)
    return Call("AddTrial", request, wire.read_trial)


def import_trials(
    name: StudyName, trials: Sequence[FinishedTrial], *, source: str, request_id: str
) -> Call[list[ImportResult]]:
    request = pb.ImportTrialsRequest(
        parent=str(name), trials=[wire.write_finished(t) for t in trials], source=source, request_id=request_id
    )
    return Call("ImportTrials", request, lambda reply: [wire.read_import_result(result) for result in reply.results])


def get_trial(name: StudyName, number: int) -> Call[Trial]:
    return Call("GetTrial", pb.GetTrialRequest(name=names.trial_name(name, number)), wire.read_trial)


def list_trials(
    name: StudyName, *, client_id: str, states: Iterable[TrialState], first_number: int = 0, page_size: int = PAGE
) -> Pages[Trial]:
    state_values = wire.write_states(states)
    return Pages(
        "ListTrials",
        lambda token: pb.ListTrialsRequest(
            parent=str(name),
            page_size=page_size,
            page_token=token,
            states=state_values,
            client_id=client_id,
            first_number=first_number,
        ),
        lambda reply: [wire.read_trial(t) for t in reply.trials],
    )


def update_trial(name: StudyName, number: int, labels: Mapping[str, str]) -> Call[Trial]:
    request = pb.UpdateTrialRequest(trial=pb.Trial(name=names.trial_name(name, number), labels=dict(labels)))
    request.update_mask.paths.append("labels")
    return Call("UpdateTrial", request, wire.read_trial)


def delete_trial(name: StudyName, number: int) -> Call[None]:
    return Call("DeleteTrial", pb.DeleteTrialRequest(name=names.trial_name(name, number)), _nothing)


def suggest(
    name: StudyName,
    count: int,
    *,
    client_id: str,
    request_id: str,
    labels: Mapping[str, str],
    lease_s: float | None,
    expired_only: bool,
    paused_only: bool,
) -> Call[Suggestions]:
    request = pb.SuggestTrialsRequest(
        parent=str(name),
        count=count,
        client_id=client_id,
        request_id=request_id,
        labels=dict(labels),
        lease_duration=wire.write_duration(lease_s),
        expired_only=expired_only,
        paused_only=paused_only,
    )
    return Call(
        "SuggestTrials",
        request,
        lambda reply: Suggestions(
            tuple(wire.read_trial(t) for t in reply.trials), reply.exhausted, reply.independent, reply.waiting
        ),
    )


def report(name: StudyName, number: int, measurements: Sequence[Measurement], *, tries: int) -> Call[StopAdvice]:
    request = pb.ReportMeasurementsRequest(
        name=names.trial_name(name, number),
        measurements=[wire.write_measurement(m) for m in measurements],
        tries=tries,
    )
    return Call("ReportMeasurements", request, lambda reply: StopAdvice(reply.should_stop, reply.reason))


def renew_leases(name: StudyName, leases: Mapping[int, int]) -> Call[frozenset[int]]:
    request = pb.RenewLeasesRequest(
        parent=str(name), leases=[pb.TrialLease(number=number, tries=tries) for number, tries in leases.items()]
    )
    return Call("RenewLeases", request, lambda reply: frozenset(reply.lost))


def complete(
    name: StudyName, number: int, outcome: Outcome, *, measurements: Sequence[Measurement], tries: int
) -> Call[Trial]:
    request = pb.CompleteTrialRequest(
        name=names.trial_name(name, number),
        outcome=wire.write_outcome(outcome),
        measurements=[wire.write_measurement(m) for m in measurements],
        tries=tries,
    )
    return Call("CompleteTrial", request, wire.read_trial)


def reopen_trials(name: StudyName, numbers: Sequence[int]) -> Call[list[Trial]]:
    request = pb.ReopenTrialsRequest(parent=str(name), numbers=numbers)
    return Call("ReopenTrials", request, lambda reply: [wire.read_trial(t) for t in reply.trials])


def list_measurements(name: StudyName, number: int | None, *, latest: bool = False) -> Pages[tuple[int, Measurement]]:
    parent = names.all_trials_name(name) if number is None else names.trial_name(name, number)
    return Pages(
        "ListMeasurements",
        lambda token: pb.ListMeasurementsRequest(parent=parent, page_size=PAGE, page_token=token, latest=latest),
        lambda reply: [(m.trial, wire.read_measurement(m.measurement)) for m in reply.measurements],
    )


def optimal_trials(name: StudyName) -> Call[list[Trial]]:
    return Call(
        "ListOptimalTrials",
        pb.ListOptimalTrialsRequest(parent=str(name)),
        lambda reply: [wire.read_trial(t) for t in reply.trials],
    )


def estimate(name: StudyName) -> Call[Estimate]:
    return Call("EstimateStudy", pb.EstimateStudyRequest(name=str(name)), _read_estimate)


def _read_estimate(reply: pb.StudyEstimate) -> Estimate:
    return Estimate(**{field.name: getattr(reply, field.name) for field in fields(Estimate)})


def _nothing(reply: object) -> None:
    """Read the reply of a method that returns nothing."""
