"""Make the collector of one local attempt, and choose the port of its endpoint."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import assert_never

from controller.core.model import (
    REPORTED,
    Collection,
    KatibReports,
    MetricsFile,
    MetricsFormat,
    PrometheusEndpoint,
)
from controller.runtime.local.collectors.collected import COLLECTED_FILE, CollectedLines, Collector
from controller.runtime.local.collectors.file_tail import FileTail
from controller.runtime.local.collectors.prometheus import PrometheusScraper
from controller.runtime.trial_variables import METRICS_FILE, METRICS_PORT, place_below

_PORT_FILE = "metrics.port"


def collector_of(collection: Collection, directory: Path) -> Collector:
    """Return the collector of the attempt with this folder."""
    lines = CollectedLines(directory / COLLECTED_FILE)
    match collection.source:
        case MetricsFile(format=MetricsFormat.TENSORBOARD) as source:
            # lazy: it imports protobuf
            from controller.runtime.local.collectors.event_files import EventFiles

            return EventFiles(
                place_below(directory / "output", source.path), collection.names, lines
            )
        case MetricsFile() as source:
            return FileTail(place_below(directory / "output", source.path), lines)
        case KatibReports():
            return FileTail(place_below(directory / "output", REPORTED.path), lines)
        case PrometheusEndpoint() as endpoint:
            return PrometheusScraper(
                port_of(endpoint, directory), endpoint.path, collection.names, lines
            )
        case _:
            assert_never(collection.source)


def prepare(collection: Collection, directory: Path) -> dict[str, str]:
    """Create the trial's output folder; return the variables that name it. Raises OSError."""
    match collection.source:
        case MetricsFile() as source:
            output = directory / "output"
            place_below(output, source.folder).mkdir(parents=True, exist_ok=True)
            return {METRICS_FILE: str(place_below(output, source.path))}
        case PrometheusEndpoint() as endpoint:
            return {METRICS_PORT: str(port_of(endpoint, directory))}
        case KatibReports():
            (directory / "output").mkdir(parents=True, exist_ok=True)
            return {}  # the address is the experiment's
        case _:
            assert_never(collection.source)


def port_of(endpoint: PrometheusEndpoint, directory: Path) -> int:
    """Return the port of an attempt's endpoint.

    A free one is chosen at the first call, and kept in its folder.
    """
    if endpoint.port is not None:
        return endpoint.port
    path = directory / _PORT_FILE
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        pass
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    path.write_text(str(port))
    return port
