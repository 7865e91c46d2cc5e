"""Katib's services over gRPC: the handlers of their methods, and the names for health checks.

Requests with histories are parsed as frames, whose trials remain bytes until the method reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from suggest.katib.early_stopping import KatibEarlyStopping
from suggest.katib.observations import KatibObservations
from suggest.katib.population import Checkpoints
from suggest.katib.suggestions import KatibSuggestions
from suggest.katib.v1beta1 import api_pb2 as pb
from suggest.katib.v1beta1 import frames_pb2 as frames
from suggest.server.handlers import Handler, handlers_of
from suggest.storage.observation_log import ObservationLog
from suggest.studies import StudyService

PACKAGE = "api.v1.beta1"
SERVICES = tuple(f"{PACKAGE}.{name}" for name in ("Suggestion", "EarlyStopping", "DBManager"))
# Katib's probes ask for a name that none of its services has.
HEALTH_NAMES = ("manager.v1beta1.Suggestion", "grpc.health.v1.Health", *SERVICES)
MAX_REQUEST_BYTES = 16 << 20  # at Katib's ports: some 45,000 trials of eight parameters


def handlers(
    studies: StudyService, log: ObservationLog, checkpoints: Path | None
) -> Mapping[str, dict[str, Handler]]:
    """Return the handlers of each service's methods, by name.

    checkpoints: the folder of the trials of pbt.
    """
    suggestions = KatibSuggestions(
        studies, log, None if checkpoints is None else Checkpoints(checkpoints)
    )
    stopping, observations = KatibEarlyStopping(log), KatibObservations(log)

    def validate(request: pb.ValidateAlgorithmSettingsRequest) -> pb.ValidateAlgorithmSettingsReply:
        suggestions.validate(request)
        return pb.ValidateAlgorithmSettingsReply()

    methods: Mapping[str, Mapping[str, tuple[Callable[[Any], Any], Any]]] = {
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
    return {
        service: handlers_of(
            {name: (_of_request(answer), kind) for name, (answer, kind) in by_name.items()}
        )
        for service, by_name in methods.items()
    }


def _of_request(answer: Callable[[Any], Any]) -> Callable[[Any, object], Any]:
    """Return the function as a handler calls it; a method of Katib's needs no `Resource`."""
    return lambda request, _resource: answer(request)
