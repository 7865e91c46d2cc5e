"""Pack a search into one file, and unpack it in another state directory, where it continues.

A pack is a tar archive, compressed by gzip:

    pack.json                           first: the format of the pack, and which search it has
    stores/controller.db  studies.db    stores with the rows of this search only
    experiment.yaml  trials/0/1/log.txt ...
                                        its folder, without the files of processes of this machine
    files/train.py ...                  spec.trial.files of a search whose trials run in containers

A pack gets its name when it is complete. `unpack` extracts into the folder of the experiment. While
that has a `pack.json`, the experiment may be incomplete, and the same command starts over; the rows
in controller.db, by which other commands find the experiment, are written last.

The rows are those of one moment. Those of an experiment that runs are what a controller leaves that
is killed at that moment. The local processes that run then are not in the pack: their attempts are
interrupted in it, and their trials run again.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import gzip
import io
import json
import os
import re
import shutil
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import IO, Any

from controller.app import cluster_changes
from controller.app.cluster_workspace import ClusterExperiments
from controller.app.controller_api import ControllerApi
from controller.app.experiment_file import working_directory
from controller.app.experiment_service import ExperimentService
from controller.app.experiments import ControlledElsewhere, find
from controller.app.local_experiments import LocalExperiments
from controller.app.service_names import described, is_address
from controller.app.state_directory import StateDirectory
from controller.app.workspace import Workspace
from controller.core.model import (
    FUNCTION_ARCHIVE,
    KATIB_SUFFIX,
    UID_LENGTH,
    Attempt,
    AttemptState,
    Event,
    Experiment,
    Revision,
    StopCause,
    short_name,
    trial_label,
)
from controller.core.states import Ended, StopAsked, step
from controller.experiment_store import Changes
from controller.folders import MOVED
from controller.phrases import command
from controller.runtime.registry import traits_of
from controller.runtime.trial_files import TrialFiles
from controller.search import study_name
from controller.spec import file_text, from_document, unknown_keys
from suggest import failpoints
from suggest.distribution import VERSION
from suggest.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    StoreBroken,
    Unavailable,
    UnknownSchema,
)
from suggest.server import admin

Json = dict[str, Any]

FORMAT = 1
MANIFEST, STORES, FILES = "pack.json", "stores", "files"
# Begun when the store had no study of this name: one that is found later is this pack's.
_COPYING = "copying"
_MANIFEST_BYTES, _WRITTEN_MANIFEST_BYTES, _READ_BYTES = 1 << 16, 1 << 11, 1 << 20
_MOST_NAMED = 3  # links, in a message
_TRIES = 100  # to read both stores while nothing happens in between
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
        MOVED,
    }
)
_PROCESS = "process.json"
# Why a path of a damaged pack cannot be written; other reasons are those of the disk.
_BAD_NAME = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)

_NAMED = failpoints.register("controller.pack.named")
_CLEARED = failpoints.register("controller.pack.cleared")


@dataclass(frozen=True, slots=True)
class Packed:
    """A pack that was written: its path and size, and the attempts of the experiment.

    notes: what people should know of it.
    """

    path: Path
    size: int
    attempts: int
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Unpacked:
    """An experiment that was unpacked. notes: where its trials run from now on."""

    experiment: Experiment
    notes: Sequence[str]


class _Changed(Exception):
    """Something has happened between the readings of the two stores."""


@dataclass(frozen=True, slots=True)
class _Manifest:
    uid: str
    namespace: str
    name: str
    files: int
    made_by: str  # the version of tuner

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
                made_by,
            )
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise _not_a_pack(source) from error
        # It becomes the name of a folder.
        if not _UID.fullmatch(manifest.uid):
            raise _damaged(source, f"{MANIFEST}: uid {manifest.uid!r} is not one of an experiment")
        return manifest


def pack(workspace: Workspace, name: str, namespace: str | None, target: Path) -> Packed:
    """Write the experiment, its study and its folder into a new file.

    Raises NotFound, AlreadyExists, Unavailable, and FailedPrecondition if its study is on a server,
    or if it runs and another controller could run the same trials.
    """
    with workspace.opened() as experiments, ExitStack() as undo:
        experiment = find(experiments, name, namespace)
        _refuse_existing(target)
        notes: tuple[str, ...] = ()
        if traits_of(experiment.spec.runtime).survives_controller:
            try:
                _, experiment = ExperimentService(experiments).leased(experiment, undo)
            except ControlledElsewhere as error:
                raise FailedPrecondition(
                    f"{experiment.name} cannot be packed while it runs: {error}"
                ) from error
        elif experiments.holder(experiment.uid) is not None:
            notes = (f"{experiment.name} continues here; trials that run now run again elsewhere",)
        url = _store_of(workspace, experiment)
        files, missing = _files_of(experiment)
        with _writing(target):
            attempts, links = write(experiments, experiment, url, target, files=files)
    notes = (*notes, *_without(missing), *_without_links(links), *_without_checkpoints(experiment))
    return Packed(target, target.stat().st_size, attempts, notes)


def pack_of_cluster(api: ControllerApi, name: str, namespace: str, target: Path) -> Packed:
    """Write an experiment of a cluster's controller into a new file; the controller packs it.

    Its files are read with the rights of the person, because the controller may not read them.
    Raises as `pack`.
    """
    experiments = ClusterExperiments(api)
    experiment = find(experiments, name, namespace)
    _refuse_existing(target)
    trial, contents = experiment.spec.trial, dict[str, bytes]()
    notes: tuple[str, ...] = ()
    try:
        sent = api.call(cluster_changes.files_of, experiment)
        contents = {} if sent is None else dict(sent.contents or {})
    except FailedPrecondition as error:
        notes = (*_without(trial.files), str(error))
    with _writing(target), _partial_folder(target) as temporary:
        downloaded, partial = Path(temporary, "downloaded"), Path(temporary, target.name)
        with _private(downloaded) as file:
            experiments.download(experiment, file)
        attempts = _write_completed(downloaded, partial, contents, experiment)
        with _NAMED:
            partial.rename(target)
    notes = (*notes, *_without_checkpoints(experiment))
    return Packed(target, target.stat().st_size, attempts, notes)


def _write_completed(
    downloaded: Path, target: Path, contents: Mapping[str, bytes], experiment: Experiment
) -> int:
    """Write a downloaded pack with the files of its trials. Return how many attempts it has.

    Raises Unavailable if it is not whole, or has trials that got other files.
    """
    digest = TrialFiles.of(contents).digest if contents else ""
    manifest: Json = {}
    count = whole = 0
    try:
        with tarfile.open(downloaded, "r:gz") as old, _compressed(target) as new:
            for member in old:
                content = old.extractfile(member) if member.isreg() else None
                if content is not None and not manifest:
                    manifest = json.loads(content.read())
                    whole = manifest["files"]
                    manifest["files"] += len(contents)
                    text = json.dumps(manifest, indent=1).encode()
                    member.size, content = len(text), io.BytesIO(text)
                new.addfile(member, content)
                count += 1
            _read_to_end(old)
            # Cut between its two archives of gzip, it seems to be whole.
            if count != whole + 1:
                raise EOFError(f"it has {count} of {whole + 1} files")
            for path, data in contents.items():
                member = tarfile.TarInfo(path if path == FUNCTION_ARCHIVE else f"{FILES}/{path}")
                member.size, member.mode = len(data), 0o600
                new.addfile(member, io.BytesIO(data))
    except (EOFError, zlib.error, tarfile.ReadError) as error:
        raise Unavailable(
            f"the download of {experiment.name} broke off ({error}); pack it again"
        ) from error
    if "attempts" not in manifest:
        raise FailedPrecondition(
            f"the controller runs tuner {manifest.get('tuner', 'of an unknown version')}, which "
            f"packs without what this version, {VERSION}, reads; update the controller"
        )
    if digest not in ("", manifest["filesDigest"]):
        raise Unavailable(f"{experiment.name} has changed while it was packed; pack it again")
    return int(manifest["attempts"])


@contextmanager
def _compressed(target: Path) -> Iterator[tarfile.TarFile]:
    """Open a new pack; at the end of the block it is on the disk."""
    with _private(target) as file:
        with tarfile.open(fileobj=file, mode="w:gz", compresslevel=6) as archive:
            yield archive
        file.flush()
        os.fsync(file.fileno())


def _without(files: Sequence[str]) -> tuple[str, ...]:
    """Return what to say of a pack that lacks these files of `spec.trial.files`."""
    if not files:
        return ()
    return (f"not in the pack: {', '.join(files)} of spec.trial.files; take them along",)


def _without_links(links: Sequence[str]) -> tuple[str, ...]:
    """Return what to say of a pack that lacks these symbolic links."""
    if not links:
        return ()
    first = ", ".join(links[:_MOST_NAMED])
    rest = f" and {len(links) - _MOST_NAMED} more" if len(links) > _MOST_NAMED else ""
    return (f"not in the pack: links to files outside of the experiment's folder: {first}{rest}",)


def _without_checkpoints(experiment: Experiment) -> tuple[str, ...]:
    """Return what to say of a pack whose checkpoints are on volumes of a cluster.

    Only a pod that mounts a volume can read it, and checkpoints may be larger than anybody wants to
    download: a pack is of what the controller has.
    """
    spec = experiment.spec
    if not traits_of(spec.runtime).in_containers:
        return ()
    sections = [each.cluster.get("checkpoints") for each in (spec.trial, spec.final) if each]
    claims = sorted({each["claim"] for each in sections if isinstance(each, Mapping)})
    if not claims:
        return ()
    folder = short_name(experiment.name, experiment.uid)
    return (
        f"checkpoints are not in the pack: they are in the folder {folder} of the claim "
        f"{' and '.join(claims)}, namespace {experiment.namespace}, and trials in that namespace "
        "continue from them; for another cluster, first copy the folder into a claim of that name",
    )


def _store_of(workspace: Workspace, experiment: Experiment) -> str:
    """Return the URL of the store with the experiment's study.

    Raises FailedPrecondition, and NotFound if the store that was named for a server's lacks it.
    """
    named = workspace.service
    if is_address(experiment.server) and named and not is_address(named):
        with closing(admin.open_store(named)) as store:
            if store.study(study_name(experiment)) is None:
                raise NotFound(
                    f"the {described(named)} does not have the study of {experiment.name}; name "
                    f"with --storage the store of the {described(experiment.server)}"
                )
        return named
    service = workspace.service_of(experiment)
    if is_address(service):
        raise FailedPrecondition(
            f"{experiment.name}: its study is in the {described(service)}, which gives trials and "
            "no rows; name the store of that server with --storage, or take the trials along: "
            f"{command('export', experiment.name, '--format', 'json')}"
        )
    return workspace.state.url_of(service)


def _files_of(experiment: Experiment) -> tuple[dict[str, Path], list[str]]:
    """Return the files that trials in containers get, and those of them that are gone."""
    if not traits_of(experiment.spec.runtime).in_containers:
        return {}, []
    places = {path: Path(experiment.directory, path) for path in experiment.spec.trial.files}
    files = {path: place for path, place in places.items() if place.is_file()}
    return files, [path for path in places if path not in files]


def write(
    experiments: LocalExperiments,
    experiment: Experiment,
    url: str,
    target: Path,
    *,
    context: str | None = None,
    files: Mapping[str, Path] = MappingProxyType({}),
) -> tuple[int, list[str]]:
    """Write the pack of an experiment, which may run. May take long.

    Return how many attempts it has, and the symbolic links that it lacks, because they lead out of
    the experiment's folder.

    url: of the store with its study. context: the cluster that a cluster's own controller calls so.
    files: of `spec.trial.files`, by their paths there.

    Raises NotFound if it was deleted meanwhile, and Unavailable.
    """
    folder = experiments.folders(experiment.uid).root.resolve()
    links: list[str] = []
    with _partial_folder(target) as temporary:
        stores = StateDirectory(Path(temporary, STORES))
        stores.root.mkdir()
        _copy_rows(experiments, experiment, url, stores)
        with closing(LocalExperiments(stores)) as copy:
            packed = _adapted(copy, experiment, context)
            attempts = copy.attempts(packed.uid)
        databases = (stores.controller_db, stores.studies_db)
        entries = [(path, f"{STORES}/{path.name}") for path in databases]
        entries += _entries(folder, attempts)
        entries += [(place, f"{FILES}/{path}") for path, place in files.items()]
        manifest: Json = {
            "format": FORMAT,
            "tuner": VERSION,
            "uid": packed.uid,
            "namespace": packed.namespace,
            "name": packed.name,
            "attempts": len(attempts),
            "filesDigest": packed.spec.trial.files_digest,
            # Known at the end: what programs write while they run may go away meanwhile.
            "files": 0,
            "host": os.uname().nodename,
            "time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        partial = Path(temporary, target.name)
        with _private(partial) as file:
            file.write(_head(manifest))
            with tarfile.open(fileobj=file, mode="w:gz", compresslevel=6) as archive:
                for path, name in entries:
                    if path.is_symlink() and _link_within(path, folder) is None:
                        links.append(name)
                    else:
                        manifest["files"] += _add(archive, path, name, folder)
            file.seek(0)
            file.write(_head(manifest))
            file.flush()
            os.fsync(file.fileno())
        with _NAMED:
            partial.rename(target)
    return len(attempts), links


def _head(manifest: Json) -> bytes:
    """Return the beginning of a pack, which is always as long: the manifest, by itself.

    Archives of gzip may follow each other.
    """
    text = json.dumps(manifest, indent=1).encode().ljust(_WRITTEN_MANIFEST_BYTES) + b"\n"
    info = tarfile.TarInfo(MANIFEST)
    info.size, info.mode = len(text), 0o600
    padding = bytes(-len(text) % tarfile.BLOCKSIZE)
    return gzip.compress(info.tobuf() + text + padding, compresslevel=0, mtime=0)


def _refuse_existing(target: Path) -> None:
    if target.exists():
        raise AlreadyExists(f"{target}: already exists; name another file with --to")
    if not target.parent.is_dir():
        raise NotFound(f"{target.parent}: is not a folder; create it, or name another with --to")


@contextmanager
def _partial_folder(target: Path) -> Iterator[str]:
    """Yield a folder beside a file that is written, and remove those of killed commands.

    Raises AlreadyExists: another command writes the file now, or has just written it.
    """
    prefix = _partial_prefix(target)
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
        try:
            yield temporary
        except Unavailable as error:
            path, _, why = str(error).partition(": ")
            if not path.startswith(temporary):
                raise
            raise Unavailable(f"{target}: {why}") from error


def _partial_prefix(target: Path) -> str:
    return f".{target.name}.partial-"


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


def _copy_rows(
    experiments: LocalExperiments, experiment: Experiment, url: str, stores: StateDirectory
) -> None:
    """Copy the rows of both stores as of one moment.

    The view of the study begins between two looks at the newest event, which rises with each
    change of an attempt's state. A controller that was killed early has not created the study yet.
    """
    uid = experiment.uid
    with (
        closing(admin.open_store(url)) as studies,
        closing(admin.open_store(stores.storage_url)) as studies_copy,
        closing(LocalExperiments(stores)) as copy,
    ):
        for _ in range(_TRIES):
            newest = experiments.newest_event(uid)

            def copy_experiment(newest: int = newest) -> None:
                if not experiments.copy_experiment(uid, copy, while_newest=newest):
                    raise _Changed

            with suppress(_Changed):
                studies.copy_study(study_name(experiment), studies_copy, on_view=copy_experiment)
                return
    raise Unavailable(f"{experiment.name} changes all the time; pack it again")


def _adapted(copy: LocalExperiments, experiment: Experiment, context: str | None) -> Experiment:
    """Return the packed experiment as it can run elsewhere, and store it so.

    One of Katib's gets the native file that `tuner convert` makes of its own.
    """
    packed = copy.experiment(experiment.namespace, experiment.name)
    if packed is None:
        raise NotFound(f"{experiment.name} was deleted while it was packed")
    if context is not None:
        packed = replace(packed, context=context)
    if not packed.name.endswith(KATIB_SUFFIX):
        running = [each for each in copy.attempts(packed.uid) if not each.ended]
        if traits_of(packed.spec.runtime).survives_controller:
            running = []
        copy.save(packed.uid, Changes(packed, [*map(_interrupted, running)]))
        return packed
    revisions = [_native(revision) for revision in copy.revisions(packed.uid)]
    packed = replace(packed, spec=revisions[-1].spec)
    copy.rename(packed, revisions)
    return packed


def _interrupted(attempt: Attempt) -> Attempt:
    reason = "it ran when the search was packed"
    stopping = step(attempt, StopAsked(StopCause.INTERRUPTED, reason))
    # Whatever it was asked to stop for: its trial runs again.
    stopping = replace(stopping, stop_cause=StopCause.INTERRUPTED)
    return step(stopping, Ended(AttemptState.CANCELLED, datetime.now(UTC), reason=reason))


def _native(revision: Revision) -> Revision:
    name = revision.spec.name.removesuffix(KATIB_SUFFIX)
    document: Json = dict(revision.spec.document)
    document["metadata"] = {**document["metadata"], "name": name}
    return replace(revision, spec=from_document(document), file_text=file_text(document))


def _entries(folder: Path, attempts: Sequence[Attempt]) -> list[tuple[Path, str]]:
    """Return what is packed of an experiment's folder, with its names in the pack."""
    known = {(trial_label(attempt.trial), str(attempt.number)) for attempt in attempts}
    found = []
    for path in sorted(folder.rglob("*")):
        name = PurePosixPath(path.relative_to(folder))
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            continue
        is_kind = stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)
        if is_kind and _is_accepted(name) and _is_of(name, known) and name.parts[0] != FILES:
            found.append((path, str(name)))
    return found


def _is_of(name: PurePosixPath, attempts: Collection[tuple[str, str]]) -> bool:
    """Return whether a path is not that of an attempt that began later, or is half written."""
    parts = name.parts[1:] if name.parts[0] == "trials" else name.parts
    if len(parts) < 2 or not parts[1].isdecimal():
        return True
    is_half = len(parts) == 3 and name.suffix == ".partial"
    return parts[:2] in attempts and not is_half


def _is_accepted(name: PurePosixPath) -> bool:
    """Return whether a path below the experiment's folder belongs to the search."""
    of_pack = name.parts[0] in (MANIFEST, STORES)
    of_process = name.name == _PROCESS and name.parts[0] in ("trials", "final")
    return not (of_pack or of_process or name.parts[0] in _OF_MACHINE)


def _link_within(path: Path, folder: Path) -> str | None:
    """Return the target of a link relative to the link; None if it leads out of a folder.

    No part of it is a link, so `unpack` sees where it leads.
    """
    # Path.resolve raises RuntimeError for a link to itself.
    target = Path(os.path.realpath(path))
    if not target.is_relative_to(folder):
        return None
    return os.path.relpath(target, path.parent.resolve())


def _add(archive: tarfile.TarFile, path: Path, name: str, folder: Path) -> bool:
    """Add a file of the experiment's folder or another one, and return whether it is there."""
    # Otherwise a second link to a file would be packed without its content.
    archive.inodes = {}  # type: ignore[attr-defined]  # documented nowhere, since Python 2.3
    try:
        info = archive.gettarinfo(path, name)
        content = path.open("rb") if info.isreg() else None
    except FileNotFoundError:
        return False
    except PermissionError as error:
        raise Unavailable(
            f"{path}: this user cannot read it; make it readable or remove it, and pack again"
        ) from error
    if info.issym():
        info.linkname = _link_within(path, folder) or info.linkname
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    if content is None:
        archive.addfile(info)
        return True
    with content:
        info.size = os.fstat(content.fileno()).st_size
        try:
            archive.addfile(info, content)
        except OSError as error:
            if error.errno is not None:
                raise
            raise Unavailable(f"{path} was cut short while it was packed; pack it again") from error
    return True


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
            try:
                reserved = ExperimentService(experiments).reserve(manifest.name, uid=manifest.uid)
            except ControlledElsewhere as error:
                raise AlreadyExists(
                    f"{source}: another command unpacks it into {workspace.state.root} now; wait "
                    f"for its end, then see {command('describe', manifest.name)}"
                ) from error
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
            with _writing(folder):
                _clear(folder)
                Path(folder, MANIFEST).touch(0o600)
            _extract(archive, source, folder, manifest)
            unpacked = _copy_stores(
                workspace, experiments, folder, manifest, source, may_have_study=may_have_study
            )
            undo.pop_all()
            with _CLEARED:
                shutil.rmtree(Path(folder, STORES))
                Path(folder, MANIFEST).rename(folder / MOVED)
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
    for member in _members(archive):
        if member.name == MANIFEST:
            continue
        count += 1
        name = _safe_name(member, source)
        path = folder / name
        with _named_once(source, member.name):
            if member.isdir():
                path.mkdir(mode=0o755, parents=True, exist_ok=True)
            elif member.isreg():
                path.parent.mkdir(parents=True, exist_ok=True)
                content = archive.extractfile(member)
                assert content is not None  # of a regular file
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
                    _copy(content, file, path)
                path.chmod((member.mode & 0o755) | 0o600)
            elif member.issym():
                links.append((path, member.linkname))
            else:
                raise _damaged(source, f"{member.name} is not a file, a folder or a symbolic link")
    _read_to_end(archive)
    if count != manifest.files:
        raise _damaged(source, f"it has {count} of {manifest.files} files")
    for path, to in links:
        below = path.relative_to(folder)
        with _named_once(source, str(below)):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.parent.resolve() != folder.resolve() / below.parent:
                raise _damaged(source, f"{str(below)!r} is below a link")
            path.symlink_to(to)


def _members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members. Raises ReadError, also for headers that tarfile cannot take apart."""
    try:
        yield from archive
    except (ValueError, OverflowError) as error:
        raise tarfile.ReadError(str(error)) from error


@contextmanager
def _named_once(source: Path, name: str) -> Iterator[None]:
    """Raise InvalidArgument if a member has the path of another one, or none of a file."""
    try:
        yield
    except OSError as error:
        if error.errno in _BAD_NAME:
            raise _damaged(source, f"{name[:200]!r}: {error.strerror}") from error
        raise


def _copy(content: IO[bytes], file: IO[bytes], path: Path) -> None:
    """Copy the content of a member. The errors of reading are those of a pack that is not whole."""
    while part := content.read(_READ_BYTES):
        with _writing(path):
            file.write(part)
            file.flush()


def _read_to_end(archive: tarfile.TarFile) -> None:
    """Check the whole file, whose checksum is at its end. Raises EOFError and BadGzipFile."""
    assert archive.fileobj is not None
    while archive.fileobj.read(_READ_BYTES):
        pass


def _safe_name(member: tarfile.TarInfo, source: Path) -> PurePosixPath:
    """Return the path of a member below the folder. Raises InvalidArgument for one outside."""
    name = PurePosixPath(member.name)
    is_store = name.parts in ((STORES, "controller.db"), (STORES, "studies.db"))
    is_below = bool(name.parts) and not name.is_absolute() and ".." not in name.parts
    is_known_store = is_store and member.isreg()
    if not is_below or not (is_known_store or _is_accepted(name)):
        raise _damaged(source, f"{member.name!r} is not a path that a pack may have")
    if member.issym() and not _is_below(name, member.linkname):
        raise _damaged(
            source, f"{member.name!r} is a link to {member.linkname!r}, outside of the pack"
        )
    return name


def _is_below(name: PurePosixPath, target: str) -> bool:
    """Return whether a link leads to a path below the folder, whatever other links there are."""
    parts = PurePosixPath(target).parts
    up = parts.count("..")
    is_first = all(part == ".." for part in parts[:up])
    return target[:1] not in ("", "/") and is_first and up < len(name.parts)


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
    has_files = (folder / FILES).is_dir()
    directory = str(folder / FILES if has_files else working_directory())
    with ExitStack() as stack:
        with _of_pack(source, folder, manifest):
            packed = stack.enter_context(closing(LocalExperiments(stores)))
            experiment = packed.experiment(manifest.namespace, manifest.name)
            studies = stack.enter_context(closing(admin.open_store(stores.storage_url)))
            # Before any of it is copied: a bad row would keep commands from other searches.
            packed.check()
            studies.check()
        if experiment is None or experiment.uid != manifest.uid:
            raise _damaged(source, f"{STORES}/controller.db has another experiment")
        if unknown := unknown_keys(experiment.spec.document):
            raise _of_another_version(source, manifest, f"with {', '.join(unknown)}, which")
        has_study = studies.study(study_name(experiment)) is not None
        if not has_study and packed.attempts(experiment.uid):
            raise _damaged(source, f"{STORES}/studies.db lacks the study of its trials")
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
    return Unpacked(moved, _notes(moved, experiment.directory, has_files=has_files))


def _notes(moved: Experiment, before: str, *, has_files: bool) -> list[str]:
    """Say where the trials of an unpacked experiment run, and what it needs there."""
    here, trial = moved.directory, moved.spec.trial
    if not traits_of(moved.spec.runtime).in_containers:
        return [f"its trials run in {here} from now on; it was {before}"] if here != before else []
    notes = [*_without_checkpoints(moved)]
    files = ", ".join(path for path in trial.files if path != FUNCTION_ARCHIVE)
    if has_files:
        notes.append(f"its trials get the files in {here}: {files}")
    elif files:
        notes.append(f"the pack has no files of spec.trial.files; copy to {here}: {files}")
    return notes


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        cure = "; free some space and repeat the command" if is_full else ""
        place = error.filename or target
        if _partial_prefix(target) in str(place):
            place = target
        raise Unavailable(f"{place}: {error.strerror or error}{cure}") from error


@contextmanager
def _reading(source: Path) -> Iterator[tarfile.TarFile]:
    """Open a pack. Raises InvalidArgument in place of the errors of a file that is not whole."""
    try:
        # Opening a pipe waits for its writer.
        if not stat.S_ISREG(source.stat().st_mode):
            raise InvalidArgument.at(
                str(source), "is not a regular file; name the file that pack wrote"
            )
        file: IO[bytes] = source.open("rb")
    except FileNotFoundError as error:
        raise NotFound(f"{source}: there is no such file") from error
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
                if "Not a gzipped file" in str(error):
                    raise _not_a_pack(source) from error
                raise _damaged(source, f"it was changed ({error})") from error
            raise Unavailable(f"{error.filename or source}: {error.strerror}") from error


@contextmanager
def _of_pack(source: Path, folder: Path, manifest: _Manifest) -> Iterator[None]:
    """Raise InvalidArgument in place of the errors of the stores that were extracted."""
    try:
        yield
    except UnknownSchema as error:
        raise _of_another_version(source, manifest, "with a schema that") from error
    except StoreBroken as error:
        # Without the cure, which is that of a store in use.
        why, _, _ = str(error).replace(f"{folder}/", "").partition("; ")
        raise _damaged(source, why) from error


def _of_another_version(source: Path, manifest: _Manifest, what: str) -> InvalidArgument:
    return InvalidArgument.at(
        "",
        f"{source}: tuner {manifest.made_by} wrote it {what} this version, {VERSION}, does not "
        f"know; unpack it with tuner {manifest.made_by}",
    )


def _damaged(source: Path, why: str) -> InvalidArgument:
    return InvalidArgument.at("", f"{source}: {why}; pack the search again, or copy the file again")


def _not_a_pack(source: Path) -> InvalidArgument:
    return InvalidArgument.at(
        "", f"{source}: is not a file of tuner pack, or its beginning is lost; copy it again"
    )
