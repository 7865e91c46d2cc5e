"""Messages about an experiment in Katib's format name the keys of its file."""

from __future__ import annotations

import json

import pytest

from controller.core.katib_keys import KATIB_KEYS, katib_place, katib_words
from controller.experiment_tables import stored_document
from controller.spec import from_document
from tests.unit.test_spec_katib import TEXT, read


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("3 trials failed (budget.failedTrials: 3)", "3 trials failed (maxFailedTrialCount: 3)"),
        (
            "the target was reached: accuracy 1 (objective.target: 0.99)",
            "the target was reached: accuracy 1 (objective.goal: 0.99)",
        ),
        (
            "raise spec.budget.failedTrials, then: tuner resume FILE",
            "raise spec.maxFailedTrialCount, then: tuner resume FILE",
        ),
        (
            "set spec.objective.metric / spec.metrics.pattern",
            "set spec.objective.objectiveMetricName / "
            "spec.metricsCollectorSpec.source.filter.metricsFormat",
        ),
        ("  spec.budget.trials: 4 -> 6", "  spec.maxTrialCount: 4 -> 6"),
        ("  spec.parameters.lr.max: 1 -> 2", "  spec.parameters.lr.max: 1 -> 2"),
        ("spec.trial.template.spec.x[2]: wrong", "spec.trialTemplate.trialSpec.spec.x[2]: wrong"),
        (
            "retried by spec.trial.retries; write",
            "retried by spec.trial.retries (of a native file, see tuner convert); write",
        ),
        ("Why: tuner get trials budget", "Why: tuner get trials budget"),
        ("AttributeError: trial.suggest", "AttributeError: trial.suggest"),
    ],
)
def test_native_keys_in_a_message_become_katibs(message: str, words: str) -> None:
    assert katib_words(message) == words
    assert katib_words(words) == words, (
        "a message may be translated where it is made and where it is shown"
    )


def test_every_key_of_katib_is_left_as_it_is() -> None:
    assert [
        key for key in KATIB_KEYS.values() if katib_words(key) != key and key not in KATIB_KEYS
    ] == []


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("spec.budget.failedTrials", "spec.maxFailedTrialCount"),
        ("spec.parameters.lr.min", "spec.parameters[0].feasibleSpace.min"),
        ("spec.parameters.lr.scale", "spec.parameters[0]"),
        ("spec.trial.template.spec.suspend", "spec.trialTemplate.trialSpec.spec.suspend"),
        ("spec.trial.retries.userError", "spec.trialTemplate"),
        ("metadata.name", "metadata.name"),
    ],
)
def test_a_native_path_has_the_nearest_place_in_katibs_file(path: str, place: str) -> None:
    exact = {
        "spec.parameters.lr": "spec.parameters[0]",
        "spec.parameters.lr.min": "spec.parameters[0].feasibleSpace.min",
    }
    assert katib_place(path, exact) == place


def test_a_stored_experiment_remembers_whose_format_its_file_has() -> None:
    spec = read(TEXT, source="katib.yaml").spec
    stored = from_document(json.loads(json.dumps(stored_document(spec))))
    assert (stored, stored.is_katib, stored.document) == (spec, True, spec.document)
    native = from_document(spec.document)
    assert (native, native.is_katib) == (spec, False)
