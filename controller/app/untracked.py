"""Files of a checkout that git neither tracks nor ignores, such as a new module: what is recorded
of them with each run, and how `tuner reproduce` gets them back.

Small files are stored, in a zip archive; others may be data of any size, and are only counted.
"""

from __future__ import annotations

import asyncio
import io
import stat
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from controller.app.git import git

FOLDER = "untracked"
FILE_BYTES = 1 << 20
TOTAL_BYTES = 4 << 20
MOST_FILES = 1000
_NAMED = 3  # of the files that were left out


@dataclass(frozen=True, slots=True)
class Untracked:
    """The files as an archive, by their paths in the checkout, and the paths that it lacks."""

    archive: bytes = b""
    count: int = 0
    left_out: Sequence[str] = field(default_factory=tuple)

    @property
    def record(self) -> dict[str, object]:
        """Return what `provenance.json` says of them, besides the name of the archive."""
        if not (self.count or self.left_out):
            return {}
        left_out = {"count": len(self.left_out), "first": [*self.left_out[:_NAMED]]}
        return {"count": self.count, **({"leftOut": left_out} if self.left_out else {})}


async def untracked_files(folder: Path, *, apart: Path) -> Untracked:
    """Return the untracked files of the checkout that has a folder.

    apart: the state directory, which is not among them. Raises OSError.
    """
    code, found, _ = await git(folder, "rev-parse", "--show-toplevel")
    if code != 0:
        return Untracked()
    top = Path(found.decode(errors="surrogateescape").rstrip("\n"))
    paths = [":/"]
    if apart.resolve().is_relative_to(top):
        paths.append(f":(exclude,top,literal){apart.resolve().relative_to(top)}")
    listing = ("ls-files", "--others", "--exclude-standard", "--full-name", "-z", "--", *paths)
    code, found, _ = await git(folder, *listing)
    if code != 0:
        raise OSError("git does not list the files that it does not track")
    names = [name for name in found.decode(errors="surrogateescape").split("\0") if name]
    return await asyncio.to_thread(_archived, top, names)


def _archived(top: Path, names: Sequence[str]) -> Untracked:
    """Archive files of the emptiest folders first, and the smallest of a folder.

    Neither a large file nor a folder of data displaces new code.
    """
    sizes: dict[str, int] = {}
    beside = Counter(map(_folder, names))
    ordered = sorted(names, key=lambda each: (beside[_folder(each)], each))
    left_out = ordered[MOST_FILES:]
    for name in ordered[:MOST_FILES]:
        size = _size(top / name)
        if size is not None and size <= FILE_BYTES and name.isprintable():
            sizes[name] = size
        else:
            left_out.append(name)
    total = count = 0
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(sizes, key=lambda each: (beside[_folder(each)], sizes[each], each)):
            total += sizes[name]
            try:
                content = (top / name).read_bytes() if total <= TOTAL_BYTES else None
                mode = stat.S_IMODE((top / name).stat().st_mode)
            except OSError:
                # A running trial removes files, and another user's may be unreadable.
                content = None
            if content is None:
                left_out.append(name)
                continue
            # Without its time, so that the same files have the same archive.
            entry = zipfile.ZipInfo(name)
            entry.external_attr = mode << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
            count += 1
    shown = [name if name.isprintable() else ascii(name)[1:-1] for name in left_out]
    return Untracked(packed.getvalue() if count else b"", count, tuple(sorted(shown)))


def _folder(name: str) -> str:
    return name.rpartition("/")[0]


def _size(path: Path) -> int | None:
    """Return the size of a file; None for a link, a folder and others."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def are_unchanged(archive: bytes, top: Path) -> bool:
    """Return whether a checkout still has the archived files as they were; it may have more."""
    with zipfile.ZipFile(io.BytesIO(archive)) as files:
        for name in files.namelist():
            path = top / name
            if not path.is_file() or path.read_bytes() != files.read(name):
                return False
    return True


def restore(archive: bytes, top: Path) -> None:
    """Write the archived files into a new checkout, and never outside of it."""
    with zipfile.ZipFile(io.BytesIO(archive)) as files:
        for entry in files.infolist():
            written = Path(files.extract(entry, top))
            written.chmod((entry.external_attr >> 16) & 0o777 | 0o600)
