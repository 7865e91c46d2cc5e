"""`tuner set` and `study.set`: a change takes effect while the search runs,
stops no trial, and survives a kill.
"""

from __future__ import annotations

import pytest

import tuner
from tests.e2e.cli import Cli, ended, eventually, experiment


def started(cli: Cli) -> list[str]:
    return [line.split()[0] for line in cli.starts()]


def test_a_running_experiment_takes_up_a_change_and_stops_no_trial(cli: Cli) -> None:
    cli.file.write_text(experiment(trials=20, waits=True))
    run = cli.start("run", cli.file)
    eventually(lambda: started(cli) == ["0"])
    code, out, err = cli.tuner("set", "tiny", "spec.parallelism=3", "spec.pruning.name=median")
    assert (code, out) == (0, "")
    assert "revision 2 of tiny takes effect now:" in err
    assert "spec.parallelism: 1 -> 3" in err
    eventually(lambda: sorted(started(cli)) == ["0", "1", "2"])
    assert cli.tuner("set", "tiny", "spec.parallelism=3") == (
        0,
        "",
        "tiny has these values already\n",
    )
    assert cli.tuner("set", "tiny", "spec.budget.trials=3")[0] == 0
    eventually(lambda: "revision 3 is in effect" in cli.tuner("describe", "tiny")[1])
    cli.let_go()
    assert ended(run)[0] == 0
    assert sorted(started(cli)) == ["0", "1", "2"], (
        "no trial ran twice, and none beyond the new budget"
    )
    described = cli.json("describe", "tiny", "-o", "json")
    assert (described["revision"], described["file"]["spec"]["pruning"]["name"]) == (3, "median")
    code, _, err = cli.tuner("set", "tiny", "spec.parallelism=4")
    assert (code, "tiny has succeeded; to add trials: tuner extend tiny --trials +20" in err) == (
        6,
        True,
    ), err


@pytest.mark.parametrize(
    ("value", "code", "told"),
    [
        ("spec.parameters.x.max=2", 6, "tuner extend tiny --set spec.parameters.x.max=2"),
        ("spec.objective.metric=loss", 6, "for anything else choose another metadata.name"),
        ("spec.parallelism=two", 2, "expected a whole number of at least 1, got the string 'two'"),
        ("spec.pruning.name=none-such", 2, "is not a pruning rule"),
        ("spec.paralelism=2", 2, "did you mean parallelism?"),
    ],
)
def test_what_cannot_change_is_refused_with_the_way_on(
    cli: Cli, value: str, code: int, told: str
) -> None:
    cli.file.write_text(experiment(trials=2, waits=True))
    run = cli.start("run", cli.file)
    eventually(lambda: started(cli) == ["0"])
    got, _, err = cli.tuner("set", "tiny", value)
    assert (got, told in err) == (code, True), err
    assert cli.json("describe", "tiny", "-o", "json")["revision"] == 1
    cli.let_go()
    assert ended(run)[0] == 0


def test_a_change_without_a_controller_takes_effect_with_resume(cli: Cli) -> None:
    cli.file.write_text(experiment(trials=20, waits=True))
    run = cli.start("run", cli.file)
    eventually(lambda: started(cli) == ["0"])
    run.kill()
    ended(run)
    code, _, err = cli.tuner("set", "tiny", "spec.budget.trials=2")
    assert (code, "takes effect with: tuner resume tiny" in err) == (0, True), err
    cli.let_go()
    code, _, err = cli.tuner("resume", cli.file)
    assert code == 0, err
    assert "is revision 1 of tiny; continuing with revision 2" in err
    assert started(cli) == ["0", "1"]


def test_python_changes_a_running_search(cli: Cli) -> None:
    cli.file.write_text(experiment(trials=20, waits=True))
    run = cli.start("run", cli.file)
    eventually(lambda: started(cli) == ["0"])
    study = tuner.open("tiny", state_dir=cli.env["TUNER_STATE_DIR"])
    study.set(parallelism=2, trials=2, timeout=3600)
    eventually(lambda: started(cli) == ["0", "1"])
    with pytest.raises(TypeError, match="set: unknown argument 'paralelism'"):
        study.set(paralelism=2)
    cli.let_go()
    assert ended(run)[0] == 0
    assert len(started(cli)) == 2
