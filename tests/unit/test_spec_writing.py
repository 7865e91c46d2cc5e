"""A file that tuner writes reads back to the same experiment, and is readable."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.spec import file_text, read, starter

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(
    path for path in (ROOT / "examples").rglob("*.yaml") if "tuner.dev/v1" in path.read_text()
)
ODD = r"""
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {name: odd, labels: {"on": "yes"}}
spec:
  objective: {metric: score, direction: maximize, target: 1e300}
  parameters:
    x: {type: float, min: -0.0, max: 1.0e-5}
    "no": ["no", "1e-4", 'a: b', true, 1, 1.0e-7, "", "~", "x y", "-", "#", "ü", "0o7"]
    c: {type: choice, values: [1, 2], when: {"no": ["no", true]}}
  initial: [{x: 0.000001, "no": "1e-4"}]
  budget: {trials: 3, wallClock: 90m}
  trial:
    env: {A: "1", B: "x\ty", KEY: {secret: a/b}}
    command:
      - sh
      - -c
      - |
        echo "$TUNER_TRIAL_NAME # ${x}" >> ran.txt

          for step in 1 2 3; do echo "step=$step score=$1"; done
      - "a\n b"
      - "  a\n"
      - "tail \nb\n\n"
      - "${x}"
"""


@pytest.mark.parametrize("text", [ODD, starter(), *(path.read_text() for path in EXAMPLES)])
def test_a_written_file_reads_back_to_the_same_experiment(text: str) -> None:
    document = read(text, source="the file").spec.document
    assert read(file_text(document), source="what was written").spec.document == document


@pytest.mark.parametrize(
    "value",
    [
        '"\\x7f"',
        r'"a\x9fb \u2028 \U0001f0a1"',
        r'"one\ntwo\x7f"',
        r'"\n"',
        r'"\n\n"',
        r'"one\ntwo\n\n"',
        "1" + "0" * 200,
        r'[{"a\x7f": {"b": "one\ntwo\x7f"}}, [[["one\ntwo\x7f"]]]]',
    ],
)
def test_a_template_with_any_text_and_number_reads_back_as_it_was(value: str) -> None:
    trial = (
        f"runtime: kubernetes\n  trial:\n    template: {{apiVersion: batch/v1, kind: Job, "
        f"spec: {{key: {value}}}}}"
    )
    document = read(f"{ODD.partition('  trial:')[0]}  {trial}", source="the file").spec.document
    assert read(file_text(document), source="what was written").spec.document == document


def test_a_written_file_looks_hand_written() -> None:
    document = read(starter(), source="the file").spec.document
    lines = file_text(document).splitlines()
    assert "    lr: {type: float, min: 0.0001, max: 1, scale: log}" in lines
    assert "    optimizer: [sgd, adam]" in lines
    assert "        import math, sys, time" in lines
