"""`tuner run` and `tuner resume`: read, admit, control, and say what came of it.

Data on stdout, everything else on stderr. The order is for speed: what other processes do (git, the supervisor) is
begun before what this one must import.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Coroutine
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from controller.cli import terminal
from controller.cli.file import File
from controller.cli.home import Home
from controller.core.model import Experiment, ExperimentState
from controller.report.lines import Lines, LoggedView, Silence, View
from controller.spec import Document
from suggest.errors import AlreadyExists, InvalidArgument, Problem

if TYPE_CHECKING:
    from controller.cli.admission import Admitted, Desk, Standing
    from controller.cli.embedded import SessionClient
    from controller.cli.session import Controls
    from controller.runtime.kubernetes.client import Client
    from controller.runtime.protocol import Runtime
    from controller.store import SqlStore
    from suggest.trial import Trial


def run(arguments: argparse.Namespace) -> int:
    if arguments.dry_run:
        from controller.cli.dry_run import dry_run

        return dry_run(arguments)
    return _start(arguments, File.read(arguments.file, arguments), resume=False)


def resume(arguments: argparse.Namespace) -> int:
    from controller.cli.admission import named

    target: str = arguments.target
    by_name = named(target)
    if arguments.from_cluster and not by_name:
        raise InvalidArgument(
            [Problem("--from-cluster", "goes with the experiment's name: the file is on the cluster")]
        )
    if by_name and arguments.set:
        raise InvalidArgument([Problem("--set", "changes a file: name the file, not the experiment")])
    return _start(arguments, target if by_name else File.read(target, arguments), resume=True)


def _start(arguments: argparse.Namespace, target: File | str, *, resume: bool) -> int:
    terminal.set_up_logging(arguments)
    view = view_of(arguments)
    home = Home.find(arguments.state_dir)
    if isinstance(target, File):
        _check(target)
        say_warnings(target.document, view)
    home.make()
    from controller.spec import from_document
    from controller.store import SqlStore

    with closing(SqlStore(home.controller_db, from_document)) as store:
        return asyncio.run(Session(arguments, home, store, view).run(target, resume=resume))


def _check(file: File) -> None:
    """Raises SpecErrors: where its trials are to run, they never could."""
    if file.document.spec.runtime != "local":
        from controller.cli.preflight import check_file

        check_file(file.document)
    else:
        from controller.cli import machine

        machine.check(file.document, file.directory)


def view_of(arguments: argparse.Namespace) -> View:
    if arguments.quiet:
        return Silence()
    if arguments.verbose or arguments.log_format == "json":
        return LoggedView()
    if terminal.live(arguments):
        from controller.report.live import Live

        return Live(colour=terminal.coloured(arguments))
    return Lines()


def say_warnings(document: Document, view: View) -> None:
    from controller.cli.preflight import warnings

    for warning in warnings(document):
        view.say(f"warning: {warning}")
    if document.spec.runtime != "local":
        return
    trial = document.spec.trial
    ignored = [name for name, given in (("image", trial.image), ("memory", trial.resources.memory_bytes)) if given]
    if ignored:
        view.say(f"note: {' and '.join(ignored)}: not enforced when trials run on this machine")


@dataclass(slots=True)
class _Beside:
    """What others do while this process imports: the supervisor or the cluster answers, git says which commit it is."""

    runtime: Runtime
    git: asyncio.Task[dict[str, object]]
    _reached: asyncio.Task[object]
    checked: asyncio.Task[None] | None = None  # of a new experiment: would its cluster take it?

    @classmethod
    def begin(cls, runtime: Runtime, directory: Path, *, check: Coroutine[Any, Any, None] | None = None) -> _Beside:
        from controller.cli.provenance import git_facts

        return cls(
            runtime,
            asyncio.create_task(git_facts(directory)),
            asyncio.create_task(runtime.observe()),
            None if check is None else asyncio.create_task(check),
        )

    async def end(self) -> None:
        """Whatever became of the run; again is no error."""
        self.git.cancel()
        # The loop has met the same trouble and said so, or there was no loop.
        left = [self.git, self._reached, *([] if self.checked is None else [self.checked])]
        await asyncio.gather(*left, return_exceptions=True)
        await self.runtime.close()


_NEED_A_PERSON = frozenset({ExperimentState.PAUSED, ExperimentState.FAILED})


class Session:
    """One command's way from a file or a name to an exit code."""

    def __init__(self, arguments: argparse.Namespace, home: Home, store: SqlStore, view: View) -> None:
        self._arguments = arguments
        self._home = home
        self._store = store
        self._view = view

    async def run(self, target: File | str, *, resume: bool) -> int:
        from controller.cli.admission import Desk
        from controller.cli.session import Controls

        controls = Controls(self._view.say)
        controls.install()
        desk = Desk(self._home, self._store)
        if resume and self._arguments.from_cluster:
            assert isinstance(target, str)
            return await self._recover(target, controls)
        admitted = self._known(desk, target, resume=resume)
        if admitted is None:
            assert isinstance(target, File)
            return await self._create(target, desk, controls)
        return await self.go_on(admitted, controls)

    def _known(self, desk: Desk, target: File | str, *, resume: bool) -> Admitted | Standing | None:
        if isinstance(target, str):
            return desk.resume_name(target, self._arguments.namespace)
        if resume:
            return desk.resume_file(target.document, target.directory)
        return desk.run(target.document, target.directory)

    async def _create(self, file: File, desk: Desk, controls: Controls) -> int:
        from controller.cli import runtimes
        from controller.cli.embedded import Access, asked_for, connected
        from controller.search import study_spec

        service = asked_for(self._arguments)
        spec = file.document.spec
        place = desk.reserve(spec.name)
        beside: _Beside | None = None
        created = False
        try:
            cluster = await runtimes.connect(spec, self._arguments.context)
            runtime = runtimes.make(self._home, spec, place.uid, cluster)
            check = None if cluster is None else self._check(cluster, file.document)
            beside = _Beside.begin(runtime, file.directory, check=check)
            async with connected(service, self._home, Access.of(self._arguments)) as client:
                try:
                    await client.validate(study_spec(spec))
                except InvalidArgument as error:
                    raise file.document.locate(error.problems) from error
                if beside.checked is not None:
                    await beside.checked
                admitted = desk.create(
                    file.document, file.directory, place, service=service, context=runtimes.context_of(runtime)
                )
                created = True
                return await self._control(admitted, client, controls, beside)
        except AlreadyExists:
            if created:
                raise
        finally:
            if not created:
                if beside is not None:
                    await beside.end()
                place.give_back()
        # Two started at once, and the other was faster: now it is one that exists.
        found = desk.run(file.document, file.directory)
        assert found is not None
        return await self.go_on(found, controls)

    async def _check(self, cluster: Client, document: Document) -> None:
        from controller.cli.preflight import check_cluster

        await check_cluster(cluster, document, self._home)

    async def _recover(self, name: str, controls: Controls) -> int:
        from controller.cli import recovery, runtimes
        from controller.cli.embedded import Access, asked_for, connected
        from controller.report.figures import ranges

        arguments = self._arguments
        remains = await recovery.look(
            name, context=arguments.context, namespace=arguments.namespace, say=self._view.say
        )
        service = asked_for(arguments)
        async with connected(service, self._home, Access.of(self._arguments)) as client:
            admitted = await recovery.rebuild(
                remains, home=self._home, store=self._store, client=client, service=service, directory=Path.cwd()
            )
            self._view.say(f"{name}: found trials {ranges(remains.trials) or 'none'} on {remains.context}")
            if remains.lost:
                self._view.say(
                    f"{name}: lost with the database are trials {ranges(remains.lost)}; they count as cancelled"
                )
            beside = _Beside.begin(await runtimes.of(self._home, admitted.experiment), Path.cwd())
            return await self._control(admitted, client, controls, beside)

    async def go_on(self, admitted: Admitted | Standing, controls: Controls) -> int:
        from controller.cli import runtimes
        from controller.cli.admission import Standing
        from controller.cli.embedded import Access, asked_for, connected, same_service

        experiment = admitted.experiment
        runtimes.same_context(experiment, self._arguments.context)
        service = same_service(experiment.server, asked_for(self._arguments), experiment.name)
        if isinstance(admitted, Standing):
            for note in admitted.notes:
                self._view.say(note)
            async with connected(service, self._home, Access.of(self._arguments)) as client:
                return await self._tell_standing(experiment, client)
        for note in admitted.notes:
            self._view.say(note)
        beside = _Beside.begin(await runtimes.of(self._home, experiment), Path(experiment.directory))
        async with connected(service, self._home, Access.of(self._arguments)) as client:
            return await self._control(admitted, client, controls, beside)

    async def _control(self, admitted: Admitted, client: SessionClient, controls: Controls, beside: _Beside) -> int:
        from controller.cli.session import control, exit_code, some_succeeded

        try:
            experiment, progress = await control(
                admitted, home=self._home, store=self._store, client=client, controls=controls, view=self._view,
                runtime=beside.runtime, git=beside.git,
            )  # fmt: skip
            if experiment.state is ExperimentState.PAUSED and experiment.spec.runtime != "local":
                await self._put_away(experiment, beside.runtime)
        finally:
            await beside.end()
            admitted.lock.release()
        best = await self._best(experiment, progress.best, client)
        final_failed = self._tell(experiment, best)
        succeeded = some_succeeded(progress) or best is not None
        return exit_code(
            experiment, progress.counts, succeeded=succeeded, final_failed=final_failed, stopped=controls.exit_code
        )

    async def _best(self, experiment: Experiment, own: Trial | None, client: SessionClient) -> Trial | None:
        """Of all that its study has, imported trials too. A service that is gone by now spoils no result."""
        from controller.search import study_name
        from suggest.errors import TunerError

        with suppress(TunerError):
            for found in await client.optimal_trials(study_name(experiment)):
                return found
        return own

    async def _put_away(self, experiment: Experiment, runtime: Runtime) -> None:
        """What has failed for good may still hold room: a pod waits for ever for an image that is not there."""
        from controller.core.model import attempt_name
        from controller.runtime.kubernetes.errors import NotAllowed
        from controller.runtime.protocol import RuntimeLost

        ended = [attempt for attempt in self._store.attempts(experiment.uid) if attempt.ended]
        with suppress(RuntimeLost, NotAllowed):  # the next controller removes it
            for attempt in ended:
                await runtime.remove(attempt_name(experiment.name, experiment.uid, attempt.trial, attempt.number))

    async def _tell_standing(self, experiment: Experiment, client: SessionClient) -> int:
        from controller.cli.facts import gather
        from controller.cli.session import exit_code

        record = await gather(self._home, self._store, experiment, client)
        self._view.close(None)
        final_failed = self._tell(experiment, record.best)
        return exit_code(experiment, record.counts, succeeded=record.best is not None, final_failed=final_failed)

    def _tell(self, experiment: Experiment, best: Trial | None) -> bool:
        """Whether its final stage has failed."""
        from controller.cli.final import has_failed
        from controller.cli.invocation import rendered
        from controller.report.ending import next_step, result

        final_failed = has_failed(self._store, experiment)
        if best is not None:
            print(result(experiment, best), flush=True)
        # -q hides what is going on, not what a person must act on.
        if not self._arguments.quiet or best is None or experiment.state in _NEED_A_PERSON or final_failed:
            printed = self._printed_last(experiment)
            words = next_step(experiment, best, final_failed=final_failed, printed=printed)
            words = rendered(words, self._arguments)
            (Lines() if self._arguments.quiet else self._view).say(words)
        return final_failed

    def _printed_last(self, experiment: Experiment) -> tuple[int, list[str]] | None:
        """The trial that opened the circuit breaker, and the last lines of its log."""
        if experiment.state is not ExperimentState.PAUSED:
            return None
        newest = {attempt.trial: attempt for attempt in self._store.attempts(experiment.uid)}
        failed = [attempt for attempt in newest.values() if attempt.rerun and attempt.end_time is not None]
        last = max(failed, key=lambda attempt: (attempt.end_time, attempt.trial), default=None)
        if last is None:
            return None
        log = self._home.folders(experiment.uid).attempt(last.trial, last.number).log
        return last.trial, last_lines(log)


LAST_LINES, LAST_BYTES = 10, 8192


def last_lines(log: Path) -> list[str]:
    """What a program said at its end; nothing, if it has no log here."""
    from controller.core.metrics import ESCAPES

    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - LAST_BYTES))
            text = ESCAPES.sub(b"", file.read()).decode(errors="replace")
    except OSError:
        return []
    if not text.strip():
        return []
    lines = [line.rpartition("\r")[2].expandtabs() for line in text.rstrip().split("\n")]
    return ["".join(c for c in line.rstrip() if c.isprintable()) for line in lines[-LAST_LINES:]]
