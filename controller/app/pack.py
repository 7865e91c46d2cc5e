"""Pack a search into one file, and unpack it in another state directory, where it continues.

A pack is a tar archive, compressed by gzip:

    pack.json                           first: the format of the pack, and which search it has
    stores/controller.db  studies.db    stores with the rows of this search only
    experiment.yaml  trials/0/1/log.txt ...
                                        its folder, without the files of processes of this machine

A pack gets its name when it is complete. `unpack` extracts into the folder of the experiment. While
that has a `pack.json`, the experiment may be incomplete, and the same command starts over; the rows
in controller.db, by which other commands find the experiment, are written last.
"""

from __future__ import annotations

import fcntl
import glob
import json
import os
import re
import shutil
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import IO

from controller.app.cluster_workspace import ClusterExperiments
from controller.app.controller_api import ControllerApi
from controller.app.experiment_file import working_directory
from controller.app.experiment_service import ExperimentService
from controller.app.experiments import UID_LENGTH, find
from controller.app.local_experiments import LocalExperiments
from controller.app.service_names import described, is_address
from controller.app.state_directory import StateDirectory
from controller.app.workspace import Workspace
from controller.core.model import KATIB_SUFFIX, Event, Experiment
from controller.experiment_store import Changes
from controller.phrases import command
from controller.runtime.registry import traits_of
from controller.search import study_name
from suggest import failpoints
from suggest.distribution import VERSION
from suggest.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    StoreBroken,
    Unavailable,
)
from suggest.server import admin

FORMAT = 1
MANIFEST, STORES = "pack.json", "stores"
# Begun when the store had no study of this name: one that is found later is this pack's.
_COPYING = "copying"
_MANIFEST_BYTES, _READ_BYTES = 1 << 16, 1 << 20
_UID = re.compile(rf"[a-z][a-z2-7]{{{UID_LENGTH - 1}}}")
# What belongs to processes of one machine, or to a pack: not packed, and not accepted.
_OF_MACHINE = frozenset(
    {
        "controller.lock",
        "supervisor.lock",
        "supervisor.log",
        "trouble.json",
        "live",
        "checkout",  # a worktree of a repository here: see `controller.app.reproduce`
        "checkout.ready",
    }
)
_PROCESS = "process.json"

_BEFORE_NAMED, _AFTER_NAMED = failpoints.register("controller.pack.named")
_BEFORE_CLEARED, _AFTER_CLEARED = failpoints.register("controller.pack.cleared")


@dataclass(frozen=True, slots=True)
class Packed:
    """A pack that was written: its path and size, and the attempts of the experiment."""

    path: Path
    size: int
    attempts: int


@dataclass(frozen=True, slots=True)
class Unpacked:
    """An experiment that was unpacked. `moved_from`: the folder in which its trials ran before."""

    experiment: Experiment
    moved_from: str


@dataclass(frozen=True, slots=True)
class _Manifest:
    uid: str
    namespace: str
    name: str
    files: int

    @classmethod
    def read(cls, source: Path, text: bytes) -> _Manifest:
        """Raises InvalidArgument for a pack of a newer version, or without a valid manifest."""
        try:
            document = json.loads(text)
            pack_format = int(document["format"])
            made_by = str(document["tuner"])
            if pack_format > FORMAT:
                raise InvalidArgument.at(
                    "",
                    f"{source}: tuner {made_by} wrote it in format {pack_format}, and this version "
                    f"reads format {FORMAT}; update tuner here",
                )
            manifest = cls(
                str(document["uid"]),
                str(document["namespace"]),
                str(document["name"]),
                int(document["files"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise _not_a_pack(source) from error
        # It becomes the name of a folder.
        if not _UID.fullmatch(manifest.uid):
            raise _damaged(source, f"{MANIFEST}: uid {manifest.uid!r} is not one of an experiment")
        return manifest


def pack(workspace: Workspace, name: str, namespace: str | None, target: Path) -> Packed:
    """Write the experiment, its study and its folder into a new file.

    Raises NotFound, AlreadyExists, Unavailable, and FailedPrecondition if it runs, or if its study
    is on a server.
    """
    _refuse_existing(target)
    with workspace.opened() as experiments:
        service = ExperimentService(experiments)
        refused = "{name} cannot be packed while it runs"
        with service.known_and_leased(name, namespace, refused=refused) as (experiment, lease):
            url = _store_of(workspace, experiment)
            attempts = experiments.attempts(experiment.uid)
            if not traits_of(experiment.spec.runtime).survives_controller:
                _refuse_unended([str(one.trial) for one in attempts if not one.ended], experiment)
            with _writing(target):
                write(experiments, experiment, url, target)
            lease.release()
    return Packed(target, target.stat().st_size, len(attempts))


def pack_of_cluster(api: ControllerApi, name: str, namespace: str, target: Path) -> Packed:
    """Write an experiment of a cluster's controller into a new file; the controller packs it.

    Raises as `pack`, and FailedPrecondition for what runs only there.
    """
    _refuse_existing(target)
    experiments = ClusterExperiments(api)
    experiment = find(experiments, name, namespace)
    if name.endswith(KATIB_SUFFIX):
        raise _not_elsewhere(name, "it is an Experiment of Katib, which only the controller runs")
    if experiment.spec.trial.calls_function:
        raise _not_elsewhere(name, "its function is in the cluster only")
    attempts = experiments.attempts(experiment.uid)
    with _writing(target), _partial_folder(target) as temporary:
        partial = Path(temporary, target.name)
        with _private(partial) as file:
            experiments.download(experiment, file)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(target)
    return Packed(target, target.stat().st_size, len(attempts))


def _not_elsewhere(name: str, why: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"{name} cannot be packed: {why}; take its trials along, for a new search: "
        f"{command('export', name, '--format', 'json')} and {command('import', 'FILE')}"
    )


def _store_of(workspace: Workspace, experiment: Experiment) -> str:
    """Return the URL of the store with the experiment's study. Raises FailedPrecondition."""
    service = workspace.service_of(experiment)
    if is_address(service):
        raise FailedPrecondition(
            f"{experiment.name}: its study is in the {described(service)}, which gives trials and "
            "no rows; name the store of that server with --storage, or take the trials along: "
            f"{command('export', experiment.name, '--format', 'json')}"
        )
    return workspace.state.url_of(service)


def _refuse_unended(trials: Sequence[str], experiment: Experiment) -> None:
    if trials:
        raise FailedPrecondition(
            f"{experiment.name}: its last controller was killed, and trials of it may run on this "
            f"machine ({', '.join(trials)}); end them with {command('stop', experiment.name)}, or "
            f"continue with {command('resume', experiment.name)}"
        )


def write(experiments: LocalExperiments, experiment: Experiment, url: str, target: Path) -> None:
    """Write the pack of an experiment that does not run, with this row of it. May take long.

    url: of the store with its study.
    """
    folder = experiments.folders(experiment.uid).root
    with _partial_folder(target) as temporary:
        stores = StateDirectory(Path(temporary, STORES))
        stores.root.mkdir()
        with closing(LocalExperiments(stores)) as copy:
            experiments.copy_experiment(experiment.uid, copy)
            copy.save(experiment.uid, Changes(experiment=experiment))
        _copy_study(experiment, url, stores.storage_url)
        databases = (stores.controller_db, stores.studies_db)
        entries = [(path, f"{STORES}/{path.name}") for path in databases] + _entries(folder)
        manifest = {
            "format": FORMAT,
            "tuner": VERSION,
            "uid": experiment.uid,
            "namespace": experiment.namespace,
            "name": experiment.name,
            "files": len(entries),
            "host": os.uname().nodename,
            "time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        listed = Path(temporary, MANIFEST)
        listed.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        partial = Path(temporary, target.name)
        with _private(partial) as file:
            with tarfile.open(fileobj=file, mode="w:gz", compresslevel=6) as archive:
                for path, name in [(listed, MANIFEST), *entries]:
                    _add(archive, path, name)
            file.flush()
            os.fsync(file.fileno())
        failpoints.reach(_BEFORE_NAMED)
        partial.rename(target)
        failpoints.reach(_AFTER_NAMED)


def _refuse_existing(target: Path) -> None:
    if target.exists():
        raise AlreadyExists(f"{target}: already exists; name another file with --to")


@contextmanager
def _partial_folder(target: Path) -> Iterator[str]:
    """Yield a folder beside a file that is written, and remove those of killed commands.

    Raises AlreadyExists: another command writes the file now, or has just written it.
    """
    prefix = f".{target.name}.partial-"
    # Lock before looking: two commands that begin at once cannot miss each other.
    with (
        tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent) as temporary,
        _locked(Path(temporary), target),
    ):
        for leftover in target.parent.glob(f"{glob.escape(prefix)}*"):
            if leftover.name != Path(temporary).name:
                with _locked(leftover, target):
                    shutil.rmtree(leftover, ignore_errors=True)
        _refuse_existing(target)
        yield temporary


@contextmanager
def _locked(folder: Path, target: Path) -> Iterator[None]:
    """Hold the lock of a folder, which the kernel frees when its command dies."""
    with ExitStack() as undo:
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
            undo.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, FileNotFoundError) as error:
            raise AlreadyExists(
                f"{target}: another command is writing it; name another file with --to"
            ) from error
        yield


def _private(path: Path) -> IO[bytes]:
    """Create a file for its owner only: the files of people may have secrets."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    return os.fdopen(descriptor, "wb")


def _copy_study(experiment: Experiment, source: str, target: str) -> None:
    """Copy the study; a controller that was killed early has not created it yet."""
    with closing(admin.open_store(source)) as here, closing(admin.open_store(target)) as there:
        here.copy_study(study_name(experiment), there)


def _entries(folder: Path) -> list[tuple[Path, str]]:
    """Return what is packed of an experiment's folder, with its names in the pack."""
    found = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        mode = path.lstat().st_mode
        if _is_accepted(PurePosixPath(name)) and (
            stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)
        ):
            found.append((path, str(name)))
    return found


def _is_accepted(name: PurePosixPath) -> bool:
    """Return whether a path below the experiment's folder belongs to the search."""
    of_pack = name.parts[0] in (MANIFEST, STORES)
    of_process = name.name == _PROCESS and name.parts[0] in ("trials", "final")
    return not (of_pack or of_process or name.parts[0] in _OF_MACHINE)


def _add(archive: tarfile.TarFile, path: Path, name: str) -> None:
    # Otherwise a second link to a file would be packed without its content.
    archive.inodes = {}  # type: ignore[attr-defined]  # documented nowhere, since Python 2.3
    info = archive.gettarinfo(path, name)
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    if not info.isreg():
        archive.addfile(info)
        return
    with path.open("rb") as content:
        archive.addfile(info, content)


def unpack(workspace: Workspace, source: Path) -> Unpacked:
    """Make the experiment of a pack one of this state directory. Runs nothing.

    Its trials run in the working directory from now on. A killed unpack can be repeated.

    Raises AlreadyExists, NotFound, Unavailable, FailedPrecondition, and InvalidArgument for a file
    that is not a whole pack, or has paths outside of the experiment's folder.
    """
    if is_address(workspace.service):
        raise InvalidArgument.at(
            "--server", "a pack has the rows of a store; name the server's with --storage"
        )
    with _reading(source) as archive:
        first = archive.next()
        if first is None or first.name != MANIFEST or not first.isreg():
            raise _not_a_pack(source)
        content = archive.extractfile(first)
        assert content is not None  # of a regular file
        manifest = _Manifest.read(source, content.read(_MANIFEST_BYTES))
        with workspace.opened(make=True) as experiments, ExitStack() as undo:
            _refuse_known(experiments, manifest, source)
            folder = experiments.folders(manifest.uid).root
            reserved = ExperimentService(experiments).reserve(manifest.name, uid=manifest.uid)
            # Under the lease, so that two commands do not both find it absent.
            _refuse_known(experiments, manifest, source)
            undo.callback(reserved.lease.discard)
            found = sorted(path.name for path in folder.iterdir())
            is_begun = MANIFEST in found
            if not is_begun and found != ["controller.lock"]:
                undo.pop_all()
                reserved.lease.release()
                raise AlreadyExists(
                    f"{folder} has files of an experiment that controller.db does not have; move "
                    "it away, or restore controller.db from a backup"
                )
            may_have_study = Path(folder, STORES, _COPYING).exists()
            _clear(folder)
            Path(folder, MANIFEST).touch(0o600)
            _extract(archive, source, folder, manifest)
            unpacked = _copy_stores(
                workspace, experiments, folder, manifest, source, may_have_study=may_have_study
            )
            undo.pop_all()
            failpoints.reach(_BEFORE_CLEARED)
            shutil.rmtree(Path(folder, STORES))
            Path(folder, MANIFEST).unlink()
            failpoints.reach(_AFTER_CLEARED)
            reserved.lease.release()
    return unpacked


def _refuse_known(experiments: LocalExperiments, manifest: _Manifest, source: Path) -> None:
    known = experiments.experiment(manifest.namespace, manifest.name)
    if known is None:
        return
    name = manifest.name
    if known.uid == manifest.uid:
        raise AlreadyExists(
            f"{source}: this search is here already; continue it with {command('resume', name)}, "
            f"or first delete it: {command('delete', name)}"
        )
    raise AlreadyExists(
        f"{source}: there is another experiment {name} in {manifest.namespace}; unpack into "
        f"another --state-dir, or first delete that one: {command('delete', name)}"
    )


def _clear(folder: Path) -> None:
    """Remove what a killed command extracted."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name not in ("controller.lock", MANIFEST):
            path.unlink()


def _extract(archive: tarfile.TarFile, source: Path, folder: Path, manifest: _Manifest) -> None:
    """Extract all but the manifest, which was read.

    Links are made last: no file is written through one.
    """
    links: list[tuple[Path, str]] = []
    count = 0
    for member in archive:
        if member.name == MANIFEST:
            continue
        count += 1
        name = _safe_name(member, source)
        path = folder / name
        if member.isdir():
            path.mkdir(mode=0o755, parents=True, exist_ok=True)
        elif member.isreg():
            path.parent.mkdir(parents=True, exist_ok=True)
            content = archive.extractfile(member)
            assert content is not None  # of a regular file
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                shutil.copyfileobj(content, file)
            path.chmod((member.mode & 0o755) | 0o600)
        elif member.issym():
            links.append((path, member.linkname))
        else:
            raise _damaged(source, f"{member.name} is not a file, a folder or a symbolic link")
    # The checksum of all content is at the end of the file.
    assert archive.fileobj is not None
    while archive.fileobj.read(_READ_BYTES):
        pass
    if count != manifest.files:
        raise _damaged(source, f"it has {count} of {manifest.files} files")
    for path, to in links:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(to)


def _safe_name(member: tarfile.TarInfo, source: Path) -> PurePosixPath:
    """Return the path of a member below the folder. Raises InvalidArgument for one outside."""
    name = PurePosixPath(member.name)
    is_store = name.parts in ((STORES, "controller.db"), (STORES, "studies.db"))
    is_below = bool(name.parts) and not name.is_absolute() and ".." not in name.parts
    is_known_store = is_store and member.isreg()
    if not is_below or not (is_known_store or _is_accepted(name)):
        raise _damaged(source, f"{member.name!r} is not a path that a pack may have")
    if member.issym():
        target = os.path.normpath(os.path.join(str(name.parent), member.linkname))  # noqa: PTH118
        if target.startswith(("..", "/")):
            raise _damaged(
                source, f"{member.name!r} is a link to {member.linkname!r}, outside of the pack"
            )
    return name


def _copy_stores(
    workspace: Workspace,
    experiments: LocalExperiments,
    folder: Path,
    manifest: _Manifest,
    source: Path,
    *,
    may_have_study: bool,
) -> Unpacked:
    """Copy the rows of the pack: the study first, then the experiment.

    may_have_study: a killed command had begun to copy the study.
    """
    stores = StateDirectory(folder / STORES)
    directory = str(working_directory())
    with ExitStack() as stack:
        with _of_pack(source):
            packed = stack.enter_context(closing(LocalExperiments(stores)))
            experiment = packed.experiment(manifest.namespace, manifest.name)
            studies = stack.enter_context(closing(admin.open_store(stores.storage_url)))
        if experiment is None or experiment.uid != manifest.uid:
            raise _damaged(source, f"{STORES}/controller.db has another experiment")
        moved = replace(experiment, directory=directory, server=workspace.service)
        note = f"unpacked from {source.name}; trials ran in {experiment.directory}"
        event = Event(datetime.now(UTC), "moved", f"{note}, and run in {directory} from now on")
        packed.save(moved.uid, Changes(experiment=moved, events=(event,)))
        url = workspace.state.url_of(workspace.service)
        with closing(admin.open_store(url)) as target:
            if not may_have_study and target.study(study_name(experiment)) is not None:
                raise AlreadyExists(
                    f"{source}: the {described(workspace.service)} has the study of this search "
                    "already; name another store with --storage"
                )
            Path(stores.root, _COPYING).touch()
            if target.study(study_name(experiment)) is None:
                studies.copy_study(study_name(experiment), target)
        packed.copy_experiment(moved.uid, experiments)
    return Unpacked(moved, experiment.directory)


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unavailable(f"{error.filename or target}: {error.strerror}") from error


@contextmanager
def _reading(source: Path) -> Iterator[tarfile.TarFile]:
    """Open a pack. Raises InvalidArgument in place of the errors of a file that is not whole."""
    try:
        file: IO[bytes] = source.open("rb")
    except FileNotFoundError as error:
        raise NotFound(f"{source}: there is no such file") from error
    except IsADirectoryError as error:
        raise InvalidArgument.at(
            str(source), "is a folder; name the file that pack wrote"
        ) from error
    except OSError as error:
        raise Unavailable(f"{source}: {error.strerror}") from error
    with file:
        try:
            with tarfile.open(fileobj=file, mode="r:gz") as archive:
                yield archive
        except (EOFError, zlib.error, tarfile.ReadError) as error:
            if file.tell() == 0 or isinstance(error.__context__, OSError):
                raise _not_a_pack(source) from error
            raise _damaged(source, f"it is cut short or was changed ({error})") from error
        except OSError as error:
            if error.errno is None:
                # BadGzipFile
                raise _not_a_pack(source) from error
            raise Unavailable(f"{error.filename or source}: {error.strerror}") from error


@contextmanager
def _of_pack(source: Path) -> Iterator[None]:
    try:
        yield
    except StoreBroken as error:
        raise _damaged(source, str(error)) from error


def _damaged(source: Path, why: str) -> InvalidArgument:
    return InvalidArgument.at("", f"{source}: {why}; pack the search again, or copy the file again")


def _not_a_pack(source: Path) -> InvalidArgument:
    return InvalidArgument.at(
        "", f"{source}: is not a file of tuner pack, or its beginning is lost; copy it again"
    )
