"""The files of this machine that trials on a cluster get: `spec.trial.files`,
and the function of `tuner.minimize`.

They are read once, and sent in one immutable ConfigMap that is named after their content. A trial
therefore never sees half of a change: trials that exist keep the files they have, later ones get
the new files. `tuner run` sends them when its controller starts. For the controller in the cluster,
the person's own program sends them, and the spec has their digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from controller.core.model import Uid
from suggest.errors import FailedPrecondition, Problem

# where the container finds them; its working directory unless the file names another
DIRECTORY = "/tuner/files"
KEY = "spec.trial.files"
MOST_BYTES = 1 << 20  # of a ConfigMap: the API server accepts no more
DIGEST_LENGTH = 10  # characters of the content's hash in the ConfigMap's name


@dataclass(frozen=True, slots=True)
class TrialFiles:
    """The files of a trial.

    paths: sorted, and relative to DIRECTORY.
    digest: a hash that differs for other paths or contents.
    contents: by path; None: they were sent before.
    sent_with: name and uid of the experiment with which they were sent; None: that of the trial.
    """

    paths: tuple[str, ...]
    digest: str
    contents: Mapping[str, bytes] | None = None
    sent_with: tuple[str, Uid] | None = None

    @classmethod
    def of(cls, contents: Mapping[str, bytes]) -> TrialFiles:
        """Return files to send. Raises FailedPrecondition if they are too large together."""
        size = sum(map(len, contents.values()))
        if size > MOST_BYTES:
            raise FailedPrecondition(f"{KEY}: {_too_large(size)}")
        hashed = hashlib.sha256()
        for path, content in sorted(contents.items()):
            hashed.update(f"{path}\0{len(content)}\0".encode() + content)
        return cls(tuple(sorted(contents)), hashed.hexdigest()[:DIGEST_LENGTH], contents)


def problems_of(directory: Path, paths: Sequence[str], *, are_sent: bool) -> list[Problem]:
    """Return what is wrong with the files of `spec.trial.files`. Paths begin at `directory`.

    are_sent: the files are sent to a cluster, so their size is limited.
    """
    problems = [
        Problem(
            f"{KEY}[{index}]",
            f"{path!r} is not a file in {directory}; paths begin at the experiment file's folder",
        )
        for index, path in enumerate(paths)
        if not (directory / path).is_file()
    ]
    if not problems and are_sent:
        size = sum((directory / path).stat().st_size for path in paths)
        if size > MOST_BYTES:
            problems.append(Problem(KEY, _too_large(size)))
    return problems


def read(
    directory: Path, paths: Sequence[str], *, own_file: Path | None = None
) -> TrialFiles | None:
    """Return the files, or None if there are none.

    own_file: a further file, sent under its name if it exists.

    Raises:
        FailedPrecondition: A file cannot be read, or all of them are too large together.
    """
    places = {path: directory / path for path in paths}
    if own_file is not None and own_file.exists():
        places[own_file.name] = own_file
    contents: dict[str, bytes] = {}
    for path, place in places.items():
        try:
            contents[path] = place.read_bytes()
        except OSError as error:
            raise FailedPrecondition(
                f"{KEY}: {place} cannot be read: {error.strerror}; restore it, then resume"
            ) from error
    return TrialFiles.of(contents) if contents else None


def sent(paths: Sequence[str], digest: str, sent_with: tuple[str, Uid] | None) -> TrialFiles | None:
    """Return the files that a person's program has sent, or None if there are none."""
    return TrialFiles(tuple(sorted(paths)), digest, sent_with=sent_with) if paths else None


def _too_large(size: int) -> str:
    return (
        f"the files have {size / MOST_BYTES:.1f} MiB together, and trials on a cluster are sent at "
        "most 1 MiB; put large ones into the image or on a volume"
    )
