"""Show a run in a notebook: one output that is updated in place, and sentences below it.

IPython is used here only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, Any

from controller.core.budget import spent_trials
from controller.core.model import AttemptState, trial_label
from controller.report import formatting
from controller.report.lines import Lines, View, summary

if TYPE_CHECKING:
    from controller.core.model import Event
    from controller.core.progress import Progress

MOST_ROWS = 12  # running trials that are shown


class NotebookView(View):
    """The view for a notebook."""

    draws = True

    def __init__(self) -> None:
        self._lines = Lines()
        # Any: IPython has no types; its handle of an output.
        self._output: Any = None
        self._shown = ""

    def event(self, event: Event) -> None:
        # All else is in the output.
        if event.kind == AttemptState.FAILED.value:
            self._lines.event(event)

    def print_line(self, text: str) -> None:
        self._lines.print_line(text)

    def refresh(self, progress: Progress) -> None:
        # Here, because only a notebook has it.
        from IPython.display import display

        markup = html(progress)
        content = {
            "text/html": markup,
            "text/plain": f"{progress.experiment.name}: {summary(progress)}",
        }
        if self._output is None:
            self._output = display(content, raw=True, display_id=True)
        elif markup != self._shown:
            self._output.update(content, raw=True)
        self._shown = markup

    def close(self, progress: Progress | None) -> None:
        if progress is not None:
            self.refresh(progress)


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    if "IPython" not in sys.modules:
        return False
    # Here, because only a notebook has it.
    from IPython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None


def html(progress: Progress) -> str:
    experiment = progress.experiment
    done, limit = spent_trials(progress.counts), experiment.spec.budget.trials
    counts = summary(progress) if progress.known else "looking up its trials"
    parts = [
        f"<div><b>{escape(experiment.name)}</b> {experiment.state.value}: {escape(counts)}</div>"
    ]
    if limit:
        parts.append(
            f'<progress value="{min(done, limit)}" max="{limit}" style="width: 100%"></progress>'
        )
    if (best := progress.best) is not None:
        best_text = f"{formatting.scores(experiment.spec.criteria, best)} in trial {best.number}"
        parts.append(
            f"<div>best: <b>{escape(best_text)}</b>, "
            f"{escape(formatting.parameters(best.parameters))}</div>"
        )
    if progress.trouble:
        parts.append(f"<div>waiting: {escape(progress.trouble)}</div>")
    if progress.at_work:
        parts.append(_running(progress))
    return "".join(parts)


def _running(progress: Progress) -> str:
    now, metric = datetime.now(UTC), progress.experiment.spec.objective.metric
    rows = [
        (
            trial_label(trial.number),
            formatting.between(trial.start_time, now),
            formatting.text(trial.step),
            formatting.number(trial.value),
            formatting.parameters(trial.parameters),
        )
        for trial in progress.at_work[:MOST_ROWS]
    ]
    omitted = len(progress.at_work) - len(rows)
    head = _row("th", ("trial", "for", "step", metric, "parameters"))
    body = "".join(_row("td", row) for row in rows)
    truncation = f"and {omitted} more" if omitted else ""
    return f"<table>{head}{body}</table>{truncation}"


def _row(tag: str, cells: Iterable[str]) -> str:
    row = "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells)
    return f"<tr>{row}</tr>"
