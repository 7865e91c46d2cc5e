"""`tuner top`: the current activity of an experiment, and the free quota of its namespace.

Pure text.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import islice

from controller.core.model import FINAL
from controller.core.quota_use import QuotaReport
from controller.phrases import quantity
from controller.report import formatting, spending
from controller.report.record import ExperimentRecord, TrialRecord
from controller.report.text_tables import aligned, one_line, run_time, shown_state
from controller.runtime.requested import gpus_of
from suggest.trial import TrialState

MOST_REASONS = 20


def top(record: ExperimentRecord, *, report: QuotaReport | None, now: datetime) -> str:
    """Return the page. report: the quotas of the namespace; None if the runtime has none."""
    parts = [_headline(record)]
    if record.unread:
        return parts[0]
    if record.trouble:
        parts.append(f"Trouble: {one_line(record.trouble)}\n")
    if used := spending.used(record.experiment):
        parts.append(f"Used: {', '.join(used)}\n")
    if record.tenant_budget:
        parts.append(_budget(record))
    if report is not None:
        parts.append(_gpus(record, report))
        if others := [str(quota) for quota in report.quotas or () if not quota.is_gpu]:
            parts.append(f"CPU and memory in {record.experiment.namespace}: {', '.join(others)}\n")
    running = [entry for entry in record.trials if entry.state is TrialState.RUNNING]
    queued = [entry for entry in record.trials if entry.state is TrialState.QUEUED]
    final = record.final
    if final is not None and final.state in ("running", "queued"):
        ending = f": {final.newest.reason}" if final.newest.reason else ""
        age = formatting.between(final.newest.start_time, now)
        parts.append(
            f"\nfinal stage  {final.state}{ending}  of trial {final.run.trial}  {age}  "
            f"{final.newest.node}".rstrip()
            + "\n"
        )
    else:
        parts.append("\n" + (_running(record, running, now=now) if running else "nothing runs\n"))
    if queued:
        by_reason: dict[str, list[int]] = {}
        for entry in queued:
            by_reason.setdefault(one_line(record.reason_of(entry)), []).append(entry.trial.number)
        first = islice(by_reason.items(), MOST_REASONS)
        rows = [[formatting.ranges(numbers), reason] for reason, numbers in first]
        more = len(by_reason) - MOST_REASONS
        truncation = f"and {quantity(more, 'further reason')}\n" if more > 0 else ""
        parts.append("\n" + aligned(("QUEUED", "REASON"), rows) + truncation)
    return "".join(parts)


OVERVIEW = ("NAMESPACE", "NAME", "STATE", "RUNNING", "WAITING", "THE FIRST WAITS FOR")


def overview(records: Sequence[ExperimentRecord]) -> str:
    """Return a line for each of several experiments: which trials wait, and for what.

    Budgets of their namespaces follow.
    """
    rows = []
    for record in sorted(records, key=lambda each: (each.experiment.namespace, each.name)):
        running = sum(entry.state is TrialState.RUNNING for entry in record.trials)
        queued = [entry for entry in record.trials if entry.state is TrialState.QUEUED]
        reason = record.reason_of(queued[0]) if queued else ""
        rows.append(
            [
                record.experiment.namespace,
                record.name,
                shown_state(record),
                "?" if record.unread else str(running),
                "?" if record.unread else str(len(queued)),
                one_line(record.trouble or reason),
            ]
        )
    budgets = dict.fromkeys(_budget(each) for each in records if each.tenant_budget)
    return aligned(OVERVIEW, rows) + "".join(sorted(budgets))


def _budget(record: ExperimentRecord) -> str:
    return f"TenantBudget of {record.experiment.namespace}: {one_line(record.tenant_budget)}\n"


def _headline(record: ExperimentRecord) -> str:
    experiment = record.experiment
    counts = [f"{n} {state.value}" for state, n in record.counts.items()]
    none = "unknown trials" if record.unread else "no trials yet"
    line = f"{experiment.name}  {shown_state(record)}  {', '.join(counts) or none}"
    if experiment.spec.budget.trials is not None:
        line += f" of {experiment.spec.budget.trials}"
    best = record.best
    if best is not None:
        value = formatting.number(best.value)
        line += f"; best {experiment.spec.objective.metric} {value} (trial {best.number})"
    return f"{line}\n"


def _gpus(record: ExperimentRecord, report: QuotaReport) -> str:
    running = sum(entry.state is TrialState.RUNNING for entry in record.trials)
    gpus = record.gpus * running
    if record.final is not None and record.final.state == "running":
        running, gpus = 1, gpus_of(record.experiment.spec.template_of(FINAL))
    holds = "holds" if record.controlled_by or not running else "when last seen held"
    gpus_held = "this experiment asks for none"
    if record.gpus or gpus:
        gpus_held = f"this experiment {holds} {gpus:g}"
    scope = f"GPUs in {record.experiment.namespace}"
    if report.quotas is None:
        return f"{scope}: unknown, {report.trouble}; {gpus_held}\n"
    used = ", ".join(str(quota) for quota in report.quotas if quota.is_gpu)
    return f"{scope}: {used or 'no quota limits them'}; {gpus_held}\n"


def _running(record: ExperimentRecord, running: Sequence[TrialRecord], *, now: datetime) -> str:
    attempts = [entry.newest for entry in running]
    columns = {
        "TRIAL": [str(entry.trial.number) for entry in running],
        "STATE": [attempt.state.value if attempt is not None else "" for attempt in attempts],
        "AGE": [run_time(entry, now=now) for entry in running],
        "STEP": [formatting.text(entry.trial.step) for entry in running],
        "VALUE": [formatting.number(entry.trial.value) for entry in running],
    }
    if record.gpus:
        columns["GPUS"] = [f"{record.gpus:g}" for _ in running]
    nodes = [attempt.node if attempt is not None else "" for attempt in attempts]
    if any(nodes):
        columns["NODE"] = nodes
    return aligned(list(columns), list(zip(*columns.values(), strict=True)))
