"""The commands of `tuner` with tiny experiments and real processes: output and exit codes."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.app.experiment_service import ExperimentService
from controller.app.local_experiments import opened
from controller.app.state_directory import StateDirectory
from controller.cli import exits
from controller.spec import read_path
from tests.e2e.cli import Cli, eventually, processes_of
from tests.forked import TUNER


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    cli = Cli(tmp_path, only_processes=True)
    yield cli
    cli.let_go()
    for process in cli.started:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=30)
    eventually(lambda: not processes_of(tmp_path), within_s=15)


def states(trials: list[Any]) -> list[str]:
    return [trial["state"] for trial in trials]


def test_one_command_with_a_file_prints_the_best_trial(cli: Cli) -> None:
    code, out, err = cli.tuner("run", cli.write())
    assert code == 0, err
    best = max(cli.trials(), key=lambda trial: trial["value"])
    assert out.startswith(f"tiny: best score {best['value']:.6g} (trial {best['number']})\n")
    assert "tuner get trials tiny" in err
    assert cli.starts() == ["0 1", "1 1", "2 1"]


def test_commands_show_a_finished_experiment(cli: Cli) -> None:
    cli.tuner("run", cli.write())
    trials = cli.trials()
    assert [sorted(trial) for trial in trials] == [
        [
            "attempts",
            "endTime",
            "labels",
            "name",
            "number",
            "parameters",
            "startTime",
            "state",
            "step",
            "value",
        ]
    ] * 3
    assert states(trials) == ["succeeded"] * 3
    assert trials[0]["attempts"][0]["exitCode"] == 0
    assert trials[0]["parameters"]["x"] == trials[0]["value"]
    (experiment,) = cli.json("get", "experiments", "-o", "json")
    best = cli.json("best", "tiny", "-o", "json")
    assert experiment["trials"] == {"succeeded": 3}
    assert experiment["best"] == {key: best[key] for key in ("number", "value", "parameters")}
    assert {"name", "namespace", "uid", "state", "reason", "startTime", "endTime"} < set(experiment)
    assert experiment["reasonCode"] == "TrialsDone"

    rows = list(csv.DictReader(io.StringIO(cli.tuner("export", "tiny", "--format", "csv")[1])))
    assert [float(row["parameters.x"]) for row in rows] == [
        trial["parameters"]["x"] for trial in trials
    ]
    whole = cli.json("export", "tiny", "--format", "json")
    assert whole["trials"][1]["measurements"] == [
        {"attempt": 1, "metric": "score", "step": 1, "value": trials[1]["value"]}
    ]
    assert (
        cli.tuner("describe", "tiny")[1].splitlines()[-1].startswith("Why: all 3 trials are done")
    )
    assert (
        cli.tuner("describe", "tiny/1")[1].splitlines()[-1].startswith("Why: it ended with score")
    )
    assert cli.tuner("logs", "tiny/1")[1] == f"step=1 score={trials[1]['value']}\n"
    assert cli.tuner("get", "trials", "tiny", "-o", "name")[1] == "tiny/0\ntiny/1\ntiny/2\n"
    assert cli.tuner("get", "trials", "tiny", "--no-headers")[1].splitlines()[0].startswith("0 ")


def test_each_attempt_records_its_provenance(cli: Cli) -> None:
    cli.write(command="[python, trial.py, '${x}', '0']", more="")
    cli.file.write_text(
        cli.file.read_text().replace("gracePeriod: 60s", "env: {API_KEY: hush, MODE: fast}")
    )
    cli.tuner("run", cli.file)
    (folder,) = (cli.folder / "state" / "experiments").iterdir()
    provenance = json.loads((folder / "trials" / "0" / "1" / "provenance.json").read_text())
    assert provenance["environment"] == {"API_KEY": "[redacted]", "MODE": "fast"}
    assert (provenance["seed"], provenance["revision"], provenance["file"]) == (1, 1, str(cli.file))
    assert (folder / "experiment.yaml").read_text() == cli.file.read_text()
    assert (folder / "experiment.yaml").stat().st_mode & 0o777 == 0o600


def test_the_file_of_a_finished_experiment_prints_its_result_again(cli: Cli) -> None:
    first = cli.tuner("run", cli.write())
    again = cli.tuner("run", cli.file)
    assert (again[0], again[1]) == (0, first[1])
    assert len(cli.starts()) == 3


def test_a_changed_file_is_refused_with_the_changes_and_the_cure(cli: Cli) -> None:
    cli.tuner("run", cli.write())
    code, _, err = cli.tuner("run", cli.write(parallelism=2))
    assert code == 6
    assert "spec.parallelism: 1 -> 2" in err
    assert "tuner resume" in err
    cli.file.write_text(cli.file.read_text().replace("max: 1}", "max: 2}"))
    code, _, err = cli.tuner("resume", cli.file)
    assert code == 6
    assert "spec.parameters.x.max: 1 -> 2" in err
    assert "spec.parallelism" not in err.split("\ntuner resume accepts")[0]


def test_problems_found_by_the_service_have_their_place_in_the_file(cli: Cli) -> None:
    cli.write()
    cli.file.write_text(cli.file.read_text().replace("name: random", "name: randon"))
    for verb in ("validate", "run"):
        code, _, err = cli.tuner(verb, cli.file)
        assert code == 2
        assert "8:21 spec.algorithm.name" in err
        assert "did you mean random?" in err
    assert not list((cli.folder / "state" / "experiments").glob("*"))


def test_the_file_of_a_finished_experiment_in_another_folder_says_where_it_ran(cli: Cli) -> None:
    cli.write()
    first = cli.tuner("run", cli.file)
    (cli.folder / "there").mkdir()
    there = Cli(cli.folder / "there")
    there.env["TUNER_STATE_DIR"] = cli.env["TUNER_STATE_DIR"]
    second = there.tuner("run", there.write())
    assert first[0] == second[0] == 0
    assert (
        f"nothing runs here: tiny has ended, in {cli.folder}; "
        f"for another search choose another metadata.name"
    ) in second[2]
    assert "nothing runs here" not in cli.tuner("run", cli.file)[2]
    assert not there.starts()


def test_a_finished_experiment_continues_with_a_larger_budget(cli: Cli) -> None:
    cli.tuner("run", cli.write(trials=1))
    code, _, err = cli.tuner("resume", cli.write(trials=2, parallelism=2))
    assert code == 0, err
    assert "spec.budget.trials: 1 -> 2" in err
    assert cli.starts() == ["0 1", "1 1"]


def test_an_experiment_remembers_its_storage(cli: Cli) -> None:
    cli.tuner("run", cli.write(trials=1), "--storage", "sqlite:///elsewhere.db")
    assert (cli.folder / "elsewhere.db").exists()
    assert states(cli.trials()) == ["succeeded"]
    code, _, err = cli.tuner("best", "tiny", "--storage", "sqlite:///another.db")
    assert code == 6
    assert "elsewhere.db" in err


def test_quiet_still_prints_required_actions(cli: Cli) -> None:
    code, _, err = cli.tuner("-q", "run", cli.write(command="[no-such-program]"))
    assert code == 8
    assert "tuner resume" in err


def test_an_experiment_without_failed_trials_is_not_told_to_retry_them(cli: Cli) -> None:
    code, _, err = cli.tuner("run", cli.write(command="[sh, -c, 'exit 42']", trials=3))
    assert (code, states(cli.trials())) == (3, ["infeasible"] * 3)
    why = cli.tuner("describe", "tiny")[1].splitlines()[-1]
    assert "retry" not in err + why, err + why


def test_the_best_trial_has_its_other_metrics(cli: Cli) -> None:
    cli.tuner("run", cli.write(command="[sh, -c, 'echo score=1 size=7']", trials=1))
    assert cli.json("best", "tiny", "-o", "json")["metrics"] == {"size": 7}


def test_the_limit_of_failures_ends_the_experiment(cli: Cli) -> None:
    # Each trial fails for another reason, because equal failures pause
    # the experiment (test_retry.py).
    program = "import os, sys; sys.exit(3 + int(os.environ['TUNER_TRIAL_NUMBER']))".replace(
        "'", "''"
    )
    code, out, _ = cli.tuner("run", cli.write(command=f"[python, -c, '{program}']", trials=5))
    assert (code, out) == (1, "")
    assert states(cli.trials()) == ["failed", "failed"]
    assert cli.tuner("best", "tiny")[0] == 3
    assert "exit code 3" in cli.tuner("describe", "tiny/0")[1].splitlines()[-1]


def test_ctrl_c_costs_nothing(cli: Cli) -> None:
    run = cli.start("run", cli.write(parallelism=2, seconds=60))
    eventually(lambda: len(cli.starts()) == 2)
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=30)
    assert run.returncode == 130
    assert "tuner resume tiny" in err
    assert states(cli.trials()) == ["queued", "queued"]
    cli.let_go()
    code, _, err = cli.tuner("run", cli.file)
    assert code == 0, err
    assert states(cli.trials()) == ["succeeded"] * 3
    assert sorted(cli.starts()) == ["0 1", "0 2", "1 1", "1 2", "2 1"]


def test_a_second_ctrl_c_kills_what_ignores_the_first(cli: Cli) -> None:
    stubborn = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); open('starts.txt', "
        "'w').write('0'); time.sleep(60)"
    )
    run = cli.start("run", cli.write(command=f'[python, -c, "{stubborn}"]', trials=1))
    eventually(lambda: len(cli.starts()) == 1)
    run.send_signal(signal.SIGINT)
    assert run.stderr is not None
    while "Ctrl-C" not in run.stderr.readline():
        pass
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=30)  # the trial would get a minute to end
    assert run.returncode == 130


def test_sigterm_stops_cleanly_too(cli: Cli) -> None:
    run = cli.start("run", cli.write(seconds=60))
    eventually(lambda: len(cli.starts()) == 1)
    run.terminate()
    run.communicate(timeout=30)
    assert run.returncode == 143
    assert states(cli.trials()) == ["queued"]


def test_a_killed_run_adopts_its_running_trials(cli: Cli) -> None:
    run = cli.start("run", cli.write(seconds=60))
    eventually(lambda: len(cli.starts()) == 1)
    run.kill()
    run.communicate(timeout=30)
    assert cli.tuner("describe", "tiny")[1].splitlines()[-1].endswith("tuner resume tiny")
    cli.let_go()
    code, _, err = cli.tuner("resume", "tiny")
    assert code == 0, err
    assert cli.starts() == ["0 1", "1 1", "2 1"], "no trial was started twice"


def test_a_second_run_names_the_process_that_runs_the_experiment(cli: Cli) -> None:
    run = cli.start("run", cli.write(seconds=60))
    eventually(lambda: len(cli.starts()) == 1)
    code, _, err = cli.tuner("run", cli.file)
    assert code == 6
    assert f"process {run.pid} on" in err
    code, _, err = cli.tuner("best", "tiny")
    assert (code, err) == (3, "tuner: no trial of tiny has succeeded; see tuner get trials tiny\n")
    assert cli.tuner("delete", "tiny", "--yes")[0] == 6
    assert cli.json("get", "experiments", "-o", "json")[0]["trials"] == {"running": 1}
    cli.let_go()
    run.communicate(timeout=30)
    assert run.returncode == 0


def test_a_running_trial_shows_what_it_reported_last(cli: Cli) -> None:
    run = cli.start("run", cli.write(seconds=60))
    eventually(lambda: len(cli.starts()) == 1)
    eventually(lambda: [trial.get("step") for trial in cli.trials()] == [1])
    [trial] = cli.trials()
    assert trial["state"] == "running"
    assert trial["value"] == pytest.approx(trial["parameters"]["x"])
    table = cli.tuner("describe", "tiny")[1].split("Running\n")[1].splitlines()
    assert table[0].split() == ["TRIAL", "FOR", "STEP", "VALUE", "PARAMETERS"]
    assert table[1].split()[2:4] == ["1", f"{trial['value']:.6g}"]
    cli.let_go()
    assert run.wait(timeout=30) == 0


def test_stop_from_another_terminal_cancels_for_good(cli: Cli) -> None:
    run = cli.start("run", cli.write(seconds=60))
    eventually(lambda: len(cli.starts()) == 1)
    code, _, err = cli.tuner("stop", "tiny")
    assert code == 0, err
    assert err.count("is stopping; its controller is") == 1
    run.communicate(timeout=30)
    assert run.returncode == 143
    assert states(cli.trials()) == ["cancelled"]
    cli.let_go()
    assert cli.tuner("resume", "tiny")[0] == 0
    assert states(cli.trials()) == ["cancelled", "succeeded", "succeeded", "succeeded"]


def test_stop_ends_trials_of_a_killed_run(cli: Cli) -> None:
    run = cli.start("run", cli.write(seconds=60))
    eventually(lambda: len(cli.starts()) == 1)
    run.kill()
    run.communicate(timeout=30)
    assert cli.tuner("stop", "tiny")[0] == 0
    assert states(cli.trials()) == ["cancelled"]
    assert cli.tuner("stop", "tiny")[0] == 0


def test_an_empty_list_prints_a_message_on_stderr(cli: Cli) -> None:
    message = f"no experiments in {cli.folder}/state\n"
    assert cli.tuner("get", "experiments") == (0, "", message)
    assert cli.tuner("get", "experiments", "-o", "json") == (0, "[]\n", message)
    assert cli.tuner("get", "experiments", "-q") == (0, "", "")


def test_delete_of_several_experiments_deletes_none_if_one_is_unknown_or_running(cli: Cli) -> None:
    for name in ("one", "two"):
        assert cli.tuner("run", cli.write(name=name))[0] == 0
    run = cli.start("run", cli.write(name="three", seconds=60))
    eventually(lambda: len(cli.starts()) == 7)

    code, _, err = cli.tuner("delete", "one", "four", "five", "--yes")
    assert code == 5
    assert "no experiment four" in err
    assert "no experiment five" in err
    code, _, err = cli.tuner("delete", "one", "two", "three", "--yes")
    assert code == 6
    assert "three cannot be deleted now" in err
    code, _, err = cli.tuner("delete", "one", "two", "one")
    assert code == 2
    assert (
        "this would delete 2 experiments (one, two), the logs and outputs of their 6 attempts in"
        in err
    )
    assert len(cli.json("get", "experiments", "-o", "json")) == 3

    code, _, err = cli.tuner("delete", "one", "two", "one", "--yes")
    assert (code, err) == (0, "one is deleted\ntwo is deleted\n")
    assert [found["name"] for found in cli.json("get", "experiments", "-o", "json")] == ["three"]
    cli.let_go()
    run.communicate(timeout=30)


def test_delete_of_more_experiments_than_files_may_be_open(cli: Cli) -> None:
    names = [f"n{number}" for number in range(40)]
    state = StateDirectory(cli.folder / "state")
    with opened(state, make=True) as experiments:
        service = ExperimentService(experiments)
        for name in names:
            document = read_path(str(cli.write(name=name)))
            admitted = service.create(
                document, cli.folder, service.reserve(name), service="", context=""
            )
            admitted.lease.release()
    delete = subprocess.run(
        ["sh", "-c", 'ulimit -Sn 40; exec "$@"', "sh", TUNER, "delete", *names, "--yes"],
        cwd=cli.folder,
        env=cli.env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (delete.returncode, delete.stderr) == (
        0,
        "".join(f"{name} is deleted\n" for name in names),
    )


def test_delete_removes_everything(cli: Cli) -> None:
    cli.tuner("run", cli.write())
    code, _, err = cli.tuner("delete", "tiny")
    assert code == 2
    assert "its 3 attempts in" in err
    assert "--yes" in err
    assert cli.tuner("delete", "tiny", "--yes")[0] == 0
    assert not list((cli.folder / "state" / "experiments").iterdir())
    assert cli.tuner("best", "tiny")[0] == 5
    assert cli.tuner("run", cli.file)[0] == 0, "the name is free again"


def test_logs_follow_a_trial_to_its_end(cli: Cli) -> None:
    run = cli.start("run", cli.write(trials=1, seconds=60))
    eventually(lambda: len(cli.starts()) == 1)
    logs = cli.start("logs", "-f", "tiny/0")
    assert logs.stdout is not None
    assert logs.stdout.readline().startswith("step=1 score=")
    cli.let_go()
    run.communicate(timeout=30)
    logs.communicate(timeout=30)
    assert logs.returncode == 0


def test_a_file_can_come_from_stdin_and_flags_can_be_anywhere(cli: Cli) -> None:
    text = cli.write().read_text()
    done = subprocess.run(
        [TUNER, "-q", "--set", "spec.budget.trials=1", "run", "-"],
        cwd=cli.folder,
        env=cli.env,
        input=text,
        text=True,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(cli.trials()) == 1


def test_a_state_directory_that_cannot_be_created_gives_one_sentence(cli: Cli) -> None:
    code, _, err = cli.tuner("run", cli.write(), "--state-dir", "/proc/nothing")
    assert code == 7
    assert err.count("\n") == 1
    assert "--state-dir" in err


def test_init_writes_a_valid_file_and_never_overwrites_one(cli: Cli) -> None:
    assert cli.tuner("init", "mine.yaml")[0] == 0
    assert cli.tuner("validate", "mine.yaml")[0] == 0
    assert cli.tuner("init", "mine.yaml")[0] == 6
    assert cli.json("schema")["type"] == "object"


@pytest.mark.parametrize("name", ["controller", "suggest"])
def test_a_module_with_the_name_of_our_package_is_named_with_the_cure(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / f"{name}.py").touch()
    hidden = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for command in ([TUNER, "version"], [sys.executable, "-c", "import tuner; tuner.minimize"]):
        done = subprocess.run(
            command, cwd=tmp_path, env=hidden, capture_output=True, text=True, check=False
        )
        assert done.returncode != 0
        last = done.stderr.splitlines()[-1]
        assert f"{tmp_path}/{name}.py has the name of a package" in last
        assert "give it another name" in last


WITHOUT = """
import sys
sys.modules[sys.argv.pop(1)] = None
from controller import program
sys.exit(program())
"""


@pytest.mark.parametrize("missing", ["jwt", "cryptography", "kubernetes"])
def test_a_missing_package_of_the_cluster_is_named_with_the_cure(
    tmp_path: Path, missing: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, missing, "controller", "--state-dir", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (
        done.returncode,
        "install with: pip install 'tuner-hpo[kubernetes]'" in done.stderr,
    ) == (
        2,
        True,
    ), done.stderr


def test_a_module_of_an_extra_that_is_imported_late_is_named_with_the_cure() -> None:
    assert exits.of_error(ModuleNotFoundError(name="obstore")) == (
        exits.ExitCode.USAGE,
        "tuner: the Python package obstore is missing; install with: "
        "pip install 'tuner-hpo[archive]'",
    )


def test_a_command_that_is_out_of_memory_is_no_bug_and_names_the_limits() -> None:
    code, message = exits.of_error(MemoryError())
    assert code is exits.ExitCode.UNAVAILABLE
    assert "ran out of memory; raise its limit (ulimit -v" in message
