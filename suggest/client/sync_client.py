"""The client for programs without an event loop: the methods of `AsyncClient`, blocking, and
studies with a loop over trials.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from suggest.client import search_space as arguments
from suggest.client.blocking_calls import BlockingCalls, BlockingTransport
from suggest.client.retries import PATIENCE_S
from suggest.client.search_loop import Search
from suggest.client.search_space import Parameters
from suggest.domain import Value
from suggest.lazy_module import LazyModule
from suggest.space import Space
from suggest.study import Algorithm, Constraint, Objective, Pruning, StudyName, StudySpec
from suggest.trial import NO_LABELS

if TYPE_CHECKING:
    from suggest import wire
else:
    wire = LazyModule("suggest.wire")


class Client(BlockingCalls):
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
        super().__init__(
            BlockingTransport(
                address,
                token=token,
                token_file=token_file,
                tls_ca=tls_ca,
                tls_cert=tls_cert,
                tls_key=tls_key,
                timeout_s=timeout_s,
            )
        )

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

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
