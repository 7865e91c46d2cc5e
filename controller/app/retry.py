"""Run failed trials again, as new attempts of the same trials, and then continue the search.

A retry survives a kill between any two steps. One write marks the attempts and sets
the experiment running. The study's trials are reopened when a controller, in this
process or another, next runs the experiment. A repeated request is the same retry:
a trial that already runs again is not an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from controller.app.experiment_file import ExperimentFile
from controller.app.experiment_service import Admitted, ExperimentService, ending_now
from controller.app.local_experiments import LocalExperiments
from controller.app.workspace import Workspace
from controller.core.model import (
    Attempt,
    AttemptState,
    FailureClass,
    TrialOrFinal,
    by_trial,
)
from controller.phrases import command
from controller.report.formatting import ranges
from controller.search import study_name
from suggest.errors import FailedPrecondition, InvalidArgument, NotFound, Problem
from suggest.trial import Trial, TrialState


@dataclass(frozen=True, slots=True)
class RetrySelection:
    """The trials to run again: `numbers`, or if empty all failed ones that `reason` matches."""

    numbers: tuple[int, ...] = ()
    reason: str = ""

    @classmethod
    def parse(cls, numbers: Sequence[str], *, failed: bool, reason: str) -> RetrySelection:
        """Parse the words of the command line. Raises InvalidArgument."""
        if numbers and (failed or reason):
            raise InvalidArgument.at("", "name trials by their numbers or with --failed, not both")
        if not (numbers or failed or reason):
            raise InvalidArgument.at(
                "", "specify the trials to retry: their numbers, or --failed for all"
            )
        bad = [text for text in numbers if not (text.isascii() and text.isdigit())]
        if bad:
            raise InvalidArgument(
                [Problem("", f"{text} is not the number of a trial") for text in bad]
            )
        return cls(tuple(dict.fromkeys(map(int, numbers))), reason)

    def matches(self, trial: Trial) -> bool:
        return not self.reason or self.reason == trial.failure_class or self.reason in trial.reason


@dataclass(frozen=True, slots=True)
class RetryChoice:
    """The chosen trials.

    failures: the newest attempts of the trials to mark, by trial.
    already: trials that were marked before.
    """

    failures: Mapping[int, Attempt]
    already: tuple[int, ...]


def choose(
    name: str,
    selection: RetrySelection,
    trials: Sequence[Trial],
    attempts: Mapping[TrialOrFinal, Sequence[Attempt]],
) -> RetryChoice:
    """Choose the trials to run again.

    Raises:
        NotFound: There is no such trial.
        FailedPrecondition: One of the trials has not failed, or no trial matches.
    """
    by_number = {trial.number: trial for trial in trials}
    unknown = [number for number in selection.numbers if number not in by_number]
    if unknown:
        existing = f"its trials are {ranges(sorted(by_number))}" if by_number else "it has none yet"
        raise NotFound(f"{name} has no trial {ranges(unknown)}; {existing}")
    again = _run_again(trials, attempts)
    failed = [t for t in trials if t.state is TrialState.FAILED and t.number not in again]
    if selection.numbers:
        named_ones = set(selection.numbers)
        not_failed = sorted(named_ones - again - {trial.number for trial in failed})
        if not_failed:
            states = ", ".join(f"trial {n} is {by_number[n].state.value}" for n in not_failed[:10])
            raise FailedPrecondition(f"{name}: only failed trials can run again; {states}")
        failed = [trial for trial in failed if trial.number in named_ones]
        again &= named_ones
    elif selection.reason:
        fitting = [trial for trial in failed if selection.matches(trial)]
        if failed and not fitting and not again:
            counts = Counter(t.failure_class for t in failed).most_common()
            classes = ", ".join(f"{word} ({n})" for word, n in counts)
            raise FailedPrecondition(
                f"no trial of {name} failed with the reason {selection.reason!r}; there are "
                f"{classes}"
            )
        failed = fitting
    if not failed and not again:
        raise FailedPrecondition(
            f"{name} has no failed trial; see {command('get', 'trials', name)}"
        )
    untold = [t.number for t in failed if not failed_here(attempts.get(t.number, ()))]
    if untold:
        raise FailedPrecondition(
            f"{name}: trial {ranges(untold)} was completed as failed by another client, and has no "
            "attempt to repeat; name the others by their numbers"
        )
    return RetryChoice(
        {trial.number: attempts[trial.number][-1] for trial in failed}, tuple(sorted(again))
    )


def failed_here(attempts: Sequence[Attempt]) -> bool:
    """Return whether the newest attempt failed.

    Imported trials and those that another client completed have none.
    """
    return bool(attempts) and attempts[-1].state is AttemptState.FAILED


def _runs_again(trial: Trial, attempts: Sequence[Attempt]) -> bool:
    """Return whether a retry or the circuit breaker marked the trial and it has not ended since.

    After a configuration failure the trial stays open and runs again without a mark.
    """
    if not attempts:
        return False
    newest = attempts[-1]
    if trial.state is TrialState.FAILED:
        return newest.set_aside
    if trial.finished:
        return False
    was_marked = any(attempt.set_aside for attempt in attempts)
    return was_marked or newest.failure_class is FailureClass.CONFIGURATION


def _run_again(
    trials: Sequence[Trial], attempts: Mapping[TrialOrFinal, Sequence[Attempt]]
) -> set[int]:
    return {each.number for each in trials if _runs_again(each, attempts.get(each.number, ()))}


async def retry(
    workspace: Workspace,
    experiments: LocalExperiments,
    target: ExperimentFile | str,
    selection: RetrySelection,
    *,
    namespace: str | None,
    print_line: Callable[[str], None],
) -> Admitted:
    """Mark the trials of an experiment that no controller runs.

    `target` is its corrected file or its name. Raises NotFound, FailedPrecondition, Changed.
    """
    file = target if isinstance(target, ExperimentFile) else None
    service = ExperimentService(experiments)
    named = target.document if isinstance(target, ExperimentFile) else target
    if file is not None:
        # Not at the top: it loads the service, and `tuner.open` only reads.
        from controller.app.validate import check_revision

        spec = file.document.spec
        known = experiments.experiment(spec.namespace, spec.name)
        await check_revision(workspace, known, file.document)
    refused = "trials of {name} cannot be retried while it runs"
    with service.known_and_leased(named, namespace, refused=refused) as (experiment, lease):
        server = workspace.service_of(experiment)
        document = None if file is None else service.completed(experiment, file.document)
        changes = [] if document is None else service.allowed_changes(experiment, document)
        async with workspace.connected(server) as client:
            try:
                trials = await client.list_trials(study_name(experiment), client_id=experiment.uid)
            except NotFound:  # its controller was killed before it created the study
                trials = []
        attempts = by_trial((each.trial, each) for each in experiments.attempts(experiment.uid))
        chosen = choose(experiment.name, selection, trials, attempts)
        again = _run_again(trials, attempts) | chosen.failures.keys()
        spec = experiment.spec if document is None else document.spec
        others = ((t.state, t.value) for t in trials if t.number not in again)
        ending = ending_now(experiment, spec, others, chain.from_iterable(attempts.values()))
        if ending is not None and (ending.closed or not ending.drain):
            # The trials would be cancelled at once.
            raise FailedPrecondition(
                f"{experiment.name}: its budget is already used up: {ending.reason}; retry more of "
                "its trials, or raise that limit in the file and name the file"
            )
        directory = None if file is None else file.directory
        failures = [*chosen.failures.values()]
        admitted = service.extend_or_retry(
            experiment, lease, document, changes, directory=directory, failures=failures
        )
    name = admitted.experiment.name
    if chosen.failures:
        print_line(
            f"{name}: {_trials([*chosen.failures])} again as new attempts; their failures no "
            f"longer count"
        )
    if chosen.already:
        print_line(f"{name}: {_trials(chosen.already)} again since an earlier retry")
    return admitted


def _trials(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"trial {numbers[0]} runs"
    return f"trials {ranges(sorted(numbers))} run"
