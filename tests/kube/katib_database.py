"""The manager of Katib's database, as far as Katib's controller and Tuner's ask it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc

from suggest.katib.v1beta1 import api_pb2 as pb

_LOOPBACK = "127.0.0.1"
Values = Callable[[str], Sequence[str]]
"""Returns what a trial has reported of each metric, by its name."""


@contextmanager
def database(values: Values) -> Iterator[Mapping[str, str]]:
    """Serve it; yield the variables by which its clients find it."""
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers([_handler(values)])
    port = server.add_insecure_port(f"{_LOOPBACK}:0")
    server.start()
    # The address is that of a Service: name, namespace and port.
    name, _, namespace = _LOOPBACK.rpartition(".")
    prefix = "KATIB_DB_MANAGER_SERVICE_"
    try:
        yield {
            f"{prefix}IP": name,
            f"{prefix}NAMESPACE": namespace,
            f"{prefix}PORT": str(port),
        }
    finally:
        server.stop(None)


def _handler(values: Values) -> grpc.GenericRpcHandler:
    def observed(request: pb.GetObservationLogRequest, _: object) -> pb.GetObservationLogReply:
        logs = [
            pb.MetricLog(
                time_stamp="2026-11-28T00:00:00Z",
                metric=pb.Metric(name=request.metric_name, value=value),
            )
            for value in values(request.trial_name)
        ]
        return pb.GetObservationLogReply(observation_log=pb.ObservationLog(metric_logs=logs))

    def deleted(_request: object, _: object) -> pb.DeleteObservationLogReply:
        return pb.DeleteObservationLogReply()

    return grpc.method_handlers_generic_handler(
        "api.v1.beta1.DBManager",
        {
            "GetObservationLog": grpc.unary_unary_rpc_method_handler(
                observed,
                request_deserializer=pb.GetObservationLogRequest.FromString,
                response_serializer=pb.GetObservationLogReply.SerializeToString,
            ),
            "DeleteObservationLog": grpc.unary_unary_rpc_method_handler(
                deleted,
                request_deserializer=pb.DeleteObservationLogRequest.FromString,
                response_serializer=pb.DeleteObservationLogReply.SerializeToString,
            ),
        },
    )
