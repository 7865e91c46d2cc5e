"""What the trials of a real Katib have reported over time: only the manager of its database has it.

The address is that of Katib's clients, or what the variables of its Service say.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Sequence

import grpc

from suggest.katib.v1beta1 import api_pb2 as pb

_log = logging.getLogger(__name__)

_METHOD = "/api.v1.beta1.DBManager/GetObservationLog"
_PREFIX = "KATIB_DB_MANAGER_SERVICE_"
_DEFAULTS = {"IP": "katib-db-manager", "NAMESPACE": "kubeflow", "PORT": "6789"}
_ANSWER_S = 5.0
_MOST_BYTES = 64 << 20


def _address() -> str:
    name, namespace, port = (
        os.environ.get(f"{_PREFIX}{key}", default) for key, default in _DEFAULTS.items()
    )
    return f"{name}.{namespace}:{port}"


async def reported(trials: Sequence[str], metric: str) -> dict[str, list[float]]:
    """Return the values of a metric that each of Katib's trials has reported, in their order.

    Without an answer, the rest is left out: the last value is in Katib's Trial as well.
    """
    values: dict[str, list[float]] = {}
    if not trials:
        return values
    options = [("grpc.max_receive_message_length", _MOST_BYTES), ("grpc.enable_http_proxy", 0)]
    async with grpc.aio.insecure_channel(_address(), options) as channel:
        ask = channel.unary_unary(
            _METHOD,
            request_serializer=pb.GetObservationLogRequest.SerializeToString,
            response_deserializer=pb.GetObservationLogReply.FromString,
        )
        for trial in trials:
            request = pb.GetObservationLogRequest(trial_name=trial, metric_name=metric)
            try:
                reply = await ask(request, timeout=_ANSWER_S)
            except grpc.aio.AioRpcError as error:
                _log.warning("values of Katib's trials: %s: %s", _address(), error.details())
                break
            values[trial] = [*map(_number, reply.observation_log.metric_logs)]
    return values


def _number(log: pb.MetricLog) -> float:
    try:
        return float(log.metric.value)
    except ValueError:  # Katib writes a text for what could not be read
        return math.nan
