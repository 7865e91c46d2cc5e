"""What a runtime reports of one attempt: its status, and how it ended. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from controller.core.model import FailureClass


class RuntimeLost(Exception):
    """The runtime cannot be reached now, so nothing is known about the attempts.

    The loop tries again.
    """


@dataclass(frozen=True, slots=True)
class Exit:
    """How an attempt ended. Exactly one of `code`, `signal`, `failure_class` and `unknown` is set.

    signal: the signal that killed the process.
    stopped: stop() was called before the attempt ended.
    timed_out: the runtime ended the attempt at its timeout.
    full_disk: the folder of the attempt, if its disk was full when the end was seen.
    out_of_memory: the system reports that it killed the process for lack of memory.
    unknown: the process is gone and its exit code is lost, for example because its supervisor was
    killed. This counts as an infrastructure failure.
    failure_class, reason: the runtime knows why the attempt failed although no exit code shows it,
    for example because it was evicted or its image was not found.
    reason with code 42: the message of a worker other than rank 0.
    log_end_lost: why the end of the log was not read; `log.txt` itself marks lines that are missing
        before others.
    metrics_end_lost: the same of what the attempt's collector has read.
    """

    time: datetime
    code: int | None = None
    signal: int | None = None
    stopped: bool = False
    timed_out: bool = False
    out_of_memory: bool = False
    full_disk: str = ""
    unknown: bool = False
    failure_class: FailureClass | None = None
    reason: str = ""
    log_end_lost: str = ""
    metrics_end_lost: str = ""


@dataclass(frozen=True, slots=True)
class ObjectRecord:
    """What was done with the object of an attempt, where a runtime makes an object for each.

    uid: the object's uid.
    stopped: the attempt was asked to end.
    timed_out: it was asked because of its timeout.
    """

    uid: str
    stopped: bool = False
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class AttemptStatus:
    """What the runtime shows of an attempt until remove(): waiting (no start_time), running, ended.

    waiting: why it does not run, as a text for people.
    suspended: its queue holds it back, before its first start or after a preemption. It has no
    process left and starts by itself when the queue admits it.
    image: the image that its container ran, with the digest.
    orphaned: its object has been deleted, and its processes may run on for a while.
    prices: of resources of its node that differ from those of the file.
    barred: why it may not run at present: it is stopped, and its trial runs again when it may.
    """

    name: str
    start_time: datetime | None
    exit: Exit | None = None
    node: str = ""
    image: str = ""
    waiting: str = ""
    suspended: bool = False
    orphaned: bool = False
    prices: Mapping[str, float] = field(default_factory=dict)
    barred: str = ""
