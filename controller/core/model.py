"""The values of the controller: the experiment as a person specified it,
its attempts, events and revisions.

Pure values. `controller.spec` reads them from files, `controller.experiment_store` stores them, and
the core makes its decisions from them.
"""

from __future__ import annotations

import base64
import enum
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, TypeAlias, TypeVar

from controller.core.katib_keys import katib_words
from controller.core.runtime_traits import DEFAULT_RUNTIME
from suggest.network import Network
from suggest.space import Assignment, Space
from suggest.study import (
    Algorithm,
    Belief,
    Constraint,
    Criteria,
    EarlierStudy,
    Fidelity,
    Objective,
    Pruning,
    ValueRule,
)
from suggest.trial import Trial

# Algorithms that end when they have tried all points of the space.
END_BY_THEMSELVES = ("grid", "optuna:grid", "optuna:bruteforce")


class Stage(enum.Enum):
    """A stage that has attempts without being a trial.

    The value is the word in names, labels and folders.
    """

    # Runs the best parameters once more, after the last trial.
    FINAL = "final"


FINAL: Final = Stage.FINAL
# What an attempt belongs to: a trial, by its number, or the final stage.
TrialOrFinal: TypeAlias = int | Stage
AttemptKey: TypeAlias = tuple[TrialOrFinal, int]  # within an experiment
Number = TypeVar("Number", bound=TrialOrFinal)
Value = TypeVar("Value")

# The keys of a measurement's step, by precedence, unless the experiment names another.
STEP_KEYS = ("step", "epoch")
# Key of a stored document: the format of the person's file, if it is not the native one.
FORMAT = "format"
# An experiment's; leaves room for "-<uid5>-<n>-r<k>" within Kubernetes' 63.
MAX_NAME_LENGTH = 40


class FailureClass(enum.Enum):
    """Why an attempt failed; decides what happens next.

    The value is the word in the file and in JSON.
    """

    USER_ERROR = "userError"
    OUT_OF_MEMORY = "outOfMemory"
    CONFIGURATION = "configuration"
    TIMEOUT = "timeout"
    METRICS_MISSING = "metricsMissing"
    INFRASTRUCTURE = "infrastructure"


class ExperimentState(enum.Enum):
    RUNNING = "running"
    PAUSED = "paused"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def finished(self) -> bool:
        return self in (ExperimentState.SUCCEEDED, ExperimentState.FAILED)


class ReasonCode(enum.Enum):
    """Why an experiment is in its state, in one word for programs.

    The sentence beside it is for people.
    """

    TARGET_REACHED = "TargetReached"
    TRIALS_DONE = "TrialsDone"  # budget.trials
    TIME_SPENT = "TimeSpent"  # budget.wallClock
    GPU_HOURS_SPENT = "GPUHoursSpent"  # budget.gpuHours
    COST_SPENT = "CostSpent"  # budget.cost
    NO_IMPROVEMENT = "NoImprovement"  # budget.noImprovement
    REGRET_BELOW = "RegretBelow"  # budget.regretBelow
    STOPPED_BY_TRIAL = "StoppedByTrial"  # study.stop() in an objective or a callback of Optuna
    SPACE_EXHAUSTED = "SpaceExhausted"
    TOO_MANY_FAILURES = "TooManyFailures"  # budget.failedTrials
    NO_TRIAL_SUCCEEDED = "NoTrialSucceeded"
    REPEATED_FAILURES = "RepeatedFailures"  # the circuit breaker
    CANNOT_RUN = "CannotRun"  # a configuration failure
    TOO_FEW_GPUS = "TooFewGPUs"
    LIMIT_REACHED = "LimitReached"  # of the suggestion service
    STOP_REQUESTED = "StopRequested"
    INTERRUPTED = "Interrupted"
    IMPORTED = "Imported"
    FINAL_STAGE_RUNS = "FinalStageRuns"


class AttemptState(enum.Enum):
    """The state of one execution; `controller.core.states` has the transitions."""

    CREATED = "created"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    PRUNED = "pruned"
    INFEASIBLE = "infeasible"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self not in (AttemptState.CREATED, AttemptState.RUNNING, AttemptState.STOPPING)


class StopCause(enum.Enum):
    """Why the controller asked an attempt to stop."""

    PRUNED = "pruned"
    # The trial is no longer wanted: tuner stop, target reached, budget spent.
    CANCELLED = "cancelled"
    # Ctrl-C: the trial runs again on resume and costs nothing.
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class ExperimentObjective(Objective):
    """The study's objective, with the target value that ends the experiment.

    text: the metric is a text. A trial succeeds with any, and the last one is the best.
    """

    target: float | None = None
    text: bool = False

    def better(self, first: float | None, second: float | None) -> float | None:
        """Return the better of two values, either of which may be None."""
        if first is None or second is None:
            return second if first is None else first
        return min(first, second, key=lambda value: self.direction.sign * value)

    def reaches_target(self, value: float) -> bool:
        if self.target is None:
            return False
        return self.direction.sign * value <= self.direction.sign * self.target


class MetricsFormat(enum.Enum):
    TEXT = "text"
    JSON = "json"  # one object per line
    TENSORBOARD = "tensorboard"  # a directory with event files


@dataclass(frozen=True, slots=True)
class MetricsFile:
    """A file, or a directory of event files, that the trial writes.

    path: relative to the attempt's output folder, or absolute as a container sees it. On this
    machine an absolute path is moved below the output folder.
    """

    path: str
    format: MetricsFormat = MetricsFormat.TEXT

    def __str__(self) -> str:
        return self.path

    @property
    def folder(self) -> str:
        """Return the directory that holds what the trial writes; "" is the output folder itself."""
        if self.format is MetricsFormat.TENSORBOARD:
            return self.path
        return self.path.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class PrometheusEndpoint:
    """An endpoint of the trial that is scraped.

    Without a port, each attempt gets one in TUNER_METRICS_PORT.
    """

    port: int | None = None
    path: str = "/metrics"

    def __str__(self) -> str:
        return f"the endpoint {self.path}" + (f" of port {self.port}" if self.port else "")


@dataclass(frozen=True, slots=True)
class KatibReports:
    """What the trial, or a container beside it, reports to Katib's DBManager."""

    def __str__(self) -> str:
        return "the reports to Katib's DBManager"


MetricsSource: TypeAlias = MetricsFile | PrometheusEndpoint | KatibReports
# Where the reports to the DBManager of this machine are written.
REPORTED = MetricsFile("metrics.jsonl", MetricsFormat.JSON)


@dataclass(frozen=True, slots=True)
class MetricsRule:
    """How measurements are read.

    step: the key that holds the step; "" means the usual keys.
    patterns: regular expressions with two groups, name and value, each of which may match anywhere
    in a line; none means the built-in formats.
    source: where the lines come from; None is the standard output.
    collector_image: the image of the sidecar that reads `source` on a cluster; "" is the default
        one.
    not_finite_fails: a trial whose value is nan or infinite has failed; otherwise it is infeasible.
    """

    step: str = ""
    patterns: tuple[str, ...] = ()
    source: MetricsSource | None = None
    collector_image: str = ""
    not_finite_fails: bool = True

    @property
    def reads_json_only(self) -> bool:
        """Return whether each line must be a JSON object.

        Collectors of other formats write such lines.
        """
        if isinstance(self.source, MetricsFile):
            return self.source.format is not MetricsFormat.TEXT
        return self.source is not None

    @property
    def step_key(self) -> str:
        """Return the key that holds the step; "" means the usual keys.

        Event files have one that is always there.
        """
        of_events = (
            isinstance(self.source, MetricsFile) and self.source.format is MetricsFormat.TENSORBOARD
        )
        return STEP_KEYS[0] if of_events else self.step


@dataclass(frozen=True, slots=True)
class Collection:
    """What a collector reads while a trial runs: its source, and the names that it looks for.

    names: of the metrics that the experiment needs, and of the step.
    """

    source: MetricsSource
    names: tuple[str, ...]
    image: str = ""


class Overrun(enum.Enum):
    """What running attempts do when the time, the GPU-hours or the money are used up."""

    FINISH = "finish"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of an experiment, where None means no limit.

    The first limit that is reached ends the experiment.
    """

    trials: int | None = None
    failed_trials: int | None = None
    wall_clock_s: float | None = None
    # Trials that end in a row without a new best one.
    no_improvement: int | None = None
    # How much better than the best trial another point may still be.
    regret_below: float | None = None
    # Limits for all attempts together, by what they request and how long they run.
    gpu_hours: float | None = None
    cost: float | None = None
    # None: attempts stop at the end of the time, and finish at that of GPU-hours and money.
    overrun: Overrun | None = None


@dataclass(frozen=True, slots=True)
class SecretRef:
    """A reference `{secret: name/key}` to a secret of the cluster.

    For local trials, the environment variable of the same name must be set.
    """

    name: str
    key: str


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of one attempt; None means not specified.

    Local trials may have a fraction of a GPU: two trials with `gpu` 0.5 share one.
    """

    cpu: float | None = None
    memory_bytes: int | None = None
    gpu: float = 0.0
    ephemeral_storage_bytes: int | None = None
    extended: Mapping[str, int] = field(default_factory=dict)


# The programs of trials whose objective is a Python function:
# on this machine a module, on a cluster a file.
FUNCTION_WORKER = "tuner.worker"
FUNCTION_ARCHIVE = "objective.pyz"
# Where an experiment's folder has the function for trials on this machine; `tuner.worker` reads it.
FUNCTION_FILE = "objective.pickle"


@dataclass(frozen=True, slots=True)
class TrialTemplate:
    """What one attempt executes.

    `cluster` holds the keys that only the Kubernetes runtime reads, as in the file.
    """

    command: tuple[str, ...]
    args: tuple[str, ...] = ()
    env: Mapping[str, str | SecretRef] = field(default_factory=dict)
    resources: Resources = Resources()
    timeout_s: float | None = None
    grace_s: float = 30.0
    log_limit_bytes: int = 1 << 30
    retries: Mapping[FailureClass, int] = field(default_factory=dict)
    image: str = ""
    # A relative path starts at the file's folder; "" is that folder.
    working_dir: str = ""
    # Paths below the file's folder that a trial on a cluster gets.
    files: tuple[str, ...] = ()
    # The digest of their contents, if they were sent to the controller in the cluster.
    files_digest: str = ""
    # The format of the file of parameters; local only.
    parameters_file: str = "json"
    # The GPUs that attempts may use, empty = all that the machine offers; local only.
    devices: tuple[str, ...] = ()
    cluster: Mapping[str, object] = field(default_factory=dict)

    @property
    def calls_function(self) -> bool:
        """Return whether an attempt calls the Python function stored with the experiment."""
        match self.command:
            case (_, "-m", module):
                return module == FUNCTION_WORKER
            case (_, file):
                return file.endswith(f"/{FUNCTION_ARCHIVE}")
        return False

    @property
    def workers(self) -> int:
        """Return how many processes or pods `distributed` gives one attempt.

        Each gets all of `resources`.
        """
        match self.cluster.get("distributed"):
            case {"workers": int(count)}:
                return count
        return 1


@dataclass(frozen=True, slots=True)
class Rerun:
    """Which trials of another experiment the points of `ExperimentSpec.initial` are.

    They are the points of `trials` with the first of `seeds`, then with the next: so those that
    have run can be compared at any time.
    """

    experiment: str
    trials: tuple[int, ...]
    seeds: tuple[int, ...]

    def of(self, number: int) -> tuple[int, int] | None:
        """Return which trial the trial `number` reruns, and its seed; None if it reruns none."""
        seed, position = divmod(number, len(self.trials))
        if seed >= len(self.seeds):
            return None
        return self.trials[position], self.seeds[seed]


# With a thousand, the mean of the reruns is 30 times as exact as one value.
MOST_SEEDS = 1000


@dataclass(frozen=True, slots=True)
class ConfirmRule:
    """How many of the best trials run again when the search has succeeded, each with new seeds."""

    top: int
    seeds: int


@dataclass(frozen=True, slots=True)
class ExperimentSpec:
    """A validated experiment, independent of the format of its file.

    `document` is the file as plain JSON data, after `--set` and with all defaults filled in. It is
    what is stored, hashed, compared and shown. `is_katib` says that the file is Katib's, which
    matters only for the words of messages.
    """

    name: str
    namespace: str
    space: Space
    objective: ExperimentObjective
    algorithm: Algorithm
    trial: TrialTemplate
    labels: Mapping[str, str] = field(default_factory=dict)
    metrics: MetricsRule = MetricsRule()
    initial: tuple[Assignment, ...] = ()
    pruning: Pruning | None = None
    parallelism: int = 1
    budget: Budget = Budget()
    # The price of each resource for an hour, by its name in a pod: of one unit, or of one GiB.
    prices: Mapping[str, float] = field(default_factory=dict)
    canary_s: float = 10.0
    breaker: bool = True  # failures may pause the experiment
    runtime: str = DEFAULT_RUNTIME
    # Runs once with the best parameters, after the search.
    final: TrialTemplate | None = None
    # The weights of the objectives in the choice of its trial; (): the first one alone.
    final_weights: tuple[float, ...] = ()
    further: tuple[ExperimentObjective, ...] = ()  # objectives after the first
    constraints: tuple[Constraint, ...] = ()
    # Trials run in steps, and only the best continue.
    fidelity: Fidelity | None = None
    # Whose layers are parameters of the space.
    network: Network | None = None
    # Trials name their parameters while they run; `space` is empty, and the study knows them.
    define_by_run: bool = False
    rerun: Rerun | None = None
    confirm: ConfirmRule | None = None
    # Earlier experiments, by their names, from which the search learns.
    learn_from: tuple[EarlierStudy, ...] = ()
    # What the person believes of the best values.
    prior: tuple[Belief, ...] = ()
    document: Mapping[str, object] = field(default_factory=dict)
    is_katib: bool = field(default=False, compare=False)

    def words(self, message: str) -> str:
        """Return a message with the keys of the person's own file."""
        return katib_words(message) if self.is_katib else message

    def of_program(self, parameters: Assignment) -> Assignment:
        """Return the parameters of a complete point as its program gets them.

        Those are, with a network, also the texts that say what it is.
        """
        if self.network is None or self.space.missing(parameters):
            return parameters
        return {**parameters, **self.network.texts(parameters)}

    def rerun_of(self, number: int) -> tuple[int, Assignment] | None:
        """Return which trial the trial `number` reruns, and that trial's parameters, or None."""
        source = None if self.rerun is None else self.rerun.of(number)
        return None if source is None else (source[0], self.initial[number])

    @property
    def is_metered(self) -> bool:
        """Return whether what attempts use is counted."""
        budget = self.budget
        return bool(self.prices) or budget.gpu_hours is not None or budget.cost is not None

    @property
    def objectives(self) -> tuple[ExperimentObjective, ...]:
        return (self.objective, *self.further)

    @property
    def criteria(self) -> Criteria:
        return Criteria(self.objectives, self.constraints)

    @property
    def other_metrics(self) -> Mapping[str, ValueRule]:
        """Return the metrics that trials must report beside the first objective's.

        Each has its value rule.
        """
        rules = {constraint.metric: ValueRule.LAST for constraint in self.constraints}
        rules |= {objective.metric: objective.value for objective in self.further}
        rules.pop(self.objective.metric, None)
        return rules

    @property
    def collection(self) -> Collection | None:
        """Return what a collector reads; None if the measurements are on the standard output."""
        source, rule = self.metrics.source, self.metrics
        if source is None:
            return None
        steps = (rule.step,) if rule.step else STEP_KEYS
        names = (self.objective.metric, *self.other_metrics, *steps)
        return Collection(source, tuple(dict.fromkeys(names)), rule.collector_image)

    def targets_reached(self, trial: Trial) -> str:
        """Describe the targets that a trial reaches; "" if a target or constraint is missed."""
        phrases = [
            f"{objective.metric} {value:g} ({self.place_of(objective)}.target: "
            f"{objective.target:g})"
            for objective, value in zip(self.objectives, trial.values, strict=False)
            if objective.target is not None and objective.reaches_target(value)
        ]
        with_target = sum(objective.target is not None for objective in self.objectives)
        is_whole = self.criteria.losses(trial) is not None and self.criteria.violation(trial) == 0
        return " and ".join(phrases) if phrases and len(phrases) == with_target and is_whole else ""

    def place_of(self, objective: ExperimentObjective) -> str:
        """Return the objective's key in the file, below `spec`."""
        return f"objectives[{self.objectives.index(objective)}]" if self.further else "objective"

    def template_of(self, trial: TrialOrFinal) -> TrialTemplate:
        """Return the template that attempts of this trial, or of the final stage, execute."""
        # A new revision may drop the final stage while an attempt of it runs;
        # that attempt is then stopped.
        return self.final if trial is FINAL and self.final is not None else self.trial


Uid: TypeAlias = str
UID_LENGTH = 16


def uid_of_resource(uid: str) -> Uid:
    """Return the uid of the experiment of a custom resource with this uid.

    So a resource that was deleted and made again, or restored from a backup, never gets the trials
    of another one of its name.
    """
    digest = hashlib.sha256(uid.encode()).digest()
    return "x" + base64.b32encode(digest).decode().lower()[: UID_LENGTH - 1]


# Ends the stored name of an experiment that is a resource of Katib's in a cluster: one of Tuner's
# in the same namespace may have the same name. No name in a file has a dot.
KATIB_SUFFIX = ".kubeflow.org"


def short_name(name: str, uid: Uid) -> str:
    """Return the study's name, which is the prefix of its trials' names, such as `digits-x7k2q`."""
    return f"{name.removesuffix(KATIB_SUFFIX)}-{uid[:5]}"


def trial_name(name: str, uid: Uid, number: TrialOrFinal) -> str:
    return f"{short_name(name, uid)}-{trial_label(number)}"


# On its study and its cluster objects.
EXPERIMENT_LABEL, UID_LABEL = "tuner.dev/experiment", "tuner.dev/uid"
# By which Katib's clients find the trials of an experiment, and the pods of a trial.
KATIB_EXPERIMENT_LABEL = "katib.kubeflow.org/experiment"
KATIB_TRIAL_LABEL = "katib.kubeflow.org/trial"
# An annotation of a template: "true" keeps the objects of its attempts until the experiment goes.
RETAIN = "katib.kubeflow.org/retain"


def trial_label(number: TrialOrFinal) -> str:
    """Return a trial's number, or `final`, as written in names, labels, folders and messages."""
    return number.value if isinstance(number, Stage) else str(number)


def attempt_name(name: str, uid: Uid, number: TrialOrFinal, attempt: int) -> str:
    """Return the runtime's name of an attempt: the trial's, plus `-r2`, `-r3`… for later ones."""
    stem = trial_name(name, uid, number)
    return stem if attempt == 1 else f"{stem}-r{attempt}"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One execution of a trial or of the final stage.

    Only `controller.core.states.step` changes it. `end_time` is set
    if and only if the attempt has ended.

    Two marks may be set on a failed attempt after its end:

    set_aside: the trial runs again, whatever its retries say, and this failure counts nowhere.
    reviewed: a person has resumed the experiment since, so `controller.core.breaker` no longer
        looks at it.

    fidelity: up to which it runs, in experiments with a fidelity.
    log_gap: what of its log is known to be missing, for people; "" if nothing is.
    value_doubt: why its value, or its learning curve, may be another without the gap; "" if it does
        not depend on it.
    gpus, price_per_hour: of all that it requested when it was created.
    earlier_s: how long it ran before its queue took its place back.
    """

    trial: TrialOrFinal
    number: int
    state: AttemptState = AttemptState.CREATED
    stop_cause: StopCause | None = None
    start_time: datetime | None = None
    end_time: datetime | None = None
    exit_code: int | None = None
    signal: int | None = None
    value: float | None = None
    step: int | None = None
    failure_class: FailureClass | None = None
    # Why it ended; while created, what it waits for.
    reason: str = ""
    node: str = ""
    # With its digest, if a container ran the attempt.
    image: str = ""
    set_aside: bool = False
    reviewed: bool = False
    fidelity: float | None = None
    log_gap: str = ""
    value_doubt: str = ""
    gpus: float = 0.0
    price_per_hour: float = 0.0
    earlier_s: float = 0.0

    @property
    def ended(self) -> bool:
        return self.state.ended

    def ran_s(self, now: datetime) -> float:
        """Return how many seconds it has run until `now`, or until its end."""
        if self.start_time is None:
            return self.earlier_s
        # The clocks of two machines may have set its end before its start.
        latest_s = ((self.end_time or now) - self.start_time).total_seconds()
        return self.earlier_s + max(0.0, latest_s)


def by_trial(pairs: Iterable[tuple[Number, Value]]) -> dict[Number, list[Value]]:
    """Group values, such as attempts or measurements, each given with its trial."""
    groups: dict[Number, list[Value]] = {}
    for number, value in pairs:
        groups.setdefault(number, []).append(value)
    return groups


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the experiment's history.

    `trial` and `attempt` are None if it concerns the whole experiment. `failure_class` is that of
    an attempt that has just failed; it is not stored with the event.
    """

    time: datetime
    kind: str
    message: str
    trial: TrialOrFinal | None = None
    attempt: int | None = None
    failure_class: FailureClass | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Revision:
    """A version of the experiment's file that was in force; the first is number 1."""

    number: int
    spec: ExperimentSpec
    file_text: str
    time: datetime


@dataclass(frozen=True, slots=True)
class FinalRun:
    """The final stage as it began when the search last ended.

    trial: the trial whose parameters it has.
    first: the number of its first attempt. Lower numbers belong to earlier ends of a search that
        was extended since.
    """

    trial: int
    first: int

    @property
    def apart(self) -> str:
        """Return what separates its checkpoints from an earlier end's with other parameters."""
        return "" if self.first == 1 else f"-r{self.first}"


@dataclass(frozen=True, slots=True)
class Experiment:
    """The durable record of an experiment.

    running_s: the wall clock time during which a controller was running and the experiment was not
        paused.
    gpu_hours, cost: what all attempts had used when this was last stored, if its budget limits it.
    ended_by: what has called study.stop(), such as "trial 7"; "" as long as nothing has.
    """

    uid: Uid
    spec: ExperimentSpec
    revision: int
    directory: str  # the file's folder, in which local trials run
    study: str  # resource name
    # "" = the embedded service on the state directory's store.
    server: str = ""
    # The kubeconfig context, for trials on a cluster; "" = the current one.
    context: str = ""
    state: ExperimentState = ExperimentState.RUNNING
    reason: str = ""
    reason_code: ReasonCode | None = None
    stop_requested: bool = False
    running_s: float = 0.0
    gpu_hours: float = 0.0
    cost: float = 0.0
    # None: not begun since the search last continued.
    final: FinalRun | None = None
    ended_by: str = ""
    start_time: datetime | None = None
    end_time: datetime | None = None

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def namespace(self) -> str:
        return self.spec.namespace
