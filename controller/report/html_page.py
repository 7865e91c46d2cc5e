"""`tuner report --html`: an experiment as one page that needs no network.

Pure text; figures come from `figures`.

Names, reasons and values are untrusted text, so they are escaped. Data is written as JSON that
cannot close its tag.
"""

from __future__ import annotations

import html
import json
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from importlib import resources

from controller.core.model import trial_name
from controller.core.substitute import TRIAL_NAME, render
from controller.phrases import quantity
from controller.report import formatting, spending, text_tables
from controller.report.description import describe_objective
from controller.report.figures import FIGURES, Json, worth_showing
from controller.report.record import ExperimentRecord
from suggest.space import Choice, Int, Parameter, Scale
from suggest.trial import TrialState

MOST_ROWS = 1000  # in the table of trials


def page(
    record: ExperimentRecord,
    *,
    javascript: str,
    now: datetime,
    confirmed: str = "",
) -> str:
    """Return the whole page.

    Args:
        record: A ranked record with measurements and importances.
        javascript: The code that draws the figures (`drawing.bundle`).
        now: The time of writing, which the page shows.
        confirmed: The comparison of the trials that ran again (`confirmation.text`), if some did.
    """
    experiment = record.experiment
    drawn = {name: FIGURES[name].draw(record) for name in worth_showing(record)}
    # A figure without data is replaced by a sentence.
    figures = {name: figure for name, figure in drawn.items() if figure["data"]["values"]}
    sections = [_section(name, figures.get(name)) for name in drawn]
    title = html.escape(experiment.name)
    # The same string in JavaScript, which closes no element.
    code = javascript.replace("</script", "<\\/script")
    sections_text = "\n".join(sections)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} - tuner report</title>
<style>
{_source("report.css")}</style>
</head>
<body>
<header>
<h1>{title}</h1>
<p class="lead">{html.escape(_lead(record))}</p>
</header>
<main>
{_overview(record, now)}
{_best(record)}
{_confirmed(confirmed)}
{sections_text}
{_failures(record)}
{_cost(record, now)}
{_trials(record)}
</main>
<footer><p class="lead">Written {html.escape(formatting.timestamp(now))} by tuner.</p></footer>
<script type="application/json" id="figures">{_json(figures)}</script>
<script>{code}</script>
<script type="module">{figure_script()}
{_source("report.js")}</script>
</body>
</html>
"""


def _section(name: str, figure: Json | None) -> str:
    heading = f"<h2>{FIGURES[name].heading}</h2>\n"
    if figure is None:
        return f"{heading}<p class='lead'>{FIGURES[name].why_empty}</p>"
    note = figure["usermeta"]["note"]
    words = f"<p class='lead'>{html.escape(note)}</p>" if note else ""
    return (
        f"{heading}<div class='card wide'><div class='figure' "
        f"id='figure-{name}'></div></div>{words}"
    )


def figure_script() -> str:
    """Return the module that draws figures, which the page of `tuner ui` uses, too."""
    return _source("figure.js")


def _source(name: str) -> str:
    return (resources.files("controller.report") / name).read_text(encoding="utf-8")


def _json(data: object) -> str:
    """Return JSON that is safe inside a script element."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _lead(record: ExperimentRecord) -> str:
    experiment = record.experiment
    counts = [f"{n} {state.value}" for state, n in record.counts.items()]
    reason = f": {experiment.reason}" if experiment.reason else ""
    return f"{experiment.state.value}{reason}. {', '.join(counts) or 'no trials yet'}."


def _overview(record: ExperimentRecord, now: datetime) -> str:
    experiment, spec = record.experiment, record.experiment.spec
    ranges = "; ".join(f"{p.name}: {_range(p)}" for p in spec.space.parameters)
    objectives = "; ".join(map(describe_objective, spec.objectives))
    pruning = f", pruning {spec.pruning.name}" if spec.pruning else ""
    fields = [
        ("Objectives" if spec.further else "Objective", objectives),
        ("Subject to", "; ".join(map(str, spec.constraints))),
        ("Algorithm", spec.algorithm.name + pruning),
        ("Parameters", ranges),
        ("Runs", f"{spec.runtime}, parallelism {spec.parallelism}"),
        ("Used", "; ".join(spending.used(experiment))),
        ("Forecast", "; ".join(spending.foreseen(spec, record.forecast(now)))),
        (
            "Started",
            formatting.timestamp(experiment.start_time),
        ),
        ("Ended", formatting.timestamp(experiment.end_time)),
        ("Revision", str(experiment.revision)),
        ("Study", experiment.study),
    ]
    return _definitions(fields)


def _range(parameter: Parameter) -> str:
    domain = parameter.domain
    if isinstance(domain, Choice):
        text = ", ".join(map(formatting.parameter, domain.values))
    else:
        log = ", log" if domain.scale is Scale.LOG else ""
        step = f", step {domain.step:g}" if domain.step not in (None, 1) else ""
        whole = "whole number " if isinstance(domain, Int) else ""
        normal = f", normal around {domain.normal.mean:g}" if domain.normal is not None else ""
        text = f"{whole}{domain.min:g} to {domain.max:g}{log}{step}{normal}"
    conditions = []
    for condition in parameter.when:
        values = " or ".join(map(formatting.parameter, condition.values))
        conditions.append(f"{condition.parameter} is {values}")
    return f"{text} (when {' and '.join(conditions)})" if conditions else text


def _definitions(fields: Iterable[tuple[str, str]]) -> str:
    rows = "".join(
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>"
        for name, value in fields
        if value
    )
    return f"<dl class='card'>{rows}</dl>"


def _best(record: ExperimentRecord) -> str:
    entry = record.best_entry
    if entry is None:
        return "<h2>Best trial</h2>\n<p class='lead'>None yet.</p>"
    spec, best, newest = record.experiment.spec, entry.trial, entry.newest
    name = trial_name(record.experiment.name, record.experiment.uid, best.number)
    argv, _ = render(spec.trial, {TRIAL_NAME: name, **best.parameters})
    front = ""
    if spec.further:
        front = f"; one of the Pareto front of {quantity(len(record.front), 'trial')}"
    fields = [
        ("Trial", f"{best.number}{front}"),
        ("Value", formatting.scores(spec.criteria, best)),
        *((name, formatting.parameter(value)) for name, value in best.parameters.items()),
        ("Imported", entry.imported_from and f"from {entry.imported_from}"),
        ("Node", "" if newest is None else newest.node),
        ("Image", "" if newest is None else newest.image),
        ("Ended", formatting.timestamp(entry.end_time)),
    ]
    command = (
        f"<pre>{html.escape(shlex.join(argv))}</pre>" if argv and not entry.imported_from else ""
    )
    return f"<h2>Best trial</h2>\n{_definitions(fields)}{command}"


def _confirmed(text: str) -> str:
    return f"<h2>Reruns</h2>\n<pre>{html.escape(text)}</pre>" if text else ""


def _failures(record: ExperimentRecord) -> str:
    reasons: Counter[tuple[str, str]] = Counter()
    for entry in record.trials:
        if entry.state in (TrialState.FAILED, TrialState.INFEASIBLE):
            kind = entry.trial.failure_class or entry.state.value
            lines = entry.trial.reason.splitlines() or [""]
            reasons[kind, lines[0]] += 1
    if not reasons:
        return ""
    rows = [[str(count), kind, reason] for (kind, reason), count in reasons.most_common()]
    return f"<h2>Failures</h2>\n{_table(['TRIALS', 'CLASS', 'REASON'], rows, text={2})}"


def _cost(record: ExperimentRecord, now: datetime) -> str:
    spent: dict[str, list[float]] = {}
    for entry in record.trials:
        for attempt in entry.attempts:
            if attempt.start_time is not None:
                time = (attempt.end_time or now) - attempt.start_time
                sums = spent.setdefault(attempt.state.value, [0.0, 0.0, 0.0])
                sums[0] += 1
                sums[1] += time.total_seconds()
                sums[2] += attempt.gpus * attempt.ran_s(now)
    if not spent:
        return ""
    whole = sum(seconds for _, seconds, _ in spent.values())
    gpus = any(gpu_seconds for *_, gpu_seconds in spent.values())
    header = ["STATE", "ATTEMPTS", "TIME", "SHARE"]
    rows = []
    for state, (count, seconds, gpu_seconds) in spent.items():
        share = f"{seconds / whole:.0%}" if whole else ""
        row = [state, str(int(count)), formatting.duration(seconds), share]
        if gpus:
            row.append(f"{gpu_seconds / 3600:.2f}")
        rows.append(row)
    if gpus:
        header.append("GPU HOURS")
    return f"<h2>Cost</h2>\n{_table(header, rows)}"


def _trials(record: ExperimentRecord) -> str:
    header, rows = text_tables.report_table(record, most_rows=MOST_ROWS, most_metrics=None)
    omitted = len(record.trials) - len(rows)
    truncation = ""
    if omitted:
        truncation = (
            f"<p class='lead'>The first {len(rows)} of {len(record.trials)}, best first.</p>"
        )
    return f"<h2>Trials</h2>\n{truncation}{_table(header, rows)}"


def _table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, text: Iterable[int] = ()
) -> str:
    """Return a table whose columns can be sorted. `text` lists the columns that may wrap."""
    head = ""
    for name in header:
        head += f"<th scope='col'><button type='button'>{html.escape(name)}</button></th>"
    opening = ["<td class=text>" if k in set(text) else "<td>" for k in range(len(header))]
    body = ""
    for row in rows:
        cells = [f"{td}{html.escape(cell)}</td>" for td, cell in zip(opening, row, strict=True)]
        body += f"<tr>{''.join(cells)}</tr>\n"
    return (
        "<div class='wide'><table "
        f"class='sortable'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
