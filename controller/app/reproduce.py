"""Run one trial of an experiment again as it ran: `tuner reproduce`.

The trial runs with its parameters, its seed and the revision of the file with which it ran, and
with the code and the image of its records. What of its surroundings is otherwise here is said, and
the command is refused if another program would run. The code is the folder of the experiment if
that has not changed since, else a worktree of the recorded commit with the recorded changes.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from controller.app import query
from controller.app.experiment_file import working_directory
from controller.app.git import git
from controller.app.rerun import Reruns, derived, refuse_number, refuse_others
from controller.app.surroundings import GitState, gpus, packages_of, tracked_state
from controller.app.untracked import are_unchanged, restore
from controller.app.workspace import ReadableWorkspace, Workspace
from controller.core.model import (
    FINAL,
    Attempt,
    AttemptState,
    Experiment,
    Uid,
    by_trial,
    uid_of_resource,
)
from controller.phrases import command, quantity
from controller.report.confirmation import name_of_reruns
from controller.report.record import TrialRecord
from controller.runtime.launch import trial_seed
from controller.runtime.registry import traits_of
from suggest.errors import FailedPrecondition, Unavailable
from suggest.trial import TrialState

Json = dict[str, Any]

PATIENCE_S = 60.0  # for git, when nothing else waits
MOST_PACKAGES = 5  # that differ, in a message
_CHECKOUT, _READY = "checkout", "checkout.ready"
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_DIRTY_SUBMODULE = re.compile(
    rb"^\+\+\+ b/(.*)\n@@ .*\n-Subproject commit .*\n\+Subproject commit [0-9a-f]+-dirty$", re.M
)
_STORED = re.compile(r"(?:patches|packages|untracked)/([0-9a-f]{16})\.(?:patch|txt|zip)")


@dataclass(frozen=True, slots=True)
class Reproduction:
    """The experiment with the reruns of one trial, and what people should know of it.

    recorded: the trial's values in the search, by metric.
    notes: what of the trial's surroundings is had, and what is not.
    """

    reruns: Reruns
    uid: Uid
    number: int
    recorded: Mapping[str, float]
    notes: Sequence[str]


@dataclass(slots=True)
class _AttemptRecords:
    """What was recorded of an attempt, in files below the folder of its experiment."""

    root: Path
    provenance: Json
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, root: Path, folder: Path) -> _AttemptRecords:
        try:
            provenance = json.loads((folder / "provenance.json").read_bytes())
            if not isinstance(provenance, dict):
                raise ValueError
        except (OSError, ValueError):
            return cls(root, {}, ["no provenance.json is left of it: it runs as the file says"])
        return cls(root, provenance)

    @property
    def git(self) -> Json:
        found = self.provenance.get("git")
        return found if isinstance(found, dict) else {}

    def stored_of_git(self, key: str) -> bytes:
        """Return a file that the record of the checkout names; empty if it names none."""
        name = self.git.get(key)
        return b"" if name is None else self.stored(name)

    def stored(self, name: object) -> bytes:
        """Return a file that is named by its content. Raises FailedPrecondition."""
        match = _STORED.fullmatch(str(name))
        try:
            content = (self.root / str(name)).read_bytes() if match else b""
        except OSError:
            content = b""
        if match is None or hashlib.sha256(content).hexdigest()[:16] != match[1]:
            raise FailedPrecondition(
                f"{self.root / str(name)}: is missing, or was changed since it was recorded; "
                "restore it, or unpack the experiment's pack again"
            )
        return content


async def reproducing(
    workspace: ReadableWorkspace, name: str, namespace: str | None, number: int, *, times: int
) -> Reproduction:
    """Return the experiment that runs trial `number` again, `times` times.

    Raises NotFound, InvalidArgument, and FailedPrecondition for a trial that never succeeded, or
    whose code is gone.
    """
    refuse_number("--times", times, least=1)
    record = await query.look_up(workspace, name, namespace, trial=number)
    search, entry = record.experiment, query.find_trial(record, number)
    attempt = _succeeded(entry, search)
    name, uid = name_of_reruns(search.name, f"-reproduce-{number}"), _uid_of(search, number)
    if isinstance(workspace, Workspace):
        as_it_was, records, directory = await _as_it_ran(workspace, search, attempt, name, uid)
    else:
        as_it_was, records, directory = search, _AttemptRecords(Path(), {}, []), Path()
        if search.revision > 1:
            records.notes.append(f"it runs by revision {search.revision} of the file, in force now")
    changes = _image(as_it_was, attempt, records)
    _compare(as_it_was, records)
    seeds = [trial_seed(search, number)] * times
    reruns = derived(
        as_it_was, name, [entry.trial], seeds, directory=str(directory), changes=changes
    )
    refuse_others(workspace, reruns)
    return Reproduction(reruns, uid, number, values_of(entry, search), records.notes)


async def differences(workspace: ReadableWorkspace, reruns: Reruns) -> list[str]:
    """Return what new reruns of the best trials have otherwise than these: code, `spec.trial`.

    The recorded values are then of another program than the means. Nothing is returned of reruns
    that have begun, and where trials run in containers or call a stored function.
    """
    search, spec = reruns.search, reruns.file.document.spec
    trial = search.spec.trial
    is_elsewhere = traits_of(search.spec.runtime).in_containers or trial.calls_function
    if is_elsewhere or not isinstance(workspace, Workspace) or spec.rerun is None:
        return []
    with workspace.opened() as experiments:
        if experiments.experiment(spec.namespace, spec.name) is not None:
            return []
        folders = experiments.folders(search.uid)
        trials_of = {each.number: each.spec.trial for each in experiments.revisions(search.uid)}
        attempts = by_trial((each.trial, each) for each in experiments.attempts(search.uid))
    now = await tracked_state(Path(search.directory), within_s=PATIENCE_S)
    other_code, unknown_code, other_trial = list[str](), list[str](), list[str]()
    for number in spec.rerun.trials:
        succeeded = [a for a in attempts.get(number, ()) if a.state is AttemptState.SUCCEEDED]
        if not succeeded:
            continue
        place = folders.attempt(number, succeeded[-1].number).root
        records = _AttemptRecords.of(folders.root, place)
        if "commit" in records.git:
            try:
                is_told = "dirty" in now.record
                if is_told and not _is_unchanged(records, now, Path(search.directory)):
                    other_code.append(str(number))
            except FailedPrecondition:
                is_told = False
            if not is_told:
                unknown_code.append(str(number))
        if trials_of.get(records.provenance.get("revision", 0), trial) != trial:
            other_trial.append(str(number))
    notes = []
    if other_code:
        notes.append(
            f"{search.directory} has other code now than trial {', '.join(other_code)} ran: the "
            "recorded values are of that code, and the means of this one"
        )
    if unknown_code:
        why = "git does not show its changes, or the record is damaged"
        if not now.record:
            why = "git finds no commit there"
        notes.append(
            f"{search.directory} may have other code than trial {', '.join(unknown_code)} ran: "
            f"{why}"
        )
    if other_trial:
        notes.append(
            f"trial {', '.join(other_trial)} ran by an earlier spec.trial, and the reruns run by "
            "the present one"
        )
    if notes:
        notes.append(f"to run one as it ran: {command('reproduce', f'{search.name}/N')}")
    return notes


def _is_unchanged(records: _AttemptRecords, now: GitState, here: Path) -> bool:
    """Return whether a checkout has the recorded commit, changes and untracked files.

    What git did not tell when an attempt began is taken for no change.
    Raises FailedPrecondition if a file of the record is damaged.
    """
    recorded = {"dirty": False, **records.git}
    keys = ("commit", "dirty", "patchBytes")
    is_same = all(now.record.get(key) == recorded.get(key) for key in keys)
    if not is_same or now.patch != records.stored_of_git("patch"):
        return False
    depth = len(Path(str(now.record["folder"])).parts)
    top = here.resolve().parents[depth - 1] if depth else here
    files = records.stored_of_git("untrackedFiles")
    return not files or are_unchanged(files, top)


def values_of(entry: TrialRecord, experiment: Experiment) -> dict[str, float]:
    """Return the values of all objectives, by metric; empty if the trial has not succeeded."""
    trial = entry.trial
    if entry.state is not TrialState.SUCCEEDED or trial.value is None:
        return {}
    metrics = [objective.metric for objective in experiment.spec.criteria.objectives]
    return dict(zip(metrics, (trial.value, *trial.further), strict=False))


def _uid_of(search: Experiment, number: int) -> Uid:
    """Return the uid of the experiment that reproduces a trial, by which its folder is known."""
    return uid_of_resource(f"{search.uid}/{number}")


async def _as_it_ran(
    workspace: Workspace, search: Experiment, attempt: Attempt, name: str, uid: Uid
) -> tuple[Experiment, _AttemptRecords, Path]:
    """Return the search by the revision of the attempt, its records, and the folder of its code.

    name, uid: of the experiment with the reruns.
    """
    assert attempt.trial is not FINAL
    with workspace.opened() as experiments:
        folders = experiments.folders(search.uid)
        of_attempt = folders.attempt(attempt.trial, attempt.number)
        records = _AttemptRecords.of(folders.root, of_attempt.root)
        revisions = {each.number: each for each in experiments.revisions(search.uid)}
        known = experiments.experiment(search.namespace, name)
        root = experiments.folders(uid).root
    revision = revisions.get(records.provenance.get("revision", 0))
    as_it_was = search if revision is None else replace(search, spec=revision.spec)
    if known is not None and known.uid == uid:
        return as_it_was, records, Path(known.directory)
    if search.spec.trial.calls_function:
        records.notes.append(
            "code: the function as it was last stored with the search; modules that it imports are "
            "as they are now"
        )
        return as_it_was, records, Path(search.directory)
    return as_it_was, records, await _code(search, records, root)


def _succeeded(entry: TrialRecord, search: Experiment) -> Attempt:
    """Return the attempt that gave the trial its value. Raises FailedPrecondition."""
    name = f"trial {entry.trial.number} of {search.name}"
    if not entry.attempts:
        raise FailedPrecondition(
            f"{name} did not run here: it was imported or has not begun; reproduce it where it ran"
        )
    succeeded = [attempt for attempt in entry.attempts if attempt.state is AttemptState.SUCCEEDED]
    if entry.state is not TrialState.SUCCEEDED or not succeeded:
        reason = f" ({entry.trial.reason})" if entry.trial.reason else ""
        described = command("describe", f"{search.name}/{entry.trial.number}")
        raise FailedPrecondition(
            f"{name} never succeeded, it is {entry.state.value}{reason}; so there is no value to "
            f"reproduce. See {described}"
        )
    return succeeded[-1]


async def _code(search: Experiment, records: _AttemptRecords, root: Path) -> Path:
    """Return the folder with the code of the attempt. Raises FailedPrecondition if it is gone."""
    here, recorded = Path(search.directory), records.git
    commit = str(recorded.get("commit", ""))
    if not commit:
        refused = await _refusal(here)
        records.notes.append(
            f"no commit was recorded: the code is that of {here} as it is now{refused}"
        )
        return here
    if not _COMMIT.fullmatch(commit):
        raise FailedPrecondition(
            f"provenance.json has {commit!r}, which is not a commit; it was changed since"
        )
    patch = records.stored_of_git("patch")
    if recorded.get("dirty") and not patch:
        records.notes.append(
            f"its code differed from commit {commit[:12]}, by more than is recorded (4 MiB)"
        )
    if "dirty" not in recorded:
        records.notes.append(
            f"its code may have differed from commit {commit[:12]}: git failed, or took too long "
            "to say"
        )
    files = records.stored_of_git("untrackedFiles")
    if submodules := sorted(set(_DIRTY_SUBMODULE.findall(patch))):
        listed = b", ".join(submodules).decode(errors="replace")
        records.notes.append(f"changes within submodules were not recorded: {listed}")
    # A folder that was renamed or removed since may still be below its checkout.
    place = next(each for each in (here, *here.parents) if each.is_dir())
    now = await tracked_state(place, within_s=PATIENCE_S)
    if not now.record and not await _is_repository(place):
        # The checkout was renamed, or is another clone.
        place = working_directory()
        now = await tracked_state(place, within_s=PATIENCE_S)
    with_changes = " with the recorded changes" if patch else ""
    if place == here and _is_unchanged(records, now, here):
        records.notes.append(f"code: commit {commit[:12]}{with_changes}, as it is in {here}")
        return here
    if not now.record and not await _is_repository(place):
        if refused := await _refusal(here):
            raise FailedPrecondition(
                f"{here}: the trial ran commit {commit}, which cannot be checked{refused}; correct "
                "this and repeat the command"
            )
        raise FailedPrecondition(
            f"{here}: is not in a git checkout, and the trial ran commit {commit}; clone its "
            "repository there, or change to a checkout of it, and repeat this"
        )
    await _check_commit(place, commit)
    checkout = root / _CHECKOUT
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    async with _alone_in(root):
        if not (root / _READY).exists():
            await _check_out(place, commit, patch, records, checkout)
            try:
                if files:
                    restore(files, checkout)
                (root / _READY).touch()
            except OSError as error:
                raise Unavailable(
                    f"{error.filename or checkout}: {error.strerror}; correct this, such as by "
                    "freeing space, and repeat the command"
                ) from error
    folder = checkout / str(recorded.get("folder", ""))
    if not folder.resolve().is_relative_to(checkout.resolve()) or not folder.is_dir():
        raise FailedPrecondition(f"{folder}: commit {commit[:12]} does not have this folder")
    records.notes.append(
        f"code: commit {commit[:12]}{with_changes}, in {checkout}; {_of_untracked(recorded)}"
    )
    if (checkout / ".gitmodules").exists():
        records.notes.append(
            f"its submodules are empty in {checkout}; if trials need them, run there: "
            "git submodule update --init --recursive"
        )
    return folder


async def _is_repository(folder: Path) -> bool:
    """Return whether git finds a repository, though perhaps no commit: of a new orphan branch."""
    try:
        code, _, _ = await git(folder, "rev-parse", "--git-dir")
    except OSError:
        return False
    return code == 0


async def _refusal(here: Path) -> str:
    """Return why git does not look at a folder that is in a checkout; "" if there is no reason."""
    try:
        _, _, err = await git(here, "rev-parse", "HEAD")
    except OSError:
        return "; git is not installed"
    first = err.decode(errors="replace").partition("\n")[0].removeprefix("fatal: ")
    return f"; git: {first}" if "dubious ownership" in first else ""


def _of_untracked(recorded: Json) -> str:
    """Say which files that git does not track are in a worktree."""
    found = recorded.get("untracked")
    if not isinstance(found, dict):
        return "files that git does not track, such as data, are not in it"
    if not found:
        return "files that git ignores, such as data, are not in it"
    said = f"it has {quantity(found.get('count', 0), 'recorded file')} that git does not track"
    if left_out := found.get("leftOut"):
        first = ", ".join(left_out["first"])
        more = left_out["count"] - len(left_out["first"])
        rest = f" and {more} more" if more else ""
        said += f"; not recorded, and not in it: {first}{rest}"
    return f"{said}; files that git ignores, such as data, are not in it"


@asynccontextmanager
async def _alone_in(folder: Path) -> AsyncIterator[None]:
    """Wait until no other command makes the worktree in this folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(0.1)
        yield
    finally:
        os.close(descriptor)


async def _check_commit(here: Path, commit: str) -> None:
    code, _, _ = await git(here, "cat-file", "-e", f"{commit}^{{commit}}")
    if code != 0:
        raise FailedPrecondition(
            f"{here}: its repository has no commit {commit} any more, which the trial ran "
            f"(rebased, or of another clone); fetch it and repeat: git fetch origin {commit}"
        )


async def _check_out(
    here: Path, commit: str, patch: bytes, records: _AttemptRecords, checkout: Path
) -> None:
    """Make a worktree of the commit with the changes; one that is incomplete is made again."""
    shutil.rmtree(checkout, ignore_errors=True)
    # Hooks are the person's, and may do anything. Twice --force replaces what a killed git has
    # locked; `prune` would remove the person's own worktrees on a disk that is not mounted.
    add = ("-c", "core.hooksPath=/dev/null", "worktree", "add", "--quiet", "--force", "--force")
    code, _, err = await git(here, *add, "--detach", str(checkout), commit)
    if code != 0:
        raise FailedPrecondition(
            f"{here}: git worktree add: {_first_and_last(err)}; correct this, such as by freeing "
            "space or installing a filter that it names, and repeat the command"
        )
    if not patch:
        return
    file = records.root / str(records.git["patch"])
    code, _, err = await git(checkout, "apply", "--whitespace=nowarn", str(file))
    if code != 0:
        await git(here, "worktree", "remove", "--force", str(checkout))
        raise FailedPrecondition(
            f"{file}: does not apply to commit {commit[:12]}: {_last_line(err)}; apply what fits "
            "by hand in a checkout, and run the trial's parameters there"
        )


async def remove_worktree(root: Path) -> None:
    """Remove the worktree in an experiment's folder, if any, also from its repository's list."""
    checkout = root / _CHECKOUT
    if (checkout / ".git").is_file():
        # Without git, or if the repository is gone, there is no list to keep.
        with suppress(OSError):
            await git(checkout, "worktree", "remove", "--force", "--force", str(checkout))


def _first_and_last(text: bytes) -> str:
    """Return the line that names the cause, and that of the failure, if it is another one."""
    first, *rest = text.decode(errors="replace").strip().splitlines() or ["no message"]
    return f"{first} … {rest[-1]}" if rest else first


def _last_line(text: bytes) -> str:
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no message"


def _image(search: Experiment, attempt: Attempt, records: _AttemptRecords) -> Json:
    """Return the change that pins the image, on a cluster."""
    if not traits_of(search.spec.runtime).in_containers:
        return {}
    image = attempt.image
    if "@sha256:" not in image:
        shown = image or search.spec.trial.image or "of the template"
        records.notes.append(
            f"the image {shown} was recorded without a digest, and may be another one by now"
        )
        return {}
    if not search.spec.trial.image:
        records.notes.append(f"the template's image runs; recorded was {image}")
        return {}
    records.notes.append(f"image: {image}")
    return {"image": image}


def _compare(search: Experiment, records: _AttemptRecords) -> None:
    """Note what this machine has otherwise than the one on which the trial ran."""
    if traits_of(search.spec.runtime).in_containers or not records.provenance:
        return
    was = records.provenance
    here = f"{platform.system()} {platform.release()} {platform.machine()}"
    for what, before, now in (
        ("python", was.get("python"), platform.python_version()),
        ("platform", was.get("platform"), here),
        ("GPUs", ", ".join(was.get("gpus", [])), ", ".join(gpus())),
    ):
        if before and before != now:
            records.notes.append(f"{what}: {before} recorded, {now or 'none'} here")
    if "packages" not in was:
        records.notes.append("its packages were not recorded")
        return
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    recorded = set(records.stored(was["packages"]).decode(errors="replace").split())
    found = set(packages_of([str(word) for word in was.get("command", [])], path))
    changed = sorted(recorded - found)
    more = sorted(_names(found - recorded) - _names(changed))
    if changed:
        listed = ", ".join(changed[:MOST_PACKAGES])
        rest = f" and {len(changed) - MOST_PACKAGES} more" if len(changed) > MOST_PACKAGES else ""
        records.notes.append(
            f"{quantity(len(changed), 'package')} recorded in another version, or missing here: "
            f"{listed}{rest}; all: {records.root / str(was['packages'])}"
        )
    if more:
        records.notes.append(f"{quantity(len(more), 'package')} more here: {', '.join(more[:5])}")


def _names(packages: Iterable[str]) -> set[str]:
    return {each.partition("==")[0] for each in packages}
