"""The end of a run: its result for stdout, and the next useful command for stderr. Pure text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controller.core.model import Experiment, ExperimentState, ReasonCode
from controller.phrases import command, quantity
from controller.report import formatting, spending
from controller.report.description import continuation, cure, retry_failed
from controller.report.final import output_location
from controller.report.record import ExperimentRecord
from controller.report.text_tables import aligned
from suggest.estimate import Estimate
from suggest.trial import IMPORTED_FROM, Trial, TrialState


def result(experiment: Experiment, best: Trial) -> str:
    """Return `digits: best accuracy 0.9725 (trial 31)`, and a line for each parameter."""
    criteria = experiment.spec.criteria
    label = "best"
    if len(criteria.objectives) > 1:
        label = f"best {criteria.objectives[0].metric} of the Pareto front:"
    origin = ", imported" if IMPORTED_FROM in best.labels else ""
    scores = formatting.scores(criteria, best)
    lines = [f"{experiment.name}: {label} {scores} (trial {best.number}{origin})"]
    width = max(map(len, best.parameters), default=0)
    # Its trials come from the service or from its memory, each with an order of its own.
    places = {p.name: place for place, p in enumerate(experiment.spec.space.parameters)}
    in_order = sorted(best.parameters.items(), key=lambda item: places.get(item[0], len(places)))
    for name, value in in_order:
        lines.append(f"  {name:<{width}}  {formatting.parameter(value)}")
    return "\n".join(lines)


def outcome_text(record: ExperimentRecord) -> str:
    """Return the outcome of the best trial where the objective is a text; "" elsewhere."""
    entry = record.best_entry
    if entry is None or not record.experiment.spec.objective.text:
        return ""
    return record.reason_of(entry)


def doubt(record: ExperimentRecord) -> str:
    """Return why the best trial's value may be another one; "" if it is not in doubt."""
    entry = record.best_entry
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
    metric = experiment.spec.objective.metric
    return (
        f"values are noisy (standard deviation {noise}); best by a model's mean: trial "
        f"{estimate.trial}, {metric} {value} (95 %: {low} to {high})"
    )


def front(record: ExperimentRecord) -> str:
    """Return the Pareto front as a table, sorted by the first objective."""
    spec, share = record.experiment.spec, record.dominated_share
    rows = []
    for trial in record.front:
        values = map(formatting.number, (*trial.values, *trial.constraint_values))
        rows.append([str(trial.number), *values, formatting.parameters(trial.parameters)])
    title = f"{record.experiment.name}: the Pareto front has {quantity(len(rows), 'trial')}"
    if share is not None:
        title += f" and dominates {share:.1%} of the hypervolume between the best and the worst "
        title += "values"
    metrics = [objective.metric for objective in spec.objectives]
    metrics += [constraint.metric for constraint in spec.constraints]
    table = aligned(["TRIAL", *metrics, "PARAMETERS"], rows)
    return f"{title}\n{table}".rstrip("\n")


def final_stage(record: ExperimentRecord) -> str:
    """Return what `tuner best` prints about the final stage: how it ended, and its output files."""
    final = record.final
    if final is None:
        return ""
    value, reason = final.newest.value, final.newest.reason
    first = f"final stage (trial {final.run.trial}): {final.state}"
    if value is not None:
        first += f", {record.experiment.spec.objective.metric} {formatting.number(value)}"
    if reason:
        first += f": {reason}"
    lines = [first]
    if not final.directory:
        lines.append(f"  {output_location(record.experiment.spec, final)}")
    elif not final.outputs:
        lines.append(f"  nothing in {final.directory}")
    else:
        lines.append(f"  {final.directory}")
        width = max(len(output.path) for output in final.outputs)
        for output in final.outputs:
            lines.append(f"  {output.path:<{width}}  {quantity(output.size_bytes, 'byte')}")
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

    `counts` has the finished trials by outcome, `printed` the trial for which the experiment
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
    name, reason, spec = experiment.name, experiment.reason, experiment.spec
    ended = f"{reason}{_used(experiment)}"
    again, trials = command("resume", name), command("get", "trials", name)
    match experiment.state:
        case ExperimentState.SUCCEEDED if final_failed:
            why = command("logs", f"{name}/final")
            return f"{name} succeeded: {ended}\nWhy: {why}\nRun it again: {again}"
        case ExperimentState.SUCCEEDED if best is not None and experiment.final is not None:
            outputs = f"Outputs of its final stage: {command('best', name)}"
            return f"{name} succeeded: {ended}\n{outputs}{_raised(experiment)}"
        case ExperimentState.SUCCEEDED if best is not None:
            front = f"The Pareto front: {command('best', name)}\n" if spec.further else ""
            return f"{name} succeeded: {ended}\n{front}All trials: {trials}{_raised(experiment)}"
        case ExperimentState.SUCCEEDED:
            missing = "succeeded trial"
            if spec.constraints:
                missing = "trial that satisfies the constraints"
            why = f"Why: {trials}{_raised(experiment)}"
            return f"{name} finished without one {missing}: {ended}\n{why}"
        case ExperimentState.FAILED:
            failed = counts.get(TrialState.FAILED, 0)
            retry = _raised(experiment)
            if failed and not retry:
                retry = f"\nRun the failed trials again: {retry_failed(experiment)}"
            return f"{name} failed: {ended}\nWhy: {trials}{retry}{_without_them(experiment)}"
        case ExperimentState.PAUSED:
            return f"{name} is paused: {reason}\n{_last_lines(name, printed)}{cure(experiment)}"
        case ExperimentState.RUNNING | ExperimentState.STOPPING:
            watch, stop = command("describe", name), command("stop", name)
            return f"{name} keeps running\nWatch: {watch}\nResume: {again}\nEnd: {stop}"
        case ExperimentState.STOPPED:
            return f"{name} stopped: {ended}\nResume: {again}"


def _used(experiment: Experiment) -> str:
    used = ", ".join(spending.used(experiment))
    return f"\nUsed: {used}" if used else ""


def _raised(experiment: Experiment) -> str:
    raised = spending.raise_limit(experiment)
    return f"\n{raised[0].upper()}{raised[1:]}" if raised else ""


def _without_them(experiment: Experiment) -> str:
    if experiment.reason_code is not ReasonCode.TOO_MANY_FAILURES:
        return ""
    return f"\nOr continue without them: {continuation(experiment)}"


def _last_lines(name: str, printed: tuple[int, Sequence[str]] | None) -> str:
    if printed is None:
        return ""
    trial, lines = printed
    if not lines:
        return f"Trial {trial} printed nothing\n"
    excerpt = "".join(f"    {line[:200]}\n" for line in lines)
    log = command("logs", f"{name}/{trial}")
    return f"Trial {trial} printed last (all of it: {log}):\n{excerpt}"
