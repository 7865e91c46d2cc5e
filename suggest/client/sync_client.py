"""The blocking client: the methods of `AsyncClient` for programs without an event loop.

Each method of `AsyncClient` is a coroutine over a transport. The transport in this module blocks,
so the coroutine runs to its end in the caller's thread: there is no event loop and no other thread,
and Ctrl-C interrupts the call itself.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from suggest.client import search_space as arguments
from suggest.client.async_client import AsyncClient
from suggest.client.retries import PATIENCE_S, Attempts
from suggest.client.search_loop import Search
from suggest.client.search_space import Parameters
from suggest.domain import Value
from suggest.lazy_module import LazyModule
from suggest.space import Space
from suggest.study import Algorithm, Constraint, Objective, Pruning, StudyName, StudySpec
from suggest.trial import NO_LABELS

if TYPE_CHECKING:
    import grpc

    from suggest import wire
else:
    grpc, wire = LazyModule("grpc"), LazyModule("suggest.wire")

P = ParamSpec("P")
T = TypeVar("T")


class _BlockingTransport(AsyncClient):
    """An AsyncClient whose coroutines never suspend.

    Thread-safe. A forked process must create its own client.
    """

    def __init__(self, address: str, **settings: Any) -> None:  # those of AsyncClient
        self._connecting = threading.Lock()
        super().__init__(address, **settings)

    async def _exchange(
        self, method: Any, request: Any, attempts: Attempts, **settings: Any
    ) -> Any:
        return method(request, timeout=attempts.timeout_s(), **settings)

    async def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - it blocks on purpose

    def _connected(self, address: str) -> Any:
        with self._connecting:
            return super()._connected(address)

    def _new_channel(
        self,
        address: str,
        credentials: grpc.ChannelCredentials | None,
        options: tuple[tuple[str, int], ...],
    ) -> Any:
        if credentials is None:
            return grpc.insecure_channel(address, options=options)
        return grpc.secure_channel(address, credentials, options=options)

    async def _close_channel(self, channel: Any) -> None:
        channel.close()


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise AssertionError("a blocking transport does not suspend")


def _blocking(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Client, P], T]:
    """Turn a method of `AsyncClient` into one of `Client`, with its signature and docstring."""

    @functools.wraps(method)
    def blocking(client: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return _run(method(client._transport, *args, **kwargs))

    return blocking


class Client:
    """A blocking client, which connects at the first call.

    Its methods raise the same errors as AsyncClient's.

    Args:
        address: `HOST:PORT` or `unix:PATH`. For several servers on one database, their addresses
            with commas; while one cannot be reached, the others are tried.
        token: The token. Default: TUNER_TOKEN.
        token_file: The file with the token. Default: TUNER_TOKEN_FILE.
        tls_ca: The file with the certificate authorities that the client trusts, or `system`.
            Default: TUNER_TLS_CA.
        tls_cert: The file with the client's own certificate, reloaded when it changes. Default:
            TUNER_TLS_CERT.
        tls_key: The file with the key of that certificate. Default: TUNER_TLS_KEY.
        timeout_s: The limit of each call in seconds. While no server answers, the call is retried
            until then; the default is longer than a restart of the server. Errors that waiting does
            not cure are raised at once.

    Raises:
        InvalidArgument: the token would be sent unencrypted to another machine.
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
        self._transport = _BlockingTransport(
            address,
            token=token,
            token_file=token_file,
            tls_ca=tls_ca,
            tls_cert=tls_cert,
            tls_key=tls_key,
            timeout_s=timeout_s,
        )
        self.address = self._transport.address

    def study(
        self,
        name: str,
        parameters: Parameters,
        objective: Objective | Sequence[Objective],
        *,
        constraints: Sequence[Constraint] = (),
        algorithm: str = "tpe",
        settings: Mapping[str, Value] = NO_LABELS,
        seed: int | None = None,
        pruning: Pruning | None = None,
        namespace: str = "default",
    ) -> Search:
        """Create the study, or join it if any process has created it with the same arguments.

        algorithm: "default" is that of files and of `tuner.minimize`. Another default value would
        keep programs from joining the studies that they created without this argument.

        Raises:
            AlreadyExists: the study was created with other arguments.
            TypeError: an argument has the wrong type.
        """
        arguments.text("study", "name", name)
        arguments.text("study", "namespace", namespace)
        objectives = [objective] if isinstance(objective, Objective) else objective
        if not isinstance(objectives, Sequence) or not all(
            isinstance(each, Objective) for each in objectives
        ):
            expected = 'maximize("METRIC"), minimize("METRIC") or a list of these'
            arguments.refuse("study", "objective", objective, expected)
        if not isinstance(constraints, Sequence) or not all(
            isinstance(each, Constraint) for each in constraints
        ):
            arguments.refuse(
                "study", "constraints", constraints, 'a list of Constraint("METRIC", max=20)'
            )
        arguments.text("study", "algorithm", algorithm)
        if not isinstance(settings, Mapping):
            arguments.refuse("study", "settings", settings, "a dict of names to values")
        if pruning is not None and not isinstance(pruning, Pruning):
            arguments.refuse("study", "pruning", pruning, "a Pruning or None")
        spec = StudySpec(
            Space(arguments.named(parameters)),
            tuple(objectives),
            Algorithm(
                algorithm,
                None if seed is None else arguments.whole("study", "seed", seed),
                {
                    key: arguments.json_value("study", f"settings[{key!r}]", value)
                    for key, value in settings.items()
                },
            ),
            pruning,
            tuple(constraints),
        )
        study = self.create_study(
            StudyName(namespace, name), spec, request_id=wire.request_id_of(spec)
        )
        return Search(self, study)

    create_study = _blocking(AsyncClient.create_study)
    get_study = _blocking(AsyncClient.get_study)
    list_studies = _blocking(AsyncClient.list_studies)
    study_summaries = _blocking(AsyncClient.study_summaries)
    update_study = _blocking(AsyncClient.update_study)
    delete_study = _blocking(AsyncClient.delete_study)
    validate = _blocking(AsyncClient.validate)
    algorithms = _blocking(AsyncClient.algorithms)
    add_trial = _blocking(AsyncClient.add_trial)
    import_trials = _blocking(AsyncClient.import_trials)
    get_trial = _blocking(AsyncClient.get_trial)
    list_trials = _blocking(AsyncClient.list_trials)
    trials_page = _blocking(AsyncClient.trials_page)
    latest_page = _blocking(AsyncClient.latest_page)
    update_trial = _blocking(AsyncClient.update_trial)
    delete_trial = _blocking(AsyncClient.delete_trial)
    suggest = _blocking(AsyncClient.suggest)
    report = _blocking(AsyncClient.report)
    decide_parameter = _blocking(AsyncClient.decide_parameter)
    renew_leases = _blocking(AsyncClient.renew_leases)
    complete = _blocking(AsyncClient.complete)
    reopen_trials = _blocking(AsyncClient.reopen_trials)
    list_measurements = _blocking(AsyncClient.list_measurements)
    optimal_trials = _blocking(AsyncClient.optimal_trials)
    estimate = _blocking(AsyncClient.estimate)
    close = _blocking(AsyncClient.close)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
