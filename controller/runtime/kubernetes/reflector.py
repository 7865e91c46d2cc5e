"""The objects of one kind, kept up to date: list in pages, then watch, and repair what was missed.

Events are hints. A watch that ends continues from the last version seen; one that cannot (410), that broke off twice,
or that is resync_s old is followed by a list, whose difference to what was known counts as events. What the owner did
itself is known at once (`put`, `drop`), whatever older state a list or an event still shows.

No request but list and watch is made here, and nothing is decided.
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
from typing import Any

from controller.runtime.kubernetes.client import (
    ApiError,
    BadKubeconfig,
    Kind,
    KubernetesClient,
    NotAllowed,
    Raw,
    Unreachable,
)
from controller.runtime.kubernetes.errors import rule_for
from controller.runtime.protocol import RuntimeLost
from suggest.backoff import Backoff

_log = logging.getLogger(__name__)


class MissingRights:
    """Of one connection."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def denied(self, error: ApiError, *, without: str) -> None:
        rule = rule_for(error)
        said = f"not shown: {without}" + (f"; the missing rule: {rule}" if rule else f": {error}")
        if said not in self._said:
            self._said.add(said)
            _log.warning("%s", said)


AGAIN_S = 5.0  # between two tries of what can be done without


def always(before: Raw | None, after: Raw | None) -> bool:
    return True


_BACKOFF = Backoff(first_s=0.2, longest_s=10.0, jitter=0.5)


@dataclass(frozen=True, slots=True)
class Pace:
    """watch_s: from, to; at random, so that a thousand watches do not end together."""

    watch_s: tuple[float, float] = (240.0, 480.0)
    backoff: Backoff = _BACKOFF
    settled_s: float = 5.0  # a watch that lasted so long is begun again at once


class _Stumbled(RuntimeLost):
    """Something that nobody has foreseen; it is begun again."""


class Reflector:
    """`start` it, read it, close it. `changed` is called after every change that `matters`, of (before, after), and of
    `trouble` too, from the same loop; not of what the owner himself did last, `drop`."""

    def __init__(self, client: KubernetesClient, kind: Kind, namespace: str | None, *, labels: str = "",
                 fields: str = "", changed: Callable[[], None],
                 matters: Callable[[Raw | None, Raw | None], bool] = always,
                 keep: Callable[[Raw, Raw], None] | None = None,
                 resync_s: float = 600.0, pace: Pace = Pace()) -> None:  # fmt: skip
        """keep: writes into the newer of two states of an object what it keeps of the older."""
        self.objects: dict[str, Raw] = {}  # by name; a changed object is a new dict
        self.deleted: dict[str, Raw] = {}  # the last state of what is gone; the owner clears it when it has read it
        self.trouble = ""  # why nothing can be heard at present, for people
        self.error: Exception | None = None  # the same
        self._client = client
        self._kind = kind
        self._namespace = namespace
        self._selection = {"labels": labels, "fields": fields}
        self._changed = changed
        self._matters = matters
        self._keep = keep
        self._resync_s = resync_s
        self._pace = pace
        self._version = ""
        self._resync_at = 0.0
        self._heard = 0
        self._trouble_began = 0.0
        self._unconfirmed: dict[str, int] = {}  # uid: version of what was put and not heard of yet
        self._dropped: set[str] = set()  # uids of what was dropped and may still be heard of
        self._following: asyncio.Task[None] | None = None
        self._bug = ""  # the last one met

    @property
    def since_s(self) -> float:
        """How long there has been trouble; 0 without."""
        return time.monotonic() - self._trouble_began if self.trouble else 0.0

    async def start(self) -> None:
        """Returns when the first list is there. Raises what the client raises; then nothing was started."""
        await self._relist()
        self._following = asyncio.create_task(self._follow())

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._following

    def put(self, obj: Raw) -> None:
        """What a create or patch has answered: there at once, unless something newer is."""
        known = self.objects.get(_name(obj))
        if _uid(obj) not in self._dropped and (known is None or _version(known) < _version(obj)):
            self._unconfirmed[_uid(obj)] = _version(obj)
            self._replace(obj)
            self._tell(known, obj)

    def drop(self, name: str) -> None:
        """What we have deleted: gone at once and not among `deleted`, whatever comes about its end."""
        known = self.objects.pop(name, None)
        if known is not None:
            self._dropped.add(_uid(known))
            self._unconfirmed.pop(_uid(known), None)

    async def _follow(self) -> None:
        """Watch, list, and watch again, until cancelled."""
        tries, stale = 0, False
        while True:
            began, heard = time.monotonic(), self._heard
            error: Exception | None = None
            try:
                if stale or began >= self._resync_at:
                    await self._relist()
                    stale = False
                await self._watch()
            except ApiError as answered:
                stale = True  # 410: the version is gone; any other: who knows what was missed
                error = None if answered.status == 410 else answered
            except (Unreachable, NotAllowed, BadKubeconfig) as unheard:
                error = unheard
            except Exception as unforeseen:  # what stood still here without a word would hang the run
                error, stale = self._stumbled(unforeseen), True
            # Heard something, or lasted: begin again at once. Else this is a server in trouble, or a loop.
            settled = self._heard != heard or time.monotonic() - began > self._pace.settled_s
            tries = 0 if settled and not isinstance(error, _Stumbled) else tries + 1
            if error is not None and tries:
                stale = True
                self.error = error
                self._say(str(error))
            if tries:
                await asyncio.sleep(self._pace.backoff.pause_s(tries - 1))

    def _stumbled(self, unforeseen: Exception) -> _Stumbled:
        """What is told of it. It is logged once, however often it comes."""
        what = f"{type(unforeseen).__name__}: {unforeseen}"
        if what != self._bug:
            self._bug = what
            _log.error("kind=%s this is a bug; listed again", self._kind.plural, exc_info=unforeseen)
        return _Stumbled(f"what the cluster says of {self._kind.plural} cannot be read ({what}); this is a bug")

    async def _relist(self) -> None:
        items, version = await self._client.list(self._kind, self._namespace, **self._selection)
        self._version = version
        self._resync_at = time.monotonic() + self._resync_s * random.uniform(0.9, 1.1)
        listed = {_uid(item) for item in items}
        self._dropped &= listed
        # What was put after the list was made is not missing from it.
        self._unconfirmed = {uid: put for uid, put in self._unconfirmed.items() if put > int(version)}
        gone = [obj for obj in self.objects.values() if _uid(obj) not in listed and _uid(obj) not in self._unconfirmed]
        for obj in gone:
            self._remove(obj)
        new = [item for item in items if self._differs(item)]
        for item in new:
            self._replace(item)
        self.error = None
        if self.trouble or gone or new:
            self._say("", changed=True)

    def _differs(self, listed: Raw) -> bool:
        """A list is right even if its versions are lower than those known: a server may come back from a backup."""
        known = self.objects.get(_name(listed))
        if _uid(listed) in self._dropped or (known is not None and _uid(known) in self._unconfirmed):
            return False
        return known is None or _uid(known) != _uid(listed) or _version(known) != _version(listed)

    async def _watch(self) -> None:
        """Until the server ends it, or it is time for a list."""
        timeout_s = random.uniform(*self._pace.watch_s)
        events = self._client.watch(
            self._kind, self._namespace, **self._selection, resource_version=self._version, timeout_s=timeout_s
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, self._resync_at - time.monotonic())), aclosing(events):
                async for event in events:
                    self._hear(event)

    def _hear(self, event: Raw) -> None:
        obj: Raw = event["object"]
        self._heard += 1
        self._version = obj["metadata"]["resourceVersion"]
        known = self.objects.get(obj["metadata"].get("name", ""))  # a BOOKMARK has only a version
        match event["type"]:
            case "ADDED" | "MODIFIED" if self._show(obj):
                self._tell(known, obj)
            case "DELETED" if self._end(obj):
                self._tell(known, None)

    def _tell(self, before: Raw | None, after: Raw | None) -> None:
        if self._matters(before, after):
            self._changed()

    def _show(self, obj: Raw) -> bool:
        """Take over a state that the server has told; False if there is nothing new in it."""
        self._confirm(obj)
        known = self.objects.get(_name(obj))
        if _uid(obj) in self._dropped or (known is not None and _version(known) >= _version(obj)):
            return False
        self._replace(obj)
        return True

    def _end(self, obj: Raw) -> bool:
        self._confirm(obj)
        known = self.objects.get(_name(obj))
        if _uid(obj) in self._dropped:
            self._dropped.discard(_uid(obj))
            return False
        if known is None or _uid(known) == _uid(obj):
            self._remove(obj)
            return True
        if _version(known) > _version(obj):
            return False  # the end of an earlier one of that name
        self._remove(known)
        return True

    def _confirm(self, obj: Raw) -> None:
        if self._unconfirmed.get(_uid(obj), 0) <= _version(obj):
            self._unconfirmed.pop(_uid(obj), None)

    def _replace(self, obj: Raw) -> None:
        obj["metadata"].pop("managedFields", None)  # half of what it weighs, and nobody reads it
        known = self.objects.get(_name(obj))
        if known is not None and _uid(known) != _uid(obj):
            self._remove(known)
        self._carry_over(known, obj)
        self.objects[_name(obj)] = obj

    def _remove(self, obj: Raw) -> None:
        self._carry_over(self.objects.pop(_name(obj), None), obj)
        self.deleted[_name(obj)] = obj

    def _carry_over(self, known: Raw | None, obj: Raw) -> None:
        if self._keep is not None and known is not None and known is not obj and _uid(known) == _uid(obj):
            self._keep(known, obj)

    def _say(self, trouble: str, *, changed: bool = False) -> None:
        if bool(trouble) != bool(self.trouble):
            self._trouble_began = time.monotonic()
            what = f"lost: {trouble}" if trouble else "heard again"
            _log.log(logging.WARNING if trouble else logging.INFO, "kind=%s %s", self._kind.plural, what)
        if trouble != self.trouble or changed:
            self.trouble = trouble
            self._changed()


class LazyReflector:
    """A reflector of what a run can do without: it starts at the first `open`, and shows nothing before.

    A server in trouble is asked again. Where we may not list or watch (`notices` says so, with what is lost), and where
    there is nothing to watch (`make` returns None), it stays empty.
    """

    def __init__(
        self, make: Callable[[], Coroutine[Any, Any, Reflector | None]], notices: MissingRights, *, without: str
    ) -> None:
        self._make = make
        self._notices = notices
        self._without = without
        self._reflector: Reflector | None = None
        self._opening: asyncio.Task[None] | None = None

    @property
    def objects(self) -> dict[str, Raw]:
        return {} if self._reflector is None else self._reflector.objects

    def open(self) -> None:
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())

    async def _open(self) -> None:
        while True:
            try:
                made = await self._make()
                if made is not None:
                    await made.start()
                    self._reflector = made
                return
            except ApiError as error:
                if error.status == 403:
                    return self._notices.denied(error, without=self._without)
                why: Exception = error
            except Exception as error:
                why = error
            _log.info("not shown for now: %s: %s", self._without, why)
            await asyncio.sleep(AGAIN_S)

    def forget_the_gone(self) -> None:
        if self._reflector is not None:
            self._reflector.deleted.clear()

    async def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self._reflector is not None:
            await self._reflector.close()


def _name(obj: Raw) -> str:
    return str(obj["metadata"]["name"])


def _uid(obj: Raw) -> str:
    return str(obj["metadata"]["uid"])


def _version(obj: Raw) -> int:
    """The server's counter of changes; of one server, larger is later."""
    return int(obj["metadata"]["resourceVersion"])
