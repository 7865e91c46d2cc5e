"""The objects of one kind, kept up to date: `Reflector`.

It lists in pages, then watches. Events are hints. A watch that ends continues from the last version seen; a watch that
cannot continue (410), that broke off twice, or that is resync_s old is followed by a list, and the difference to the
known objects counts as events. Our own writes are visible at once (`put`, `drop`), whatever older state a list or an
event still shows. This module decides nothing and writes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from controller.kube.client import Kind, KubernetesClient
from controller.kube.errors import AccessDenied, ApiError, BadKubeconfig, Unreachable, rule_for
from controller.kube.objects import KubernetesObject, Raw
from controller.runtime.protocol import RuntimeLost
from suggest.backoff import Backoff

_log = logging.getLogger(__name__)


ObjectT = TypeVar("ObjectT", bound=KubernetesObject)


class MissingRights:
    """The rights that turned out to be missing; each is logged once."""

    def __init__(self) -> None:
        self._reported: set[str] = set()

    def denied(self, error: ApiError, *, without: str) -> None:
        rule = rule_for(error)
        note = f"not shown: {without}" + (f"; the missing rule: {rule}" if rule else f": {error}")
        if note not in self._reported:
            self._reported.add(note)
            _log.warning("%s", note)


AGAIN_S = 5.0  # between two tries of an optional watch


def always(before: object, after: object) -> bool:
    return True


_BACKOFF = Backoff(first_s=0.2, longest_s=10.0, jitter=0.5)


@dataclass(frozen=True, slots=True)
class WatchTiming:
    """How often watches end and retry.

    watch_s: the range of a watch's random duration, so that a thousand watches do not end together.
    """

    watch_s: tuple[float, float] = (240.0, 480.0)
    backoff: Backoff = _BACKOFF
    settled_s: float = 5.0  # a watch that lasted this long is restarted without a pause


class _ReflectorError(RuntimeLost):
    """An unforeseen error of the reflector; it lists again."""


class Reflector(Generic[ObjectT]):
    """Keeps the objects of one kind up to date. `start` it, read it, close it.

    `changed` is called on the same loop after every change for which `matters(before, after)` is true, and when
    `trouble` changes; not after the owner's own `drop`.
    """

    def __init__(self, client: KubernetesClient, kind: Kind, namespace: str | None, *, labels: str = "",
                 fields: str = "", changed: Callable[[], None],
                 matters: Callable[[ObjectT | None, ObjectT | None], bool] = always,
                 keep: Callable[[ObjectT, ObjectT], None] | None = None,
                 resync_s: float = 600.0, timing: WatchTiming = WatchTiming()) -> None:  # fmt: skip
        """keep: copies facts from the older of two states of an object into the newer one."""
        self.objects: dict[str, ObjectT] = {}  # by name; a changed object is a new dict
        self.deleted: dict[str, ObjectT] = {}  # the last state of deleted objects; the owner clears it after reading
        self.trouble = ""  # why the cluster cannot be watched at present, for people
        self.error: Exception | None = None  # the same
        self._client = client
        self._kind = kind
        self._namespace = namespace
        self._selection = {"labels": labels, "fields": fields}
        self._changed = changed
        self._matters = matters
        self._keep = keep
        self._resync_s = resync_s
        self._timing = timing
        self._version = ""
        self._resync_at = 0.0
        self._event_count = 0
        self._trouble_began = 0.0
        self._unconfirmed: dict[str, int] = {}  # uid: version of what was put and not confirmed by the server yet
        self._dropped: set[str] = set()  # uids of dropped objects that may still appear in lists and events
        self._following: asyncio.Task[None] | None = None
        self._bug = ""  # the last unforeseen error

    @property
    def since_s(self) -> float:
        """Return for how long there has been trouble; 0 without."""
        return time.monotonic() - self._trouble_began if self.trouble else 0.0

    async def start(self) -> None:
        """Return after the first list. Raises what the client raises; then nothing was started."""
        await self._relist()
        self._following = asyncio.create_task(self._follow())

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._following

    def put(self, obj: ObjectT) -> None:
        """Show what a create or patch returned, at once, unless a newer state is known."""
        cached = self.objects.get(_name(obj))
        if _uid(obj) not in self._dropped and (cached is None or _version(cached) < _version(obj)):
            self._unconfirmed[_uid(obj)] = _version(obj)
            self._replace(obj)
            self._notify(cached, obj)

    def drop(self, name: str) -> None:
        """Hide an object that we have deleted, at once and not among `deleted`, whatever events follow."""
        cached = self.objects.pop(name, None)
        if cached is not None:
            self._dropped.add(_uid(cached))
            self._unconfirmed.pop(_uid(cached), None)

    async def _follow(self) -> None:
        """Watch, list, and watch again, until cancelled."""
        tries, stale = 0, False
        while True:
            began, heard = time.monotonic(), self._event_count
            error: Exception | None = None
            try:
                if stale or began >= self._resync_at:
                    await self._relist()
                    stale = False
                await self._watch()
            except ApiError as answered:
                stale = True  # 410: the version is gone; after any other error events may have been missed
                error = None if answered.status == 410 else answered
            except (Unreachable, AccessDenied, BadKubeconfig) as unheard:
                error = unheard
            except Exception as unforeseen:  # a reflector that stops silently would hang the run
                error, stale = self._report_bug(unforeseen), True
            # A watch that delivered something or lasted restarts at once; otherwise the server is in trouble.
            settled = self._event_count != heard or time.monotonic() - began > self._timing.settled_s
            tries = 0 if settled and not isinstance(error, _ReflectorError) else tries + 1
            if error is not None and tries:
                stale = True
                self.error = error
                self._set_trouble(str(error))
            if tries:
                await asyncio.sleep(self._timing.backoff.pause_s(tries - 1))

    def _report_bug(self, unforeseen: Exception) -> _ReflectorError:
        """Return the error to show. It is logged once, however often it recurs."""
        bug = f"{type(unforeseen).__name__}: {unforeseen}"
        if bug != self._bug:
            self._bug = bug
            _log.error("kind=%s this is a bug; listed again", self._kind.plural, exc_info=unforeseen)
        return _ReflectorError(f"what the cluster says of {self._kind.plural} cannot be read ({bug}); this is a bug")

    async def _relist(self) -> None:
        listed_items, version = await self._client.list(self._kind, self._namespace, **self._selection)
        items = cast(list[ObjectT], listed_items)  # the kind that was asked for
        self._version = version
        self._resync_at = time.monotonic() + self._resync_s * random.uniform(0.9, 1.1)
        listed = {_uid(item) for item in items}
        self._dropped &= listed
        # An object that was put after the list was made is not missing from the list.
        self._unconfirmed = {uid: put for uid, put in self._unconfirmed.items() if put > int(version)}
        deleted = [
            obj for obj in self.objects.values() if _uid(obj) not in listed and _uid(obj) not in self._unconfirmed
        ]
        for obj in deleted:
            self._remove(obj)
        new = [item for item in items if self._differs(item)]
        for item in new:
            self._replace(item)
        self.error = None
        if self.trouble or deleted or new:
            self._set_trouble("", changed=True)

    def _differs(self, listed: ObjectT) -> bool:
        """A list is right even with versions lower than the known ones: a server may be restored from a backup."""
        cached = self.objects.get(_name(listed))
        if _uid(listed) in self._dropped or (cached is not None and _uid(cached) in self._unconfirmed):
            return False
        return cached is None or _uid(cached) != _uid(listed) or _version(cached) != _version(listed)

    async def _watch(self) -> None:
        """Watch until the server ends it, or until a resync is due."""
        timeout_s = random.uniform(*self._timing.watch_s)
        events = self._client.watch(
            self._kind, self._namespace, **self._selection, resource_version=self._version, timeout_s=timeout_s
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, self._resync_at - time.monotonic())), aclosing(events):
                async for event in events:
                    self._apply_event(event)

    def _apply_event(self, event: Raw) -> None:
        obj = cast(ObjectT, event["object"])  # the kind that is watched
        self._event_count += 1
        self._version = obj["metadata"]["resourceVersion"]
        cached = self.objects.get(obj["metadata"].get("name", ""))  # a BOOKMARK has only a version
        match event["type"]:
            case "ADDED" | "MODIFIED" if self._show(obj):
                self._notify(cached, obj)
            case "DELETED" if self._end(obj):
                self._notify(cached, None)

    def _notify(self, before: ObjectT | None, after: ObjectT | None) -> None:
        if self._matters(before, after):
            self._changed()

    def _show(self, obj: ObjectT) -> bool:
        """Take over a state that the server sent; False if it is not newer."""
        self._confirm(obj)
        cached = self.objects.get(_name(obj))
        if _uid(obj) in self._dropped or (cached is not None and _version(cached) >= _version(obj)):
            return False
        self._replace(obj)
        return True

    def _end(self, obj: ObjectT) -> bool:
        self._confirm(obj)
        cached = self.objects.get(_name(obj))
        if _uid(obj) in self._dropped:
            self._dropped.discard(_uid(obj))
            return False
        if cached is None or _uid(cached) == _uid(obj):
            self._remove(obj)
            return True
        if _version(cached) > _version(obj):
            return False  # the deletion of an earlier object of that name
        self._remove(cached)
        return True

    def _confirm(self, obj: ObjectT) -> None:
        if self._unconfirmed.get(_uid(obj), 0) <= _version(obj):
            self._unconfirmed.pop(_uid(obj), None)

    def _replace(self, obj: ObjectT) -> None:
        obj["metadata"].pop("managedFields", None)  # half of the object's size, and never read
        cached = self.objects.get(_name(obj))
        if cached is not None and _uid(cached) != _uid(obj):
            self._remove(cached)
        self._carry_over(cached, obj)
        self.objects[_name(obj)] = obj

    def _remove(self, obj: ObjectT) -> None:
        self._carry_over(self.objects.pop(_name(obj), None), obj)
        self.deleted[_name(obj)] = obj

    def _carry_over(self, cached: ObjectT | None, obj: ObjectT) -> None:
        if self._keep is not None and cached is not None and cached is not obj and _uid(cached) == _uid(obj):
            self._keep(cached, obj)

    def _set_trouble(self, trouble: str, *, changed: bool = False) -> None:
        if bool(trouble) != bool(self.trouble):
            self._trouble_began = time.monotonic()
            message = f"lost: {trouble}" if trouble else "heard again"
            _log.log(logging.WARNING if trouble else logging.INFO, "kind=%s %s", self._kind.plural, message)
        if trouble != self.trouble or changed:
            self.trouble = trouble
            self._changed()


class LazyReflector(Generic[ObjectT]):
    """A reflector of something optional: it starts at the first `open` and shows nothing before.

    It retries while the server is in trouble. Without the right to list or watch (which `notices` logs, with what is
    lost), and where there is nothing to watch (`make` returns None), it stays empty.
    """

    def __init__(
        self,
        make: Callable[[], Coroutine[Any, Any, Reflector[ObjectT] | None]],
        notices: MissingRights,
        *,
        without: str,
    ) -> None:
        self._make = make
        self._notices = notices
        self._without = without
        self._reflector: Reflector[ObjectT] | None = None
        self._opening: asyncio.Task[None] | None = None

    @property
    def objects(self) -> dict[str, ObjectT]:
        return {} if self._reflector is None else self._reflector.objects

    def open(self) -> None:
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())

    async def _open(self) -> None:
        while True:
            try:
                reflector = await self._make()
                if reflector is not None:
                    await reflector.start()
                    self._reflector = reflector
                return
            except ApiError as error:
                if error.status == 403:
                    return self._notices.denied(error, without=self._without)
                cause: Exception = error
            except Exception as error:
                cause = error
            _log.info("not shown for now: %s: %s", self._without, cause)
            await asyncio.sleep(AGAIN_S)

    def clear_deleted(self) -> None:
        if self._reflector is not None:
            self._reflector.deleted.clear()

    async def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self._reflector is not None:
            await self._reflector.close()


def _name(obj: KubernetesObject) -> str:
    return str(obj["metadata"]["name"])


def _uid(obj: KubernetesObject) -> str:
    return str(obj["metadata"]["uid"])


def _version(obj: KubernetesObject) -> int:
    """Return the server's counter of changes; on one server, a larger one is later."""
    return int(obj["metadata"]["resourceVersion"])
