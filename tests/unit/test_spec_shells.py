"""A warning for parameters inside a shell script, with the cure, and for nothing else."""

from __future__ import annotations

import json

import pytest

from controller.spec import read

FILE = """
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {name: tiny}
spec:
  objective: {metric: score, direction: maximize}
  parameters: {lr: {type: float, min: 0, max: 1}, c: [a, "b;c"], n: [1, 2, null, true], d: [null, [x]], w: [relu, conv/3x3]}
  trial:
    command: COMMAND
    env: {ALL: "${lr} ${c} ${n} ${d} ${w}"}
MORE"""
CODE = "train --c ${c}"


def warnings(command: list[str], more: str = "", section: str = "") -> list[str]:
    text = FILE.replace("COMMAND", json.dumps(command)).replace("MORE", more)
    return list(read(text, source="x").warnings)


@pytest.mark.parametrize(
    ("command", "place"),
    [
        (["sh", "-c", CODE], 2),
        (["/bin/sh", "-ec", CODE], 2),
        (["bash", "-lc", CODE], 2),
        (["bash", "-euo", "pipefail", "-c", CODE], 4),
        (["bash", "--norc", "--rcfile", "x", "-c", "-e", CODE, "name", "${c}"], 6),
        (["bash", "-o", "pipefail", "-c", "--", CODE], 5),
        (["env", "-i", "A=b", "/usr/bin/bash", "-c", CODE], 5),
        (["nice", "-n", "5", "zsh", "-c", CODE], 5),
        (["fish", "--command", CODE], 2),
    ],
)
def test_text_in_the_script_of_a_shell_is_warned_of(command: list[str], place: int) -> None:
    assert warnings(command) == [
        f'spec.trial.command[{place}]: the shell reads the text of ${{c}} as code; write "$1" in '
        f"the script and append "
        'the words sh, "${c}" to the command, or set a variable in env'
    ]


def test_several_warnings_are_printed_together() -> None:
    (told,) = warnings(["sh", "-c", "train ${c} ${lr} ${d} ${c}"])
    assert 'the text of ${c}, ${d} as code; write "$1" "$2" in the script' in told
    assert 'append the words sh, "${c}", "${d}"' in told


@pytest.mark.parametrize(
    "command",
    [
        ["sh", "-c", 'train --c "$1"', "sh", "${c}"],
        ["sh", "-c", "train ${lr} ${n}"],  # numbers, booleans and null are not read as code
        ["sh", "-c", "train ${w}"],  # nor are plain words
        ["sh", "-c", "train $${c}"],
        ["sh", "train.sh", "${c}"],
        ["sh", "-x", "train.sh", "-c", "${c}"],
        ["python", "train.py", "-c", "${c}"],
        ["sh", "-c"],
    ],
)
def test_safe_commands_cause_no_warning(command: list[str]) -> None:
    assert warnings(command) == []


def test_args_and_the_final_stage_are_looked_at() -> None:
    (told,) = warnings(["bash"], more='    args: ["-c", "train ${c}"]\n')
    assert told.startswith("spec.trial.args[1]: ")
    (told,) = warnings(["train"], more="  final: {command: [sh, -c, 'final ${c}']}\n")
    assert told.startswith("spec.final.command[2]: ")


def test_containers_of_templates_are_looked_at() -> None:
    text = """
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {name: tiny}
spec:
  objective: {metric: score, direction: maximize}
  runtime: kubernetes
  parameters: {c: [a, "b c"]}
  trial:
    template:
      apiVersion: batch/v1
      kind: Job
      spec:
        template:
          spec:
            initContainers: [{name: i, image: x, command: [sh], args: [-c, "fetch ${c}"]}]
            containers:
            - {name: m, image: x, command: [python, "${c}"]}
            - {name: n, image: x, command: [bash, -c, "${c}"]}
"""
    places = [told.partition(":")[0] for told in read(text, source="x").warnings]
    assert places == [
        "spec.trial.template.spec.template.spec.initContainers[0].args[1]",
        "spec.trial.template.spec.template.spec.containers[1].command[2]",
    ]
