"""`objective: {text: true}`: a text as the outcome of a trial, and what cannot be beside it."""

from __future__ import annotations

import pytest

from controller.core.metrics import LogReader
from controller.spec.problems import SpecErrors
from controller.spec.reading import read

TEXT = r"""
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {name: genotype}
spec:
  objective: {metric: Best-Genotype, direction: maximize, text: true}
  metrics: {pattern: '([\w-]+)=(Genotype.*)'}
  parameters: {x: [1, 2]}
  trial: {command: [search, "${x}"]}
"""


def reader() -> LogReader:
    spec = read(TEXT, source="genotype.yaml").spec
    return LogReader(spec.metrics, spec.objective)


def problems(text: str) -> str:
    with pytest.raises(SpecErrors) as refused:
        read(text, source="genotype.yaml")
    return str(refused.value)


def test_the_last_text_counts_and_is_a_value() -> None:
    log = reader()
    assert (log.value, log.lacking) == (None, "Best-Genotype")
    log.feed(b"epoch=1 loss=0.5\nBest-Genotype=Genotype(normal=[1])\n")
    log.feed(b"Best-Genotype=Genotype(normal=[2])\nBest-Genotype=none\n")
    assert log.text == "Genotype(normal=[2])"
    assert (log.value, log.lacking) == (0.0, "")


def test_a_log_without_the_text_lacks_the_objective() -> None:
    log = reader()
    log.feed(b"Best-Genotype=0.5\n")
    assert log.lacking == "Best-Genotype"


@pytest.mark.parametrize(
    ("good", "bad", "says"),
    [
        ("direction: maximize", "direction: minimize", "write maximize"),
        ("text: true", "text: true, target: 1", "spec.objective.target: compares numbers"),
        ("  parameters:", "  pruning: {name: median}\n  parameters:", "spec.pruning: compares"),
        (
            "  parameters:",
            "  constraints: [{metric: a, max: 1}]\n  parameters:",
            "spec.constraints: compares",
        ),
        ("  metrics: {pattern: '([\\w-]+)=(Genotype.*)'}\n", "", "needs to know where the text"),
        (
            "objective: {metric: Best-Genotype, direction: maximize, text: true}",
            "objectives: [{metric: a, direction: maximize, text: true}, "
            "{metric: b, direction: maximize}]",
            "spec.objectives[0].text: is for a single objective",
        ),
    ],
)
def test_what_compares_numbers_is_refused(good: str, bad: str, says: str) -> None:
    assert good in TEXT
    assert says in problems(TEXT.replace(good, bad, 1))
