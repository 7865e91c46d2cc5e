"""What was done with the objects of attempts, written through to the controller's store.

The record tells a restarted controller that an attempt's object was created, even if that object no
longer exists: an attempt whose object was deleted never starts again. Where a lost write would
repeat an action, the record is written before the action. That an object was removed needs no
record: the next controller removes what is left of the attempts that have ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

from controller.core.attempt import ObjectRecord
from controller.core.model import AttemptKey
from controller.runtime.provider import ObjectRecords

_REMOVED_IN_MEMORY = 1000


class Records:
    """The records of one experiment's attempts that have not ended.

    Of removed objects, the keys of those that are still there and the latest others stay in memory:
    events about their pods arrive for a while.
    """

    def __init__(self, stored: ObjectRecords) -> None:
        self._stored = stored
        self._loaded: dict[AttemptKey, ObjectRecord] | None = None
        self._removed: dict[AttemptKey, None] = {}  # oldest first

    @property
    def _known(self) -> dict[AttemptKey, ObjectRecord]:
        if self._loaded is None:
            self._loaded = dict(self._stored.load())
        return self._loaded

    def of(self, key: AttemptKey) -> ObjectRecord | None:
        """Return the record of an attempt; None if no object was ever created for it."""
        return self._known.get(key)

    @property
    def uids(self) -> Mapping[AttemptKey, str]:
        """Return the uid of each attempt's object."""
        return {key: record.uid for key, record in self._known.items()}

    def created(self, key: AttemptKey, uid: str) -> None:
        """Note that the attempt has this object."""
        known = self._known.get(key)
        if known is None or known.uid != uid:
            self._save(key, replace(known or ObjectRecord(uid), uid=uid))

    def stopped(self, key: AttemptKey, uid: str) -> None:
        """Note that the attempt was asked to end. The loop has stored why."""
        self._known[key] = replace(self.of(key) or ObjectRecord(uid), stopped=True)

    def timed_out(self, key: AttemptKey, uid: str) -> None:
        """Note that the attempt was asked to end because of its timeout."""
        known = self.of(key) or ObjectRecord(uid)
        if not known.timed_out:
            self._save(key, replace(known, timed_out=True))

    def forget(self, key: AttemptKey) -> None:
        """Delete the record of an object withdrawn before it ran: it may be created again."""
        if key in self._known:
            self._stored.delete(key)
            del self._known[key]

    def remove(self, key: AttemptKey) -> None:
        """Note that the object was deleted for good; it may still exist for a while."""
        self._known.pop(key, None)
        self._removed[key] = None

    def is_removed(self, key: AttemptKey) -> bool:
        return key in self._removed

    def forget_removed(self, *, but: Set[AttemptKey]) -> None:
        """Forget all but the latest removed objects. but: those that still have objects."""
        surplus = len(self._removed) - _REMOVED_IN_MEMORY
        if surplus > 0:
            for key in [key for key in self._removed if key not in but][:surplus]:
                del self._removed[key]

    def _save(self, key: AttemptKey, record: ObjectRecord) -> None:
        self._stored.save(key, record)
        self._known[key] = record
