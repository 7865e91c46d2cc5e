"""What the pages show about collected metrics is read and run as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from controller.core.model import MetricsFile
from controller.runtime.kubernetes.collector import COLLECTOR_CONTAINER
from controller.spec import read, starter
from tests.unit.test_kube_collector import pod_of

EXPERIMENT = Path("docs/experiment.md").read_text(encoding="utf-8")
KUBERNETES = Path("docs/kubernetes.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"```yaml\n(metrics: .*?)```", EXPERIMENT, re.S)


@pytest.mark.parametrize("snippet", SHOWN)
def test_a_shown_section_is_read(snippet: str) -> None:
    (line,) = [line for line in snippet.splitlines() if line]
    name, _, value = line.partition(": ")
    spec = read(starter(), source="experiment.yaml", overrides=[f"spec.{name}={value}"]).spec
    assert spec.document["spec"]["metrics"] == yaml.safe_load(value) | {  # type: ignore[index]
        key: given
        for key, given in spec.document["spec"]["metrics"].items()
        if key == "prometheus"  # type: ignore[index]
    }


def test_all_sources_are_shown() -> None:
    assert [key for text in SHOWN for key in yaml.safe_load(text)["metrics"]] == [
        "step",
        "pattern",
        "file",
        "format",
        "prometheus",
        "dbManager",
    ]


def test_the_sidecar_for_other_kinds_is_the_one_that_a_job_gets() -> None:
    (text,) = re.findall(r"```yaml\n(initContainers:\n.*?)```", KUBERNETES, re.S)
    (shown,) = yaml.safe_load(text)["initContainers"]
    made: dict[str, Any] = pod_of(MetricsFile("/katib/metrics.log"))["initContainers"][0]
    assert shown["name"] == COLLECTOR_CONTAINER
    assert shown == {
        **{key: made[key] for key in shown},
        "image": "registry.example/tuner/collector:1",
    }
