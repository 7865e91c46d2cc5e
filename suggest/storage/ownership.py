"""Ownership of studies: the contract of its implementations,
and the WHERE clause that checks a lease.

A lease is a fencing token: the epoch orders the owners, and the nonce distinguishes two owners with
the same epoch, which can exist after the database was restored or failed over to a lagging standby.
Every write has both in its WHERE clause (`held`) and locks the study's row until it commits, so
that no takeover happens between the check and the write.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from typing import Protocol

from sqlalchemy import (
    ColumnElement,
    Connection,
    Exists,
    Table,
    and_,
    bindparam,
    literal_column,
    select,
    update,
)

from suggest.errors import NotOwner
from suggest.storage.store import Lease
from suggest.storage.study_tables import studies
from suggest.study import StudyName

Claim = Callable[[Connection], None]
"""Called within each transaction that takes a study, by a process that takes it from any other.

Raises NotOwner if this process may not, because another one has been given all studies. Until the
transaction ends, none is.
"""


class Ownership(Protocol):
    """Takes and releases studies for one process, by the rules of `StudyStore.take`.

    Thread-safe for different studies; the caller serializes calls for the same study.
    """

    def take(self, name: StudyName, *, uid: str, address: str) -> Lease: ...

    def still_held(self, lease: Lease) -> bool: ...

    def check(self, connection: Connection, lease: Lease) -> None:
        """Check before a write.

        Raises NotOwner if this is known not to be the database that gave the lease.
        """

    def release(self, lease: Lease) -> None: ...

    def deleted(self, lease: Lease) -> None:
        """Forget the lease of a study that was deleted; there is nothing left to release."""

    def close(self) -> None:
        """Release everything."""


def of(table: Table, name: StudyName) -> ColumnElement[bool]:
    return and_(table.c.namespace == name.namespace, table.c.study == name.study)


def of_parameters(table: Table) -> ColumnElement[bool]:
    """Like `of`, with bind parameters that `named` fills.

    To build a statement takes longer than to execute it.
    """
    return and_(
        table.c.namespace == bindparam("of_namespace"), table.c.study == bindparam("of_study")
    )


def named(name: StudyName) -> dict[str, str]:
    return {"of_namespace": name.namespace, "of_study": name.study}


_LEASED = (
    studies.c.namespace,
    studies.c.study,
    studies.c.uid,
    studies.c.owner_epoch,
    studies.c.owner_nonce,
)
_PARAMETERS = tuple(f"lease_{column.name}" for column in _LEASED)


def held(lease: Lease) -> Exists:
    return _locked(_values(lease))


def held_by_parameters() -> Exists:
    """Like `held`, with bind parameters that `guard` fills.

    A statement is then compiled once for all leases.
    """
    return _locked(map(bindparam, _PARAMETERS))


def guard(lease: Lease) -> dict[str, object]:
    return dict(zip(_PARAMETERS, _values(lease), strict=True))


def _values(lease: Lease) -> tuple[object, ...]:
    return lease.name.namespace, lease.name.study, lease.uid, lease.epoch, lease.nonce


def _locked(values: Iterable[object]) -> Exists:
    conditions = (column == value for column, value in zip(_LEASED, values, strict=True))
    # FOR SHARE on PostgreSQL; SQLite has one writer at a time anyway.
    return (
        select(literal_column("1"))
        .select_from(studies)
        .where(*conditions)
        .with_for_update(read=True)
        .exists()
    )


_TAKE = (
    update(studies)
    .where(of_parameters(studies), studies.c.uid == bindparam("of_uid"))
    .values(
        owner_epoch=studies.c.owner_epoch + 1,
        owner_nonce=bindparam("new_nonce"),
        owner_address=bindparam("new_address"),
    )
    .returning(studies.c.owner_epoch)
)


def taking(connection: Connection, name: StudyName, *, uid: str, address: str) -> Lease | None:
    """Take the study: increment the epoch and set a new nonce.

    Return None if the study does not exist (any more).
    """
    nonce = secrets.token_hex(8)
    new = {"of_uid": uid, "new_nonce": nonce, "new_address": address}
    epoch = connection.execute(_TAKE, {**named(name), **new}).scalar_one_or_none()
    return None if epoch is None else Lease(name, uid, epoch, nonce)


def taken_by(name: StudyName, address: str) -> NotOwner:
    at = f" at {address}" if address else ""
    return NotOwner(
        f"{name} is being written by another process{at}; send it there, or end that process and "
        "try again",
        address=address,
    )
