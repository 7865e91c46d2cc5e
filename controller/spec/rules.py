"""The rules between the keys of a file, each of which is valid alone. Pure.

The rules of the search space are in `suggest.space`.
The service knows the algorithms and their settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from controller.core.model import TrialTemplate
from controller.core.runtime_traits import DEFAULT_RUNTIME, RuntimeTraits
from controller.core.substitute import (
    OPTIONAL,
    TRIAL_NAME,
    bodies,
    is_nothing,
    nodes,
    placeholders,
    unclosed,
)
from controller.runtime.registry import traits_of
from controller.runtime.requested import GPU, is_gpu, requested
from controller.spec import shells
from controller.spec.cluster_section import LABEL_VALUE
from controller.spec.document import Json, network_of
from controller.spec.fields import describe_value
from controller.spec.native import PARAMETERS
from controller.spec.problems import PathProblem, ProblemCollector, at_key
from controller.spec.readable import (
    readable_network,
    readable_space,
    unconditional,
    valid_part,
)
from controller.spec.spelling import meant_by
from controller.spec.trial_section import INSTEAD_OF_TEMPLATE
from suggest.network import TEXTS, Network
from suggest.space import Space

_ALONE = re.compile(r"\$\{([^{}]*)\}")
# The variables that `controller.runtime.launch.identity` sets
# for every attempt, whatever the file says.
GIVEN = frozenset(
    {
        "TUNER_EXPERIMENT",
        "TUNER_TRIAL_NAME",
        "TUNER_TRIAL_NUMBER",
        "TUNER_ATTEMPT",
        "TUNER_PARAMETERS",
        "TUNER_OBJECTIVES",
        "TUNER_PARAMETERS_FILE",
        "TUNER_SEED",
        "TUNER_OUTPUT_DIR",
        "TUNER_CHECKPOINT_DIR",
        "TUNER_STAGE",
        "TUNER_METRICS_FILE",
        "TUNER_METRICS_PORT",
        "TUNER_PARAMETER_ANSWERS",
        "TUNER_PARAMETER_PLAN",
        "TUNER_PARAMETER_REQUESTS",
        "KATIB_TRIAL_NAME",
    }
)
_SET_BY_TUNER = {
    "app.kubernetes.io/managed-by": "is set by Tuner, which finds its objects by it; omit it",
    "kueue.x-k8s.io/queue-name": "would queue a trial that Tuner does not know to be queued; write "
    "spec.trial.queue",
}
# Likely environment variables.
_VARIABLE = re.compile(r"[A-Z][A-Z0-9]*_[A-Z0-9_]*|HOME|PATH|PWD|USER|TMPDIR|HOSTNAME")
_GIVEN_VARIABLE = re.compile(rf"\$\$?\{{?({'|'.join(sorted(GIVEN))})\b\}}?")
# Words in the names of metrics of which larger values are better,
# and of those of which smaller ones are.
_USUAL = {
    "maximize": re.compile(
        "accuracy|acc|auc|auroc|auprc|precision|recall|iou|miou|bleu|psnr|ssim|ndcg|throughput"
    ),
    "minimize": re.compile(
        "loss|error|err|rmse|mse|mae|mape|rmsle|nll|perplexity|ppl|wer|cer|latency"
    ),
}
_NEGATED = {"neg", "negative", "minus", "inverse", "inv"}
WORKLOAD = ("command", "args", "env", "template")
# Messages that the definition of the custom resource has too: `controller.operator.crd`.
BOTH_OBJECTIVES = "beside objective; write all of them under objectives"
NO_OBJECTIVE = "is missing; write a mapping such as {metric: accuracy, direction: maximize}"
NO_BOUND = "no bound; write min, max or both"
REGRET_OF_SEVERAL = (
    "requires one objective without constraints; use budget.noImprovement, which counts trials"
)
FORMAT_OF_NO_FILE = "is the format of a file; write file: PATH beside it"
STEP_OF_EVENTS = "cannot be combined with format: tensorboard, whose events have steps"
FINAL_OF_TEMPLATE = (
    "cannot be combined with trial.template, whose command cannot be replaced; omit it, and create "
    "your own object with the parameters that `tuner best` prints"
)
CONFIRM_SEVERAL = (
    "requires one objective, because no single value orders a front; omit it, and run one trial "
    "of the front again: tuner reproduce NAME/N"
)
CONFIRM_CONTINUED = (
    "cannot be combined with algorithm pbt, whose trials continue from the checkpoints of others; "
    "omit it"
)
NO_PRICES = (
    "requires prices; write spec.prices, such as {nvidia.com/gpu: 2.5, cpu: 0.04}; only under a "
    "cluster's controller that has prices of its platform may they be missing"
)
OVERRUN_OF_NOTHING = "is for budget.gpuHours and budget.cost; write one of them, or remove it"
# The algorithm whose trials continue from the checkpoints of others.
POPULATION_BASED = "pbt"


def check(
    document: Json, raw: Json, problems: ProblemCollector, *, handed_over: bool = False
) -> Iterator[PathProblem]:
    """Yield what breaks the rules.

    `document` is canonical and lacks refused values; `raw` is what the person wrote; `problems` are
    those of values. What only the controller in a cluster can know, it checks itself of an
    experiment that is `handed_over`.
    """
    spec, raw_spec = document.get("spec"), raw.get("spec")
    if not isinstance(spec, dict) or not isinstance(raw_spec, dict):
        return
    raw_parameters = raw_spec.get("parameters")
    names = list(raw_parameters) if isinstance(raw_parameters, dict) else None
    if names is None and spec.get("defineByRun"):
        names = []
    network = readable_network(spec)
    if network is not None:
        names = [*(names or ()), *TEXTS, *(p.name for p in network.parameters)]
    yield from _fidelity(spec, names or [])
    match spec.get("fidelity"):
        case {"parameter": str(name)} if names is not None and name not in names:
            names.append(name)
    yield from _objectives(spec, raw_spec)
    yield from _space(spec, raw_spec, problems)
    yield from _metrics(spec)
    yield from _spending(spec, problems, handed_over=handed_over)
    trial, raw_trial = spec.get("trial"), raw_spec.get("trial")
    traits = _traits_of(spec)
    if traits.takes_templates:
        labels = document.get("metadata", {}).get("labels", {})
        yield from _label_values(labels, "metadata.labels")
        yield from _own_labels(labels, "metadata.labels")
    if isinstance(trial, dict) and isinstance(raw_trial, dict):
        yield from _workload(trial, raw_trial, traits)
        if names is not None:
            absence = _Absence.of(spec, raw_parameters, network)
            yield from _Placeholders(trial, "spec.trial", names, absence).check()
        yield from _volumes(trial, problems)
        yield from _reserved_variables(trial, "spec.trial")
        for key in ("labels", "annotations"):
            yield from _own_labels(trial.get(key, {}), f"spec.trial.{key}")
    final = spec.get("final")
    if isinstance(final, dict):
        yield from _final(final, raw_trial, traits)
        yield from _choose(final, spec)
        yield from _reserved_variables(final, "spec.final")
        if names is not None:
            absence = _Absence.of(spec, raw_parameters, network)
            yield from _Placeholders(final, "spec.final", names, absence).check()
    if "confirm" in spec:
        yield from _confirm(spec)


def _objectives(spec: Json, raw: Json) -> Iterator[PathProblem]:
    if "objective" in raw and "objectives" in raw:
        yield at_key("spec.objectives", BOTH_OBJECTIVES)
    elif "objective" not in raw and "objectives" not in raw:
        yield PathProblem("spec.objective", NO_OBJECTIVE)
    if raw.get("objectives") == []:
        yield PathProblem("spec.objectives", "expected a list of objectives, got an empty list")
    if "regretBelow" in spec.get("budget", {}) and (
        spec.get("constraints") or len(raw.get("objectives") or ()) > 1
    ):
        yield at_key("spec.budget.regretBelow", REGRET_OF_SEVERAL)
    yield from _text(spec)
    for place, constraint in enumerate(spec.get("constraints", ())):
        if "min" not in constraint and "max" not in constraint:
            yield PathProblem(f"spec.constraints[{place}]", NO_BOUND)


def _text(spec: Json) -> Iterator[PathProblem]:
    """Check an objective that is a text, which no number can be compared with."""
    for index, one in enumerate(spec.get("objectives", ())):
        if one.get("text"):
            message = "is for a single objective; write it under objective"
            yield at_key(f"spec.objectives[{index}].text", message)
    objective = spec.get("objective", {})
    if not objective.get("text"):
        return
    metrics = spec.get("metrics", {})
    if "pattern" not in metrics and metrics.get("format") != "json" and not metrics.get("push"):
        cure = r"write spec.metrics.pattern, such as '([\w-]+)=(.*)'"
        yield PathProblem("spec.objective.text", f"needs to know where the text ends; {cure}")
    if objective.get("direction") == "minimize":
        message = "a text is no smaller than another, and the last one counts; write maximize"
        yield PathProblem("spec.objective.direction", message)
    for place, key in (
        ("spec.objective.target", objective.get("target")),
        ("spec.pruning", spec.get("pruning")),
        ("spec.fidelity", spec.get("fidelity")),
        ("spec.constraints", spec.get("constraints")),
        ("spec.budget.regretBelow", spec.get("budget", {}).get("regretBelow")),
        ("spec.budget.noImprovement", spec.get("budget", {}).get("noImprovement")),
    ):
        if key is not None:
            message = "compares numbers, and the objective is a text; remove it"
            yield at_key(place, message)


def _metrics(spec: Json) -> Iterator[PathProblem]:
    metrics = spec.get("metrics", {})
    sources = [key for key in ("file", "prometheus", "push", "dbManager") if metrics.get(key)]
    form = metrics.get("format")
    for key in sources[1:]:
        yield at_key(
            f"spec.metrics.{key}", f"cannot be combined with {sources[0]}; keep one of them"
        )
    if form is not None and "file" not in metrics:
        yield at_key("spec.metrics.format", FORMAT_OF_NO_FILE)
    is_text = sources[:1] in ([], ["file"]) and form in (None, "text")
    if "pattern" in metrics and not is_text:
        cause = sources[0] if form is None else f"format: {form}"
        yield at_key(
            "spec.metrics.pattern", f"is for lines of text, and cannot be combined with {cause}"
        )
    if "step" in metrics and form == "tensorboard":
        yield at_key("spec.metrics.step", STEP_OF_EVENTS)
    if "file" in metrics:
        yield from _metrics_path(metrics["file"], form)
    endpoint = metrics.get("prometheus", {})
    if (
        endpoint.get("port") is not None
        and not _traits_of(spec).in_containers
        and spec.get("parallelism", 1) > 1
    ):
        cure = "omit port and read TUNER_METRICS_PORT in the program, or set spec.parallelism: 1"
        yield PathProblem(
            "spec.metrics.prometheus.port",
            f"the trials on this machine would all need this port; {cure}",
        )


def _spending(
    spec: Json, problems: ProblemCollector, *, handed_over: bool
) -> Iterator[PathProblem]:
    """Check that a trial requests what is limited, and what has a price."""
    budget, prices = spec.get("budget", {}), spec.get("prices")
    if "overrun" in budget and "gpuHours" not in budget and "cost" not in budget:
        yield at_key("spec.budget.overrun", OVERRUN_OF_NOTHING)
    lacks_prices = not prices and not handed_over and not problems.within("spec.prices")
    if "cost" in budget and lacks_prices:
        yield at_key("spec.budget.cost", NO_PRICES)
    counted = [f"spec.budget.{key}" for key in ("gpuHours", "cost") if key in budget]
    counted += [] if prices is None else ["spec.prices"]
    trial = spec.get("trial")
    if not counted or not isinstance(trial, dict):
        return
    try:
        names = _requested(trial)
    except ValueError:
        cure = "write numbers there"
        message = f"a parameter sets a resource of spec.trial.template, so it is unknown; {cure}"
        yield at_key(counted[0], message)
        return
    if "gpuHours" in budget and not any(map(is_gpu, names)):
        message = "a trial requests no GPU, so this is never used up; set spec.trial.resources.gpu"
        if "template" in trial:
            message = "no pod of the template requests a GPU, so this is never used up; remove it"
        yield at_key("spec.budget.gpuHours", message)
    if not prices or problems.within("spec.prices"):
        return
    if not any(map(prices.get, names)):
        message = "a trial requests nothing that has a price; set spec.trial.resources"
        if names:
            message = f"a trial requests {', '.join(names)}, without a price above 0; add one"
        yield at_key("spec.prices", message)


def _requested(trial: Json) -> list[str]:
    """Return the names of the resources that a trial requests.

    Raises:
        ValueError: a parameter determines one of them.
    """
    if "template" in trial:
        return list(requested(TrialTemplate((), cluster={"template": trial["template"]})))
    resources = trial.get("resources", {})
    names = {"gpu": GPU}
    return [
        names.get(name, name)
        for name, amount in resources.items()
        if amount and name != "ephemeralStorage"
    ]


def _metrics_path(path: str, form: str | None) -> Iterator[PathProblem]:
    if ".." in path.split("/"):
        yield PathProblem(
            "spec.metrics.file", f"{path!r} leaves its folder; write a path without .."
        )
    elif path.startswith("/") and path.rpartition("/")[0] == "" and form != "tensorboard":
        cure = f"write it in a directory of its own, such as /metrics{path}"
        yield PathProblem(
            "spec.metrics.file",
            f"{path!r} is in the root directory, which cannot be shared; {cure}",
        )


def _fidelity(spec: Json, names: list[str]) -> Iterator[PathProblem]:
    """Check the fidelity's place in the file; `suggest.engine` checks its values."""
    fidelity = spec.get("fidelity")
    if not isinstance(fidelity, dict):
        return
    name = fidelity.get("parameter")
    if name in names:
        yield PathProblem(
            "spec.fidelity.parameter",
            f"{name} is also in spec.parameters, but each run of a trial has its own; remove it "
            "there",
        )


def _define_by_run(spec: Json, raw: Json) -> Iterator[PathProblem]:
    for key in ("parameters", "network"):
        if raw.get(key):
            yield PathProblem(
                f"spec.{key}", "cannot be combined with defineByRun: trials name them; remove one"
            )
    if not _traits_of(spec).answers_parameters:
        yield PathProblem(
            "spec.defineByRun",
            f"trials on {spec['runtime']} cannot ask for parameters; write spec.parameters, or use "
            f"runtime: {DEFAULT_RUNTIME}",
        )


def _space(spec: Json, raw: Json, problems: ProblemCollector) -> Iterator[PathProblem]:
    yield from _rerun(spec)
    if spec.get("defineByRun"):
        yield from _define_by_run(spec, raw)
        return
    if "parameters" not in raw and "network" not in raw:
        yield PathProblem("spec.parameters", f"is missing; write {PARAMETERS.expected}")
        return
    if "parameters" not in spec:
        return
    raw_parameters = raw.get("parameters")
    names = set(raw_parameters) if isinstance(raw_parameters, dict) else set()
    if "network" in raw:
        yield from _network(spec, names)
        # Those of an unreadable network.
        names.add("network")
    space = readable_space(spec, raw_parameters)
    for name in names:
        if OPTIONAL in name:
            message = f"{OPTIONAL} in a name would read as ${{name:+word}}; choose another name"
            yield at_key(f"spec.parameters.{name}", message)
    of_space = space.problems() if space.parameters or not names else ()
    for problem in of_space:
        path = problem.path
        name = path.partition(".values")[0]
        if isinstance(raw_parameters, dict) and isinstance(raw_parameters.get(name), list):
            # The short form `[a, b]` has no key `values`.
            path = path.replace(f"{name}.values", name, 1)
        condition = path.partition(".when.")[2]
        strange = bool(condition) and condition not in space.by_name
        yield PathProblem(
            f"spec.parameters.{path}" if path else "spec.parameters",
            problem.message,
            at_key=strange,
        )
    yield from _initial(spec.get("initial", []), valid_part(space, of_space), names, problems)


def _network(spec: Json, names: set[str]) -> Iterator[PathProblem]:
    network = network_of(spec.get("network", {}))
    for problem in network.problems() if network is not None else ():
        yield PathProblem(f"spec.network.{problem.path}", problem.message)
    for name in TEXTS:
        if name in names:
            message = "is what the program gets of spec.network; choose another name"
            yield at_key(f"spec.parameters.{name}", message)


def _initial(
    points: list[Any], space: Space, names: set[str], problems: ProblemCollector
) -> Iterator[PathProblem]:
    """Check the initial points.

    `space` has the valid parameters; `names` also those with problems of their own.
    """
    for number, point in enumerate(points):
        at = f"spec.initial[{number}]"
        # If a value of the point could not be read, nothing is known about
        # which parameters are active.
        judge = unconditional(space) if problems.within(at) else space
        judged = {
            name: value
            for name, value in point.items()
            if name in space.by_name or name not in names
        }
        for problem in judge.point_problems(judged, partial=True):
            is_parameter = problem.path in space.by_name
            yield PathProblem(
                f"{at}.{problem.path}" if problem.path else at,
                problem.message,
                at_key=not is_parameter,
            )


def _rerun(spec: Json) -> Iterator[PathProblem]:
    rerun, points = spec.get("rerun", {}), len(spec.get("initial", []))
    if not {"trials", "seeds"} <= rerun.keys():
        return
    trials, seeds = len(rerun["trials"]), len(rerun["seeds"])
    if points < trials * seeds:
        yield PathProblem(
            "spec.rerun",
            f"spec.initial has {points} points; {trials} trials with {seeds} seeds each need "
            f"{trials * seeds}",
        )


def _confirm(spec: Json) -> Iterator[PathProblem]:
    for is_wrong, message in (
        ("objectives" in spec, CONFIRM_SEVERAL),
        (spec.get("algorithm", {}).get("name") == POPULATION_BASED, CONFIRM_CONTINUED),
    ):
        if is_wrong:
            yield at_key("spec.confirm", message)


def _traits_of(spec: Json) -> RuntimeTraits:
    return traits_of(spec.get("runtime", DEFAULT_RUNTIME))


@dataclass(frozen=True, slots=True)
class _Absence:
    """Which parameters a trial may lack, and for which `${name:+word}` makes a difference."""

    conditional: frozenset[str]
    sometimes_nothing: frozenset[str]
    always_something: frozenset[str]

    @classmethod
    def of(cls, spec: Json, raw: object, network: Network | None) -> _Absence:
        given = raw.items() if isinstance(raw, dict) else ()
        conditional = {
            name for name, fields in given if isinstance(fields, dict) and fields.get("when")
        }
        if network is not None:
            conditional.update(p.name for p in network.parameters if p.when)
        parameters = spec.get("parameters", {})
        nothing = {
            name
            for name, fields in parameters.items()
            if any(map(is_nothing, fields.get("values", ())))
        }
        return cls(
            frozenset(conditional),
            frozenset(nothing),
            frozenset(parameters.keys() - conditional - nothing),
        )


def _whole_gpus(workload: Json, section: str, traits: RuntimeTraits) -> Iterator[PathProblem]:
    gpu = workload.get("resources", {}).get("gpu", 0)
    if not traits.shares_gpus and isinstance(gpu, float):
        yield PathProblem(
            f"{section}.resources.gpu",
            f"{gpu} is not a whole number, and a cluster shares no GPU; use 1, or local",
        )


def _final(final: Json, raw_trial: object, traits: RuntimeTraits) -> Iterator[PathProblem]:
    yield from _whole_gpus(final, "spec.final", traits)
    if isinstance(raw_trial, dict) and raw_trial.get("template") is not None:
        yield at_key("spec.final", FINAL_OF_TEMPLATE)


def _choose(final: Json, spec: Json) -> Iterator[PathProblem]:
    choose = final.get("choose")
    metrics = [objective.get("metric") for objective in spec.get("objectives", [])]
    if choose is None:
        return
    if len(metrics) < 2:
        yield at_key(
            "spec.final.choose", "there is one objective, so its best trial is taken; omit choose"
        )
    elif isinstance(choose, dict):
        for name in choose.keys() - set(metrics):
            named = ", ".join(map(str, metrics))
            yield at_key(f"spec.final.choose.{name}", f"is not an objective; there are {named}")
        if not any(choose.values()):
            yield PathProblem(
                "spec.final.choose", "all weights are 0; give at least one objective a larger one"
            )


def _workload(trial: Json, raw: Json, traits: RuntimeTraits) -> Iterator[PathProblem]:
    yield from _whole_gpus(trial, "spec.trial", traits)
    if raw.get("template") is None:
        if raw.get("command") is None:
            yield PathProblem(
                "spec.trial.command", "is missing; write the program as a list: [python, train.py]"
            )
        if traits.in_containers and "image" not in raw:
            yield PathProblem(
                "spec.trial.image",
                "is missing; a trial on a cluster needs the image of a container",
            )
        yield from _working_dir(trial, traits)
        if traits.in_containers and "parametersFile" in trial:
            cure = "read TUNER_PARAMETERS, the same as JSON, or omit parametersFile"
            yield at_key(
                "spec.trial.parametersFile", f"a pod does not see files of this machine; {cure}"
            )
        return
    if not traits.takes_templates:
        yield at_key(
            "spec.trial.template", "needs runtime: kubernetes; a local trial runs a command"
        )
    for key in raw:
        if key in INSTEAD_OF_TEMPLATE:
            yield at_key(
                f"spec.trial.{key}", "cannot be combined with template; move it into the template"
            )
    template = raw["template"]
    if isinstance(template, dict):
        for key in ("apiVersion", "kind"):
            if not isinstance(template.get(key), str):
                yield PathProblem(
                    f"spec.trial.template.{key}",
                    f"expected a string, got {describe_value(template.get(key))}",
                )
        if "checkpoints" in raw and (template.get("apiVersion"), template.get("kind")) != (
            "batch/v1",
            "Job",
        ):
            message = "are mounted in a batch/v1 Job only; mount the claim in the template"
            yield at_key("spec.trial.checkpoints", message)


def _working_dir(trial: Json, traits: RuntimeTraits) -> Iterator[PathProblem]:
    path = trial.get("workingDir", "/")
    if any(placeholders(path)) or any(unclosed(path)):
        cure = "pass the parameter in command, and change the directory there"
        yield PathProblem("spec.trial.workingDir", f"parameters are not substituted here; {cure}")
    elif traits.in_containers and not path.startswith("/"):
        cure = f"write the path in the image, such as /app/{path}"
        yield PathProblem(
            "spec.trial.workingDir",
            f"{path!r} is relative, and a container needs an absolute path; {cure}",
        )


def _reserved_variables(workload: Json, section: str) -> Iterator[PathProblem]:
    for name in workload.get("env", {}):
        if name in GIVEN:
            cure = "use another name"
            if name == "TUNER_CHECKPOINT_DIR":
                cure = "spec.trial.checkpoints: {claim: …} keeps it on a cluster's volume"
            elif name == "TUNER_OUTPUT_DIR":
                cure = "pass a folder of your own by a flag, or by another variable"
            yield at_key(f"{section}.env.{name}", f"is set by tuner for each attempt; {cure}")


def _label_values(labels: Json, section: str) -> Iterator[PathProblem]:
    for name, value in labels.items():
        if not re.fullmatch(LABEL_VALUE.pattern, value):
            message = f"{value!r} cannot be a label of Jobs and pods; use {LABEL_VALUE.rule}"
            yield PathProblem(f"{section}.{name}", message)


def _own_labels(labels: Json, section: str) -> Iterator[PathProblem]:
    for name in labels:
        if name.startswith("tuner.dev/"):
            yield at_key(
                f"{section}.{name}", "names of tuner.dev/ are set by Tuner; use another prefix"
            )
        elif name in _SET_BY_TUNER:
            yield at_key(f"{section}.{name}", _SET_BY_TUNER[name])


def _volumes(trial: Json, problems: ProblemCollector) -> Iterator[PathProblem]:
    for name, volume in trial.get("volumes", {}).items():
        at = f"spec.trial.volumes.{name}"
        sources = [key for key in ("claim", "nfs", "emptyDir") if key in volume]
        if len(sources) != 1 and not problems.within(at):
            sources_given = " and ".join(sources) or "no source"
            yield PathProblem(
                at, f"{sources_given} given; a volume has one of claim, nfs, emptyDir"
            )


def workload_strings(workload: Json, section: str = "spec.trial") -> Iterator[tuple[str, str]]:
    """Yield every string in which `${name}` is substituted, with its path."""
    for key in WORKLOAD:
        for path, value in nodes(workload.get(key), f"{section}.{key}"):
            if isinstance(value, str):
                yield path, value


@dataclass(frozen=True, slots=True)
class _Placeholders:
    """The rules of `${name}` in a workload.

    section: `spec.trial` or `spec.final`.
    names: the parameters.
    """

    workload: Json
    section: str
    names: list[str]
    absence: _Absence

    def check(self) -> Iterator[PathProblem]:
        yield from self._check_keys()
        words_of_command = (f"{self.section}.command[", f"{self.section}.args[")
        for path, text in workload_strings(self.workload, self.section):
            for name in unclosed(text):
                yield from self._refuse_unclosed(path, text, name)
            for body in bodies(text):
                yield from self._check_body(path, text, body)
            if path.startswith(words_of_command):
                before = _before(self.workload, self.section, path)
                yield from _dropped_word(path, text, before, self.absence)
            if path == f"{self.section}.command[0]":
                yield from _program(path, text, self.absence)

    def _check_keys(self) -> Iterator[PathProblem]:
        for path, value in nodes(self.workload.get("template"), f"{self.section}.template"):
            for key in map(str, value) if isinstance(value, dict) else ():
                for name in placeholders(key):
                    rule = f"${{{name}}} is allowed in values only"
                    yield PathProblem(path, f"the key {key!r} is not substituted; {rule}")

    def _refuse_unclosed(self, path: str, text: str, name: str) -> Iterator[PathProblem]:
        likely: str | None = name
        if name not in self.names:
            likely = meant_by(name, self.names) or _foreign_placeholder(text, self.names)
        likely = likely or next(iter(self.names), "name")
        cure = f"write ${{{likely}}}, or $${{ for a literal"
        yield PathProblem(path, f"${{ is never closed; {cure}")

    def _check_body(self, path: str, text: str, body: str) -> Iterator[PathProblem]:
        name, optional, word = body.partition(OPTIONAL)
        if name in self.names or name == TRIAL_NAME:
            if optional:
                yield from _optional_word(path, name, word, self.absence)
            return
        if likely := self._likely(name):
            cure = f"did you mean ${{{likely}{optional}{word}}}?"
        elif self._is_variable(name):
            cure = _read_variable(self.workload, self.section, path, name, text)
        else:
            cure = f"there are {self._listed_names()}"
            if name:
                cure = f"{cure}; write $${{{body}}} for a literal ${{{body}}}"
        yield PathProblem(path, f"${{{body}}} is not a parameter; {cure}")

    def _likely(self, name: str) -> str | None:
        """Return the parameter that was meant."""
        if name in GIVEN:
            return None
        # As in ${params.lr}.
        last = re.split(r"[.:]", name)[-1]
        return last if last in self.names else meant_by(name, self.names)

    def _is_variable(self, name: str) -> bool:
        if name in GIVEN or name in self.workload.get("env", {}):
            return True
        return _VARIABLE.fullmatch(name) is not None

    def _listed_names(self) -> str:
        names = [name for name in self.names if name]
        if not names:
            return "none"
        return ", ".join(names[:8]) + (", …" if len(names) > 8 else "")


def _optional_word(path: str, name: str, word: str, absence: _Absence) -> Iterator[PathProblem]:
    """Check `${name:+word}`."""
    if not word:
        yield PathProblem(
            path,
            f"${{{name}:+}} never writes anything; write the flag in it: ${{{name}:+--{name}}}",
        )
    elif name == TRIAL_NAME or name in absence.always_something:
        cure = "write the word alone, or use a choice of true and false (without quotes)"
        yield PathProblem(
            path,
            f"${{{name}:+{word}}} is always written, because {name} is never false, null or empty; "
            f"{cure}",
        )


def _dropped_word(path: str, text: str, before: str, absence: _Absence) -> Iterator[PathProblem]:
    """Refuse a conditional parameter as its own word, unless the flag before it is dropped too."""
    alone = _ALONE.fullmatch(text)
    if alone is None or alone[1] not in absence.conditional:
        return
    name = alone[1]
    flag = _ALONE.fullmatch(before)
    is_dropped_too = flag is not None and flag[1].startswith(f"{name}{OPTIONAL}")
    if is_dropped_too and name not in absence.sometimes_nothing:
        return
    if before.startswith("-") and "=" not in before:
        cure = f"{before} would have no value; write {before}={text} as one element"
        if name not in absence.sometimes_nothing:
            cure = f"{cure}, or ${{{name}:+{before}}} before it"
    else:
        cure = f"the next word would take its place; write --{name}={text} as one element"
    yield PathProblem(path, f"{text} is conditional: without it, {cure}")


def _program(path: str, text: str, absence: _Absence) -> Iterator[PathProblem]:
    """Refuse a program that some trials would not have."""
    if any(OPTIONAL in body for body in bodies(text)):
        yield PathProblem(
            path, f"{text} may be nothing, and a trial needs its program; use a choice of programs"
        )
    elif any(name in absence.conditional for name in placeholders(text)):
        yield PathProblem(
            path, f"{text} is conditional, and a trial needs its program; use a choice without when"
        )


def _before(workload: Json, section: str, path: str) -> str:
    """Return the word before the one at `path`; "" if it is the first."""
    line = shells.words(section, workload)
    at = next((index for index, (place, _) in enumerate(line) if place == path), 0)
    return line[at - 1][1] if at else ""


def _is_script(workload: Json, section: str, path: str) -> bool:
    """Return whether a shell reads the word at `path`, as in `sh -c WORD`."""
    return any(place == path for place, _ in shells.scripts(shells.words(section, workload)))


def _read_variable(workload: Json, section: str, path: str, name: str, text: str) -> str:
    """Return advice on how a program can read an environment variable."""
    if _is_script(workload, section, path):
        return f'to have the shell substitute it, write "${name}" or $${{{name}}}'
    flag = text.partition("=")[0] if re.match(r"--?[A-Za-z][\w-]*=", text) else "--flag"
    shell = f"""[sh, -c, 'exec "$@" {flag}="${name}"', sh, PROGRAM, …]"""
    return (
        f"environment variables are not substituted; read {name} in the program, or let a shell do "
        f"it: {shell}"
    )


def warnings(document: Json, *, is_katib: bool = False) -> tuple[str, ...]:
    """Return warnings about values that are allowed but seldom intended.

    is_katib: in Katib, each step of a trial with a fidelity is a trial of its own, so none loses a
        checkpoint.
    """
    spec = document["spec"]
    return (
        *_unread_variables(spec["trial"]),
        *shells.warnings(spec),
        *_not_mentioned(spec),
        *(() if is_katib else _lost_checkpoints(spec)),
        *_idle_devices(spec),
        *_opposite_directions(spec),
    )


def _opposite_directions(spec: Json) -> Iterator[str]:
    objectives = [
        objective for objective in (spec.get("objective"), *spec.get("objectives", ())) if objective
    ]
    for objective in objectives:
        if doubt := opposite_direction(objective["metric"], objective["direction"]):
            other = "minimize" if objective["direction"] == "maximize" else "maximize"
            yield f"the objective {doubt}; if so, write direction: {other}"


def opposite_direction(metric: str, direction: str) -> str:
    """Return a doubt about an accuracy that is minimized, or a loss that is maximized.

    Return "" if there is none.

    A name may say neither, or both: neg_log_loss.
    """
    words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", metric)}
    usual = [way for way, names in _USUAL.items() if any(map(names.fullmatch, words))]
    if words & _NEGATED or len(usual) != 1 or usual == [direction]:
        return ""
    better = "larger" if usual == ["maximize"] else "smaller"
    return (
        f"{metric} is {direction}d, and of metrics with such a name {better} values are usually "
        "better"
    )


def _idle_devices(spec: Json) -> Iterator[str]:
    gpus = [
        workload.get("resources", {}).get("gpu", 0)
        for workload in (spec["trial"], spec.get("final", {}))
    ]
    if "devices" in spec["trial"] and not any(gpus) and _traits_of(spec).assigns_gpus:
        yield (
            "spec.trial.devices: trials request no GPU, so they get none; set "
            "spec.trial.resources.gpu"
        )


def _unread_variables(trial: Json) -> Iterator[str]:
    """Warn of words such as `--out=$TUNER_OUTPUT_DIR` that no shell reads.

    The program gets them literally.
    """
    section = "spec.trial"
    for path, word in shells.words(section, trial):
        for match in () if _has_shell(trial) else _GIVEN_VARIABLE.finditer(word):
            if match[0] == f"${{{TRIAL_NAME}}}":
                continue
            cure = _read_variable(trial, section, path, match[1], word)
            yield f"{path}: {match[0]} is passed unchanged: {cure}"


def _has_shell(trial: Json) -> bool:
    """Return whether the command line may contain a script."""
    return any(
        word.rpartition("/")[2] in shells.SHELLS or word == "-c"
        for word in trial.get("command", ())
    )


def _lost_checkpoints(spec: Json) -> Iterator[str]:
    if not _traits_of(spec).in_containers or "checkpoints" in spec["trial"]:
        return
    condition = "with a larger fidelity " if "fidelity" in spec else "from another one "
    if "fidelity" in spec or spec["algorithm"]["name"] == POPULATION_BASED:
        yield (
            f"spec.trial.checkpoints: without a claim, a trial that continues {condition}starts "
            "over; write checkpoints: {claim: NAME}"
        )


def _placeholder_elsewhere(name: str, text: str) -> str | None:
    """Return the placeholder that other tools, templates and shells have for a name, in a text.

    Not our own `${name}`.
    """
    # Compiling takes far longer, and there may be thousands of names.
    if name.lower() not in text.lower():
        return None
    n = re.escape(name)
    dotted = rf"(?:[\w.]*\.)?{n}"
    forms = (
        rf"\$?\{{\{{ *{dotted} *\}}\}}",
        rf"(?<!\$)[#@]?\{{ *{dotted}(?::[^{{}}]*)? *\}}",
        rf"\$[(\[]{dotted}[)\]]",
        rf"%\({n}\)[a-z]",
        rf"%{n}%",
        rf"<{n}>",
        rf"@{n}@",
        rf"(?<![\\$])\${n}(?![\w.-])",
    )
    found = re.search("|".join(forms), text, re.IGNORECASE)
    return None if found is None else found[0]


def _foreign_placeholder(text: str, names: list[str]) -> str | None:
    """Return the parameter in another tool's placeholder in a text, such as `${{ lr }}`."""
    return next((name for name in names if _placeholder_elsewhere(name, text)), None)


def _not_mentioned(spec: Json) -> Iterator[str]:
    if "parametersFile" in spec["trial"]:
        return
    texts = [text for _, text in workload_strings(spec["trial"])]
    if any("TUNER_PARAMETERS" in text for text in texts):
        return
    mentioned: set[str] = set()
    for text in texts:
        mentioned.update(placeholders(text))
    silent = [name for name in spec["parameters"] if name not in mentioned]
    if "network" in spec and not any(name.startswith("layer") for name in mentioned):
        silent += [name for name in TEXTS if name not in mentioned]
    for path, text in workload_strings(spec["trial"]):
        for name in [*silent]:
            if foreign := _placeholder_elsewhere(name, text):
                yield f"{path}: {foreign} does not become the value of {name}; write ${{{name}}}"
                silent.remove(name)
    places = "template" if "template" in spec["trial"] else "command, args or env"
    if silent:
        it_arrives = "it arrives" if len(silent) == 1 else "they arrive"
        yield f"{', '.join(silent)}: not mentioned in {places}; {it_arrives} in TUNER_PARAMETERS"
    if "fidelity" in spec and (name := spec["fidelity"]["parameter"]) not in mentioned:
        yield (
            f"spec.fidelity.parameter: {name} is not mentioned in {places}, so each step of a "
            "trial may run equally far; it arrives in TUNER_PARAMETERS"
        )
