"""Show a run on a terminal: a small picture that is redrawn in place,
with events scrolling above it.

The picture is not drawn more often than REFRESH says, because the trials need the CPU. Only this
module imports Rich.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from datetime import UTC, datetime

from rich.console import Console, Group, RenderableType
from rich.live import Live as RichLive
from rich.table import Table
from rich.text import Text

from controller.core.budget import spent_trials
from controller.core.model import AttemptState, Event, ExperimentState, trial_label
from controller.core.progress import Progress
from controller.phrases import quantity
from controller.report import formatting, spending
from controller.report.lines import View, time_left_s
from controller.runtime.registry import traits_of
from suggest.trial import TrialState

MAX_ROWS = 12  # running trials that are shown
EVENTS = 4
MIN_BAR, MAX_BAR = 10, 40
SPARKS = 24
_BAR_STYLES = {
    TrialState.SUCCEEDED: "green",
    TrialState.PRUNED: "yellow",
    TrialState.PAUSED: "blue",
    TrialState.INFEASIBLE: "magenta",
    TrialState.FAILED: "red",
    TrialState.CANCELLED: "bright_black",
}
_STATE_STYLES = {
    ExperimentState.RUNNING: "bold cyan",
    ExperimentState.SUCCEEDED: "bold green",
    ExperimentState.FAILED: "bold red",
    ExperimentState.PAUSED: "bold yellow",
    ExperimentState.STOPPING: "bold yellow",
    ExperimentState.STOPPED: "bold yellow",
}
_EVENT_STYLES = {
    AttemptState.FAILED.value: "red",
    AttemptState.INFEASIBLE.value: "magenta",
    AttemptState.PRUNED.value: "yellow",
    "paused": "bold yellow",
}
_SHOWN_KINDS = frozenset({"logGap", *(state.value for state in AttemptState if state.ended)})


class Live(View):
    """The view for a terminal."""

    draws = True

    def __init__(self, *, color: bool) -> None:
        self._console = Console(stderr=True, no_color=not color, highlight=False, soft_wrap=False)
        self._live: RichLive | None = None
        self._events: deque[tuple[str, Text]] = deque(maxlen=EVENTS)
        self._hint = ""  # set after a Ctrl-C

    def event(self, event: Event) -> None:
        if event.kind in _SHOWN_KINDS or event.trial is None:
            message = event.message
            if event.trial is not None:
                # "trial=digits-x7k2q-7 attempt=1 running->failed class=…":
                # show only the kind and the rest.
                message = " ".join([event.kind, *event.message.split(" ", 3)[3:]])
            self._events.append(
                (event.time.astimezone().strftime("%H:%M:%S"), _event_text(event, message))
            )

    def print_line(self, text: str) -> None:
        """Print a sentence above the picture, where it stays."""
        # The terminal is gone; the SIGHUP that follows is handled elsewhere.
        with suppress(OSError):
            self._console.print(Text(text))
        if "Ctrl-C" in text:
            self._hint = "Ctrl-C again kills"

    def refresh(self, progress: Progress) -> None:
        if self._live is None:
            self._live = RichLive(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        with suppress(OSError):
            self._live.update(self._picture(progress), refresh=True)

    def close(self, progress: Progress | None) -> None:
        live, self._live = self._live, None
        with suppress(OSError):
            if live is not None:
                live.stop()
            if progress is not None:
                self._console.print(Group(*_head(progress, self._console.width)))

    def _picture(self, progress: Progress) -> RenderableType:
        width = self._console.width
        parts: list[RenderableType] = [*_head(progress, width)]
        room = max(1, self._console.height - len(parts) - EVENTS - 6)
        if progress.at_work:
            parts += [Text(), _running(progress, min(MAX_ROWS, room), width)]
        if self._events:
            parts.append(Text())
            parts += [
                _line(Text(f"{time}  ", style="bright_black") + text, width)
                for time, text in self._events
            ]
        if progress.trouble:
            parts.append(_line(Text(f"waiting: {progress.trouble}", style="bold red"), width))
        hint = (self._hint or _hint(progress)) + _remark(progress)
        parts.append(_line(Text(hint, style="bright_black"), width))
        return Group(*parts)


def _head(progress: Progress, width: int) -> list[RenderableType]:
    """Return the first two or three lines: the experiment, its progress, and the best trial."""
    experiment = progress.experiment
    spec = experiment.spec
    state = ExperimentState.STOPPING if progress.stopping and progress.running else experiment.state
    title = Text.assemble(
        (experiment.name, "bold"),
        "  ",
        (state.value, _STATE_STYLES[state]),
        "  ",
        (
            spec.algorithm.name + (f" + {spec.pruning.name} pruning" if spec.pruning else ""),
            "bright_black",
        ),
        "  ",
        formatting.duration(experiment.running_s),
    )
    for used in spending.used(experiment):
        title.append(f"  {used}", style="bright_black")
    for foreseen in spending.foreseen(spec, progress.forecast):
        title.append(f"  in all {foreseen}", style="bright_black")
    left_s = time_left_s(progress)
    if left_s is not None and state is ExperimentState.RUNNING:
        title.append(f"  about {formatting.duration(left_s)} left", style="bright_black")
    counts = Text("looking up its trials", style="bright_black")
    if progress.known:
        counts = _bar(progress, width)
    lines: list[RenderableType] = [_line(title, width), _line(counts, width)]
    if progress.best is not None:
        lines.append(_line(_best(progress), width))
    return lines


def _bar(progress: Progress, width: int) -> Text:
    """Return the counts in words, after a bar that fills the remaining width."""
    done = spent_trials(progress.counts)
    limit = progress.experiment.spec.budget.trials
    counts = Text(f" {done}/{limit}" if limit else f"{quantity(done, 'trial')} done")
    for state, style in _BAR_STYLES.items():
        if n := progress.counts.get(state, 0):
            counts.append(f"  {n} {state.value}", style=style)
    if progress.at_work:
        counts.append(f"  {len(progress.at_work)} running", style="cyan")
    if queued := progress.queued + len(progress.held_up):
        counts.append(f"  {queued} queued", style="bright_black")
    if not limit:
        return counts
    cells = max(MIN_BAR, min(MAX_BAR, width - len(counts) - 1))
    bar = Text()
    for state, style in _BAR_STYLES.items():
        share = 0 if state is TrialState.CANCELLED else progress.counts.get(state, 0)
        if share:
            # Every outcome that occurs gets at least one cell.
            bar.append(
                "━" * min(cells - len(bar), max(1, round(share / limit * cells))), style=style
            )
    bar.append("━" * (cells - len(bar)), style="grey30")
    return bar + counts


def _best(progress: Progress) -> Text:
    best = progress.best
    assert best is not None
    text = Text.assemble(
        "best ",
        (progress.experiment.spec.objective.metric, "bold"),
        " ",
        (formatting.number(best.value), "bold green"),
        f"  trial {best.number}  ",
    )
    if trend := formatting.sparkline(progress.trend, SPARKS):
        text.append(f"{trend}  ", style="green")
    return text.append(formatting.parameters(best.parameters), style="bright_black")


def _running(progress: Progress, rows: int, width: int) -> Table:
    now = datetime.now(UTC)
    metric = progress.experiment.spec.objective.metric
    table = Table(
        box=None, padding=(0, 2, 0, 0), header_style="bright_black", pad_edge=False, width=width
    )
    table.add_column("trial", justify="right", no_wrap=True)
    table.add_column("for", justify="right", no_wrap=True)
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column(metric, justify="right", no_wrap=True)
    table.add_column("", ratio=1, no_wrap=True, overflow="ellipsis", style="bright_black")
    for trial in progress.at_work[:rows]:
        again = f"attempt {trial.attempt}  " if trial.attempt > 1 else ""
        table.add_row(
            trial_label(trial.number),
            formatting.between(trial.start_time, now),
            "" if trial.step is None else str(trial.step),
            formatting.number(trial.value),
            ("stopping  " if trial.state is AttemptState.STOPPING else "")
            + again
            + formatting.parameters(trial.parameters),
        )
    if len(progress.at_work) > rows:
        table.add_row("", "", "", "", f"and {len(progress.at_work) - rows} more")
    return table


def _event_text(event: Event, message: str) -> Text:
    style = _EVENT_STYLES.get(event.kind, "")
    match event.trial:
        case None:
            return Text(message, style=style)
        case int(number):
            return Text(f"trial {number}  {message}", style=style)
    return Text(f"final stage  {message}", style=style)


def _hint(progress: Progress) -> str:
    if traits_of(progress.experiment.spec.runtime).survives_controller:
        return "Ctrl-C detaches"
    return "Ctrl-C stops cleanly"


def _remark(progress: Progress) -> str:
    """Return why fewer trials run than the file allows."""
    if progress.held_up:
        return f" · {len(progress.held_up)} wait: {progress.held_up[0].waiting_for}"
    if progress.final_runs:
        if progress.experiment.reason:
            return f" · {progress.experiment.reason}"
        return " · the search is over"
    if progress.canary and progress.running and progress.experiment.spec.parallelism > 1:
        return " · the first trial runs alone until its first metric"
    return " · no new point is left to try" if progress.exhausted and progress.running else ""


def _line(text: Text, width: int) -> Text:
    """Cut the text to one line: a picture whose height changes by wrapping would jump."""
    text.no_wrap = True
    text.truncate(width, overflow="ellipsis")
    return text
