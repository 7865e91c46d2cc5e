"""The keys of Katib's file, by those of a native one,
for messages about an experiment in Katib's format.

Messages are made with native keys. A person who wrote Katib's file has to find these in it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_CONTAINER = "spec.trialTemplate.trialSpec.spec.template.spec.containers[]"
KATIB_KEYS = {
    "spec.objective": "spec.objective",
    "spec.objective.metric": "spec.objective.objectiveMetricName",
    "spec.objective.direction": "spec.objective.type",
    "spec.objective.target": "spec.objective.goal",
    "spec.objective.value": "spec.objective.metricStrategies",
    "spec.algorithm": "spec.algorithm",
    "spec.algorithm.name": "spec.algorithm.algorithmName",
    "spec.algorithm.seed": "spec.algorithm.algorithmSettings",
    "spec.algorithm.settings": "spec.algorithm.algorithmSettings",
    "spec.fidelity": "spec.algorithm.algorithmSettings",
    "spec.fidelity.max": "spec.algorithm.algorithmSettings",
    "spec.network": "spec.nasConfig",
    "spec.pruning": "spec.earlyStopping",
    "spec.budget": "spec.maxTrialCount",
    "spec.budget.trials": "spec.maxTrialCount",
    "spec.budget.failedTrials": "spec.maxFailedTrialCount",
    "spec.parallelism": "spec.parallelTrialCount",
    "spec.metrics": "spec.metricsCollectorSpec",
    "spec.metrics.file": "spec.metricsCollectorSpec.source.fileSystemPath.path",
    "spec.metrics.format": "spec.metricsCollectorSpec.source.fileSystemPath.format",
    "spec.metrics.pattern": "spec.metricsCollectorSpec.source.filter.metricsFormat",
    "spec.metrics.prometheus": "spec.metricsCollectorSpec.source.httpGet",
    "spec.metrics.prometheus.port": "spec.metricsCollectorSpec.source.httpGet.port",
    "spec.metrics.prometheus.path": "spec.metricsCollectorSpec.source.httpGet.path",
    "spec.trial": "spec.trialTemplate",
    "spec.trial.template": "spec.trialTemplate.trialSpec",
    "spec.trial.primary": "spec.trialTemplate.primaryPodLabels",
    "spec.trial.success": "spec.trialTemplate.successCondition",
    "spec.trial.failure": "spec.trialTemplate.failureCondition",
    "spec.trial.command": f"{_CONTAINER}.command",
    "spec.trial.args": f"{_CONTAINER}.args",
    "spec.trial.env": f"{_CONTAINER}.env",
    "spec.trial.image": f"{_CONTAINER}.image",
    "spec.trial.resources": f"{_CONTAINER}.resources.limits",
    "spec.trial.resources.cpu": f"{_CONTAINER}.resources.limits.cpu",
    "spec.trial.resources.memory": f"{_CONTAINER}.resources.limits.memory",
    "spec.trial.resources.gpu": f"{_CONTAINER}.resources.limits.nvidia.com/gpu",
    "spec.trial.timeout": "spec.trialTemplate.trialSpec.spec.activeDeadlineSeconds",
}
# Native keys whose contents are the same in Katib's file.
_SAME_BELOW = (
    "spec.parameters",
    "spec.runtime",
    "spec.trial.template",
    "spec.trial.command",
    "spec.trial.args",
)
# Katib's keys that look like native ones.
_OWN = (
    "spec.objective.additionalMetricNames",
    *(key for key in KATIB_KEYS.values() if key not in KATIB_KEYS),
)
_SECTIONS = (
    "algorithm|breaker|budget|canary|constraints|fidelity|final|initial|metrics|objectives?"
    "|network|parallelism|pruning|trial"
)
_OTHERWISE = "of a native file, see tuner convert"
_KEY = re.compile(
    rf"\bspec\.(?:{_SECTIONS})\b(?:\.[A-Za-z]\w*|\[\d*\])*"
    r"|\b(?:budget|objective|fidelity)\.[A-Za-z]+\b"
)


def katib_place(path: str, exact: Mapping[str, str]) -> str:
    """Return the place in Katib's file of a native path.

    Of the nearest key around it if it has none.

    exact: the places of the file's own parameters and settings.
    """
    around = _known(path, exact)
    below = path[len(around) :]
    is_same = around in _SAME_BELOW or below.startswith("[")
    return (exact.get(around) or KATIB_KEYS.get(around, path)) + (below if is_same else "")


def katib_words(text: str) -> str:
    """Return a message with Katib's keys in place of native ones.

    It says which others only a native file has.
    """
    return _KEY.sub(_in_katib, text)


def _in_katib(found: re.Match[str]) -> str:
    key = found[0]
    if found.string.startswith(f" ({_OTHERWISE}", found.end()):
        # The message was translated where it was made.
        return key
    whole = key if key.startswith("spec.") else f"spec.{key}"
    if whole.startswith(_OWN):
        return key
    around = _known(whole, {})
    below = whole[len(around) :]
    if around in KATIB_KEYS and (not below or around in _SAME_BELOW):
        words = KATIB_KEYS[around] + below
        return words if key == whole else words.removeprefix("spec.")
    return f"{key} ({_OTHERWISE})" if key == whole else key


def _known(path: str, exact: Mapping[str, str]) -> str:
    """Return the path, or the nearest key around it that has a place in Katib's file."""
    while path not in exact and path not in KATIB_KEYS and "." in path:
        path = re.sub(r"[.\[][^.\[]*$", "", path)
    return path
