"""The objects of one kind, kept up to date: `Reflector`, and `ReflectorView`, which is what one
experiment sees of it.

A reflector lists in pages, then watches. Events are hints. A watch that ends continues from the
last version seen; a watch that cannot continue (410), that broke off twice, or that is resync_s old
is followed by a list, and the difference to the known objects counts as events. Our own writes are
visible at once (`put`, `drop`), whatever older state a list or an event still shows. This module
decides nothing and writes nothing.

To a watch by label, an object whose labels somebody changes looks deleted. So objects that are
grouped by a label keep the labels of its domain as they were first seen, and one that disappears
without having been asked to end is read by name: while it exists, it is hidden from the watch and
still shown here.

All experiments of a process share the reflectors of a `cluster.Cluster`, which outlive each of
them. Objects are known by namespace and name: two tenants may use the same names.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar, cast

from controller.background_tasks import cancelled
from controller.core.attempt import RuntimeLost
from controller.kube.client import Kind, KubernetesClient
from controller.kube.errors import (
    AccessDenied,
    ApiError,
    ApiForbidden,
    BadKubeconfig,
    Unreachable,
    rule_for,
)
from controller.kube.objects import KubernetesObject, Raw
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
    hidden_s: between two reads of the objects that are hidden from the watch.
    """

    watch_s: tuple[float, float] = (240.0, 480.0)
    backoff: Backoff = _BACKOFF
    settled_s: float = 5.0  # a watch that lasted this long is restarted without a pause
    hidden_s: float = 2.0


class _ReflectorError(RuntimeLost):
    """An unforeseen error of the reflector; it lists again."""


Key: TypeAlias = tuple[str, str]  # namespace and name


@dataclass(slots=True, eq=False)
class _Hidden:
    """An object that the watch does not show. is_told: the log says so."""

    key: Key
    uid: str
    is_told: bool = False


class ReflectorView(Generic[ObjectT]):
    """The objects of one namespace, or those with one value of the reflector's label. Close it.

    `changed` is called on the same loop after every change for which `matters(before, after)` is
    true, and when `reflector.trouble` changes; not after `drop`.

    Attributes:
        objects: By name. A changed object is a new dict.
        keeps_deleted: Deleted objects are in `deleted`; set it before the first list.
        deleted: The last state of deleted objects. The owner clears it after reading.
    """

    def __init__(
        self,
        reflector: Reflector[ObjectT],
        group: Key,
        *,
        changed: Callable[[], None],
        matters: Callable[[ObjectT | None, ObjectT | None], bool],
    ) -> None:
        self.objects: dict[str, ObjectT] = {}
        self.keeps_deleted = False
        self.deleted: dict[str, ObjectT] = {}
        self.reflector = reflector
        self.changed = changed
        self.matters = matters
        self._group = group

    def drop(self, name: str) -> None:
        """Hide an object that we deleted, at once and not in `deleted`, whatever events follow."""
        if (cached := self.objects.get(name)) is not None:
            self.reflector.drop(cached)

    def close(self) -> None:
        self.reflector.detach(self, self._group)


class Reflector(Generic[ObjectT]):
    """Keeps the objects of one kind up to date, and notifies its views. `start` it, close it."""

    def __init__(
        self,
        client: KubernetesClient,
        kind: Kind,
        namespace: str | None,
        *,
        labels: str = "",
        fields: str = "",
        grouped_by: str = "",
        keep: Callable[[ObjectT, ObjectT], None] | None = None,
        changed: Callable[[Key], None] = lambda _key: None,
        resync_s: float = 600.0,
        timing: WatchTiming = WatchTiming(),
    ) -> None:
        """Create a reflector.

        Args:
            namespace: None: of all namespaces.
            grouped_by: The key of a label. A view has the objects with one value of it. Labels of
                its domain are set once, when an object is created.
            keep: Copies facts from the older of two states of an object into the newer one.
            changed: Called with the key of each object that was added, changed or deleted, also by
                the first list.
        """
        self.objects: dict[Key, ObjectT] = {}
        self.error: Exception | None = None  # why the cluster cannot be watched at present
        self.kind = kind
        self._client = client
        self._namespace = namespace
        self._selection = {"labels": labels, "fields": fields}
        self._grouped_by = grouped_by
        self._keep = keep
        self._changed = changed
        self._resync_s = resync_s
        self._timing = timing
        # By namespace and value of the label.
        self._views: dict[Key, list[ReflectorView[ObjectT]]] = {}
        self._version = ""
        self._resync_at = 0.0
        self._event_count = 0
        # uid: version of what was put and not confirmed by the server yet
        self._unconfirmed: dict[str, int] = {}
        # uids of dropped objects that may still appear in lists and events
        self._dropped: set[str] = set()
        # Objects that are shown, although the watch does not show them, and those to be read now.
        self._hidden: dict[Key, _Hidden] = {}
        self._hidden_due: asyncio.Queue[_Hidden] = asyncio.Queue()
        self._reading_hidden: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None
        self._bug = ""  # the last unforeseen error

    @property
    def trouble(self) -> str:
        """Return why the cluster cannot be watched at present, for people; "" if it can."""
        return "" if self.error is None else str(self.error)

    def view(
        self,
        namespace: str,
        value: str = "",
        *,
        changed: Callable[[], None],
        matters: Callable[[ObjectT | None, ObjectT | None], bool] = always,
    ) -> ReflectorView[ObjectT]:
        """Return a view of the objects in a namespace with this value of the label."""
        group = namespace, value
        made = ReflectorView(self, group, changed=changed, matters=matters)
        made.objects = {
            name: obj for (_, name), obj in self.objects.items() if self._group_of(obj) == group
        }
        self._views.setdefault(group, []).append(made)
        return made

    def detach(self, view: ReflectorView[ObjectT], group: Key) -> None:
        views = self._views.get(group, [])
        if view in views:
            views.remove(view)
        if not views:
            self._views.pop(group, None)

    async def start(self) -> None:
        """Return after the first list.

        Raises what the client raises; then nothing was started. Idempotent.
        """
        async with self._starting:
            if self._following is None:
                await self._relist()
                self._following = asyncio.create_task(self._follow())

    async def close(self) -> None:
        await cancelled(self._following, self._reading_hidden)

    def reveal(self, found: Iterable[ObjectT], labels: Mapping[str, str]) -> None:
        """Show objects that were read elsewhere with these labels, whatever they have now."""
        for obj in found:
            if _uid(obj) in self._dropped:
                continue
            if (cached := self.objects.get(_key(obj))) is not None:
                self._forget(cached)  # it may be shown with the labels that it has now
            obj["metadata"]["labels"] = {**obj["metadata"].get("labels", {}), **labels}
            self._replace(obj)
            self._hide(obj)

    def put(self, obj: ObjectT) -> None:
        """Show what a create or patch returned, at once, unless a newer state is known."""
        cached = self.objects.get(_key(obj))
        if _uid(obj) not in self._dropped and (cached is None or _version(cached) < _version(obj)):
            self._unconfirmed[_uid(obj)] = _version(obj)
            self._replace(obj)
            self._notify(obj, cached, obj)

    def drop(self, cached: ObjectT) -> None:
        self._forget(cached)
        self._dropped.add(_uid(cached))
        self._unconfirmed.pop(_uid(cached), None)

    def _forget(self, cached: ObjectT) -> None:
        del self.objects[_key(cached)]
        for view in self._views_of(cached):
            view.objects.pop(_name(cached), None)

    def _hide(self, obj: ObjectT) -> None:
        """Go on showing an object that the watch does not show, while it exists."""
        known = self._hidden.get(_key(obj))
        if known is not None and known.uid == _uid(obj):
            return
        self._hidden[_key(obj)] = hidden = _Hidden(_key(obj), _uid(obj))
        # At once: most of them have been deleted.
        self._hidden_due.put_nowait(hidden)
        if self._reading_hidden is None:
            self._reading_hidden = asyncio.create_task(self._read_hidden())

    def _may_be_hidden(self, gone: ObjectT) -> bool:
        """Return whether an object that is no longer shown may exist, and run, with other labels.

        Of objects that disappear in the usual way, pods have ended, or were asked to; Jobs were
        dropped.
        """
        status = cast(Raw, gone).get("status") or {}
        has_ended = status.get("phase") in ("Succeeded", "Failed")
        return bool(self._grouped_by) and not (has_ended or "deletionTimestamp" in gone["metadata"])

    async def _read_hidden(self) -> None:
        """Read each hidden object by name, again and again while it exists."""
        while True:
            hidden = await self._hidden_due.get()
            if self._hidden.get(hidden.key) is not hidden:
                continue  # the watch shows it again, or it was replaced
            try:
                self._take_hidden(hidden, await self._read(*hidden.key, hidden.uid))
            except (ApiError, Unreachable, AccessDenied, BadKubeconfig):
                pass  # the watch says what keeps the cluster from being read
            except Exception as unforeseen:  # others that are hidden would be shown for good
                self._report_bug(unforeseen)
            if self._hidden.get(hidden.key) is hidden:
                loop = asyncio.get_running_loop()
                loop.call_later(self._timing.hidden_s, self._hidden_due.put_nowait, hidden)

    async def _read(self, namespace: str, name: str, uid: str) -> ObjectT | None:
        fields = f"metadata.name={name}"
        found, _ = await self._client.list(self.kind, namespace, fields=fields)
        items = cast(list[ObjectT], found)  # the kind that was asked for
        return next((item for item in items if _uid(item) == uid), None)

    def _take_hidden(self, hidden: _Hidden, found: ObjectT | None) -> None:
        key, cached = hidden.key, self.objects.get(hidden.key)
        if self._hidden.get(key) is not hidden:
            return  # the watch shows it again
        if found is not None and not hidden.is_told:
            hidden.is_told = True
            name = "/".join(key)
            _log.warning("kind=%s %s has other labels; read by its name", self.kind.plural, name)
        if cached is None or _uid(cached) != hidden.uid:  # dropped, or replaced
            del self._hidden[key]
        elif found is None:
            del self._hidden[key]
            self._remove(cached)
            self._notify(cached, cached, None)
        elif _version(found) > _version(cached):
            self._replace(found)
            self._notify(found, cached, found)

    def _group_of(self, obj: ObjectT) -> Key:
        about = obj["metadata"]
        value = about.get("labels", {}).get(self._grouped_by, "") if self._grouped_by else ""
        return about.get("namespace", ""), value

    def _views_of(self, obj: ObjectT) -> Sequence[ReflectorView[ObjectT]]:
        return self._views.get(self._group_of(obj), ())

    async def _follow(self) -> None:
        """Watch, list, and watch again, until cancelled."""
        tries, needs_relist = 0, False
        while True:
            began, received = time.monotonic(), self._event_count
            error: Exception | None = None
            try:
                if needs_relist or began >= self._resync_at:
                    await self._relist()
                    needs_relist = False
                await self._watch()
            except ApiError as api_error:
                # 410: the version is gone; after any other error events may have been missed
                needs_relist = True
                error = None if api_error.status == 410 else api_error
            except (Unreachable, AccessDenied, BadKubeconfig) as connection_error:
                error = connection_error
            except Exception as unforeseen:  # a reflector that stops silently would hang the run
                error, needs_relist = self._report_bug(unforeseen), True
            # A watch that delivered something or lasted restarts at once;
            # otherwise the server is in trouble.
            lasted = time.monotonic() - began > self._timing.settled_s
            settled = lasted or self._event_count != received
            tries = 0 if settled and not isinstance(error, _ReflectorError) else tries + 1
            if error is not None and tries:
                needs_relist = True
                self._set_error(error)
            if tries:
                await asyncio.sleep(self._timing.backoff.pause_s(tries - 1))

    def _report_bug(self, unforeseen: Exception) -> _ReflectorError:
        """Return the error to show. It is logged once, however often it recurs."""
        bug = f"{type(unforeseen).__name__}: {unforeseen}"
        if bug != self._bug:
            self._bug = bug
            _log.error("kind=%s this is a bug; listed again", self.kind.plural, exc_info=unforeseen)
        return _ReflectorError(
            f"what the cluster says of {self.kind.plural} cannot be read ({bug}); this is a bug"
        )

    async def _relist(self) -> None:
        found, version = await self._client.list(self.kind, self._namespace, **self._selection)
        items = cast(list[ObjectT], found)  # the kind that was asked for
        self._version = version
        self._resync_at = time.monotonic() + self._resync_s * random.uniform(0.9, 1.1)
        listed = {_uid(item) for item in items}
        names = {_key(item) for item in items}
        self._dropped &= listed
        self._hidden = {key: each for key, each in self._hidden.items() if each.uid not in listed}
        # An object that was put after the list was made is not missing from the list.
        newer = {uid: put for uid, put in self._unconfirmed.items() if put > int(version)}
        self._unconfirmed = newer
        shown = listed | newer.keys()
        missing = [obj for obj in self.objects.values() if _uid(obj) not in shown]
        deleted = []
        for obj in missing:
            if _key(obj) not in names and self._may_be_hidden(obj):
                self._hide(obj)
            else:
                deleted.append(obj)
        new = [item for item in items if self._differs(item)]
        concerned: dict[ReflectorView[ObjectT], None] = {}
        for obj in (*deleted, *new):
            concerned.update(dict.fromkeys(self._views_of(obj)))
        for obj in deleted:
            self._remove(obj)
        for item in new:
            self._replace(item)
        for obj in (*deleted, *new):
            self._changed(_key(obj))
        if self.error is not None:
            self._set_error(None)
            return
        for view in concerned:
            view.changed()

    def _differs(self, listed: ObjectT) -> bool:
        """A list counts even with lower versions: a server may be restored from a backup."""
        cached = self.objects.get(_key(listed))
        if _uid(listed) in self._dropped:
            return False
        if cached is None:
            return True
        if _uid(cached) in self._unconfirmed:
            return False
        return (_uid(cached), _version(cached)) != (_uid(listed), _version(listed))

    async def _watch(self) -> None:
        """Watch until the server ends it, or until a resync is due."""
        timeout_s = random.uniform(*self._timing.watch_s)
        since = {"resource_version": self._version, **self._selection}
        events = self._client.watch(self.kind, self._namespace, **since, timeout_s=timeout_s)
        left_s = max(0.0, self._resync_at - time.monotonic())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left_s), aclosing(events):
                async for event in events:
                    self._apply_event(event)

    def _apply_event(self, event: Raw) -> None:
        obj = cast(ObjectT, event["object"])  # the kind that is watched
        self._event_count += 1
        self._version = obj["metadata"]["resourceVersion"]
        if event["type"] == "BOOKMARK":  # it has only a version
            return
        cached = self.objects.get(_key(obj))
        match event["type"]:
            case "ADDED" | "MODIFIED" if self._show(obj):
                self._notify(obj, cached, obj)
            case "DELETED" if self._end(obj):
                self._notify(cached or obj, cached, None)

    def _notify(self, shown: ObjectT, before: ObjectT | None, after: ObjectT | None) -> None:
        self._changed(_key(shown))
        for view in self._views_of(shown):
            if view.matters(before, after):
                view.changed()

    def _show(self, obj: ObjectT) -> bool:
        """Take over a state that the server sent; False if it is not newer."""
        self._confirm(obj)
        self._hidden.pop(_key(obj), None)
        cached = self.objects.get(_key(obj))
        if _uid(obj) in self._dropped or (cached is not None and _version(cached) >= _version(obj)):
            return False
        self._replace(obj)
        return True

    def _end(self, obj: ObjectT) -> bool:
        self._confirm(obj)
        cached = self.objects.get(_key(obj))
        if _uid(obj) in self._dropped:
            self._dropped.discard(_uid(obj))
            return False
        if cached is not None and _uid(cached) == _uid(obj) and self._may_be_hidden(cached):
            self._hide(cached)
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
        cached = self.objects.get(_key(obj))
        if cached is not None:
            is_same = _uid(cached) == _uid(obj)
            if is_same:
                self._keep_labels(cached, obj)
            if not is_same or self._group_of(cached) != self._group_of(obj):
                self._remove(cached)
        self._carry_over(cached, obj)
        self.objects[_key(obj)] = obj
        for view in self._views_of(obj):
            view.objects[_name(obj)] = obj

    def _remove(self, obj: ObjectT) -> None:
        cached = self.objects.pop(_key(obj), None)
        self._carry_over(cached, obj)
        for view in self._views_of(cached or obj):
            view.objects.pop(_name(obj), None)
            if view.keeps_deleted:
                view.deleted[_name(obj)] = obj

    def _keep_labels(self, before: ObjectT, after: ObjectT) -> None:
        """Give the object the labels of the domain of `grouped_by` that it had before."""
        domain = self._grouped_by.rpartition("/")[0]
        earlier = before["metadata"].get("labels", {})
        kept = {key: value for key, value in earlier.items() if key.startswith(f"{domain}/")}
        if domain and kept:
            after["metadata"]["labels"] = {**after["metadata"].get("labels", {}), **kept}

    def _carry_over(self, cached: ObjectT | None, obj: ObjectT) -> None:
        if self._keep is None or cached is None or cached is obj:
            return
        if _uid(cached) == _uid(obj):
            self._keep(cached, obj)

    def _set_error(self, error: Exception | None) -> None:
        before, self.error = self.error, error
        if error is None:
            _log.info("kind=%s watch restored", self.kind.plural)
        elif before is None:
            _log.warning("kind=%s lost: %s", self.kind.plural, error)
        if str(before) == str(error):
            return
        for views in list(self._views.values()):
            for view in list(views):
                view.changed()


class LazyView(Generic[ObjectT]):
    """A view of something optional: it starts at the first `open` and shows nothing before.

    It retries while the server is in trouble. Without the right to list or watch
    (which `notices` logs, with what is lost), and where there is nothing to watch
    (`make` returns None), it stays empty.
    """

    def __init__(
        self,
        make: Callable[[], Coroutine[Any, Any, ReflectorView[ObjectT] | None]],
        notices: MissingRights,
        *,
        without: str,
    ) -> None:
        self._make = make
        self._notices = notices
        self._without = without
        self._view: ReflectorView[ObjectT] | None = None
        self._opening: asyncio.Task[None] | None = None

    @property
    def objects(self) -> dict[str, ObjectT]:
        return {} if self._view is None else self._view.objects

    def open(self) -> None:
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())

    async def _open(self) -> None:
        while True:
            view: ReflectorView[ObjectT] | None = None
            try:
                view = await self._make()
                if view is not None:
                    await view.reflector.start()
                    self._view = view
                    view.changed()  # another experiment may have started the reflector before
                return
            except ApiForbidden as error:
                return self._notices.denied(error, without=self._without)
            except Exception as error:
                cause = error
            finally:
                if view is not None and self._view is not view:
                    view.close()
            _log.info("not shown for now: %s: %s", self._without, cause)
            await asyncio.sleep(AGAIN_S)

    async def close(self) -> None:
        await cancelled(self._opening)
        if self._view is not None:
            self._view.close()


def _key(obj: KubernetesObject) -> Key:
    return str(obj["metadata"].get("namespace", "")), str(obj["metadata"]["name"])


def _name(obj: KubernetesObject) -> str:
    return str(obj["metadata"]["name"])


def _uid(obj: KubernetesObject) -> str:
    return str(obj["metadata"]["uid"])


def _version(obj: KubernetesObject) -> int:
    """Return the server's counter of changes; on one server, a larger one is later."""
    return int(obj["metadata"]["resourceVersion"])
