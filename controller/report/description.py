"""`tuner describe`: an experiment or a trial on one page, which ends with the reason for its state.

Pure text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from controller.core.budget import spent_trials
from controller.core.model import (
    Attempt,
    Event,
    Experiment,
    ExperimentObjective,
    ExperimentState,
    FailureClass,
)
from controller.phrases import command, quantity
from controller.report import formatting, spending
from controller.report.final import FinalRecord, output_location
from controller.report.record import ExperimentRecord, TrialRecord
from controller.report.text_tables import aligned, one_line, run_time, shown_state
from controller.runtime.registry import traits_of
from suggest.domain import show
from suggest.study import SIMILAR, Belief, EarlierStudy
from suggest.trial import Measurement, TrialState
from suggest.url_redaction import redacted_url

LAST_EVENTS = 8
MOST_WAITING = 8


def describe_experiment(record: ExperimentRecord, *, folder: Path | None, now: datetime) -> str:
    experiment = record.experiment
    spec = experiment.spec
    counts = [f"{n} {state.value}" for state, n in record.counts.items()]
    objectives = "; ".join(map(describe_objective, spec.objectives))
    pruning = f", pruning {spec.pruning.name}" if spec.pruning else ""
    fields = [
        ("Name", experiment.name),
        ("Namespace", experiment.namespace),
        ("Uid", experiment.uid),
        ("State", shown_state(record)),
        ("Reason", "" if experiment.reason_code is None else experiment.reason_code.value),
        ("Objectives" if spec.further else "Objective", objectives),
        ("Subject to", "; ".join(map(str, spec.constraints))),
        ("Fidelity", _fidelity(record)),
        ("Algorithm", _algorithm(record) + pruning),
        ("Sources", ", ".join(map(_earlier, spec.learn_from))),
        ("Prior", ", ".join(map(_belief, spec.prior))),
        ("Revision", str(experiment.revision)),
        ("Directory", experiment.directory),
        ("Folder", "" if folder is None else str(folder)),
        ("Study", experiment.study),
        ("Service", redacted_url(experiment.server) or "embedded"),
        ("Controller", record.controlled_by or "none"),
        ("Trouble", record.trouble),
        ("Started", formatting.timestamp(experiment.start_time)),
        ("Ended", formatting.timestamp(experiment.end_time)),
        ("Budget", _budget(record)),
        ("TenantBudget", record.tenant_budget),
        ("Forecast", "; ".join(spending.foreseen(spec, record.forecast(now)))),
        ("Trials", ", ".join(counts) or "none yet"),
        ("Imported", _imports_by_source(record)),
        ("Best", _best(record)),
        ("Log gaps", _log_gaps(record)),
        ("Final", _final(record, now=now)),
    ]
    parts = [_lines(fields)]
    running = [entry for entry in record.trials if entry.state is TrialState.RUNNING]
    if running:
        rows = [_running_row(entry, now) for entry in running]
        table = aligned(("TRIAL", "FOR", "STEP", "VALUE", "PARAMETERS"), rows)
        parts.append("Running\n" + _indented(table))
    queued = [entry for entry in record.trials if entry.state is TrialState.QUEUED]
    waiting = [entry for entry in queued if entry.waiting]
    if waiting:
        listed = waiting[:MOST_WAITING]
        rows = [[str(entry.trial.number), one_line(record.reason_of(entry))] for entry in listed]
        table = aligned(("TRIAL", "FOR WHAT"), rows)
        if len(waiting) > MOST_WAITING:
            table += f"and {len(waiting) - MOST_WAITING} more\n"
        parts.append("Waiting\n" + _indented(table))
    parts += _events(record.events)
    parts.append(f"Why: {why_experiment(record)}")
    return "\n".join(parts) + "\n"


def _running_row(entry: TrialRecord, now: datetime) -> list[str]:
    trial = entry.trial
    return [
        str(trial.number),
        run_time(entry, now=now),
        formatting.text(trial.step),
        formatting.number(trial.value),
        formatting.parameters(trial.parameters),
    ]


def _final(record: ExperimentRecord, *, now: datetime) -> str:
    final = record.final
    if final is None:
        return "" if record.experiment.spec.final is None else "runs when the search has ended"
    newest, state = final.newest, final.state
    if state == "running":
        state = f"running for {formatting.between(newest.start_time, now)}"
    reason = f": {newest.reason}" if newest.reason else ""
    return f"{state}, with the parameters of trial {final.run.trial}{reason}"


def describe_final(
    record: ExperimentRecord, final: FinalRecord, *, log: Path | None, now: datetime
) -> str:
    name = f"{record.experiment.name}/final"
    by_number = {entry.trial.number: entry.trial for entry in record.trials}
    trial, value = by_number.get(final.run.trial), final.newest.value
    metric = record.experiment.spec.objective.metric
    fields = [
        ("Final", name),
        ("Name", final.name),
        ("State", final.state),
        ("Of trial", str(final.run.trial)),
        ("Value", "" if value is None else f"{metric} {formatting.number(value)}"),
        ("Parameters", formatting.parameters(trial.parameters if trial else {})),
        ("Log", formatting.text(log)),
        ("Outputs", final.directory or output_location(record.experiment.spec, final)),
    ]
    parts = [_lines(fields)]
    parts.append("Attempts\n" + _indented(_attempts(final.attempts, now=now)))
    if final.outputs:
        rows = [[output.path, str(output.size_bytes)] for output in final.outputs]
        parts.append("Left\n" + _indented(aligned(("PATH", "BYTES"), rows)))
    parts += _events(record.events)
    parts.append(f"Why: {why_final(record, final)}")
    return "\n".join(parts) + "\n"


def why_final(record: ExperimentRecord, final: FinalRecord) -> str:
    name = record.experiment.name
    match final.state:
        case "succeeded":
            return f"it succeeded; see its outputs with: {command('best', name)}"
        case "failed":
            return f"{final.newest.reason}; fix it, then: {command('resume', name)}"
        case "running" if record.controlled_by:
            return f"it runs; follow it with: {command('logs', '-f', name + '/final')}"
        case "running":
            return (
                "it may keep running without a controller; continue with: "
                f"{command('resume', name)}"
            )
        case "queued" if record.controlled_by:
            return final.newest.reason or "it is being started"
        case _:
            return (
                f"{final.newest.reason or 'it has not ended'}; continue with: "
                f"{command('resume', name)}"
            )


def _earlier(study: EarlierStudy) -> str:
    name = "auto" if study.study == SIMILAR else study.study
    return name if study.weight == 1 else f"{name} (weight {study.weight:g})"


def _belief(belief: Belief) -> str:
    return f"{belief.parameter} around {show(belief.around)} (sure {belief.sure:g})"


def _fidelity(record: ExperimentRecord) -> str:
    """Return the fidelities at which trials are compared, and how many trials wait at each."""
    fidelity = record.experiment.spec.fidelity
    if fidelity is None:
        return ""
    paused = [entry.trial.fidelity for entry in record.trials if entry.state is TrialState.PAUSED]
    levels = ", ".join(f"{level:g}" for level in fidelity.levels)
    rule = f"{fidelity.parameter} {levels}; one in {fidelity.eta} continues"
    if not paused:
        return rule
    waiting = Counter(paused)
    counts = [f"{waiting[level]} at {level:g}" for level in fidelity.levels if waiting[level]]
    return f"{rule}; paused: {', '.join(counts)}"


def _algorithm(record: ExperimentRecord) -> str:
    """Return the algorithm's name, followed by the algorithm that it chose, if any."""
    name, settings = record.experiment.spec.algorithm.name, dict(record.settings)
    chosen = settings.pop("chosen", None)
    if chosen is None:
        return name
    words = [f"{key} {formatting.parameter(value)}" for key, value in sorted(settings.items())]
    return f"{name}: {chosen} ({', '.join(words)})"


def describe_trial(
    record: ExperimentRecord, entry: TrialRecord, *, log: Path | None, now: datetime
) -> str:
    trial, number = entry.trial, entry.trial.number
    waits = entry.state is TrialState.QUEUED and entry.waiting
    fields = [
        ("Trial", f"{record.experiment.name}/{number}"),
        ("Name", record.trial_name(number)),
        ("State", entry.state.value),
        ("Queued", record.reason_of(entry) if waits else ""),
        ("Value", formatting.number(trial.value)),
        ("Log gap", entry.log_gap),
        ("In doubt", entry.value_doubt),
        ("Step", formatting.text(trial.step)),
        ("Imported", entry.imported_from and f"from {entry.imported_from}"),
        ("Proposed", _proposed_by(record, entry)),
        ("Parent", "" if trial.parent is None else f"trial {trial.parent}{_FROM_CHECKPOINT}"),
        ("Log", formatting.text(log)),
    ]
    values = [[name, formatting.parameter(value)] for name, value in trial.parameters.items()]
    parts = [_lines(fields), "Parameters\n" + _indented(aligned(("", ""), values, headers=False))]
    if not (entry.imported_from or entry.value_of):
        parts.append("Attempts\n" + _indented(_attempts(entry.attempts, now=now)))
    measured = record.measurements.get(number, ())
    if measured:
        header = ("METRIC", "READINGS", "FIRST", "LAST", "MIN", "MAX", "TREND")
        parts.append("Measurements\n" + _indented(aligned(header, _metric_rows(measured))))
    parts += _events(record.events)
    parts.append(f"Why: {why_trial(record, entry)}")
    return "\n".join(parts) + "\n"


_FROM_CHECKPOINT = ", from whose checkpoint it continues"


def _proposed_by(record: ExperimentRecord, entry: TrialRecord) -> str:
    if not entry.proposed_by:
        return ""
    algorithm = record.experiment.spec.algorithm.name
    return f"by {entry.proposed_by}, because {algorithm} was not ready"


def _attempts(attempts: Sequence[Attempt], *, now: datetime) -> str:
    """Return a table of attempts.

    Columns that only a cluster fills are left out if they are empty.
    """
    columns: dict[str, list[str]] = {name: [] for name in _ATTEMPT_COLUMNS}
    for attempt in attempts:
        spent = attempt.gpus * attempt.ran_s(now)
        cells = (
            str(attempt.number),
            attempt.state.value,
            formatting.between(attempt.start_time, attempt.end_time or now),
            formatting.text(attempt.exit_code),
            attempt.failure_class.value if attempt.failure_class else "",
            attempt.node,
            formatting.digest(attempt.image),
            f"{spent:.0f}" if spent else "",
            one_line(attempt.reason),
        )
        for column, cell in zip(columns.values(), cells, strict=True):
            column.append(cell)
    for name in _TOLD_BY_CLUSTERS:
        if not any(columns[name]):
            del columns[name]
    return aligned(list(columns), list(zip(*columns.values(), strict=True)))


_ATTEMPT_COLUMNS = ("NUMBER", "STATE", "FOR", "EXIT", "CLASS", "NODE", "IMAGE", "GPU-S", "REASON")
_TOLD_BY_CLUSTERS = ("NODE", "IMAGE", "GPU-S")


def why_experiment(record: ExperimentRecord) -> str:
    """Return one sentence that says why the experiment is in its state, and what to do next."""
    return record.experiment.spec.words(_why_experiment(record))


def _why_experiment(record: ExperimentRecord) -> str:
    experiment = record.experiment
    name, counts = experiment.name, record.counts
    running, queued = counts.get(TrialState.RUNNING, 0), counts.get(TrialState.QUEUED, 0)
    match experiment.state:
        case ExperimentState.RUNNING | ExperimentState.STOPPING if not record.controlled_by:
            return (
                f"{_why_no_controller(experiment)}{_because(record)}; continue with: "
                f"{command('resume', name)}"
            )
        case ExperimentState.RUNNING if record.final is not None and not record.final.over:
            follow = command("logs", "-f", f"{name}/final")
            return f"its search is over, and its final stage runs; follow it with: {follow}"
        case ExperimentState.RUNNING | ExperimentState.STOPPING if record.trouble:
            return f"its controller waits: {record.trouble}; stop it with: {command('stop', name)}"
        case ExperimentState.RUNNING:
            at_work = f"{quantity(running, 'trial')} (parallelism {experiment.spec.parallelism})"
            waiting = f"{queued} queued{_first_waiting(record)}"
            return f"running {at_work}, {waiting}; stop it with: {command('stop', name)}"
        case ExperimentState.PAUSED:
            return f"paused, {experiment.reason}; {cure(experiment)}"
        case ExperimentState.STOPPING:
            are = "is" if running == 1 else "are"
            return f"a stop was requested; {quantity(running, 'trial')} {are} ending"
        case ExperimentState.STOPPED:
            return f"{experiment.reason or 'stopped'}; continue with: {command('resume', name)}"
        case ExperimentState.FAILED:
            again = spending.raise_limit(experiment)
            failed = any(entry.state is TrialState.FAILED for entry in record.trials)
            if failed and not again:
                again = f"run those that failed again with: {retry_failed(experiment)}"
            look = command("describe", f"{name}/{_last_failed(record)}")
            return _joined(f"failed, {experiment.reason}", f"look at one with: {look}", again)
        case ExperimentState.SUCCEEDED:
            result = f"see the result with: {command('best', name)}"
            if record.final is not None and record.final.failed:
                look = command("logs", f"{name}/final")
                result = f"see why with: {look}; run it again with: {command('resume', name)}"
            elif record.best is None:
                look = command("describe", f"{name}/{_last_failed(record)}")
                result = f"but no trial succeeded; look at one with: {look}"
            return _joined(experiment.reason, result, spending.raise_limit(experiment))


def _joined(*phrases: str) -> str:
    return "; ".join(filter(None, phrases))


def _why_no_controller(experiment: Experiment) -> str:
    """Return why no controller runs.

    Detaching from trials on a cluster (Ctrl-C, a closed laptop) is not a failure.
    """
    if traits_of(experiment.spec.runtime).survives_controller:
        return "no controller is running; its Jobs on the cluster keep running"
    return "its controller ended without finishing it"


def _because(record: ExperimentRecord) -> str:
    return f": {record.trouble}" if record.trouble else ""


def _first_waiting(record: ExperimentRecord) -> str:
    """Return what the oldest waiting trial waits for; younger ones wait behind it."""
    if not record.counts.get(TrialState.QUEUED):
        return ""
    for entry in record.trials:
        if entry.waiting and entry.newest is not None and entry.newest.reason:
            return f" ({one_line(entry.newest.reason)})"
    return ""


def cure(experiment: Experiment) -> str:
    """Return what a person has to do about a pause."""
    by_name = command("resume", experiment.name)
    if experiment.spec.rerun is not None:
        # Its file was made from another one.
        return f"correct what its trials need, then: {by_name}"
    if experiment.spec.trial.calls_function:
        return (
            f"correct the function, then {_run_again(experiment)} (or {by_name}, if the "
            "function is right as it is)"
        )
    return (
        f"correct it, then: {command('resume', 'FILE')} (or {by_name}, if the file is right as "
        "it is)"
    )


def continuation(experiment: Experiment) -> str:
    """Return how to continue after too many failures without the trials that failed."""
    if experiment.spec.trial.calls_function:
        larger = "spec={'budget': {'failedTrials': N}}"
        return f"correct the function, then {_run_again(experiment)} and a larger {larger}"
    return f"raise spec.budget.failedTrials, then: {command('resume', 'FILE')}"


def retry_failed(experiment: Experiment) -> str:
    """Return the command that runs failed trials again.

    It does not know of a function that was corrected.
    """
    again = command("retry", experiment.name, "--failed")
    if experiment.spec.trial.calls_function:
        return f"{again} (it calls the function as it is stored)"
    return again


def _run_again(experiment: Experiment) -> str:
    # Whether by a script, by `tuner run SCRIPT`, or in a notebook.
    return f"run the search again under the name {experiment.name!r}"


def why_trial(record: ExperimentRecord, entry: TrialRecord) -> str:
    """Return one sentence that says why the trial is in its state."""
    return record.experiment.spec.words(_why_trial(record, entry))


def _why_trial(record: ExperimentRecord, entry: TrialRecord) -> str:
    metric = record.experiment.spec.objective.metric
    newest = entry.newest
    attempts = f" in attempt {newest.number}" if newest is not None and newest.number > 1 else ""
    reason = record.reason_of(entry)
    match entry.state:
        case TrialState.SUCCEEDED if entry.value_of:
            return f"it was {reason}"
        case TrialState.SUCCEEDED:
            best = record.best
            is_best = best is not None and best.number == entry.trial.number
            rank = "; the best so far" if is_best else ""
            origin = " where it comes from" if entry.imported_from else ""
            doubt = f"; but {entry.value_doubt}" if entry.value_doubt else ""
            is_text = record.experiment.spec.objective.text
            result = reason if is_text else f"{metric} {formatting.number(entry.trial.value)}"
            return f"it ended with {result}{attempts}{origin}{rank}{doubt}"
        case TrialState.PRUNED:
            return f"it was pruned: {reason}"
        case TrialState.INFEASIBLE:
            return f"its program rejected these parameters: {reason}"
        case TrialState.FAILED:
            kind = entry.trial.failure_class
            meaning = _MEANING.get(kind, kind or "failed")
            if kind == FailureClass.METRICS_MISSING.value and entry.trial.step is not None:
                meaning = "only a finite number can be compared; see its log"
            # The reason names the cure already.
            if record.experiment.spec.words("spec.objective.metric") in reason:
                return f"{reason}{attempts}"
            return f"{reason}{attempts} ({meaning})"
        case TrialState.CANCELLED:
            return f"it was cancelled: {reason}"
        case TrialState.RUNNING if newest is not None and newest.stop_cause is not None:
            return f"it is being stopped: {newest.reason or newest.stop_cause.value}"
        case TrialState.RUNNING if not record.controlled_by:
            return (
                "it may keep running without a controller; continue with: "
                f"{command('resume', record.experiment.name)}"
            )
        case TrialState.RUNNING:
            follow = command("logs", "-f", f"{record.experiment.name}/{entry.trial.number}")
            return f"it runs{attempts}; follow it with: {follow}"
        case TrialState.QUEUED if (
            entry.waiting and newest is not None and newest.reason and record.controlled_by
        ):
            by_quota = newest.reason.startswith(QUOTA_EXCEEDED)
            room = " for room in its namespace" if by_quota else ""
            return f"it waits{room}, and starts by itself{attempts}: {reason}"
        case TrialState.QUEUED:
            return reason
        case TrialState.PAUSED:
            return f"it waits at {reason}"


QUOTA_EXCEEDED = "QuotaExceeded"  # the reason that clusters give

_MEANING = {
    FailureClass.USER_ERROR.value: "its program failed; see its log",
    FailureClass.OUT_OF_MEMORY.value: "it needs more memory than is available",
    FailureClass.CONFIGURATION.value: "it cannot be started as configured",
    FailureClass.TIMEOUT.value: "raise spec.trial.timeout, or make it faster",
    FailureClass.METRICS_MISSING.value: "lines with NAME=VALUE are read, or what spec.metrics says",
    FailureClass.INFRASTRUCTURE.value: "usually not caused by the program",
}


def _budget(record: ExperimentRecord) -> str:
    spec, counts = record.experiment.spec, record.counts
    done = spent_trials(counts)
    budget = spec.budget
    limit = None if budget.trials is None else quantity(budget.trials, "trial")
    words = [f"{done} of {limit}" if limit is not None else f"{quantity(done, 'trial')}, no limit"]
    if budget.failed_trials is not None:
        words.append(f"{counts.get(TrialState.FAILED, 0)} of {budget.failed_trials} failures")
    spent = formatting.duration(record.experiment.running_s)
    limit = "" if budget.wall_clock_s is None else f" of {formatting.duration(budget.wall_clock_s)}"
    return ", ".join([*words, f"{spent}{limit} running", *spending.used(record.experiment)])


def _imports_by_source(record: ExperimentRecord) -> str:
    """Return the imported trials by source: `24 from results.csv, 3 from digits-a`."""
    sources = [entry.imported_from for entry in record.trials if entry.imported_from]
    return ", ".join(f"{sources.count(source)} from {source}" for source in dict.fromkeys(sources))


def _best(record: ExperimentRecord) -> str:
    spec, best = record.experiment.spec, record.best
    if best is None:
        none_is_feasible = spec.constraints and record.counts.get(TrialState.SUCCEEDED)
        return "none yet: no trial satisfies the constraints" if none_is_feasible else "none yet"
    result = (
        f"trial {best.number}, {formatting.scores(spec.criteria, best)}: "
        f"{formatting.parameters(best.parameters)}"
    )
    share = record.dominated_share
    if share is None:
        return result
    front = (
        f"Pareto front of {quantity(len(record.front), 'trial')}, {share:.1%} of the hypervolume "
        "between best and worst"
    )
    return f"{front}; best {spec.objective.metric}: {result}"


def _log_gaps(record: ExperimentRecord) -> str:
    """Return which trials have a gap in their log, and which values that puts in doubt."""
    gaps = [entry for entry in record.trials if entry.log_gap]
    if not gaps:
        return ""
    doubted = [entry for entry in gaps if entry.value_doubt]
    in_doubt = ", and no value depends on them"
    if doubted:
        in_doubt = f"; in doubt: {_trial_numbers(doubted)}"
    look = command("describe", f"{record.experiment.name}/{(doubted or gaps)[0].trial.number}")
    return f"{_trial_numbers(gaps)}{in_doubt}; see: {look}"


def _trial_numbers(entries: Sequence[TrialRecord]) -> str:
    noun = "trial" if len(entries) == 1 else "trials"
    numbers = ", ".join(str(entry.trial.number) for entry in entries[:MOST_WAITING])
    omitted = len(entries) - MOST_WAITING
    more = f" and {omitted} more" if omitted > 0 else ""
    return f"{noun} {numbers}{more}"


def describe_objective(objective: ExperimentObjective) -> str:
    target = "" if objective.target is None else f", target {formatting.number(objective.target)}"
    return f"{objective.direction.value} {objective.metric}{target}"


def _metric_rows(measured: Sequence[Measurement]) -> list[list[str]]:
    """Return the table of the newest attempt that measured anything."""
    attempt = max(measurement.attempt for measurement in measured)
    by_metric: dict[str, list[float]] = {}
    for measurement in measured:
        values = by_metric.setdefault(measurement.metric, [])
        if measurement.attempt == attempt:
            values.append(measurement.value)
    rows = []
    for metric, values in by_metric.items():
        if values:
            ends = map(formatting.number, [values[0], values[-1], min(values), max(values)])
            trend = formatting.sparkline(values, 24)
            rows.append([metric, str(len(values)), *ends, trend])
    return rows


def _last_failed(record: ExperimentRecord) -> str:
    states = (TrialState.FAILED, TrialState.INFEASIBLE)
    bad = (entry.trial.number for entry in reversed(record.trials) if entry.state in states)
    return str(next(bad, 0))


def _events(events: Sequence[Event]) -> list[str]:
    latest = [event for event in events if event.kind != "created"][-LAST_EVENTS:]
    if not latest:
        return []
    rows = [
        [event.time.strftime("%H:%M:%S"), event.kind, one_line(event.message)] for event in latest
    ]
    return ["Last events (UTC)\n" + _indented(aligned(("", "", ""), rows, headers=False))]


def _lines(fields: Sequence[tuple[str, str]]) -> str:
    return "".join(f"{name + ':':<12}{value}\n" for name, value in fields if value)


def _indented(text: str) -> str:
    return "".join(f"  {line}\n" for line in text.splitlines())
