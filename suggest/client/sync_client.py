"""The client for people's own programs: blocking, thread-safe, and with `study()` a loop over trials on top.

The same methods as `AsyncClient`, which this module exports too. gRPC is imported when the first client is made.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from suggest.address import parse_addresses
from suggest.binding import import_grpc_quietly
from suggest.client.credentials import ClientCredentials
from suggest.client.retries import CHANNEL_OPTIONS, PATIENCE_S, Attempts
from suggest.client.search_loop import Search, search_of
from suggest.client.search_space import Parameters
from suggest.imports import FinishedTrial, ImportResult
from suggest.replies import KEEP, AlgorithmInfo, Keep, StudySummary, Suggestions
from suggest.space import Assignment, Space, Value
from suggest.study import Objective, Pruning, Study, StudyName, StudySpec
from suggest.trial import NO_LABELS, Measurement, Outcome, StopAdvice, Trial, TrialState

if TYPE_CHECKING:
    import grpc

    from suggest.client.calls import Call, Pages

T = TypeVar("T")


class Client:
    """`address`: `HOST:PORT` or `unix:PATH`; several, with commas, of servers on one database: while one is away the
    others are asked. Connects at the first call; methods raise as AsyncClient's do.

    `timeout_s`: the patience of each call. While nobody answers, such as during a restart of the server, it is sent
    again until then; the default survives a restart. What waiting does not cure is raised at once.

    `token`, or the file it is in; `tls_ca`: the file of the authorities that may vouch for the server, or `system`;
    `tls_cert`, `tls_key`: files of the client's own certificate, read again when they change. Where nothing is said,
    TUNER_TOKEN, TUNER_TOKEN_FILE, TUNER_TLS_CA, TUNER_TLS_CERT and TUNER_TLS_KEY do. Raises InvalidArgument where
    the token would go in the clear to another machine.
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
    ) -> None:
        self._homes = parse_addresses(address)
        self.address = ",".join(self._homes)
        self._identity = ClientCredentials(token, token_file, tls_ca, tls_cert, tls_key)
        for home in self._homes:
            self._identity.check(home)
        self._timeout_s = timeout_s
        self._connecting = threading.Lock()
        self._version = self._identity.version()
        self._retired: list[grpc.Channel] = []  # with an earlier certificate
        self._owner = ""  # who answered last, if not `address`
        self._channels: dict[
            str, tuple[grpc.Channel, Any]
        ] = {}  # with its stub: methods are looked up by a Call's name

    def study(
        self,
        name: str,
        parameters: Parameters,
        objective: Objective,
        *,
        algorithm: str = "tpe",
        settings: Mapping[str, Value] = NO_LABELS,
        seed: int | None = None,
        pruning: Pruning | None = None,
        namespace: str = "default",
    ) -> Search:
        """The study of this name: created, or joined if it was created by the same words, in any process.

        Raises AlreadyExists if it was created by other words, TypeError for an argument of the wrong type.
        """
        return search_of(
            self,
            StudyName(namespace, name),
            parameters,
            objective,
            algorithm=algorithm,
            settings=settings,
            seed=seed,
            pruning=pruning,
        )

    def create_study(
        self, name: StudyName, spec: StudySpec, *, request_id: str, labels: Mapping[str, str] = NO_LABELS
    ) -> Study:
        """The same request_id and spec again returns the study; the name otherwise taken: AlreadyExists."""
        from suggest.client import calls

        return self._send(calls.create_study(name, spec, request_id=request_id, labels=labels))

    def get_study(self, name: StudyName) -> Study:
        from suggest.client import calls

        return self._send(calls.get_study(name))

    def list_studies(self, namespace: str = "-") -> list[Study]:
        """`-` means all namespaces."""
        from suggest.client import calls

        return self._all(calls.list_studies(namespace))

    def study_summaries(self, namespace: str = "-") -> list[tuple[Study, StudySummary | None]]:
        """The studies, and how far each is; None: the server is too old to say."""
        from suggest.client import calls

        return self._all(calls.study_summaries(namespace))

    def update_study(
        self,
        name: StudyName,
        *,
        space: Space | Keep = KEEP,
        pruning: Pruning | Keep | None = KEEP,
        labels: Mapping[str, str] | Keep = KEEP,
        validate_only: bool = False,
    ) -> Study:
        """A space only grows: each of its points stays one. `pruning=None` switches it off; nothing else of a study can
        be changed. `validate_only`: what it would be."""
        from suggest.client import calls

        update = calls.update_study(name, space=space, pruning=pruning, labels=labels, validate_only=validate_only)
        return self._send(update)

    def delete_study(self, name: StudyName) -> None:
        """With all its trials, for good."""
        from suggest.client import calls

        self._send(calls.delete_study(name))

    def validate(self, spec: StudySpec) -> None:
        """Raises InvalidArgument with all problems; stores nothing."""
        from suggest.client import calls

        self._send(calls.validate(spec))

    def algorithms(self) -> list[AlgorithmInfo]:
        from suggest.client import calls

        return self._send(calls.algorithms())

    def add_trial(
        self,
        name: StudyName,
        parameters: Assignment,
        *,
        request_id: str,
        outcome: Outcome | None = None,
        measurements: Sequence[Measurement] = (),
        labels: Mapping[str, str] = NO_LABELS,
    ) -> Trial:
        """Without an outcome: enqueued (may be partial), handed out by the next suggest(). With one: imported."""
        from suggest.client import calls

        return self._send(
            calls.add_trial(
                name,
                parameters,
                request_id=request_id,
                outcome=outcome,
                measurements=measurements,
                labels=labels,
            )
        )

    def import_trials(
        self, name: StudyName, trials: Sequence[FinishedTrial], *, source: str, request_id: str
    ) -> list[ImportResult]:
        """Finished trials from elsewhere, at most 1000; each is taken once. What became of each, in their order."""
        from suggest.client import calls

        return self._send(calls.import_trials(name, trials, source=source, request_id=request_id))

    def get_trial(self, name: StudyName, number: int) -> Trial:
        from suggest.client import calls

        return self._send(calls.get_trial(name, number))

    def list_trials(self, name: StudyName, *, client_id: str = "", states: Iterable[TrialState] = ()) -> list[Trial]:
        """All that match, ordered by number."""
        from suggest.client import calls

        return self._all(calls.list_trials(name, client_id=client_id, states=states))

    def update_trial(self, name: StudyName, number: int, *, labels: Mapping[str, str]) -> Trial:
        from suggest.client import calls

        return self._send(calls.update_trial(name, number, labels))

    def delete_trial(self, name: StudyName, number: int) -> None:
        """Takes a queued or finished trial out of the study; its number is not given again."""
        from suggest.client import calls

        self._send(calls.delete_trial(name, number))

    def suggest(
        self,
        name: StudyName,
        count: int,
        *,
        client_id: str,
        request_id: str,
        labels: Mapping[str, str] = NO_LABELS,
        lease_s: float | None = None,
        expired_only: bool = False,
    ) -> Suggestions:
        """Up to `count` trials, running from now on. The same request_id again: the same trials, as they are now.

        lease_s: who runs them renews their leases, by reports or renew_leases(), or they are handed out again; None:
        they run until somebody completes them. expired_only: only trials whose lease has expired, no new ones.
        """
        from suggest.client import calls

        call = calls.suggest(
            name,
            count,
            client_id=client_id,
            request_id=request_id,
            labels=labels,
            lease_s=lease_s,
            expired_only=expired_only,
        )
        return self._send(call)

    def report(
        self, name: StudyName, number: int, measurements: Sequence[Measurement], *, tries: int = 0
    ) -> StopAdvice:
        """Known (attempt, metric, step) are ignored. A finished trial takes nothing new: FailedPrecondition.

        tries: of the trial as it was handed out. If its lease expired and somebody else has it: LeaseExpired.
        """
        from suggest.client import calls

        return self._send(calls.report(name, number, measurements, tries=tries))

    def renew_leases(self, name: StudyName, leases: Mapping[int, int]) -> frozenset[int]:
        """`leases`: the tries of trials, by their numbers. Those that could not be renewed: leave them alone."""
        from suggest.client import calls

        return self._send(calls.renew_leases(name, leases))

    def complete(
        self,
        name: StudyName,
        number: int,
        outcome: Outcome,
        *,
        measurements: Sequence[Measurement] = (),
        tries: int = 0,
    ) -> Trial:
        """`measurements` are stored with it, in one write. Completing the same way again succeeds. `tries`: as for
        report()."""
        from suggest.client import calls

        return self._send(calls.complete(name, number, outcome, measurements=measurements, tries=tries))

    def reopen_trials(self, name: StudyName, numbers: Sequence[int]) -> list[Trial]:
        """Failed trials run again, all or none; at most 1000. One that runs already is returned as it is."""
        from suggest.client import calls

        return self._send(calls.reopen_trials(name, numbers))

    def list_measurements(
        self, name: StudyName, number: int | None = None, *, latest: bool = False
    ) -> list[tuple[int, Measurement]]:
        """(trial number, measurement), in the order in which they were reported; of one trial or of all.

        latest: only what each trial's newest attempt said of each metric at its last step, by trial and metric. Older
        servers send all.
        """
        from suggest.client import calls

        return self._all(calls.list_measurements(name, number, latest=latest))

    def optimal_trials(self, name: StudyName) -> list[Trial]:
        """The best succeeded trial, or nothing (a list: with several objectives there will be several)."""
        from suggest.client import calls

        return self._send(calls.optimal_trials(name))

    def close(self) -> None:
        channels, self._channels = self._channels, {}
        retired, self._retired = self._retired, []
        for channel in (*retired, *(channel for channel, _ in channels.values())):
            channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, call: Call[T]) -> T:
        import grpc

        attempts = Attempts(self._homes, self._timeout_s, start=self._owner)
        while True:
            method = getattr(self._connected(attempts.address), call.method)
            try:
                reply = method(
                    call.request,
                    timeout=attempts.timeout_s(),
                    metadata=self._identity.metadata(attempts.address),
                )
            except grpc.RpcError as e:
                pause_s = attempts.pause_or_raise(e)
            else:
                self._owner = attempts.address
                return call.read(reply)
            time.sleep(pause_s)

    def _all(self, pages: Pages[T]) -> list[T]:
        items, token = self._send(pages.page(""))
        while token:
            more, token = self._send(pages.page(token))
            items += more
        return items

    def _connected(self, address: str) -> Any:
        with self._connecting:
            if (version := self._identity.version()) != self._version:
                # Calls that are under way keep their channel; close() ends it with the others.
                self._version = version
                self._retired += [channel for channel, _ in self._channels.values()]
                self._channels.clear()
            if address not in self._channels:
                import_grpc_quietly()
                import grpc

                from suggest.v1.suggest_pb2_grpc import SuggestServiceStub

                credentials = self._identity.credentials(address)
                channel = (
                    grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
                    if credentials is None
                    else grpc.secure_channel(address, credentials, options=CHANNEL_OPTIONS)
                )
                self._channels[address] = channel, SuggestServiceStub(channel)
            return self._channels[address][1]
