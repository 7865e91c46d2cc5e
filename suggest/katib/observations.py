"""Katib's DBManager service: stores the reports of trials, and returns them as they were sent."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from suggest.errors import Problems, raise_if
from suggest.katib.experiment import MAX_NAME
from suggest.katib.v1beta1 import api_pb2 as pb
from suggest.storage.observation_log import ObservationLog
from suggest.storage.store import Observed

MAX_TEXT = 100_000  # characters of a value: some of Katib's metrics are documents
_RFC_3339 = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class KatibObservations:
    """Implements the RPCs of the service on `log`. Thread-safe and blocking."""

    def __init__(self, log: ObservationLog) -> None:
        self._log = log

    def report(self, request: pb.ReportObservationLogRequest) -> pb.ReportObservationLogReply:
        """Store a report. Raises InvalidArgument, and stores nothing then."""
        problems = name_problems(request.trial_name)
        lines: list[Observed] = []
        for place, line in enumerate(request.observation_log.metric_logs):
            at = f"observation_log.metric_logs[{place}]"
            name, value = line.metric.name, line.metric.value
            try:
                time_us = microseconds(line.time_stamp)
            except ValueError as e:
                problems.add(f"{at}.time_stamp", str(e))
                continue
            if not 0 < len(name) <= 1000 or len(value) > MAX_TEXT or "\0" in name + value:
                problems.add(
                    f"{at}.metric",
                    f"give a name of 1 to 1000 characters and a value of at most {MAX_TEXT}",
                )
            lines.append(Observed(time_us, line.time_stamp, name, value))
        raise_if(problems[:20])
        self._log.report(request.trial_name, lines)
        return pb.ReportObservationLogReply()

    def get(self, request: pb.GetObservationLogRequest) -> pb.GetObservationLogReply:
        """Return the log of a trial, which is empty if it has reported nothing.

        Raises InvalidArgument.
        """
        problems = name_problems(request.trial_name)
        ends: dict[str, int | None] = {}
        for field in ("start_time", "end_time"):
            text = getattr(request, field)
            try:
                ends[field] = microseconds(text) if text else None
            except ValueError as e:
                problems.add(field, str(e))
        raise_if(problems)
        found = self._log.read(
            request.trial_name,
            metric=request.metric_name,
            first_us=ends["start_time"],
            last_us=ends["end_time"],
        )
        log = pb.ObservationLog(
            metric_logs=[
                pb.MetricLog(
                    time_stamp=line.time_stamp, metric=pb.Metric(name=line.metric, value=line.value)
                )
                for line in found
            ]
        )
        return pb.GetObservationLogReply(observation_log=log)

    def delete(self, request: pb.DeleteObservationLogRequest) -> pb.DeleteObservationLogReply:
        """Delete the log of a trial. Raises InvalidArgument."""
        raise_if(name_problems(request.trial_name))
        self._log.delete(request.trial_name)
        return pb.DeleteObservationLogReply()


def name_problems(name: str) -> Problems:
    problems = Problems()
    if not 0 < len(name) <= MAX_NAME or "\0" in name:
        problems.add("trial_name", f"name the trial, in 1 to {MAX_NAME} characters")
    return problems


def microseconds(time_stamp: str) -> int:
    """Return the microseconds since 1970 of a time stamp in RFC 3339.

    Raises ValueError with a sentence.
    """
    try:
        if not _RFC_3339.fullmatch(time_stamp):
            raise ValueError
        moment = datetime.fromisoformat(time_stamp.upper())
    except ValueError:
        raise ValueError(
            f"{time_stamp[:80]!r} is not a time of RFC 3339; write it like 2026-01-02T03:04:05Z"
        ) from None
    return (moment - _EPOCH) // _MICROSECOND
