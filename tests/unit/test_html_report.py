"""The report as a page and as figures: whole without a network, safe with other people's text,
drawn by Vega-Lite.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from controller.core.model import Attempt, AttemptState, ExperimentObjective, ExperimentSpec
from controller.report import drawing, figures, html_page, ranking
from controller.report.record import ExperimentRecord, TrialList, TrialRecord
from suggest.errors import InvalidArgument
from suggest.space import Choice, Condition, Float, Int, Parameter, Scale, Space
from suggest.study import Constraint, Direction, Importance
from suggest.trial import Measurement, Trial, TrialState
from tests.unit.builders import a_spec, an_experiment

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
SPACE = Space(
    (
        Parameter("lr", Float(1e-5, 1.0, Scale.LOG)),
        Parameter("a.b[0]", Int(1, 12)),
        Parameter("opt'imizer", Choice(("sgd", "adam", None))),
        Parameter("momentum", Float(0, 1), (Condition("opt'imizer", ("sgd",)),)),
    )
)
SPEC = replace(a_spec(trials=100), space=SPACE)
TWO = replace(
    SPEC,
    further=(ExperimentObjective("size", Direction.MINIMIZE),),
    constraints=(Constraint("ms", max=0.5),),
)
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> & \"quotes\" 'too'"


def a_record(
    spec: ExperimentSpec, trials: Sequence[TrialRecord], *, curves: int = 0
) -> ExperimentRecord:
    rng = random.Random(1)
    measurements = {
        one.trial.number: [
            Measurement(1, spec.objective.metric, step, rng.random()) for step in range(curves)
        ]
        for one in trials
    }
    experiment = replace(an_experiment(spec), end_time=NOW)
    return ranking.ranked(ExperimentRecord(experiment, trials=trials, measurements=measurements))


def many(
    count: int, *, several: bool = False, state: TrialState | None = None
) -> list[TrialRecord]:
    rng = random.Random(count)
    found = []
    for number in range(count):
        ended = state or rng.choice(
            (TrialState.SUCCEEDED, TrialState.SUCCEEDED, TrialState.PRUNED, TrialState.FAILED)
        )
        has_value = ended in (TrialState.SUCCEEDED, TrialState.PRUNED)
        optimizer = rng.choice(("sgd", "adam", None))
        point = {
            "lr": 10 ** rng.uniform(-5, 0),
            "a.b[0]": rng.randint(1, 12),
            "opt'imizer": optimizer,
        }
        if optimizer == "sgd":
            point["momentum"] = rng.random()
        trial = Trial(
            number,
            ended,
            point,
            value=rng.random() if has_value else None,
            reason=HOSTILE if ended is TrialState.FAILED else "",
            further=(rng.random(),) if several and ended is TrialState.SUCCEEDED else (),
            constraint_values=(rng.random(),) if several and ended is TrialState.SUCCEEDED else (),
        )
        start = NOW + timedelta(seconds=number)
        attempt = Attempt(
            number,
            1,
            AttemptState(ended.value),
            start_time=start,
            end_time=start + timedelta(seconds=3),
            reason=HOSTILE,
        )
        found.append(TrialRecord(trial, (attempt,)))
    return found


IMPORTANCES = [
    Importance("lr", 50, 0.7, 0.1),
    Importance("a.b[0]", 50, 0.3, 0.2),
    Importance("momentum", 3),
]
RECORDS = {
    "no trials": a_record(SPEC, ()),
    "one trial": a_record(SPEC, many(1, state=TrialState.SUCCEEDED), curves=1),
    "all failed": a_record(SPEC, many(5, state=TrialState.FAILED)),
    "mixed": a_record(SPEC, many(60), curves=5),
    "two objectives": a_record(TWO, many(60, several=True), curves=3),
    "not a number": a_record(
        SPEC, [TrialRecord(Trial(0, TrialState.PRUNED, {"lr": 0.1}, value=math.nan))]
    ),
}


@pytest.fixture(scope="module")
def javascript() -> str:
    return drawing.bundle()


@pytest.mark.parametrize("name", RECORDS)
def test_vega_lite_draws_every_figure(name: str) -> None:
    record = RECORDS[name]
    for figure in figures.available(record):
        drawn = drawing.svg(figures.FIGURES[figure].draw(replace(record, importances=IMPORTANCES)))
        assert drawn.startswith("<svg")
        assert "http" not in drawn.replace("http://www.w3.org/", "")


@pytest.mark.parametrize("figure", [figures.parallel, figures.contour])
def test_axes_have_the_values_of_the_parameters_whatever_is_in_them(
    figure: Callable[[TrialList], Any],
) -> None:
    evil = "'\"]}\\\u2028<b>"
    space = Space(
        (Parameter("lr", Float(0.0001, 1.0, Scale.LOG)), Parameter("kind", Choice((evil, "plain"))))
    )
    trials = [
        TrialRecord(Trial(n, TrialState.SUCCEEDED, {"lr": 0.01, "kind": kind}, value=0.5))
        for n, kind in enumerate((evil, "plain"))
    ]
    drawn = drawing.svg(figure(a_record(replace(SPEC, space=space), trials)))
    for label in ("lr", "kind", "0.0001", "1", "plain"):
        assert f">{label}</text>" in drawn
    assert "&lt;b&gt;" in drawn
    assert "<b>" not in drawn


def test_figures_of_two_parameters_are_left_out_where_there_is_one(javascript: str) -> None:
    one = replace(SPEC, space=Space((Parameter("lr", Float(0.0001, 1.0, Scale.LOG)),)))
    page = html_page.page(a_record(one, many(5)), javascript=javascript, now=NOW)
    assert "<h2>Each parameter</h2>" in page
    assert "<h2>Parallel coordinates</h2>" not in page
    assert "<h2>Two parameters</h2>" not in page
    assert "Importance needs 10 succeeded or pruned trials." in page


@pytest.mark.parametrize("name", RECORDS)
def test_the_page_is_self_contained(name: str, javascript: str) -> None:
    page = html_page.page(
        replace(RECORDS[name], importances=IMPORTANCES), javascript=javascript, now=NOW
    )
    own = page.replace(javascript.replace("</script", "<\\/script"), "")
    assert not re.search(r"<[^>]*\s(src|href)\s*=|@import|url\(", own)
    assert own.count("<script") == own.count("</script>") == 3
    json.loads(re.findall(r'id="figures">(.*?)</script>', own, re.DOTALL)[0])


def test_text_from_the_file_is_escaped(javascript: str) -> None:
    record = RECORDS["all failed"]
    page = html_page.page(record, javascript="", now=NOW)
    assert "<img" not in page
    assert "&lt;img src=x onerror=alert(2)&gt;" in page
    data = re.findall(r'id="figures">(.*?)</script>', page, re.DOTALL)[0]
    assert "<" not in data


def test_the_comparison_of_reruns_is_on_the_page() -> None:
    page = html_page.page(RECORDS["all failed"], javascript="", now=NOW, confirmed="1 < 2")
    assert "<h2>Reruns</h2>\n<pre>1 &lt; 2</pre>" in page


def test_a_page_of_a_thousand_trials_is_below_two_megabytes(javascript: str) -> None:
    record = replace(a_record(SPEC, many(1000), curves=50), importances=IMPORTANCES)
    page = html_page.page(record, javascript=javascript, now=NOW)
    assert len(page.encode()) < 2_000_000


def test_of_many_trials_some_are_drawn_and_the_figure_says_so() -> None:
    record = a_record(SPEC, many(10_000, state=TrialState.SUCCEEDED))
    figure = figures.parallel(record)
    shown = {row["trial"] for row in figure["data"]["values"]}
    assert len(shown) == 2 * figures.MOST_CURVES
    note = "300 of 10,000 trials, half of them the best"
    assert figure["title"]["text"].endswith(f"; {note}")
    assert figure["usermeta"]["note"] == note, "pages have no title"
    assert record.best is not None
    assert record.best.number in shown


def test_the_best_so_far_never_gets_worse() -> None:
    rows = figures.history(RECORDS["mixed"])["data"]["values"]
    best = [row["best"] for row in rows if row["best"] is not None]
    assert best == sorted(best)  # accuracy is maximized
    assert [row["trial"] for row in rows] == sorted(row["trial"] for row in rows)


def test_only_several_objectives_have_a_front() -> None:
    assert "front" not in figures.available(RECORDS["mixed"])
    record = RECORDS["two objectives"]
    rows = figures.front(record)["data"]["values"]
    assert {row["trial"] for row in rows if row["is"] == "Pareto front"} == {
        trial.number for trial in record.front
    }


@pytest.mark.parametrize("first", Direction)
@pytest.mark.parametrize("second", Direction)
def test_the_line_of_a_front_promises_no_values_that_no_trial_has_reached(
    first: Direction, second: Direction
) -> None:
    signs = first.sign, second.sign
    losses = [(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)]
    spec = replace(
        SPEC,
        objective=replace(SPEC.objective, direction=first),
        further=(ExperimentObjective("size", second),),
    )
    trials = [
        TrialRecord(
            Trial(
                number,
                TrialState.SUCCEEDED,
                {"lr": 0.1},
                value=signs[0] * one,
                further=(signs[1] * other,),
            )
        )
        for number, (one, other) in enumerate(losses)
    ]
    figure = figures.front(a_record(spec, trials))
    points = sorted((row["x"], row["y"]) for row in figure["data"]["values"])
    (interpolate,) = (
        layer["mark"]["interpolate"] for layer in figure["layer"] if "interpolate" in layer["mark"]
    )
    for (x, y), (next_x, next_y) in pairwise(points):
        corner = (next_x, y) if interpolate == "step-after" else (x, next_y)
        loss = signs[0] * corner[0], signs[1] * corner[1]
        assert any(one <= loss[0] and other <= loss[1] for one, other in losses)


def test_a_figure_is_written_in_the_format_of_its_name(tmp_path: Path) -> None:
    figure = figures.contour(RECORDS["mixed"])
    for name, begin in (("a.svg", b"<svg"), ("a.png", b"\x89PNG"), ("a.json", b"{")):
        drawing.write(figure, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(begin)
    with pytest.raises(InvalidArgument, match="not an svg, png or json file"):
        drawing.write(figure, tmp_path / "a.pdf")


def test_a_log_range_of_two_neighboring_doubles_is_drawn() -> None:
    narrow = Float(1e300, math.nextafter(1e300, math.inf), Scale.LOG)
    space = Space((Parameter("x", narrow), Parameter("y", Float(0, 1))))
    one = TrialRecord(Trial(0, TrialState.SUCCEEDED, {"x": 1e300, "y": 0.5}, value=0.5))
    assert figures.parallel(a_record(replace(SPEC, space=space), [one]))


def test_curves_of_each_metric_that_has_steps_can_be_drawn() -> None:
    record = RECORDS["mixed"]
    measured = {
        number: [
            *found,
            *(Measurement(1, "loss", step, 0.5) for step in (1, 2)),
            Measurement(1, "size", 3, 9.0),
        ]
        for number, found in record.measurements.items()
    }
    began = [replace(entry, trial=replace(entry.trial, step=5)) for entry in record.trials]
    record = replace(record, trials=began, measurements=measured)
    figure = figures.curves(record, "loss")
    assert figure["title"]["text"] == "loss by step"
    assert {row["value"] for row in figure["data"]["values"]} == {0.5}
    assert figure["usermeta"]["metrics"] == ["accuracy", "loss"], "size has one step only"
    first = figures.curves(record)
    assert first["title"]["text"] == "accuracy by step"


def test_trials_that_are_compared_differ_in_color() -> None:
    figure = figures.curves(RECORDS["mixed"], color_trials=True)
    assert figure["encoding"]["color"]["field"] == "trial"
