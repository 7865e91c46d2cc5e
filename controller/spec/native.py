"""The table of the keys of the native file, `apiVersion: tuner.dev/v1`.

Rules between keys are in `rules`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

from controller.core.line_pattern import LinePattern
from controller.core.model import (
    KATIB_SUFFIX,
    MAX_NAME_LENGTH,
    MOST_SEEDS,
    MetricsFormat,
    Overrun,
)
from controller.core.runtime_traits import DEFAULT_RUNTIME
from controller.runtime import registry
from controller.spec.cluster_section import FREE_LABELS
from controller.spec.fields import (
    ABSENT,
    ANY,
    FLAG,
    INVALID,
    REQUIRED,
    SCALAR,
    Key,
    ListOf,
    Number,
    NumberOrNone,
    Parsed,
    Schema,
    Text,
    WholeNumber,
    Word,
    fields_of,
    refuse,
)
from controller.spec.network_section import NETWORK
from controller.spec.parameters import ParameterKind
from controller.spec.problems import ProblemCollector
from controller.spec.quantities import parse_duration
from controller.spec.sections import MapOf, Section
from controller.spec.trial_section import (
    EXTENDED_RESOURCE,
    EXTENDED_WORDS,
    RESOURCES,
    TRIAL,
    duration,
)
from suggest.space import MAX_NAME, NAME_RULE
from suggest.study import SIMILAR, Belief, EarlierStudy

API_VERSION = "tuner.dev/v1"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
# The only key that says what to do with the experiment instead of what it is.
SUSPEND = "suspend"
DNS_LABEL = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
DNS_RULE = "lower-case letters, digits and -, with a letter or digit at both ends"
AUTO = "auto"
NAMES = MapOf(SCALAR, "a mapping of names to values")
PARAMETERS = MapOf(ParameterKind(), "a mapping of names to parameters")
POINT = MapOf(ANY, "a mapping of parameters to values")


# In `spec.final`, an absent key is as in `spec.trial`, so no key has a default of its own.
AS_TRIAL = "as in `trial`"
_FINAL_HELP = {
    "command": "The program and its arguments; `${name}` is a parameter of the best trial.",
    "args": "More arguments, after the command.",
    "env": "Environment variables, in addition to those of `trial`.",
    "resources": "Resources of an attempt; omitted ones are as in `trial`.",
    "timeout": "An attempt that runs longer is stopped and failed.",
}
_OWN_RESOURCES = replace(
    RESOURCES, keys=tuple(replace(key, default=ABSENT, says=AS_TRIAL) for key in RESOURCES.keys)
)
_FINAL_ELSEWHERE = {
    key.name: f"spec.trial.{key.name}" for key in TRIAL.keys if key.name not in _FINAL_HELP
}


class FrontRule:
    """Which trial of the Pareto front the final stage takes."""

    expected = "first, knee or a mapping of objectives to weights such as {accuracy: 2, latency: 1}"
    _words = Word(("first", "knee"))
    _weights = MapOf(Number(0), expected)

    def take(self, raw: object, at: str, problems: ProblemCollector) -> object:
        if isinstance(raw, str | dict):
            return (self._weights if isinstance(raw, dict) else self._words).take(raw, at, problems)
        return refuse(raw, at, problems, self.expected)

    def schema(self) -> Schema:
        return {"oneOf": [self._words.schema(), self._weights.schema()]}


_OF_TRIAL = tuple(
    replace(
        key,
        kind=_OWN_RESOURCES if key.name == "resources" else key.kind,
        help=_FINAL_HELP[key.name],
        default=ABSENT,
        says=AS_TRIAL,
    )
    for key in TRIAL.keys
    if key.name in _FINAL_HELP
)
FINAL_STAGE = Section(
    (
        *_OF_TRIAL,
        Key(
            "choose",
            FrontRule(),
            "The trial of the Pareto front to use: the best in the `first` objective, the `knee`, "
            "or the best by weights.",
            says="`first`",
        ),
    ),
    expected="a mapping with a command",
    elsewhere=_FINAL_ELSEWHERE,
)


def _pattern(raw: str | int | float) -> str:
    if not isinstance(raw, str):
        raise ValueError(
            f"{raw} is not a pattern; write one with two groups, name and value: '(\\w+)=(\\S+)'"
        )
    LinePattern(raw)
    return raw


METRIC = Text(
    "the name of a metric",
    r"[^\s=](?:[^\r\n]*[^\s=])?",
    "a name in one line, without = at its ends",
)
OBJECTIVE = Section(
    (
        Key(
            "metric",
            METRIC,
            "The metric to optimize, as the trial prints it.",
            REQUIRED,
        ),
        Key(
            "direction",
            Word(("maximize", "minimize")),
            "Whether larger or smaller values are better.",
            REQUIRED,
        ),
        Key("target", Number(), "The experiment ends when a trial reaches this value."),
        Key(
            "value",
            Word(("last", "best", "worst")),
            "The measurement that is the trial's value.",
            "last",
        ),
        Key(
            "text",
            FLAG,
            "The metric is a text, such as a genotype, read by `metrics.pattern`. A trial that "
            "prints one succeeds, and the last such trial is the best.",
            says="`false`",
        ),
    ),
    expected="a mapping such as {metric: accuracy, direction: maximize}",
)
CONSTRAINT = Section(
    (
        Key(
            "metric",
            METRIC,
            "Name of the bounded metric, as the trial prints it; its last value counts.",
            REQUIRED,
            field="metric",
        ),
        Key("min", Number(), "Lower bound.", field="min"),
        Key("max", Number(), "Upper bound.", field="max"),
    ),
    expected="a mapping such as {metric: latency_ms, max: 20}",
)


PATTERN = Parsed(
    "a regular expression with two groups", _pattern, {"type": "string", "format": "regex"}
)


@dataclass(frozen=True, slots=True)
class Patterns:
    """One regular expression, or a list of them."""

    expected: str = "a regular expression with two groups, or a list of them"

    def take(self, raw: object, at: str, problems: ProblemCollector) -> object:
        kind = ListOf(PATTERN, self.expected, least=1) if isinstance(raw, list) else PATTERN
        return kind.take(raw, at, problems)

    def schema(self) -> Schema:
        return {"anyOf": [PATTERN.schema(), ListOf(PATTERN, least=1).schema()]}


def _as_patterns(value: str | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


@dataclass(frozen=True, slots=True)
class RuntimeName:
    """The name of a runtime, of this project or of an installed package."""

    @property
    def expected(self) -> str:
        return Word(tuple(registry.names())).expected

    def take(self, raw: object, at: str, problems: ProblemCollector) -> object:
        if not isinstance(raw, str):
            return refuse(raw, at, problems, self.expected)
        if registry.is_known(raw):
            return raw
        problems.add(at, registry.unknown(raw))
        return INVALID

    def schema(self) -> Schema:
        return {"enum": registry.names()}


@dataclass(frozen=True, slots=True)
class Port:
    expected: str = "a port from 1 to 65535"

    def take(self, raw: object, at: str, problems: ProblemCollector) -> object:
        if isinstance(raw, bool) or not isinstance(raw, int) or not 1 <= raw <= 65535:
            return refuse(raw, at, problems, self.expected)
        return raw

    def schema(self) -> Schema:
        return {"type": "integer", "minimum": 1, "maximum": 65535}


PROMETHEUS = Section(
    (
        Key(
            "port",
            Port(),
            "Port of the endpoint. Without it, each attempt gets its port in `TUNER_METRICS_PORT`.",
            says="a free port; 8080 on a cluster",
            field="port",
        ),
        Key(
            "path",
            Text("the path of an endpoint", r"/[!-~]*", "a path that begins with /"),
            "The path of the endpoint.",
            "/metrics",
            field="path",
        ),
    ),
    expected="a mapping such as {port: 8080}",
)
METRICS = Section(
    (
        Key(
            "step",
            Text("the name of a key", r"[^\s=]+", "a name without spaces or ="),
            "The key that holds the step.",
            says="`step`, `epoch`, `Epoch 3/10`, `[3]`…, else a counter",
            field="step",
        ),
        Key(
            "pattern",
            Patterns(),
            "Matches a metric in a line, with one group for the name and one for the value.",
            says="`name=value`, JSON, what libraries print",
            field="patterns",
            value=_as_patterns,
        ),
        Key(
            "file",
            Text(
                "the path of a file",
                r"[^\r\n$]*[^\r\n$/]",
                "a path without $ that does not end in /",
            ),
            "File to read instead of the log; a relative path is relative to `TUNER_OUTPUT_DIR`.",
        ),
        Key(
            "format",
            Word(tuple(each.value for each in MetricsFormat)),
            "Format of `file`: lines as in the log, one JSON object per line, or a directory of "
            "TensorBoard's event files.",
            says="`text`",
        ),
        Key(
            "prometheus", PROMETHEUS, "Endpoint of the trial to scrape instead of reading its log."
        ),
        Key(
            "dbManager",
            FLAG,
            "The trial reports to Katib's DBManager instead, for example by `report_metrics` of "
            "Katib's SDK.",
            says="`false`",
        ),
        Key(
            "collectorImage",
            Text("the name of an image", r"\S+", "a name without spaces"),
            "On a cluster, the image of the sidecar that reads `file`, `prometheus` or "
            "`dbManager`.",
            says="`TUNER_COLLECTOR_IMAGE`, else `tuner/collector:1`",
            field="collector_image",
        ),
        Key(
            "notFinite",
            Word(("failed", "infeasible")),
            "Outcome of a trial whose value is nan or infinite. An infeasible trial does not "
            "count as a failure.",
            says="`failed`",
            field="not_finite_fails",
            value=lambda word: word == "failed",
        ),
    )
)
ALGORITHM = Section(
    (
        Key(
            "name",
            Text("the name of an algorithm", r"[A-Za-z0-9:_ -]+", "default, tpe, random or grid"),
            "Name of the algorithm.",
            "default",
        ),
        Key(
            "seed",
            WholeNumber(0, most=2**63 - 1),
            "Repeats the random numbers of each trial. Algorithms that learn repeat the search "
            "only if one trial runs at a time, because what they have learned depends on the order "
            "in which trials end.",
            says="drawn once",
        ),
        Key("settings", NAMES, "Settings of the algorithm.", {}),
    ),
    expected="a mapping such as {name: tpe}",
)
PRUNING = Section(
    (
        Key(
            "name",
            Text("the name of a pruner", r"[A-Za-z0-9:_ -]+", "auto, median or asha"),
            "Name of the rule.",
            REQUIRED,
        ),
    ),
    expected="a mapping such as {name: median}",
    rest=SCALAR,
)
FIDELITY = Section(
    (
        Key(
            "parameter",
            Text("a name", r"[^{}]+", NAME_RULE, MAX_NAME),
            "Name of the fidelity, such as `epochs`; `${epochs}` in the command is the fidelity of "
            "the current step.",
            REQUIRED,
            field="parameter",
        ),
        Key("min", Number(), "Fidelity of a trial's first step; above 0.", REQUIRED, field="min"),
        Key(
            "max",
            Number(),
            "Fidelity of a complete trial; at least `eta` times `min`.",
            REQUIRED,
            field="max",
        ),
        Key(
            "eta",
            WholeNumber(2),
            "The best 1/eta of the trials continue, to eta times the fidelity.",
            3,
            field="eta",
        ),
    ),
    expected="a mapping such as {parameter: epochs, min: 1, max: 81}",
)


EARLIER = Section(
    (
        Key(
            "study",
            Text("the name of an experiment", DNS_LABEL, DNS_RULE, 63),
            "Name of a finished experiment of the namespace, or of a study of its service.",
            REQUIRED,
            field="study",
        ),
        Key(
            "weight",
            Number(0),
            "How much it is trusted before the search has trials of its own, from 0 to 1.",
            1,
            field="weight",
        ),
    ),
    expected="the name of an experiment, or a mapping such as {study: mlp-march, weight: 0.5}",
)


@dataclass(frozen=True, slots=True)
class EarlierSearch:
    """An earlier search, by its name alone or with a weight."""

    expected: str = EARLIER.expected

    def take(self, raw: object, at: str, problems: ProblemCollector) -> object:
        if raw == AUTO:
            problems.add(
                at,
                f"{AUTO} names no experiment; write {AUTO} instead of the list, and "
                f"{{study: {AUTO}}} for an experiment of that name",
            )
            return INVALID
        if isinstance(raw, str):
            name = EARLIER.keys[0].kind.take(raw, at, problems)
            return INVALID if name is INVALID else {"study": name, "weight": 1}
        return EARLIER.take(raw, at, problems)

    def schema(self) -> Schema:
        return {"anyOf": [EARLIER.keys[0].kind.schema(), EARLIER.schema()]}


BELIEF = Section(
    (
        Key(
            "around",
            ANY,
            "The value that you believe to be best, or near the best.",
            REQUIRED,
            field="around",
        ),
        Key(
            "sure",
            Number(0),
            "For a number, the probability that the best value is within a tenth of the range, on "
            "the parameter's scale; for a choice, the probability that it is the best one.",
            REQUIRED,
            field="sure",
        ),
    ),
    expected="a mapping with around and sure",
)


class EarlierSearches:
    """A list of earlier searches, or `auto`."""

    expected = "auto, or a list of experiments, such as [march]"
    _listed = ListOf(EarlierSearch(), expected)

    def take(self, raw: object, at: str, problems: ProblemCollector) -> object:
        return raw if raw == AUTO else self._listed.take(raw, at, problems)

    def schema(self) -> Schema:
        return {"anyOf": [{"const": AUTO}, self._listed.schema()]}


def earlier_studies(taken: object) -> tuple[EarlierStudy, ...]:
    """Return the studies that `EarlierSearches` took."""
    if taken == AUTO:
        return (EarlierStudy(SIMILAR),)
    assert isinstance(taken, list)
    return tuple(EarlierStudy(**fields_of(EARLIER.keys, each)) for each in taken)


# Within these, all sums, products and ratios of what attempts use are finite.
LEAST_LIMIT, MOST_LIMIT, MOST_PRICE = 1e-6, 1e15, 1e9


def _above_zero(raw: str | int | float) -> int | float:
    if isinstance(raw, str):
        raise ValueError(f"{raw!r} is not a number; write one, without a unit and without quotes")
    if not 0 < raw < math.inf:
        raise ValueError(f"{raw} is not a finite number above 0; write one, or remove the key")
    if raw < LEAST_LIMIT:
        raise ValueError(f"{raw} is too small; use at least {LEAST_LIMIT:g}")
    if raw > MOST_LIMIT:
        raise ValueError(f"{raw} is too large; use at most {MOST_LIMIT:g}")
    return int(raw) if float(raw).is_integer() else raw


ABOVE_ZERO = Parsed("a number above 0", _above_zero, {"type": "number", "minimum": 0})


def _limit(number: object) -> object:
    return None if number == "none" else number


BUDGET = Section(
    (
        Key(
            "trials",
            NumberOrNone(WholeNumber(1)),
            "Number of trials, whatever their outcome; only cancelled trials do not count. With "
            "`none`, their number does not end the experiment.",
            says="100; none with a grid, which ends by itself",
            field="trials",
            value=_limit,
        ),
        Key(
            "failedTrials",
            NumberOrNone(WholeNumber(1)),
            "The experiment fails when this many trials have failed; with `none`, failures do not "
            "end it.",
            says="a tenth of `trials`, at least 5",
            field="failed_trials",
            value=_limit,
        ),
        Key(
            "wallClock",
            duration(above_zero=True),
            "Running time; pauses and downtime do not count.",
            field="wall_clock_s",
            value=parse_duration,
        ),
        Key(
            "noImprovement",
            WholeNumber(1),
            "Stop after this many trials in a row without a new best one.",
            field="no_improvement",
        ),
        Key(
            "regretBelow",
            Number(0),
            "Stop when a model gives probability 0.9 that no point beats the best trial by more "
            "than this.",
            field="regret_below",
        ),
        Key(
            "gpuHours",
            ABOVE_ZERO,
            "Maximum GPU-hours of all attempts. When they are used up, no attempt starts.",
            field="gpu_hours",
        ),
        Key(
            "cost",
            ABOVE_ZERO,
            "Maximum cost of all attempts, by `spec.prices`. When it is used up, no attempt "
            "starts.",
            field="cost",
        ),
        Key(
            "overrun",
            Word(tuple(each.value for each in Overrun)),
            "Whether running attempts finish or stop when `wallClock`, `gpuHours` or `cost` is "
            "used up.",
            says="`stop` for `wallClock`, else `finish`",
            field="overrun",
            value=Overrun,
        ),
    ),
    expected="a mapping such as {trials: 100}",
    elsewhere={
        "prices": "spec.prices",
        "parallelism": "spec.parallelism",
        "timeout": "wallClock",
        "target": "spec.objective.target",
    },
)
_PRICE = Number(0, most=MOST_PRICE)
PRICES = Section(
    (
        Key("cpu", _PRICE, "Price of a core for an hour.", says="0"),
        Key("memory", _PRICE, "Price of a GiB of memory for an hour.", says="0"),
    ),
    expected="a mapping such as {nvidia.com/gpu: 2.5, cpu: 0.04}",
    rest=_PRICE,
    rest_pattern=EXTENDED_RESOURCE,
    rest_words=EXTENDED_WORDS,
    refused={"gpu": "is not accepted here; write nvidia.com/gpu, also for GPUs of this machine"},
)
RERUN = Section(
    (
        Key(
            "experiment",
            # One of Katib's in a cluster has its suffix, see `KATIB_SUFFIX`.
            Text(
                "the name of an experiment",
                rf"{DNS_LABEL}({re.escape(KATIB_SUFFIX)})?",
                DNS_RULE,
                MAX_NAME_LENGTH + len(KATIB_SUFFIX),
            ),
            "Name of the experiment whose trials run again.",
            REQUIRED,
            field="experiment",
        ),
        Key(
            "trials",
            ListOf(WholeNumber(0), "a list of numbers of trials", least=1),
            "Numbers of its trials.",
            REQUIRED,
            field="trials",
            value=tuple,
        ),
        Key(
            "seeds",
            ListOf(WholeNumber(0, most=2**31 - 1), "a list of seeds", least=1),
            "`TUNER_SEED` of the reruns of each trial. `initial` has the points of all trials for "
            "the first seed, then for the next.",
            REQUIRED,
            field="seeds",
            value=tuple,
        ),
    ),
    expected="a mapping with experiment, trials and seeds",
)
CONFIRM = Section(
    (
        Key("top", WholeNumber(1), "Number of best trials to run again.", 3, field="top"),
        Key(
            "seeds",
            WholeNumber(2, most=MOST_SEEDS),
            "Number of new seeds for each of them.",
            5,
            field="seeds",
        ),
    ),
    expected="a mapping such as {top: 3, seeds: 5}",
)
SPEC = Section(
    (
        Key("objective", OBJECTIVE, "The metric to optimize."),
        Key(
            "objectives",
            ListOf(OBJECTIVE, "a list of objectives"),
            "The metrics to optimize, if there are several; pruning uses the first one.",
        ),
        Key(
            "constraints",
            ListOf(CONSTRAINT, "a list of constraints"),
            "Bounds on metrics that the best trials must satisfy.",
        ),
        Key("metrics", METRICS, "Where and how to read a trial's metrics.", {}),
        Key(
            "parameters",
            PARAMETERS,
            "The search space; required without `network` and `defineByRun`.",
            {},
        ),
        Key(
            "defineByRun",
            FLAG,
            "Whether trials name their parameters while they run, in Python as "
            '`trial.float("lr", 0, 1)`. `parameters` is then omitted.',
            says="`false`",
            field="define_by_run",
        ),
        Key(
            "network",
            NETWORK,
            "A search for a network's layers. The command gets a network as `${architecture}` and "
            "`${nn_config}`.",
        ),
        Key(
            "initial",
            ListOf(POINT, "a list of points"),
            "Points to try first. The algorithm chooses missing parameters.",
            [],
        ),
        Key(
            "rerun",
            RERUN,
            "The trials of another experiment that the points of `initial` repeat. `tuner "
            "confirm` and `tuner reproduce` write this key.",
        ),
        Key("algorithm", ALGORITHM, "The algorithm that proposes points.", {}),
        Key(
            "learnFrom",
            EarlierSearches(),
            "Finished experiments with the same metric that the search learns from. `auto`: the "
            "most recent ones with the same parameters.",
            field="learn_from",
            value=earlier_studies,
        ),
        Key(
            "prior",
            MapOf(BELIEF, "a mapping of parameters to beliefs"),
            "Your beliefs about the best values. The search begins there, and tries such values "
            "more often until trials contradict them.",
            field="prior",
            value=lambda prior: tuple(
                Belief(name, **fields_of(BELIEF.keys, each)) for name, each in prior.items()
            ),
        ),
        Key(
            "pruning",
            PRUNING,
            "The rule that stops unpromising trials; the other keys are its settings.",
        ),
        Key(
            "fidelity",
            FIDELITY,
            "Trials run in steps, and only the best of each step continue, from their checkpoints.",
            says="none: each trial runs to its end",
        ),
        Key(
            "parallelism",
            WholeNumber(1),
            "Number of trials that run at the same time.",
            1,
            field="parallelism",
        ),
        Key("budget", BUDGET, "When to stop; the first limit reached counts.", {}),
        Key(
            "prices",
            PRICES,
            "Prices of requested resources for an hour, to show the cost and for `budget.cost`.",
            field="prices",
        ),
        Key(
            "canary",
            duration(above_zero=False),
            "The first trial runs alone until its first metric, or this long; 0s disables this.",
            "10s",
            field="canary_s",
            value=parse_duration,
        ),
        Key(
            "breaker",
            Word(("on", "off")),
            "Whether the experiment pauses when its first trials, or several in a row, fail for "
            "the same reason.",
            "on",
            field="breaker",
            value=lambda word: word == "on",
        ),
        Key("runtime", RuntimeName(), "Where trials run.", DEFAULT_RUNTIME, field="runtime"),
        Key("trial", TRIAL, "The program of a trial, and how it runs.", REQUIRED),
        Key(
            "final",
            FINAL_STAGE,
            "Command to run once with the best parameters, after the search has succeeded.",
        ),
        Key(
            "confirm",
            CONFIRM,
            "Run the best trials again with new seeds after a successful search, like `tuner "
            "confirm`.",
        ),
        Key(
            SUSPEND,
            FLAG,
            "In a cluster's controller, `true` stops the trials and keeps the experiment until it "
            "is `false` again; `tuner run` ignores it.",
            says="`false`",
        ),
    ),
    expected="a mapping with objective, parameters and trial",
    elsewhere={
        "trials": "budget.trials",
        "failedTrials": "budget.failedTrials",
        "wallClock": "budget.wallClock",
        "metric": "objective.metric",
        "direction": "objective.direction",
        "target": "objective.target",
        "seed": "algorithm.seed",
        "name": "metadata.name",
        "namespace": "metadata.namespace",
        "timeout": "trial.timeout",
        "retries": "trial.retries",
        "env": "trial.env",
        "command": "trial.command",
        "image": "trial.image",
        "resources": "trial.resources",
    },
)
METADATA = Section(
    (
        Key(
            "name",
            Text("a name for an experiment", DNS_LABEL, DNS_RULE, MAX_NAME_LENGTH),
            "The experiment's name, a part of every trial's name.",
            REQUIRED,
        ),
        Key(
            "namespace",
            Text("the name of a namespace", DNS_LABEL, DNS_RULE, 63),
            "The experiment's namespace.",
            "default",
        ),
        Key(
            "labels",
            FREE_LABELS,
            "Labels of the experiment. On a cluster, its Jobs and pods get them, too.",
            {},
        ),
    ),
    expected="a mapping with a name",
)
FILE = Section(
    (
        Key("apiVersion", Word((API_VERSION,)), f"`{API_VERSION}`.", REQUIRED),
        Key("kind", Word(("Experiment",)), "`Experiment`.", REQUIRED),
        Key("metadata", METADATA, "The experiment's name, namespace and labels.", REQUIRED),
        Key(
            "spec",
            SPEC,
            "The search: what to optimize, over which parameters, and how to run a trial.",
            REQUIRED,
        ),
    ),
    expected="a mapping with apiVersion, kind, metadata and spec",
    elsewhere={key.name: f"spec.{key.name}" for key in SPEC.keys} | {"name": "metadata.name"},
)


def schema() -> dict[str, Any]:  # Any: JSON Schema is JSON
    """Return the JSON Schema 2020-12 of the native file, for editors.

    It lacks the rules between keys.
    """
    return {"$schema": DIALECT, "title": "Tuner experiment", **FILE.schema()}
