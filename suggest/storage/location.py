"""The location of a store: parse the storage URL, and refuse places that could lose data.

File locks and SQLite's WAL need a local file system;
on a network file system they silently do not work.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

from suggest import paths
from suggest.errors import InvalidArgument, StoreBroken
from suggest.url_redaction import redacted_url

_NETWORK = re.compile(r"nfs\d?|cifs|smb\d?|smbfs|fuse\.sshfs|afs|ceph|lustre|fuse\.glusterfs")
_POSTGRES = "postgresql+psycopg://"
_MOUNTS = Path("/proc/mounts")


def is_postgres(storage_url: str) -> bool:
    """Return whether the URL names PostgreSQL.

    Raises InvalidArgument for PostgreSQL URLs that name another driver.
    """
    if storage_url.startswith(_POSTGRES):
        return True
    if storage_url.startswith("postgres"):
        raise _refused(storage_url, f"is not a storage URL; begin it with {_POSTGRES}")
    return False


def sqlite_path(storage_url: str, *, make_folder: bool = True) -> Path:
    """Return the file of `sqlite:///PATH`.

    A fourth slash makes PATH absolute, %3F is a question mark.
    """
    prefix = "sqlite:///"
    if not storage_url.startswith(prefix) or "?" in storage_url:
        raise _refused(
            storage_url,
            "is not a storage URL; use sqlite:///PATH, for example "
            f"sqlite:////var/lib/tuner/studies.db, or {_POSTGRES}USER@HOST/DATABASE",
        )
    name = unquote(storage_url.removeprefix(prefix))
    if name in ("", ":memory:"):
        raise _refused(storage_url, "a store in memory would lose the studies; use sqlite:///PATH")
    path = paths.absolute(name)
    if path.is_dir():
        raise _refused(
            storage_url, f"{path} is a directory; name a file in it, such as {path / 'studies.db'}"
        )
    if make_folder:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            message = f"cannot create the folder {path.parent} ({e.strerror}); use another place"
            raise _refused(storage_url, message) from e
    refuse_network(path.parent)
    return path


def refuse_network(folder: Path, mounts: Path = _MOUNTS) -> None:
    """Raise StoreBroken if the system reports that `folder` is on a network file system."""
    kind = _filesystem(folder.resolve(), mounts)
    if _NETWORK.fullmatch(kind):
        raise StoreBroken(
            f"{folder} is on a network file system ({kind}), where file locks do not protect a "
            "database; use a local folder (--state-dir, TUNER_STATE_DIR or --storage), or a server "
            "on one machine (tuner serve) and --server"
        )


def _filesystem(folder: Path, mounts: Path) -> str:
    """Return the type of the folder's file system; "" where it is not reported (macOS)."""
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        # /proc/mounts writes spaces and similar characters as octal escapes.
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), fields[1])
        # >= because of two mounts at the same point, the later one hides the earlier one.
        if (folder.is_relative_to(point)) and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind


def _refused(storage_url: str, message: str) -> InvalidArgument:
    return InvalidArgument.at("storage", f"{redacted_url(storage_url)}: {message}")
