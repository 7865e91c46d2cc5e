"""The end of a run: its result for stdout, and the next useful command for stderr. Pure text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controller.core.model import Experiment, ExperimentState, ReasonCode
from controller.phrases import command, quantity
from controller.report import formatting
from controller.report.description import continuation, cure, retry_failed
from controller.report.final import output_location
from controller.report.record import ExperimentRecord
from controller.report.text_tables import aligned
from suggest.estimate import Estimate
from suggest.trial import IMPORTED_FROM, Trial, TrialState


def result(experiment: Experiment, best: Trial) -> str:
    """Return the result: `digits: best accuracy 0.9725 (trial 31)`, and a line for each
    parameter.
    """
    criteria = experiment.spec.criteria
    several = len(criteria.objectives) > 1
    label = f"best {criteria.objectives[0].metric} of the Pareto front:" if several else "best"
    origin = ", imported" if IMPORTED_FROM in best.labels else ""
    lines = [
        f"{experiment.name}: {label} {formatting.scores(criteria, best)} (trial "
        f"{best.number}{origin})"
    ]
    width = max((len(name) for name in best.parameters), default=0)
    lines += [
        f"  {name:<{width}}  {formatting.parameter(value)}"
        for name, value in best.parameters.items()
    ]
    return "\n".join(lines)


def doubt(record: ExperimentRecord) -> str:
    """Return why the best trial's value may be another one.

    Return "" if no gap in its log puts it in doubt.
    """
    best = record.best
    entry = next(
        (
            entry
            for entry in record.trials
            if best is not None and entry.trial.number == best.number
        ),
        None,
    )
    if entry is None or not entry.value_doubt:
        return ""
    return f"in doubt: {entry.value_doubt} ({entry.log_gap})"


def estimated(experiment: Experiment, estimate: Estimate) -> str:
    """Return the best trial by a model's mean, where values are noisy; "" where they are not."""
    if not estimate.is_noisy:
        return ""
    value, low, high, noise = map(
        formatting.number, (estimate.value, estimate.low, estimate.high, estimate.noise)
    )
    return (
        f"values are noisy (standard deviation {noise}); best by a model's mean: trial "
        f"{estimate.trial}, "
        f"{experiment.spec.objective.metric} {value} (95 %: {low} to {high})"
    )


def front(record: ExperimentRecord) -> str:
    """Return the Pareto front as a table, sorted by the first objective."""
    spec = record.experiment.spec
    metrics = [goal.metric for goal in spec.objectives] + [goal.metric for goal in spec.constraints]
    rows = [
        [
            str(trial.number),
            *map(formatting.number, (*trial.values, *trial.constraint_values)),
            formatting.parameters(trial.parameters),
        ]
        for trial in record.front
    ]
    share = record.dominated_share
    share_text = (
        ""
        if share is None
        else f" and dominates {share:.1%} of the hypervolume between the best and the worst values"
    )
    title = (
        f"{record.experiment.name}: the Pareto front has "
        f"{quantity(len(rows), 'trial')}{share_text}\n"
    )
    return title + aligned(["TRIAL", *metrics, "PARAMETERS"], rows).rstrip("\n")


def final_stage(record: ExperimentRecord) -> str:
    """Return what `tuner best` prints about the final stage: how it ended, and a line for each of
    its output files.
    """
    final = record.final
    if final is None:
        return ""
    metric = record.experiment.spec.objective.metric
    score = (
        f", {metric} {formatting.number(final.newest.value)}"
        if final.newest.value is not None
        else ""
    )
    explanation = f": {final.newest.reason}" if final.newest.reason else ""
    lines = [f"final stage (trial {final.run.trial}): {final.state}{score}{explanation}"]
    if not final.directory:
        lines.append(f"  {output_location(record.experiment.spec, final)}")
    elif final.outputs:
        lines.append(f"  {final.directory}")
        width = max(len(output.path) for output in final.outputs)
        lines += [
            f"  {output.path:<{width}}  {quantity(output.size_bytes, 'byte')}"
            for output in final.outputs
        ]
    else:
        lines.append(f"  nothing in {final.directory}")
    return "\n".join(lines)


def next_step(
    experiment: Experiment,
    counts: Mapping[TrialState, int],
    best: Trial | None,
    *,
    final_failed: bool = False,
    printed: tuple[int, Sequence[str]] | None = None,
) -> str:
    """Return the next useful command with its reason, with the keys of the person's file.

    `counts` has the finished trials by outcome, `printed` the trial because of which the experiment
    is paused, and the last lines of its log.
    """
    return experiment.spec.words(
        _next_step(experiment, counts, best, final_failed=final_failed, printed=printed)
    )


def _next_step(
    experiment: Experiment,
    counts: Mapping[TrialState, int],
    best: Trial | None,
    *,
    final_failed: bool,
    printed: tuple[int, Sequence[str]] | None,
) -> str:
    name, reason = experiment.name, experiment.reason
    again, trials = command("resume", name), command("get", "trials", name)
    match experiment.state:
        case ExperimentState.SUCCEEDED if final_failed:
            return (
                f"{name} succeeded: {reason}\nWhy: {command('logs', f'{name}/final')}\nRun it "
                f"again: {again}"
            )
        case ExperimentState.SUCCEEDED if best is not None and experiment.final is not None:
            return (
                f"{name} succeeded: {reason}\nOutputs of its final stage: {command('best', name)}"
            )
        case ExperimentState.SUCCEEDED if best is not None:
            front = (
                f"The Pareto front: {command('best', name)}\n" if experiment.spec.further else ""
            )
            return f"{name} succeeded: {reason}\n{front}All trials: {trials}"
        case ExperimentState.SUCCEEDED:
            missing_trial = (
                "trial that satisfies the constraints"
                if experiment.spec.constraints
                else "succeeded trial"
            )
            return f"{name} finished without one {missing_trial}: {reason}\nWhy: {trials}"
        case ExperimentState.FAILED:
            failed = counts.get(TrialState.FAILED, 0)
            retry = f"\nRun the failed trials again: {retry_failed(experiment)}" if failed else ""
            return f"{name} failed: {reason}\nWhy: {trials}{retry}{_without_them(experiment)}"
        case ExperimentState.PAUSED:
            return f"{name} is paused: {reason}\n{_printed(name, printed)}{cure(experiment)}"
        case ExperimentState.RUNNING | ExperimentState.STOPPING:
            ways = (
                f"Watch: {command('describe', name)}\nResume: {again}\nEnd: {command('stop', name)}"
            )
            return f"{name} keeps running\n{ways}"
        case ExperimentState.STOPPED:
            return f"{name} stopped: {reason}\nResume: {again}"


def _without_them(experiment: Experiment) -> str:
    if experiment.reason_code is not ReasonCode.TOO_MANY_FAILURES:
        return ""
    return f"\nOr continue without them: {continuation(experiment)}"


def _printed(name: str, printed: tuple[int, Sequence[str]] | None) -> str:
    if printed is None:
        return ""
    trial, lines = printed
    if not lines:
        return f"Trial {trial} printed nothing\n"
    excerpt = "".join(f"    {line[:200]}\n" for line in lines)
    return (
        f"Trial {trial} printed last (all of it: {command('logs', f'{name}/{trial}')}):\n{excerpt}"
    )
