"""Katib's services over gRPC: the handlers of their methods, and the names for health checks.

Handlers are blocking, as those of `suggest.server.service`; the interceptor runs them. Requests
with histories are parsed as frames, whose trials remain bytes until the method reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grpc

from suggest.katib.early_stopping import KatibEarlyStopping
from suggest.katib.observations import KatibObservations
from suggest.katib.population import Checkpoints
from suggest.katib.suggestions import KatibSuggestions
from suggest.katib.v1beta1 import api_pb2 as pb
from suggest.katib.v1beta1 import frames_pb2 as frames
from suggest.storage.observation_log import ObservationLog
from suggest.studies import StudyService

PACKAGE = "api.v1.beta1"
SERVICES = tuple(f"{PACKAGE}.{name}" for name in ("Suggestion", "EarlyStopping", "DBManager"))
# Katib's probes ask for a name that none of its services has.
HEALTH_NAMES = ("manager.v1beta1.Suggestion", "grpc.health.v1.Health", *SERVICES)
MAX_REQUEST_BYTES = 16 << 20  # at Katib's ports: some 45,000 trials of eight parameters

# by name: the function that answers, and the request's type
Methods = Mapping[str, tuple[Callable[[Any], Any], Any]]


def handlers(
    studies: StudyService, log: ObservationLog, checkpoints: Path | None
) -> Mapping[str, Methods]:
    """Return each service's methods, with the function that answers and the request's type.

    checkpoints: the folder of the trials of pbt.
    """
    suggestions = KatibSuggestions(
        studies, log, None if checkpoints is None else Checkpoints(checkpoints)
    )
    stopping, observations = KatibEarlyStopping(log), KatibObservations(log)

    def validate(request: pb.ValidateAlgorithmSettingsRequest) -> pb.ValidateAlgorithmSettingsReply:
        suggestions.validate(request)
        return pb.ValidateAlgorithmSettingsReply()

    return {
        SERVICES[0]: {
            "GetSuggestions": (suggestions.suggest, frames.SuggestionsFrame),
            "ValidateAlgorithmSettings": (validate, pb.ValidateAlgorithmSettingsRequest),
        },
        SERVICES[1]: {
            "GetEarlyStoppingRules": (stopping.rules, frames.StoppingFrame),
            "SetTrialStatus": (stopping.set_trial_status, pb.SetTrialStatusRequest),
            "ValidateEarlyStoppingSettings": (
                stopping.validate,
                pb.ValidateEarlyStoppingSettingsRequest,
            ),
        },
        SERVICES[2]: {
            "ReportObservationLog": (observations.report, pb.ReportObservationLogRequest),
            "GetObservationLog": (observations.get, pb.GetObservationLogRequest),
            "DeleteObservationLog": (observations.delete, pb.DeleteObservationLogRequest),
        },
    }


def add_handlers(server: grpc.aio.Server, by_service: Mapping[str, Methods]) -> None:
    """Add handlers to a server. They may be added to several servers."""
    for service, methods in by_service.items():
        rpc_handlers = {name: _handler(answer, kind) for name, (answer, kind) in methods.items()}
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, rpc_handlers),)
        )


def _handler(answer: Callable[[Any], Any], kind: Any) -> Any:  # as grpc's own are typed
    def behavior(request: Any, _resource: object) -> Any:
        return answer(request)

    return grpc.unary_unary_rpc_method_handler(
        behavior,
        request_deserializer=kind.FromString,
        response_serializer=_serialized,
    )


def _serialized(reply: Any) -> bytes:  # any message
    serialized: bytes = reply.SerializeToString()
    return serialized
