"""Substitution of `${name}` in a command line, and `--set PATH=VALUE`."""

from __future__ import annotations

import pytest

from controller.core.model import SecretRef, TrialTemplate
from controller.spec import SpecErrors, fill_data, read, render
from suggest.space import Value

FILE = """\
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {name: small, labels: {a.b/c: x}}
spec:
  objective: {metric: loss, direction: minimize}
  parameters:
    lr: {type: float, min: 0.001, max: 1, scale: log}
  trial: {command: [train, "${lr}"]}
"""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1, "0.1"),
        (1e-5, "1e-05"),
        (1.0, "1.0"),
        (0.1 + 0.2, "0.30000000000000004"),
        (3, "3"),
        (True, "true"),
        (False, "false"),
        ("a b", "a b"),
        ("${x}", "${x}"),
    ],
)
def test_values_reach_the_program_in_a_form_that_reads_back_the_same(
    value: Value, text: str
) -> None:
    assert render(TrialTemplate(("--x=${x}",)), {"x": value}) == ((f"--x={text}",), {})


def test_elements_that_mention_an_inactive_parameter_are_dropped() -> None:
    template = TrialTemplate(
        ("train", "--a=${a}", "--m=${m}"),
        args=("--both=${a}${m}", "end"),
        env={"A": "${a}", "M": "x${m}", "K": SecretRef("n", "k")},
    )
    assert render(template, {"a": 1}) == (
        ("train", "--a=1", "end"),
        {"A": "1", "K": SecretRef("n", "k")},
    )


@pytest.mark.parametrize("value", [True, 0, "no", [], {}])
def test_a_flag_without_a_value_is_written_for_any_value(value: Value) -> None:
    assert render(TrialTemplate(("train", "${b:+--bootstrap}")), {"b": value})[0] == (
        "train",
        "--bootstrap",
    )


@pytest.mark.parametrize("parameters", [{"b": False}, {"b": None}, {"b": ""}, {}])
def test_a_flag_without_a_value_is_dropped_where_its_parameter_is_false_or_inactive(
    parameters: dict[str, Value],
) -> None:
    template = TrialTemplate(
        ("train", "${b:+--bootstrap}", "--mode=x${b:+y}"), env={"A": "${b:+1}", "B": "x${b:+y}"}
    )
    assert render(template, parameters) == (("train", "--mode=x"), {"B": "x"})


def test_a_flag_without_a_value_is_text_in_a_template() -> None:
    manifest = {
        "spec": {"args": ["${b:+--b}", "${c:+--c}"], "note": "${b:+yes}", "gone": "${c:+yes}"}
    }
    assert fill_data(manifest, {"b": True, "c": False}) == {
        "spec": {"args": ["--b"], "note": "yes"}
    }


def test_a_name_that_reads_as_an_optional_word_is_refused() -> None:
    with pytest.raises(SpecErrors, match="would read as"):
        read(FILE.replace("    lr:", '    "a:+b": [1, 2]\n    lr:'), source="x")


def test_a_type_of_true_and_false_is_answered_with_the_choice_and_the_flag() -> None:
    with pytest.raises(
        SpecErrors, match=r"write \[true, false\]; \$\{b:\+--b\} in the command is then the flag"
    ):
        read(FILE.replace("    lr:", "    b: {type: bool}\n    lr:"), source="x")


def test_other_notations_are_left_alone_and_two_dollars_are_a_literal() -> None:
    words = ("$HOME", "$(lr)", "{{lr}}", "$${lr}", "${", "$$${lr}")
    assert render(TrialTemplate(words), {"lr": 2})[0] == (
        "$HOME",
        "$(lr)",
        "{{lr}}",
        "${lr}",
        "${",
        "$${lr}",
    )


def test_templates_are_filled_in_everywhere() -> None:
    manifest = {"spec": {"args": ["--lr=${lr}", "--m=${m}", 3, None], "note": "${m}", "n": 1}}
    assert fill_data(manifest, {"lr": 0.5}) == {"spec": {"args": ["--lr=0.5", 3, None], "n": 1}}


def test_a_value_that_is_nothing_but_a_parameter_keeps_its_type() -> None:
    container = {
        "args": ["${n}", "--lr=${lr}"],
        "env": [{"name": "N", "value": "${n}"}],
        "tty": "${flag}",
    }
    manifest = {
        "metadata": {"labels": {"n": "${n}"}, "annotations": {"n": "${n}"}},
        "spec": {
            "parallelism": "${n}",
            "suspend": "${flag}",
            "note": "n is ${n}",
            "literal": "$${n}",
            "scale": "${lr}",
            "kind": "${word}",
            "layers": "${list}",
            "gone": "${inactive}",
            "null": "${nothing}",
            "template": {"spec": {"containers": [container]}},
        },
    }
    parameters = {"n": 3, "lr": 0.5, "flag": True, "word": "relu", "list": [1, 2], "nothing": None}
    filled = {"args": ["3", "--lr=0.5"], "env": [{"name": "N", "value": "3"}], "tty": True}
    assert fill_data(manifest, parameters) == {
        "metadata": {"labels": {"n": "3"}, "annotations": {"n": "3"}},
        "spec": {
            "parallelism": 3,
            "suspend": True,
            "note": "n is 3",
            "literal": "${n}",
            "scale": 0.5,
            "kind": "relu",
            "layers": [1, 2],
            "template": {"spec": {"containers": [filled]}},
        },
    }


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("spec.budget.trials=10", "spec.budget.trials", 10),
        ("spec.parameters.lr.max=1e-1", "spec.parameters.lr.max", 0.1),
        ("spec.trial.command[0]=python", "spec.trial.command[0]", "python"),
        ("spec.trial.command[2]=--flag", "spec.trial.command[2]", "--flag"),
        ("spec.trial.command=[a, '${lr}']", "spec.trial.command", ["a", "${lr}"]),
        ("spec.trial.env.A=x=y", "spec.trial.env.A", "x=y"),
        ("spec.trial.env.A='1'", "spec.trial.env.A", "1"),
        (
            'spec.parameters."a=b"=[1, 2]',
            "spec.parameters.a=b",
            {"type": "choice", "values": [1, 2]},
        ),
        ("spec.parameters.opt[0]=a", "spec.parameters.opt", {"type": "choice", "values": ["a"]}),
        ('metadata.labels."x.y/z"=q', "metadata.labels", {"a.b/c": "x", "x.y/z": "q"}),
        ("metadata.labels.a.b/c=q", "metadata.labels", {"a.b/c": "q"}),
        ("spec.algorithm={name: random}", "spec.algorithm.name", "random"),
    ],
)
def test_set_overrides_any_value(override: str, path: str, value: object) -> None:
    data: object = read(FILE, source="x", overrides=[override]).spec.document
    for step in path.replace("[", ".").replace("]", "").split("."):
        # plain data
        data = data[int(step)] if isinstance(data, list) else data[step]  # type: ignore[index]
    assert data == value


def test_set_to_null_takes_a_key_away() -> None:
    assert read(FILE, source="x", overrides=["metadata.labels=null"]).spec.labels == {}


@pytest.mark.parametrize(
    ("override", "answer"),
    [
        (
            "spec.budget.trials=ten",
            "expected a whole number of at least 1, or none, got the string 'ten'",
        ),
        ("budget.trials=3", "budget: no such key here; did you mean spec.budget?"),
        ("spec.budget={trial: 3}", "spec.budget.trial: no such key; did you mean trials?"),
        ("spec.trial.command[7]=x", "spec.trial.command has 2 elements, so the last one is [1]"),
        ("spec.trial.command.x=x", "spec.trial.command is not a mapping, so it has no x"),
        (
            "spec.parameters.lr[0]=x",
            "spec.parameters.lr is not a list, so [0] is not a place in it",
        ),
        ("spec.parallelism", "write PATH=VALUE, such as spec.budget.trials=10"),
        ("=3", "write PATH=VALUE, such as spec.budget.trials=10"),
        ("spec..x=3", "write a path such as spec.trial.command[2]"),
        ("spec.=3", "write a path such as spec.trial.command[2]"),
        ("[0]=3", "the file is not a list, so [0] is not a place in it"),
        ("kind=Job", "'Job' is not Experiment"),
        ("metadata=null", "is missing; write a mapping with a name"),
        (
            "spec=3",
            "expected a mapping with objective, parameters and trial, got the number 3",
        ),
        (
            "spec.trial.command=[a",
            "not YAML: did not find expected ',' or ']' while parsing a flow sequence",
        ),
        ("spec.objective.metric=null", "is missing; write the name of a metric"),
    ],
)
def test_a_problem_of_an_override_names_the_override(override: str, answer: str) -> None:
    with pytest.raises(SpecErrors) as caught:
        read(FILE, source="small.yaml", overrides=[override])
    assert str(caught.value) == f"small.yaml: 1 problem\n  --set {override}: {answer}"


def test_problems_of_file_and_overrides_come_together() -> None:
    with pytest.raises(SpecErrors) as caught:
        read(
            FILE.replace("max: 1", "max: 0"),
            source="small.yaml",
            overrides=["spec.parallelism=0", "x"],
        )
    assert str(caught.value).split("\n") == [
        "small.yaml: 3 problems",
        "  7:28 spec.parameters.lr.min: 0.001 is above max, 0; swap the two",
        "  --set spec.parallelism=0: expected a whole number of at least 1, got the number 0",
        "  --set x: write PATH=VALUE, such as spec.budget.trials=10",
    ]
