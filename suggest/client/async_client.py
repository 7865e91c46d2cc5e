"""The client for programs with an event loop. Its methods take
and return domain objects, never protobuf.

Each method has a deadline, until which the call is retried while the service cannot be reached: all
methods are idempotent. Importing this module does not import gRPC; the first call does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from suggest import names
from suggest.address import parse_addresses
from suggest.binding import import_grpc_quietly
from suggest.client import search_space as arguments
from suggest.client.client_credentials import ClientCredentials
from suggest.client.retries import CHANNEL_OPTIONS, PATIENCE_S, Attempts
from suggest.domain import NO_MEMBER, NoMember
from suggest.errors import NotFound, Problems, Unavailable, raise_if
from suggest.estimate import Estimate
from suggest.imports import FinishedTrial, ImportResult
from suggest.lazy_module import LazyModule
from suggest.replies import KEEP, AlgorithmInfo, Keep, StudySummary, Suggestions
from suggest.space import Assignment, Parameter, Space, Value
from suggest.study import Constraint, Objective, Pruning, Study, StudyName, StudySpec
from suggest.trial import NO_LABELS, Measurement, Outcome, StopAdvice, Trial, TrialState

if TYPE_CHECKING:
    import grpc

    from suggest import wire
    from suggest.v1 import suggest_pb2 as pb
else:
    grpc, wire = LazyModule("grpc"), LazyModule("suggest.wire")
    pb = LazyModule("suggest.v1.suggest_pb2")

PAGE = 1000

# Calls of one client at a time; further ones wait. The server allows 100 per connection, and gRPC
# refuses calls already below that while it still frees earlier ones. Refused calls pause and come
# back, which prolongs an overload.
MAX_IN_FLIGHT = 64

T = TypeVar("T")


class Channel(Protocol):
    """The part of a gRPC channel that a client needs."""

    def unary_unary(self, method: str, **serializers: object) -> Any: ...

    async def close(self) -> None: ...


class AsyncClient:
    """A client that belongs to one event loop and connects at the first call.

    The arguments, including those for credentials, are those of `Client`. All methods raise
    NotFound, InvalidArgument, FailedPrecondition (NotOwner, LeaseExpired), Unauthenticated,
    PermissionDenied, Unavailable and StoreBroken as they apply.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        token_file: str | None = None,
        tls_ca: str | None = None,
        tls_cert: str | None = None,
        tls_key: str | None = None,
        timeout_s: float = PATIENCE_S,
        inside: Channel | None = None,
    ) -> None:
        """`inside`: a channel to `address` from the service's own loop, which needs no socket."""
        self._homes = parse_addresses(arguments.text("Client", "address", address))
        self.address = ",".join(self._homes)
        self._identity = ClientCredentials(token, token_file, tls_ca, tls_cert, tls_key)
        for home in self._homes:
            self._identity.check(home)
        self._timeout_s = timeout_s
        self._version = self._identity.version()
        self._in_flight = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._retired: list[Any] = []  # channels with an earlier certificate
        self._owner = ""  # the address that answered last, if not `address`
        # Channels and their methods, which are by name, by address.
        self._channels: dict[str, tuple[Any, Mapping[str, Any]]] = {}
        if inside is not None:
            self._reach(self.address, inside)

    async def create_study(
        self,
        name: StudyName,
        spec: StudySpec,
        *,
        request_id: str,
        labels: Mapping[str, str] = NO_LABELS,
        validate_only: bool = False,
    ) -> Study:
        """Create a study, or return it if it was created with the same `request_id` and spec.

        With `validate_only`, return the study without creating it.

        Raises:
            AlreadyExists: the name is taken by another study.
        """
        request = pb.CreateStudyRequest(
            parent=names.namespace_name(name.namespace),
            study_id=name.study,
            study=pb.Study(spec=wire.write_spec(spec), labels=dict(labels)),
            request_id=request_id,
            validate_only=validate_only,
        )
        return await self._send("CreateStudy", request, wire.read_study)

    async def get_study(self, name: StudyName) -> Study:
        return await self._send("GetStudy", pb.GetStudyRequest(name=str(name)), wire.read_study)

    async def list_studies(
        self, namespace: str = "-", *, labels: Mapping[str, str] = NO_LABELS
    ) -> list[Study]:
        """Return the studies of a namespace that have these labels; `-` means all namespaces."""
        request = pb.ListStudiesRequest(
            parent=names.namespace_name(namespace), page_size=PAGE, labels=dict(labels)
        )
        return await self._all(
            "ListStudies", request, lambda reply: list(map(wire.read_study, reply.studies))
        )

    async def study_summaries(self, namespace: str = "-") -> list[tuple[Study, StudySummary]]:
        """Return the studies of a namespace with their progress."""

        def read(reply: pb.ListStudiesResponse) -> list[tuple[Study, StudySummary]]:
            studies = map(wire.read_study, reply.studies)
            return list(zip(studies, map(wire.read_summary, reply.summaries), strict=True))

        request = pb.ListStudiesRequest(
            parent=names.namespace_name(namespace), page_size=PAGE, summaries=True
        )
        return await self._all("ListStudies", request, read)

    async def update_study(
        self,
        name: StudyName,
        *,
        space: Space | Keep = KEEP,
        pruning: Pruning | Keep | None = KEEP,
        labels: Mapping[str, str] | Keep = KEEP,
        objectives: Sequence[Objective] | Keep = KEEP,
        constraints: Sequence[Constraint] | Keep = KEEP,
        validate_only: bool = False,
    ) -> Study:
        """Change the search space, the pruning, the labels or the names of metrics of a study.

        Nothing else of a study can change. Of objectives and constraints only the metrics can
        differ from those of the study, whose values stay. A space can only grow: each of its points
        must stay valid. `pruning=None` switches pruning off. With `validate_only`, return the
        changed study without storing it.
        """
        request = pb.UpdateStudyRequest(study=pb.Study(name=str(name)), validate_only=validate_only)
        if space is not KEEP:
            request.update_mask.paths.append("spec.parameters")
            request.study.spec.parameters.extend(wire.write_space(space))
        if pruning is not KEEP:
            request.update_mask.paths.append("spec.pruning")
            if pruning is not None:
                request.study.spec.pruning.CopyFrom(wire.write_pruning(pruning))
        if objectives is not KEEP:
            request.update_mask.paths.append("spec.objectives")
            request.study.spec.objectives.extend(wire.write_objectives(objectives))
        if constraints is not KEEP:
            request.update_mask.paths.append("spec.constraints")
            request.study.spec.constraints.extend(wire.write_constraints(constraints))
        if labels is not KEEP:
            request.update_mask.paths.append("labels")
            request.study.labels.update(labels)
        return await self._send("UpdateStudy", request, wire.read_study)

    async def delete_study(self, name: StudyName) -> None:
        """Delete the study and all its trials permanently."""
        await self._delete("DeleteStudy", pb.DeleteStudyRequest(name=str(name)))

    async def validate(self, spec: StudySpec) -> None:
        """Check a spec without storing anything. Raises InvalidArgument with all problems."""
        await self._send(
            "ValidateStudy", pb.ValidateStudyRequest(spec=wire.write_spec(spec)), _nothing
        )

    async def algorithms(self) -> list[AlgorithmInfo]:
        return await self._send(
            "ListAlgorithms",
            pb.ListAlgorithmsRequest(),
            lambda reply: [
                AlgorithmInfo(a.name, a.description, dict(a.settings)) for a in reply.algorithms
            ],
        )

    async def add_trial(
        self,
        name: StudyName,
        parameters: Assignment,
        *,
        request_id: str,
        outcome: Outcome | None = None,
        measurements: Sequence[Measurement] = (),
        labels: Mapping[str, str] = NO_LABELS,
    ) -> Trial:
        """Add a trial. With an outcome it is imported as finished.

        Without an outcome it is enqueued and handed out by the next suggest();
        then `parameters` may be partial.
        """
        request = pb.AddTrialRequest(
            parent=str(name),
            outcome=None if outcome is None else wire.write_outcome(outcome),
            measurements=map(wire.write_measurement, measurements),
            labels=dict(labels),
            request_id=request_id,
        )
        wire.write_values(parameters, request.parameters)
        return await self._send("AddTrial", request, wire.read_trial)

    async def import_trials(
        self, name: StudyName, trials: Sequence[FinishedTrial], *, source: str, request_id: str
    ) -> list[ImportResult]:
        """Import at most 1000 finished trials, each only once.

        Return a result for each, in the same order.
        """
        request = pb.ImportTrialsRequest(
            parent=str(name),
            trials=map(wire.write_finished, trials),
            source=source,
            request_id=request_id,
        )
        return await self._send(
            "ImportTrials", request, lambda reply: list(map(wire.read_import_result, reply.results))
        )

    async def get_trial(self, name: StudyName, number: int) -> Trial:
        return await self._send(
            "GetTrial", pb.GetTrialRequest(name=names.trial_name(name, number)), wire.read_trial
        )

    async def list_trials(
        self,
        name: StudyName,
        *,
        client_id: str = "",
        states: Iterable[TrialState] = (),
        first_number: int = 0,
    ) -> list[Trial]:
        """Return all matching trials numbered `first_number` or higher, ordered by number."""
        request = pb.ListTrialsRequest(
            parent=str(name),
            page_size=PAGE,
            states=wire.write_states(states),
            client_id=client_id,
            first_number=first_number,
        )
        return await self._all("ListTrials", request, _read_trials)

    async def trials_page(
        self, name: StudyName, token: str, *, page_size: int
    ) -> tuple[list[Trial], str]:
        """Return a page of all trials, ordered by number, and the token of the next page.

        `token` is "" for the first page, and the returned token is "" after the last one.
        """
        request = pb.ListTrialsRequest(parent=str(name), page_size=page_size, page_token=token)
        return await self._page("ListTrials", request, _read_trials)

    async def update_trial(
        self, name: StudyName, number: int, *, labels: Mapping[str, str]
    ) -> Trial:
        request = pb.UpdateTrialRequest(
            trial=pb.Trial(name=names.trial_name(name, number), labels=dict(labels))
        )
        request.update_mask.paths.append("labels")
        return await self._send("UpdateTrial", request, wire.read_trial)

    async def delete_trial(self, name: StudyName, number: int) -> None:
        """Delete a queued or finished trial from the study.

        The trial's number is not used again.
        """
        await self._delete(
            "DeleteTrial", pb.DeleteTrialRequest(name=names.trial_name(name, number))
        )

    async def suggest(
        self,
        name: StudyName,
        count: int,
        *,
        client_id: str,
        request_id: str,
        labels: Mapping[str, str] = NO_LABELS,
        lease_s: float | None = None,
        expired_only: bool = False,
        paused_only: bool = False,
    ) -> Suggestions:
        """Return up to `count` trials, which are running from now on.

        A repeated call with the same `request_id` returns the same trials in their present state.

        Args:
            lease_s: The duration of the trials' leases in seconds. A trial whose lease is not
                renewed in time, by reports or renew_leases(), is handed out again. None: the trials
                run until a client completes them.
            expired_only: Return only trials whose lease has expired, no new ones.
            paused_only: Return only paused trials that may continue with a larger fidelity.
        """
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
        return await self._send(
            "SuggestTrials",
            request,
            lambda reply: Suggestions(
                tuple(_read_trials(reply)), reply.exhausted, reply.independent, reply.waiting
            ),
        )

    async def report(
        self, name: StudyName, number: int, measurements: Sequence[Measurement], *, tries: int = 0
    ) -> StopAdvice:
        """Report measurements of a running trial.

        A known combination of attempt, metric and step is ignored. `tries` is that of the trial as
        it was handed out.

        Raises:
            FailedPrecondition: the trial has finished.
            LeaseExpired: the lease expired, and the trial was handed out to another client.
        """
        request = pb.ReportMeasurementsRequest(
            name=names.trial_name(name, number),
            measurements=map(wire.write_measurement, measurements),
            tries=tries,
        )
        return await self._send(
            "ReportMeasurements", request, lambda reply: StopAdvice(reply.should_stop, reply.reason)
        )

    async def decide_parameter(
        self,
        name: StudyName,
        number: int,
        parameter: Parameter,
        *,
        value: Value | NoMember = NO_MEMBER,
        tries: int = 0,
    ) -> Value:
        """Return the value of a parameter that a running trial of a define-by-run study meets.

        It is stored with the trial, and a repeated call returns the same.

        value: the one that it gets, or the nearest one of its range; by default the study decides.

        Raises:
            InvalidArgument: earlier trials had a parameter of this name of another kind.
            FailedPrecondition: the trial does not run.
        """
        request = pb.DecideParameterRequest(
            name=names.trial_name(name, number),
            parameter=wire.write_parameter(parameter),
            value=None if value is NO_MEMBER else wire.write_value(value, "value"),
            tries=tries,
        )
        return await self._send("DecideParameter", request, _decided)

    async def renew_leases(self, name: StudyName, leases: Mapping[int, int]) -> frozenset[int]:
        """Renew leases; `leases` maps trial numbers to tries.

        Returns the trials whose leases could not be renewed; stop running these.
        """
        each = [pb.TrialLease(number=number, tries=tries) for number, tries in leases.items()]
        request = pb.RenewLeasesRequest(parent=str(name), leases=each)
        return await self._send("RenewLeases", request, lambda reply: frozenset(reply.lost))

    async def complete(
        self,
        name: StudyName,
        number: int,
        outcome: Outcome,
        *,
        measurements: Sequence[Measurement] = (),
        tries: int = 0,
    ) -> Trial:
        """Finish a trial. `measurements` are stored in the same write; for `tries` see report().

        A repeated call with the same outcome succeeds.
        """
        request = pb.CompleteTrialRequest(
            name=names.trial_name(name, number),
            outcome=wire.write_outcome(outcome),
            measurements=map(wire.write_measurement, measurements),
            tries=tries,
        )
        return await self._send("CompleteTrial", request, wire.read_trial)

    async def reopen_trials(self, name: StudyName, numbers: Sequence[int]) -> list[Trial]:
        """Run at most 1000 failed trials again, all or none.

        A trial that already runs is returned unchanged.
        """
        return await self._send(
            "ReopenTrials", pb.ReopenTrialsRequest(parent=str(name), numbers=numbers), _read_trials
        )

    async def list_measurements(
        self, name: StudyName, number: int | None = None, *, latest: bool = False
    ) -> list[tuple[int, Measurement]]:
        """Return pairs (trial number, measurement) of one trial or all, in order of the reports.

        With `latest`, return only the last step of each metric
        in each trial's newest attempt, by trial and metric.
        """
        parent = names.all_trials_name(name) if number is None else names.trial_name(name, number)
        request = pb.ListMeasurementsRequest(parent=parent, page_size=PAGE, latest=latest)
        return await self._all("ListMeasurements", request, _read_measurements)

    async def latest_page(
        self, name: StudyName, token: str
    ) -> tuple[list[tuple[int, Measurement]], str]:
        """Return a page of `list_measurements(latest=True)` of all trials, and the next token."""
        parent = names.all_trials_name(name)
        request = pb.ListMeasurementsRequest(
            parent=parent, page_size=PAGE, page_token=token, latest=True
        )
        return await self._page("ListMeasurements", request, _read_measurements)

    async def optimal_trials(self, name: StudyName) -> list[Trial]:
        """Return the best succeeded trial, if any, or with several objectives the Pareto front."""
        return await self._send(
            "ListOptimalTrials", pb.ListOptimalTrialsRequest(parent=str(name)), _read_trials
        )

    async def estimate(self, name: StudyName) -> Estimate:
        """Return what a model says of the objective without the noise of single trials.

        Raises:
            FailedPrecondition: There are fewer than 10 values, or several objectives, or
            constraints.
        """
        return await self._send(
            "EstimateStudy",
            pb.EstimateStudyRequest(name=str(name)),
            lambda reply: Estimate(
                **{field.name: getattr(reply, field.name) for field in fields(Estimate)}
            ),
        )

    async def close(self) -> None:
        channels, self._channels = self._channels, {}
        retired, self._retired = self._retired, []
        for channel in (*retired, *(channel for channel, _ in channels.values())):
            await self._close_channel(channel)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # The types of requests and replies are Any, because methods are looked up by name.

    async def _delete(self, method: str, request: Any) -> None:
        """Call a method that deletes.

        A repetition may find that the attempt before it has deleted.
        """
        attempts = Attempts(self._homes, self._timeout_s, start=self._owner)
        try:
            await self._send(method, request, _nothing, attempts)
        except NotFound:
            if not attempts.is_uncertain:
                raise

    async def _send(
        self, method: str, request: Any, read: Callable[[Any], T], attempts: Attempts | None = None
    ) -> T:
        """Call the method of the API and return what `read` makes of its reply."""
        attempts = attempts or Attempts(self._homes, self._timeout_s, start=self._owner)
        while True:
            call = self._connected(attempts.address)[method]
            try:
                reply = await self._exchange(
                    call, request, attempts, metadata=self._identity.metadata(attempts.address)
                )
            except grpc.RpcError as e:
                pause_s = attempts.pause_or_raise(e)
            else:
                self._owner = attempts.address
                return read(reply)
            await self._sleep(pause_s)

    async def _page(
        self, method: str, request: Any, read: Callable[[Any], list[T]]
    ) -> tuple[list[T], str]:
        """Return the items of a page, and the token of the next one."""
        return await self._send(method, request, lambda reply: (read(reply), reply.next_page_token))

    async def _all(self, method: str, request: Any, read: Callable[[Any], list[T]]) -> list[T]:
        """Return the items of all pages."""
        items: list[T] = []
        while True:
            page, request.page_token = await self._page(method, request, read)
            items += page
            if not request.page_token:
                return items

    def _connected(self, address: str) -> Mapping[str, Any]:
        if (version := self._identity.version()) != self._version:
            # Calls in progress keep their channel; close() closes it with the others.
            self._version = version
            self._retired += [channel for channel, _ in self._channels.values()]
            self._channels.clear()
        if address not in self._channels:
            import_grpc_quietly()
            api = self._channel_api()
            credentials = self._identity.credentials(address)
            if credentials is None:
                channel = api.insecure_channel(address, options=CHANNEL_OPTIONS)
            else:
                channel = api.secure_channel(address, credentials, options=CHANNEL_OPTIONS)
            self._reach(address, channel)
        return self._channels[address][1]

    # The transport: these methods are all that `suggest.client.blocking_calls` overrides.

    async def _exchange(
        self, method: Any, request: Any, attempts: Attempts, **settings: Any
    ) -> Any:
        left_s = attempts.left_s()
        try:
            async with asyncio.timeout(left_s):
                await self._in_flight.acquire()
        except TimeoutError:
            raise Unavailable(
                f"{MAX_IN_FLIGHT} calls of this client to {attempts.address} are unanswered; "
                f"waited {left_s:.0f} s for one of them to end"
            ) from None
        try:
            return await method(request, timeout=attempts.timeout_s(), **settings)
        finally:
            self._in_flight.release()

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def _channel_api(self) -> Any:
        """Return the module of gRPC that opens channels."""
        return grpc.aio

    async def _close_channel(self, channel: Any) -> None:
        await channel.close()

    def _reach(self, address: str, channel: Any) -> None:
        self._channels[address] = (
            channel,
            {
                name: channel.unary_unary(
                    method.path,
                    request_serializer=method.request.SerializeToString,
                    response_deserializer=method.reply.FromString,
                )
                for name, method in wire.METHODS.items()
            },
        )


def _decided(reply: pb.DecideParameterResponse) -> Value:
    problems = Problems()
    value = wire.read_value(reply.value, "value", problems)
    raise_if(problems)
    return value


def _read_trials(reply: Any) -> list[Trial]:
    return list(map(wire.read_trial, reply.trials))


def _read_measurements(reply: pb.ListMeasurementsResponse) -> list[tuple[int, Measurement]]:
    return [(m.trial, wire.read_measurement(m.measurement)) for m in reply.measurements]


def _nothing(reply: object) -> None:
    """Read the reply of a method that returns nothing."""
