"""`tuner top`: the current activity of an experiment, and the free quota of its namespace. Pure text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from controller.core.model import FINAL
from controller.report import formatting
from controller.report.record import ExperimentRecord, TrialRecord, gpus_of
from controller.report.text_tables import aligned, run_time, shortened, shown_state
from suggest.trial import TrialState

MOST_QUEUED = 20


@dataclass(frozen=True, slots=True)
class GpuQuota:
    """The limit and use of one GPU resource in one ResourceQuota, as the cluster writes them."""

    resource: str
    used: str
    allowed: str
    quota: str


def top(record: ExperimentRecord, *, quotas: Sequence[GpuQuota] | None, trouble: str, now: datetime) -> str:
    """Return the page.

    `quotas` are the GPU quotas of the namespace. None means that they are unknown because of `trouble`, or that the
    experiment does not run on a cluster.
    """
    parts = [_headline(record)]
    if record.experiment.spec.traits.on_cluster:
        parts.append(_gpus(record, quotas, trouble))
    running = [one for one in record.trials if one.state is TrialState.RUNNING]
    queued = [one for one in record.trials if one.state is TrialState.QUEUED]
    final = record.final
    if final is not None and final.state in ("running", "queued"):
        why = f": {final.newest.reason}" if final.newest.reason else ""
        age = formatting.between(final.newest.start_time, now)
        parts.append(
            f"\nfinal stage  {final.state}{why}  of trial {final.run.trial}  {age}  {final.newest.node}".rstrip() + "\n"
        )
    else:
        parts.append("\n" + (_running(record, running, now=now) if running else "nothing runs\n"))
    if queued:
        rows = [[str(one.trial.number), shortened(record.reason_of(one), 100)] for one in queued[:MOST_QUEUED]]
        more = f"and {len(queued) - MOST_QUEUED} more\n" if len(queued) > MOST_QUEUED else ""
        parts.append("\n" + aligned(("QUEUED", "REASON"), rows) + more)
    return "".join(parts)


def _headline(record: ExperimentRecord) -> str:
    it = record.experiment
    states = ", ".join(f"{n} {state.value}" for state, n in record.counts.items()) or "no trials yet"
    limit = "" if it.spec.budget.trials is None else f" of {it.spec.budget.trials}"
    best = record.best
    shown = (
        ""
        if best is None
        else f"; best {it.spec.objective.metric} {formatting.number(best.value)} (trial {best.number})"
    )
    return f"{it.name}  {shown_state(record)}  {states}{limit}{shown}\n"


def _gpus(record: ExperimentRecord, quotas: Sequence[GpuQuota] | None, trouble: str) -> str:
    running = sum(one.state is TrialState.RUNNING for one in record.trials)
    gpus = record.gpus * running
    if record.final is not None and record.final.state == "running":
        running, gpus = 1, gpus_of(record.experiment.spec.template_of(FINAL))
    holds = "holds" if record.controlled_by or not running else "when last seen held"
    held = f"this experiment {holds} {gpus:g}" if record.gpus or gpus else "this experiment asks for none"
    where = f"GPUs in {record.experiment.namespace}"
    if quotas is None:
        return f"{where}: unknown, {trouble}; {held}\n"
    if not quotas:
        return f"{where}: no quota limits them; {held}\n"
    used = ", ".join(f"{each.used} of {each.allowed} {each.resource} used (quota {each.quota})" for each in quotas)
    return f"{where}: {used}; {held}\n"


def _running(record: ExperimentRecord, running: Sequence[TrialRecord], *, now: datetime) -> str:
    columns = {
        "TRIAL": [str(one.trial.number) for one in running],
        "STATE": [one.newest.state.value if one.newest is not None else "" for one in running],
        "AGE": [run_time(one, now=now) for one in running],
        "STEP": ["" if one.trial.step is None else str(one.trial.step) for one in running],
        "VALUE": [formatting.number(one.trial.value) for one in running],
    }
    if record.gpus:
        columns["GPUS"] = [f"{record.gpus:g}" for _ in running]
    if record.experiment.spec.traits.on_cluster:
        columns["NODE"] = [one.newest.node if one.newest is not None else "" for one in running]
    return aligned(list(columns), list(zip(*columns.values(), strict=True)))
