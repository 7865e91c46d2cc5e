"""GPU claims: which attempts on this machine hold which GPUs, and which wait, across all
experiments of one user.

A claim is a file that an attempt holds a lock on (flock). The supervisor creates the file and the
attempt's processes inherit the lock, so that the kernel releases it when the last of them ends,
however it ended. A single lock guards all decisions: an attempt gets all of its GPUs or none, in
the order in which claims were made. No function of this module waits.

The supervisor imports this module if an attempt asks for GPUs: standard library only,
no threads, no subprocess.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import signal
import time
from collections.abc import Collection, Mapping, Sequence

from controller.runtime import processes
from controller.runtime.local.attempt_files import read_json, unlink
from controller.runtime.local.launching import LaunchRefused
from controller.runtime.local.listening import make_private

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from controller.runtime.local.attempt_files import Message

VARIABLE = "CUDA_VISIBLE_DEVICES"
# how often held claims are touched, because /tmp is cleaned of files that are days old
_REFRESH_S = 3600.0
# the claims of a supervisor that was inactive this long (frozen, suspended) block no others
_STALLED_S = 10.0
_REASON_CHANGE_S = 10.0  # shortest time between two changes of a reason, because each one is stored
_GUARD = "gpu.lock"
_PREFIX = "gpu-"
_GUARD_TRIES = 5
_GUARD_RETRY_S = 0.001
_NAMED_AT_MOST = 4  # devices whose holders a reason names
_ROUNDING = 1e-9  # so that three thirds make one


def assign(
    ids: Sequence[str], in_use: Sequence[tuple[float, Sequence[str]]], gpu: float
) -> tuple[str, ...] | None:
    """Return GPUs for one more process, least used first; None if there is no room.

    `in_use` has (gpu, ids) of each claim that is held. A share below 1 shares a GPU with others; a
    share of 1 or more takes whole GPUs.
    """
    used = dict.fromkeys(ids, 0.0)
    for share, held_gpus in in_use:
        for id in held_gpus:
            used[id] = used.get(id, 0.0) + min(share, 1.0)
    needed = min(gpu, 1.0)
    fitting = [
        id for id in sorted(ids, key=lambda id: used[id]) if used[id] + needed <= 1 + _ROUNDING
    ]
    count = math.ceil(gpu)
    return tuple(fitting[:count]) if len(fitting) >= count else None


def assign_all(
    ids: Sequence[str], in_use: Sequence[tuple[float, Sequence[str]]], gpu: float, workers: int
) -> tuple[str, ...] | None:
    """Do the same as `assign` for several workers, all or none.

    The GPUs of the first worker come first.
    """
    assigned: tuple[str, ...] = ()
    for _ in range(workers):
        of_worker = assign(ids, [*in_use, (gpu, assigned)], gpu)
        if of_worker is None:
            return None
        assigned += of_worker
    return assigned


class _ClaimBeingWritten(Exception):
    """A held claim cannot be read because it is being written."""


class _PeerClaim:
    """A claim of another attempt, as its file shows it."""

    __slots__ = ("devices", "gpu", "name", "pool", "supervisor", "ticket", "touched")

    def __init__(self, ticket: int, content: Message, touched: float) -> None:
        self.ticket = ticket
        self.name = str(content["name"])
        self.gpu = float(content["gpu"])
        self.pool: list[str] = content["pool"]
        self.devices: list[str] = content["devices"]  # empty while it waits
        self.supervisor = int(content["supervisor"])
        self.touched = touched


class GpuClaim:
    """The GPUs that one attempt asks for and then holds.

    `request` describes the attempt to start. It contains its GPUs once they are allocated.
    """

    def __init__(self, request: Message) -> None:
        self.request = request
        self.reason = ""  # why it waits, as last reported
        self.fd: int | None = None  # holds the lock
        self.path = ""
        self.folder = str(request["claims"])
        # by key, which is unique to a device
        self._ids = {str(key): str(id) for key, id in request["devices"]}
        self._workers = len(request["workers"]) or 1
        self._changed_at = float("-inf")
        self._touched_at = time.monotonic()
        self._content: Message = {
            "name": request["name"],
            "directory": request["directory"],
            "gpu": request["gpu"],
            "pool": list(self._ids),
            "devices": [],
            "supervisor": os.getpid(),
            "leader": None,
        }

    def decide(self, other_claims: list[_PeerClaim]) -> bool:
        """Take the GPUs if they are free and no older claim waits for one; else set `reason`.

        The caller holds the guard. `other_claims` are all claims except those that are decided
        after this one; this claim is added to them.
        """
        try:
            ticket = self._queue(other_claims)
            in_use = [(other.gpu, other.devices) for other in other_claims if other.devices]
            ahead = [other for other in other_claims if self._waits_for(other, ticket)]
            devices = None
            if not ahead:
                gpu = self.request["gpu"]
                devices = assign_all(list(self._ids), in_use, gpu, self._workers)
            if devices is not None:
                self._content["devices"] = list(devices)
                self._write()
        except OSError as error:
            self.report_trouble(error)
            return False
        if devices is None:
            self._touch(every_s=_STALLED_S / 4)
            self._set_reason(self._why([other for other in other_claims if other.devices], ahead))
        else:
            self._assign([self._ids[key] for key in devices])
        other_claims.append(_PeerClaim(ticket, self._content, time.time()))
        return devices is not None

    def _waits_for(self, other: _PeerClaim, ticket: int) -> bool:
        """Return whether the other claim is ahead of this one in the queue for any of its GPUs."""
        recently_touched = abs(time.time() - other.touched) < _STALLED_S
        if other.devices or other.ticket >= ticket or not recently_touched:
            return False
        return not self._ids.keys().isdisjoint(other.pool)

    def _queue(self, other_claims: Sequence[_PeerClaim]) -> int:
        """Return the claim's place in the queue, which it takes at the first call."""
        if self.fd is None:
            ticket = max([time.time_ns(), *(other.ticket + 1 for other in other_claims)])
            self.path = os.path.join(self.folder, f"{_PREFIX}{ticket}")
            self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._write()
        return int(self.path.rpartition(_PREFIX)[2])

    def _assign(self, ids: Sequence[str]) -> None:
        request = self.request
        request["gpus"] = list(ids)
        request["env"] = {**request["env"], VARIABLE: ",".join(ids)}
        per_worker = len(ids) // self._workers
        for rank, worker in enumerate(request["workers"]):
            worker[VARIABLE] = ",".join(ids[rank * per_worker : (rank + 1) * per_worker])

    def record_leader(self, pid: int, birth: str | None) -> None:
        """Record the attempt's first process.

        It holds the claim while it lives, even if it closes all files.
        """
        self._content["leader"] = [pid, birth]
        self._write()

    def refresh(self) -> None:
        """Keep the file of a held claim fresh; to be called at intervals."""
        self._touch(every_s=_REFRESH_S)

    def release(self) -> None:
        """Release the GPUs or the place in the queue, even if an escaped process still lives."""
        if not self.path:
            return
        try:
            unlink(self.path)
        except OSError:
            pass  # the file means nothing without its lock
        self.path = ""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None
        wake_waiting(self.folder)

    def _write(self) -> None:
        assert self.fd is not None
        text = json.dumps(self._content).encode()
        os.pwrite(self.fd, text, 0)
        os.ftruncate(self.fd, len(text))

    def _touch(self, *, every_s: float) -> None:
        now = time.monotonic()
        if now - self._touched_at < every_s:
            return
        self._touched_at = now
        try:
            os.utime(self.path)
        except OSError:
            pass  # the file was deleted by hand, so others no longer see its lock

    # Reasons for people

    def report_busy(self) -> None:
        """Keep the known reason, or give a general one, because no decision could be made."""
        self.reason = (
            self.reason or f"needs {self._wanted()}: the claims in {self.folder} are being changed"
        )

    def report_trouble(self, error: OSError) -> None:
        self._set_reason(f"needs {self._wanted()}: {self.folder}: {error.strerror or error}")

    def _set_reason(self, reason: str) -> None:
        now = time.monotonic()
        if reason != self.reason and now - self._changed_at >= _REASON_CHANGE_S:
            self.reason, self._changed_at = reason, now

    def _wanted(self) -> str:
        per_worker = f" for each of {self._workers} workers" if self._workers > 1 else ""
        gpu = self.request["gpu"]
        return f"{gpu:g} {'GPU' if gpu <= 1 else 'GPUs'}{per_worker}"

    def _why(self, holding: Sequence[_PeerClaim], ahead: Sequence[_PeerClaim]) -> str:
        used = []
        for key, id in self._ids.items():
            holders = [_label(other) for other in holding if key in other.devices]
            if holders:
                used.append(f"GPU {id} is held by {' and '.join(holders)}")
        unnamed = len(used) - _NAMED_AT_MOST
        if unnamed > 0:
            used[_NAMED_AT_MOST:] = [f"{unnamed} more {'is' if unnamed == 1 else 'are'} held"]
        if ahead:
            and_more = f" and {len(ahead) - 1} more" if len(ahead) > 1 else ""
            used.append(f"first in line: {ahead[0].name}{and_more}")
        return f"needs {self._wanted()}: {', '.join(used) or 'none is free'}"


def _label(other: _PeerClaim) -> str:
    return f"{other.name} ({other.gpu:g})" if other.gpu < 1 else other.name


def allocate(claims: Sequence[GpuClaim]) -> list[GpuClaim]:
    """Return this supervisor's waiting claims, given oldest first, that get their GPUs now.

    The `reason` of each other claim says why it has to wait.

    Raises:
        LaunchRefused: The folder of claims cannot be created.
    """
    folder = claims[0].folder
    cure = "set TUNER_LOCK_DIR"
    try:
        make_private(folder, cure=cure)
        guard = _guard(folder)
    except OSError as error:
        sentence = str(error) if error.strerror is None else f"{folder}: {error.strerror}; {cure}"
        raise LaunchRefused(f"cannot claim a GPU: {sentence}", infrastructure=False) from error
    if guard is None:
        for claim in claims:
            claim.report_busy()
        return []
    try:
        other_claims = _others(folder, apart_from={claim.path for claim in claims})
    except _ClaimBeingWritten:
        for claim in claims:
            claim.report_busy()
    except OSError as error:
        for claim in claims:
            claim.report_trouble(error)
    else:
        return [claim for claim in claims if claim.decide(other_claims)]
    finally:
        os.close(guard)
    return []


def taken_over(path: str, directory: str) -> GpuClaim | None:
    """Return the claim of an earlier supervisor's attempt; None if it has none any more.

    The attempt's processes hold the lock.
    """
    content = read_json(path) if path else None
    if not content or content.get("directory") != directory:
        return None
    claim = GpuClaim(
        {
            "name": content["name"],
            "directory": directory,
            "gpu": content["gpu"],
            "workers": [],
            "devices": [],
            "claims": os.path.dirname(path),
        }
    )
    claim.path = path
    return claim


def holders(folder: str) -> list[tuple[str, float, list[str]]]:
    """Return the attempt, share and devices of each claim that is held now, for people."""
    try:
        guard = _guard(folder)
    except OSError:
        return []
    if guard is None:
        return []
    try:
        claims = _others(folder, apart_from=())
        return [(claim.name, claim.gpu, claim.devices) for claim in claims if claim.devices]
    except (OSError, _ClaimBeingWritten):
        return []
    finally:
        os.close(guard)


def wake_waiting(folder: str) -> None:
    """Wake the supervisors whose attempts wait for GPUs."""
    try:
        names = _claims(folder)
    except OSError:
        return
    for name in names:
        content = read_json(os.path.join(folder, name)) or {}
        supervisor = content.get("supervisor")
        if isinstance(supervisor, int) and not content.get("devices") and supervisor != os.getpid():
            try:
                # SIGCHLD ends a supervisor's wait, and is harmless to another process
                # that may have this pid by now.
                os.kill(supervisor, signal.SIGCHLD)
            except OSError:
                pass


def _guard(folder: str) -> int | None:
    """Lock all decisions; return the lock as a file to close, None if another process has it."""
    guard = os.open(os.path.join(folder, _GUARD), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for _ in range(_GUARD_TRIES):
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return guard
        except BlockingIOError:
            time.sleep(_GUARD_RETRY_S)  # longer than the lock is held, unless its holder is frozen
    os.close(guard)
    return None


def _claims(folder: str) -> list[str]:
    return sorted(
        name
        for name in os.listdir(folder)
        if name.startswith(_PREFIX) and name[len(_PREFIX) :].isdigit()
    )


def _others(folder: str, *, apart_from: Collection[str]) -> list[_PeerClaim]:
    """Return the claims of living attempts, oldest first, and remove the files of others.

    The caller holds the guard.

    Raises:
        _ClaimBeingWritten: A claim is being written; try again.
    """
    claims = []
    for name in _claims(folder):
        path = os.path.join(folder, name)
        if path in apart_from:
            continue
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # it was just released
        try:
            content = read_json(path)
            if not _locked(fd) and not (content and _is_alive(content.get("leader"))):
                unlink(path)
                continue
            try:
                claims.append(
                    _PeerClaim(int(name[len(_PREFIX) :]), content or {}, os.fstat(fd).st_mtime)
                )
            except KeyError as missing:
                raise _ClaimBeingWritten from missing
        finally:
            os.close(fd)
    return claims


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _is_alive(leader: Sequence[Any] | None) -> bool:
    if leader is None or leader[1] is None:
        return False
    return bool(processes.birth(int(leader[0])) == leader[1])


def folder_for(environment: Mapping[str, str]) -> str:
    """Return the folder of claims, which is the same in every session of a user on this machine.

    It is not $XDG_RUNTIME_DIR, which cron jobs do not have and which is emptied at logout while
    trials keep running.
    """
    return environment.get("TUNER_LOCK_DIR") or f"/tmp/tuner-{os.getuid()}"
