"""The location of a store: parses its URL, and refuses places that would lose data.

File locks and SQLite's WAL need a local file system; on a network file system they silently do not work.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

from suggest.errors import InvalidArgument, Problem, StoreBroken
from suggest.url_redaction import redacted_url

_NETWORK = re.compile(r"nfs\d?|cifs|smb\d?|smbfs|fuse\.sshfs|afs|ceph|lustre|fuse\.glusterfs")
_POSTGRES = "postgresql+psycopg://"
_MOUNTS = Path("/proc/mounts")


def is_postgres(storage_url: str) -> bool:
    """Raises InvalidArgument for PostgreSQL's other spellings, which name other drivers."""
    if storage_url.startswith(_POSTGRES):
        return True
    if storage_url.startswith("postgres"):
        raise _refused(storage_url, f"is not a storage URL; begin it with {_POSTGRES}")
    return False


def sqlite_path(storage_url: str, *, make_folder: bool = True) -> Path:
    """The file of `sqlite:///PATH`: a fourth slash makes PATH absolute, %3F is a question mark."""
    prefix = "sqlite:///"
    if not storage_url.startswith(prefix) or "?" in storage_url:
        raise _refused(
            storage_url,
            "is not a storage URL; use sqlite:///PATH, for example sqlite:////var/lib/tuner/studies.db, "
            f"or {_POSTGRES}USER@HOST/DATABASE",
        )
    name = unquote(storage_url.removeprefix(prefix))
    if name in ("", ":memory:"):
        raise _refused(storage_url, "a store in memory would lose the studies; use sqlite:///PATH")
    path = Path(name).expanduser().absolute()
    if path.is_dir():
        raise _refused(storage_url, f"{path} is a directory; name a file in it, such as {path / 'studies.db'}")
    if make_folder:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            message = f"cannot make the folder {path.parent} ({e.strerror}); use another place"
            raise _refused(storage_url, message) from e
    refuse_network(path.parent)
    return path


def refuse_network(folder: Path, mounts: Path = _MOUNTS) -> None:
    """Raises StoreBroken where the system says that `folder` is on a network file system; else trusts it."""
    kind = _filesystem(folder.resolve(), mounts)
    if _NETWORK.fullmatch(kind):
        raise StoreBroken(
            f"{folder} is on a network file system ({kind}), where file locks do not protect a database; "
            "use a local folder (--state-dir or --storage), or a server on one machine (tuner serve) and --server"
        )


def _filesystem(folder: Path, mounts: Path) -> str:
    """The type of the file system that holds the folder; "" when the system does not say (macOS)."""
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        # Spaces and the like are octal in /proc/mounts.
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), fields[1])
        # >=: of two mounts on one point, the later hides the earlier.
        if (folder.is_relative_to(point)) and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind


def _refused(storage_url: str, message: str) -> InvalidArgument:
    return InvalidArgument([Problem("storage", f"{redacted_url(storage_url)}: {message}")])
