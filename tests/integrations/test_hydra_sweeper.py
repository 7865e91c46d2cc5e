"""`hydra/sweeper: tuner`: the jobs of a multirun are trials,
with Hydra's folders, logs and overrides.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from suggest.domain import Choice
from tests.integrations.conftest import Programs

APPLICATION = """
import logging, pathlib
import hydra, tuner

@hydra.main(version_base=None, config_path=".", config_name="conf")
def app(config):
    logging.getLogger("app").info("job of %s", config.kind)
    for step in range(3):
        tuner.current_trial().report(step, loss=config.lr)
    if config.get("fails"):
        raise ValueError("the job cannot run")
    return -config.lr if config.kind == "up" else config.lr

if __name__ == "__main__":
    app()
"""
CONFIG = """
defaults: [{override hydra/sweeper: tuner}, _self_]
lr: 1.0
units: 8
kind: up
note: ""
hydra:
  sweep: {dir: jobs}
  sweeper:
    name: swept
    trials: 4
    direction: maximize
    seed: 1
    algorithm: random
    params: {lr: "tag(log, interval(0.001, 1))", units: "range(8, 33, step=8)"}
"""


@pytest.fixture
def application(programs: Programs) -> Programs:
    (programs.folder / "app.py").write_text(APPLICATION)
    (programs.folder / "conf.yaml").write_text(CONFIG)
    return programs


def trials(programs: Programs, name: str = "swept") -> list[dict[str, object]]:
    out, _ = programs.run("tuner", "get", "trials", name, "-o", "json")
    found: list[dict[str, object]] = json.loads(out)
    return found


def test_each_job_is_a_trial_with_its_folder_and_overrides(application: Programs) -> None:
    arguments = [
        "--multirun",
        "kind=shuffle('u p',down)",
        "note='a, b'",
        "hydra.sweeper.parallelism=2",
    ]
    out, err = application.run(sys.executable, "app.py", *arguments)
    found = trials(application)
    assert [each["state"] for each in found] == ["succeeded"] * 4
    from omegaconf import OmegaConf

    for each in found:
        folder = application.folder / "jobs" / str(each["number"])
        config = OmegaConf.load(folder / ".hydra" / "config.yaml")
        parameters = each["parameters"]
        assert {key: config[key] for key in ("lr", "units", "kind")} == parameters
        assert config.note == "a, b"
        assert 0.001 <= config.lr <= 1
        assert config.units in (8, 16, 24, 32)
        assert f"job of {config.kind}" in (folder / "app.log").read_text()
    best = max(found, key=lambda each: float(str(each["value"])))
    assert OmegaConf.load(application.folder / "jobs" / "optimization_results.yaml") == {
        "name": "tuner",
        "search": "swept",
        "best_evaluated_params": best["parameters"],
        "best_evaluated_result": best["value"],
    }
    assert "event=" not in out + err  # the service's log


def test_a_sweep_with_a_name_is_continued(application: Programs) -> None:
    application.run(sys.executable, "app.py", "--multirun")
    first = trials(application)
    application.run(sys.executable, "app.py", "--multirun")
    assert trials(application) == first


def test_a_job_that_fails_ends_the_sweep_with_its_traceback(application: Programs) -> None:
    with application.start(sys.executable, "app.py", "--multirun", "+fails=true") as process:
        _, err = process.communicate(timeout=250)
    assert process.returncode != 0
    assert "ValueError: the job cannot run" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["hydra.sweeper.params=null", "lr=0.1"], "nothing to search: give a parameter a range"),
        (
            ["hydra.sweeper.direction=up"],
            "hydra.sweeper.direction: expected minimize, maximize, or a mapping",
        ),
        (
            ["hydra.sweeper.direction={loss: up}"],
            "such as {loss: minimize, accuracy: maximize}, got {'loss': 'up'}",
        ),
    ],
)
def test_a_sweep_that_cannot_begin_says_why(
    application: Programs, arguments: list[str], said: str
) -> None:
    with application.start(sys.executable, "app.py", "--multirun", *arguments) as process:
        _, err = process.communicate(timeout=250)
    assert process.returncode != 0
    assert said in err


RANGES = (
    "range(0,1,step=0.25)",
    "range(0.1,0.7,step=0.1)",
    "range(1,0,step=-0.3)",
    "range(10,1,step=-3)",
    "range(3)",
    "range(1,2,0.7)",
    "range(-1,-0.5,step=0.1)",
    "float(range(1,4))",
    "shuffle(range(1,9,2))",
)


@pytest.mark.parametrize("text", RANGES)
def test_a_range_has_the_values_that_hydra_gives_it(text: str) -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from tuner.integrations.hydra import _Swept

    (override,) = OverridesParser.create().parse_overrides([f"x={text}"])
    domain = _Swept(override).domain
    assert not isinstance(domain, Choice)
    values = [domain.at(index) for index in range(domain.count or 0)]
    assert values == pytest.approx(sorted(override.sweep_iterator()))
    assert {type(value) for value in values} == {type(value) for value in override.sweep_iterator()}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "range(1,10,step=-1)",
            "x=range(1,10,step=-1): the range is empty; to count down, write a negative step",
        ),
        ("range(10,1)", "the range is empty; to count down, write a negative step"),
        ("range(0.5,0.5)", "the range is empty"),
        ("range(0,1,step=0)", "a step of 0 never reaches the stop"),
        ("range(0,inf)", "expected finite numbers"),
    ],
)
def test_a_range_without_values_is_named(text: str, said: str) -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from tuner.integrations.hydra import _Swept

    (override,) = OverridesParser.create().parse_overrides([f"x={text}"])
    with pytest.raises(ValueError, match=re.escape(said)):
        _Swept(override)


def test_several_objectives_have_a_front(application: Programs) -> None:
    file = application.folder / "app.py"
    file.write_text(
        file.read_text().replace(
            "return -config.lr", 'return {"loss": config.lr, "size": config.units}#'
        )
    )
    arguments = ["--multirun", "hydra.sweeper.direction={loss: minimize, size: maximize}"]
    application.run(sys.executable, "app.py", *arguments)
    from omegaconf import OmegaConf

    found = OmegaConf.to_container(
        OmegaConf.load(application.folder / "jobs" / "optimization_results.yaml")
    )
    points = [(-each["value"], each["metrics"]["size"]) for each in trials(application)]
    front = [p for p in points if not any(q != p and q[0] >= p[0] and q[1] >= p[1] for q in points)]
    solutions = [each["values"] for each in found["solutions"]]
    assert sorted((-each["loss"], each["size"]) for each in solutions) == sorted(front)
    assert solutions == sorted(solutions, key=lambda each: each["loss"])
    assert [each["params"]["lr"] for each in found["solutions"]] == [
        each["loss"] for each in solutions
    ]


def test_the_plugin_is_installed_with_the_package(tmp_path: Path, programs: Programs) -> None:
    out, _ = programs.script(
        "import hydra_plugins.tuner_sweeper as plugin; print(plugin.SETTINGS['_target_'])"
    )
    assert out == "hydra_plugins.tuner_sweeper.TunerSweeper\n"
