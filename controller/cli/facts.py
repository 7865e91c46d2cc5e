"""Reading, for everything that shows or exports: controller.db and the study together, whoever runs it now.

Takes no lock and owns no study: it may be done while a controller is alive, and while none is.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from controller.cli.admission import find
from controller.cli.embedded import Access, SessionClient, asked_for, connected, same_service
from controller.cli.final import find_final
from controller.cli.home import ControllerLock, Home
from controller.core.model import FINAL, Attempt, Experiment, trial_label
from controller.report.record import ExperimentRecord, TrialRecord, last_values
from controller.search import CHOOSES, lost
from controller.spec import from_document
from controller.store import SqlStore
from suggest.errors import InvalidArgument, NotFound, Problem, Unavailable
from suggest.space import Value
from suggest.study import StudyName
from suggest.trial import Measurement, Trial, TrialState

T = TypeVar("T")


@contextmanager
def opened(home: Home) -> Iterator[SqlStore]:
    """The controller's store. Raises NotFound: nothing was ever run here; Unavailable: here cannot be one."""
    if home.root.exists() and not home.root.is_dir():
        raise Unavailable(f"the state directory {home.root} is not a directory; name another one with --state-dir")
    if not home.controller_db.exists():
        raise NotFound(f"nothing was run yet with the state directory {home.root}; see --state-dir")
    store = SqlStore(home.controller_db, from_document)
    try:
        yield store
    finally:
        store.close()


def split_name(text: str) -> tuple[str, int | None]:
    """`digits/12` -> (digits, 12); `digits/final` -> (digits, FINAL)."""
    name, slash, number = text.partition("/")
    if not slash:
        return name, None
    if number == trial_label(FINAL):
        return name, FINAL
    if not (number.isascii() and number.isdigit()):
        raise InvalidArgument(
            [Problem("", f"{text}: write NAME/N, N being the number of a trial, such as {name}/0, or final")]
        )
    return name, int(number)


def study_of(experiment: Experiment) -> StudyName:
    namespace, study = experiment.study.split("/")[1::2]
    return StudyName(namespace, study)


def controlled_by(home: Home, experiment: Experiment) -> str:
    holder = ControllerLock(home.folders(experiment.uid).root).holder()
    return "" if holder is None else str(holder)


async def gather(
    home: Home, store: SqlStore, experiment: Experiment, client: SessionClient, *, measurements: bool = False,
    latest: bool = False, trial: int | None = None,
) -> ExperimentRecord:  # fmt: skip
    """All that is known of the experiment. `measurements`: those too, of one trial or of all.

    `latest`: the last value of each metric, and the trials that run have the objective's for theirs.
    """
    # First of all: a controller stores how it ended before it lets go, so what is read after it is gone says so.
    controller = controlled_by(home, experiment)
    if not controller:
        now = store.experiment(experiment.namespace, experiment.name)
        experiment = now if now is not None and now.uid == experiment.uid else experiment
    name = study_of(experiment)
    attempts: dict[int, list[Attempt]] = {}
    for attempt in store.attempts(experiment.uid):
        attempts.setdefault(attempt.trial, []).append(attempt)
    found: Sequence[Trial] = ()
    measured: dict[int, list[Measurement]] = {}
    last: list[tuple[int, Measurement]] = []
    settings: Mapping[str, Value] = {}
    try:
        if latest and experiment.spec.algorithm.name == CHOOSES:
            settings = (await client.get_study(name)).spec.algorithm.settings
        found = [
            each
            for each in await client.list_trials(name)
            if each.client_id == experiment.uid or TrialRecord(each).imported_from or TrialRecord(each).value_of
        ]
        there = trial is None or any(each.number == trial for each in found)
        if measurements and there:
            for number, measurement in await client.list_measurements(name, trial):
                measured.setdefault(number, []).append(measurement)
        if latest and there:
            last = await client.list_measurements(name, trial, latest=True)
    except NotFound as error:
        if attempts:
            raise lost(name, experiment.name) from error
        # else it was killed before it made its study
    objective = experiment.spec.objective.metric
    reported: dict[int, list[Measurement]] = {}
    for number, one in last:
        if one.metric == objective:
            reported.setdefault(number, []).append(one)
    return ExperimentRecord(
        experiment=experiment,
        trials=[
            _so_far(
                TrialRecord(each, attempts.get(each.number, ())),
                reported.get(each.number, ()) if each.state is TrialState.RUNNING else (),
                objective,
            )
            for each in found
        ],
        events=store.events(experiment.uid, trial),
        controlled_by=controller,
        measurements=measured,
        settings=settings,
        final=find_final(home, store, experiment),
        metrics=last_values(last, without=objective),
    )


def _so_far(record: TrialRecord, measured: Sequence[Measurement], metric: str) -> TrialRecord:
    """With the last figure of the attempt that runs: the study has none before the trial's end."""
    newest = record.newest
    if newest is None or newest.ended:
        return record
    own = [each for each in measured if each.metric == metric and each.attempt == newest.number]
    if not own:
        return record
    last = max(own, key=lambda each: each.step)
    return replace(record, trial=replace(record.trial, value=last.value, step=last.step))


def look_up(
    arguments: argparse.Namespace, *, measurements: bool = False, latest: bool = False, name: str | None = None,
    trial: int | None = None,
) -> ExperimentRecord:  # fmt: skip
    """The experiment that the arguments name, with all that is known of it, as `gather` finds it."""
    home = Home.find(arguments.state_dir)
    with opened(home) as store:
        experiment = find(store, name or arguments.name, arguments.namespace)
        service = same_service(experiment.server, asked_for(arguments), experiment.name)
        return with_client(
            service,
            home,
            lambda client: gather(
                home, store, experiment, client, measurements=measurements, latest=latest, trial=trial
            ),
            access=Access.of(arguments),
        )


def keep_looking(
    arguments: argparse.Namespace, see: Callable[[ExperimentRecord], Awaitable[bool]], *, every_s: float
) -> None:
    """What `look_up` finds, shown to `see`, and again every so often until it has seen enough."""
    home = Home.find(arguments.state_dir)
    with opened(home) as store:
        experiment = find(store, arguments.name, arguments.namespace)
        service = same_service(experiment.server, asked_for(arguments), experiment.name)

        async def look(client: SessionClient) -> None:
            known = experiment
            while not await see(await gather(home, store, known, client, latest=True)):
                await asyncio.sleep(every_s)
                known = find(store, experiment.name, experiment.namespace)

        with_client(service, home, look, access=Access.of(arguments))


def with_client(
    service: str, home: Home, use: Callable[[SessionClient], Coroutine[Any, Any, T]], *, access: Access
) -> T:
    """Run `use` with a client of the service."""

    async def main() -> T:
        async with connected(service, home, access) as client:
            return await use(client)

    return asyncio.run(main())
