"""The final stage: its output, and the effects of a kill, Ctrl-C and a failure."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from tests.e2e.cli import Cli, ended, eventually, experiment

FINAL = """
  final:
    command: [sh, -c, '{script}', sh, "${{x}}"]
    env: {{MODEL: model.txt}}
"""
EXPORT = (
    'echo "final $TUNER_TRIAL_NUMBER $TUNER_STAGE $1" >> starts.txt; {then}; '
    "mkdir -p $TUNER_OUTPUT_DIR/sub; printf abc > $TUNER_OUTPUT_DIR/sub/$MODEL; echo exported"
)
UNTIL_GO = "while ! test -e go; do sleep 0.02; done"


def write(cli: Cli, script: str) -> Path:
    cli.file.write_text(experiment(trials=3) + FINAL.format(script=script))
    return cli.file


def finals(cli: Cli) -> list[str]:
    return [line for line in cli.starts() if line.startswith("final")]


def test_the_final_run_survives_its_controller_and_best_lists_its_output(cli: Cli) -> None:
    file = write(cli, EXPORT.format(then=UNTIL_GO))
    process = cli.start("run", file)
    eventually(lambda: "State:      running" in cli.tuner("describe", "tiny/final")[1])
    process.kill()
    process.communicate()
    assert "it may keep running without a controller" in cli.tuner("describe", "tiny/final")[1]
    again = cli.start("run", file)
    (cli.folder / "go").touch()
    code, err = ended(again)
    assert (code, "Outputs of its final stage: tuner best tiny" in err) == (0, True), err
    best = cli.json("best", "tiny", "-o", "json")
    started = f"final {best['number']} final {best['parameters']['x']!r}"
    assert finals(cli) == [started]
    final = best["final"]
    assert (final["trial"], final["state"], len(final["attempts"])) == (
        best["number"],
        "succeeded",
        1,
    )
    assert final["outputs"] == [{"path": "sub/model.txt", "bytes": 3}]
    assert (Path(final["outputDirectory"]) / "sub/model.txt").read_text() == "abc"
    assert cli.tuner("logs", "tiny/final")[1] == "exported\n"


def test_a_failed_final_run_does_not_fail_the_search_and_runs_again_on_request(cli: Cli) -> None:
    file = write(cli, EXPORT.format(then="echo no room for the model; exit 42"))
    code, out, err = cli.tuner("run", "-q", file)
    message = (
        "tiny succeeded: all 3 trials are done; its final stage failed: exit code 42: no "
        "room for the model"
    )
    assert (code, out.startswith("tiny: best score"), err.splitlines()[0]) == (1, True, message)
    code, _, err = cli.tuner("run", file)
    assert (code, err.splitlines()[0], len(finals(cli))) == (1, message, 1)
    shown = cli.tuner("describe", "tiny")[1]
    assert "see why with: tuner logs tiny/final; run it again with: tuner resume tiny" in shown
    write(cli, EXPORT.format(then=":"))
    code, _, err = cli.tuner("run", file)
    assert (code, "apply them with: tuner resume" in err) == (6, True)
    code, _, err = cli.tuner("resume", file)
    assert (code, len(finals(cli)), len(cli.starts())) == (0, 2, 5), err
    found = cli.json("get", "experiments", "-o", "json")[0]
    assert (found["state"], found["reason"]) == ("succeeded", "all 3 trials are done")
    assert [attempt["number"] for attempt in found["final"]["attempts"]] == [2]


def test_an_interrupted_final_run_resumes_and_runs_again_after_an_extension(cli: Cli) -> None:
    file = write(cli, EXPORT.format(then=UNTIL_GO))
    process = cli.start("run", file)
    eventually(lambda: finals(cli))
    process.send_signal(signal.SIGINT)
    code, err = ended(process)
    assert (code, "ending its final stage (it runs again on resume" in err) == (130, True), err
    (cli.folder / "go").touch()
    code, _, err = cli.tuner("resume", "tiny")
    assert (code, len(finals(cli))) == (0, 2), err
    code, _, err = cli.tuner("extend", "tiny", "--trials", "+4")
    assert code == 0, err
    final = json.loads(cli.tuner("best", "tiny", "-o", "json")[1])["final"]
    assert (len(finals(cli)), final["attempts"][0]["number"]) == (3, 3)
    assert finals(cli)[-1].startswith(f"final {final['trial']} ")
