"""Katib's metricsCollectorSpec: what each collector becomes,
and what is refused with which place.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from controller.core.line_pattern import LinePattern
from controller.core.metric_lines import LineParser
from controller.core.model import (
    KatibReports,
    MetricsFile,
    MetricsFormat,
    MetricsRule,
    PrometheusEndpoint,
)
from controller.spec import Document, SpecErrors, file_text, read
from controller.spec.katib_collectors import DEFAULT_FILTER

TEXT = (Path(__file__).parents[2] / "examples" / "katib" / "random.yaml").read_text()
# Katib's own filter, with groups in groups
DEFAULT = r"([\w|-]+)\s*=\s*([+-]?\d*(\.\d+)?([Ee][+-]?\d+)?)"


def reading(section: str, *, parallel: int = 1, runtime: str = "local") -> Document:
    data: Any = yaml.safe_load(TEXT)
    data["spec"]["runtime"] = runtime
    data["spec"]["parallelTrialCount"] = parallel
    data["spec"]["metricsCollectorSpec"] = yaml.safe_load(section)
    return read(yaml.safe_dump(data), source="katib.yaml")


@pytest.mark.parametrize(
    ("section", "rule"),
    [
        ("{}", MetricsRule(patterns=(DEFAULT_FILTER,))),
        ("{collector: {kind: StdOut}}", MetricsRule(patterns=(DEFAULT_FILTER,))),
        (
            "{source: {fileSystemPath: {path: /var/log/katib/metrics.log, kind: File}}}",
            MetricsRule(patterns=(DEFAULT_FILTER,)),
        ),
        ("{source: {filter: {metricsFormat: ['(a)(b)']}}}", MetricsRule(patterns=("(a)(b)",))),
        (
            f"{{source: {{filter: {{metricsFormat: ['{DEFAULT}', '(a)(b)']}}}}}}",
            MetricsRule(patterns=(DEFAULT, "(a)(b)")),
        ),
        (
            "{collector: {kind: File}}",
            MetricsRule(
                patterns=(DEFAULT_FILTER,), source=MetricsFile("/var/log/katib/metrics.log")
            ),
        ),
        (
            "{collector: {kind: File}, source: {fileSystemPath: {path: /katib/m.log, kind: File, "
            "format: TEXT}, "
            "filter: {metricsFormat: ['{name: (a), value: (b)}']}}}",
            MetricsRule(patterns=("{name: (a), value: (b)}",), source=MetricsFile("/katib/m.log")),
        ),
        (
            "{collector: {kind: File}, source: {fileSystemPath: {path: /katib/m.json, kind: File, "
            "format: JSON}}}",
            MetricsRule(source=MetricsFile("/katib/m.json", MetricsFormat.JSON)),
        ),
        (
            "{collector: {kind: TensorFlowEvent}}",
            MetricsRule(source=MetricsFile("/var/log/katib/tfevent", MetricsFormat.TENSORBOARD)),
        ),
        (
            "{collector: {kind: TensorFlowEvent}, source: {fileSystemPath: {path: /train/, kind: "
            "Directory}}}",
            MetricsRule(source=MetricsFile("/train", MetricsFormat.TENSORBOARD)),
        ),
        (
            "{collector: {kind: PrometheusMetric}}",
            MetricsRule(source=PrometheusEndpoint(8080, "/metrics")),
        ),
        (
            "{collector: {kind: PrometheusMetric}, source: {httpGet: {port: '9100', path: /m, "
            "scheme: HTTP}}}",
            MetricsRule(source=PrometheusEndpoint(9100, "/m")),
        ),
        ("{collector: {kind: Push}}", MetricsRule(source=KatibReports())),
        ("{collector: {kind: None}}", MetricsRule(source=KatibReports())),
    ],
)
def test_a_collector_becomes_a_native_source(section: str, rule: MetricsRule) -> None:
    found = reading(section)
    assert found.spec.metrics == replace(rule, not_finite_fails=False)
    assert (
        read(file_text(found.spec.document), source="native.yaml").spec.metrics
        == found.spec.metrics
    )


# As in Katib, except for nan and infinities, which are read:
# Katib's filter finds an empty text, or a sign.
LINES: dict[str, dict[str, float]] = {
    "loss=0.3": {"loss": 0.3},
    "loss = 0.3": {"loss": 0.3},
    "loss=.98": {"loss": 0.98},
    "loss=-7.53e-05": {"loss": -7.53e-05},
    "loss=1E0": {"loss": 1.0},
    "val/loss=0.3": {"loss": 0.3},
    "train.loss=0.3": {"loss": 0.3},
    "val_loss=0.3 val-loss=0.4": {"val_loss": 0.3, "val-loss": 0.4},
    "loss=1,234.5": {},  # 1 with Katib
    "accuracy=97%": {"accuracy": 97.0},
    "2026-01-02T03:04:05Z loss=0.3 accuracy=0.9": {"loss": 0.3, "accuracy": 0.9},
    "{metricName: loss, metricValue: 0.3}": {},
    "loss: 0.3": {},
    '{"loss": 0.3}': {},
    "loss=[0.3]": {},
    "loss=": {},
    "loss=information": {},
    "loss=inf": {"loss": math.inf},
    "loss=-Infinity": {"loss": -math.inf},
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_means_what_it_means_with_katibs_own_filter(line: str) -> None:
    spec = reading("{}").spec
    assert LineParser(spec.metrics, spec.objective.metric).parse(line).values == LINES[line]


def test_a_filter_has_the_classes_of_gos_expressions() -> None:
    pattern = LinePattern(r"([[:alpha:]_]+)[[=|]([[:digit:].]+)")
    assert list(pattern.pairs("3: top_k|0.25;")) == [("top_k", "0.25")]
    negated = LinePattern(r"([[:^digit:]]+?)[[:^alpha:]]([^[:^digit:]]+)")
    assert list(negated.pairs("top_k|25;")) == [("top_k", "25")]


def test_nan_is_read() -> None:
    spec = reading("{}").spec
    assert math.isnan(
        LineParser(spec.metrics, spec.objective.metric).parse("loss=nan").values["loss"]
    )


def test_katibs_filter_reads_a_long_line_once() -> None:
    spec = reading("{}").spec
    for line in ("x" * 1_000_000, "x=" * 500_000, "=" + "1" * 1_000_000, "x " * 500_000):
        assert LineParser(spec.metrics, spec.objective.metric).parse(line).values == {}


def test_none_is_katibs_older_name_of_push() -> None:
    (warning,) = [
        each
        for each in reading("{collector: {kind: None}}").warnings
        if "metricsCollectorSpec" in each
    ]
    assert "None is read as Push" in warning


CUSTOM = "{collector: {kind: Custom, customCollector: {name: reader, image: example/reader:1}}%s}"


def test_a_custom_collector_is_a_container_of_the_job() -> None:
    source = ", source: {fileSystemPath: {path: /logs/m.txt, kind: File}}"
    spec = reading(CUSTOM % source, runtime="kubernetes").spec
    pod: Any = spec.trial.cluster["template"]
    pod = pod["spec"]["template"]["spec"]
    mount = {"name": "metrics-volume", "mountPath": "/logs"}
    trial, collector = pod["containers"]
    assert spec.metrics.source == KatibReports()
    assert collector == {"name": "reader", "image": "example/reader:1", "volumeMounts": [mount]}
    assert trial["volumeMounts"] == [mount]
    assert (pod["volumes"], pod["shareProcessNamespace"]) == (
        [{"name": "metrics-volume", "emptyDir": {}}],
        True,
    )
    bare: Any = reading(CUSTOM % "", runtime="kubernetes").spec.trial.cluster["template"]
    assert "volumes" not in bare["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            CUSTOM % "",
            "collector.kind: Custom is a container, which needs a cluster; run with --runtime "
            "kubernetes, or use",
        ),
        (
            "{collector: {kind: Custom}}",
            "collector.customCollector: must be specified; write the container",
        ),
        (
            "{collector: {kind: Custom, customCollector: {name: c}}}",
            "collector.customCollector.image: must be specified",
        ),
        (
            "{collector: {kind: Files}}",
            "collector.kind: invalid metrics collector kind: Files; write StdOut, File, "
            "TensorFlowEvent, PrometheusMetric, Push, Custom",
        ),
        (
            "{source: {filter: {metricsFormat: [3]}}}",
            "filter.metricsFormat[0]: expected text, got 3; write it in quotes",
        ),
        ("{collector: {kind: [File]}}", "collector.kind: invalid metrics collector kind: ['File']"),
        (
            "{collector: {kind: File}, source: {fileSystemPath: {path: m.log}}}",
            "source.fileSystemPath.path: expected an absolute path, got 'm.log'",
        ),
        (
            "{collector: {kind: File}, source: {fileSystemPath: {kind: Directory}}}",
            "source.fileSystemPath.kind: expected File, got 'Directory'",
        ),
        (
            "{collector: {kind: File}, source: {fileSystemPath: {format: CSV}}}",
            "source.fileSystemPath.format: 'CSV' cannot be combined with this collector; write "
            "TEXT or JSON",
        ),
        (
            "{collector: {kind: File}, source: {fileSystemPath: {format: JSON}, filter: "
            "{metricsFormat: ['(a)(b)']}}}",
            "source.filter: cannot be combined with format: JSON; remove it",
        ),
        (
            "{collector: {kind: TensorFlowEvent}, source: {fileSystemPath: {kind: Directory, "
            "format: TEXT}}}",
            "source.fileSystemPath.format: 'TEXT' cannot be combined with this collector; remove it",
        ),
        (
            "{collector: {kind: PrometheusMetric}, source: {httpGet: {port: http}}}",
            "source.httpGet.port: expected a port from 1 to 65535, got 'http'",
        ),
        (
            "{collector: {kind: PrometheusMetric}, source: {httpGet: {host: other}}}",
            "source.httpGet.host: the endpoint is the trial's own; remove it",
        ),
        ("{source: {filter: {metricsFormat: a}}}", "source.filter.metricsFormat: expected a list"),
        (
            "{source: {filter: {metricsFormat: ['(a)', '(']}}}",
            "metricsFormat[1]: '(' is not a regular expression",
        ),
        ("3", "metricsCollectorSpec: expected a mapping"),
    ],
)
def test_what_cannot_be_collected_is_refused_with_its_place(section: str, message: str) -> None:
    with pytest.raises(SpecErrors) as caught:
        reading(section)
    assert message in str(caught.value)


def test_parallel_trials_of_this_machine_cannot_share_a_port() -> None:
    with pytest.raises(SpecErrors) as caught:
        reading("{collector: {kind: PrometheusMetric}}", parallel=2)
    assert "the trials on this machine would all need this port" in str(caught.value)


@pytest.mark.parametrize(
    ("section", "keys"),
    [
        ("{collector: {kind: File, customCollector: {}}}", ["collector.customCollector"]),
        ("{collector: {kind: File}, source: {httpGet: {port: 80}}}", ["source.httpGet"]),
        (
            "{source: {httpGet: {port: 80}, fileSystemPath: {path: m.log, kind: Directory}}}",
            ["source.httpGet", "source.fileSystemPath"],
        ),
        (
            "{collector: {kind: TensorFlowEvent}, source: {filter: {metricsFormat: ['(a)(b)']}}}",
            ["source.filter"],
        ),
        (
            "{collector: {kind: Push}, source: {fileSystemPath: {path: /m.log, kind: File}}}",
            ["source.fileSystemPath"],
        ),
    ],
)
def test_what_a_collector_of_katibs_does_not_read_is_warned_of(
    section: str, keys: list[str]
) -> None:
    found = [each for each in reading(section).warnings if "has no effect with kind" in each]
    assert [each.partition(": ")[0] for each in found] == [
        f"spec.metricsCollectorSpec.{key}" for key in keys
    ]


def test_no_filter_among_the_filters_is_katibs_own() -> None:
    whole = reading("{collector: {kind: StdOut}}").spec.metrics
    for none in ("{}", "{metricsFormat: []}", "{metricsFormat: null}", "null"):
        assert reading(f"{{source: {{filter: {none}}}}}").spec.metrics == whole
