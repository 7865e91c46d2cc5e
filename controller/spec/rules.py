"""The rules between the keys of a file, each of which is valid alone. Pure.

The rules of the search space are in `suggest.space`.
The service knows the algorithms and their settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from controller.core.model import TrialTemplate
from controller.core.runtime_traits import DEFAULT_RUNTIME, RuntimeTraits
from controller.core.substitute import (
    OPTIONAL,
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
from controller.spec.placeholders import (
    GIVEN,
    Absence,
    Placeholders,
    not_mentioned,
    unread_variables,
)
from controller.spec.problems import PathProblem, ProblemCollector, at_key
from controller.spec.readable import (
    readable_network,
    readable_space,
    unconditional,
    valid_part,
)
from controller.spec.trial_section import INSTEAD_OF_TEMPLATE
from suggest.network import TEXTS
from suggest.space import Space

_SET_BY_TUNER = {
    "app.kubernetes.io/managed-by": "is set by Tuner, which finds its objects by it; omit it",
    "kueue.x-k8s.io/queue-name": "would queue a trial that Tuner does not know to be queued; write "
    "spec.trial.queue",
}
# Words in the names of metrics whose larger values are usually better,
# and of those whose smaller values are.
_USUAL = {
    "maximize": re.compile(
        "accuracy|acc|auc|auroc|auprc|precision|recall|iou|miou|bleu|psnr|ssim|ndcg|throughput"
    ),
    "minimize": re.compile(
        "loss|error|err|rmse|mse|mae|mape|rmsle|nll|perplexity|ppl|wer|cer|latency"
    ),
}
# Of the ends of a range, from which on a number usually acts by its logarithm.
_DECADES = 1000
_NEGATED = {"neg", "negative", "minus", "inverse", "inv"}
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
CONFIRM_RERUNS = "cannot confirm reruns, of which the best had the best seeds; remove the key"
CONFIRM_CONTINUED = (
    "cannot be combined with algorithm pbt, whose trials continue from the checkpoints of others; "
    "omit it"
)
NO_PRICES = (
    "requires prices; write spec.prices, such as {nvidia.com/gpu: 2.5, cpu: 0.04}; only under a "
    "cluster's controller that has prices of its platform may they be missing"
)
OVERRUN_OF_NOTHING = (
    "is for budget.wallClock, budget.gpuHours and budget.cost; write one of them, or remove it"
)
# The algorithm whose trials continue from the checkpoints of others.
POPULATION_BASED = "pbt"


def check(
    document: Json, raw: Json, problems: ProblemCollector, *, handed_over: bool
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
    for key in ("trial", "final"):
        if isinstance(workload := spec.get(key), dict):
            yield from _whole_gpus(workload, f"spec.{key}", traits)
            yield from _reserved_variables(workload, f"spec.{key}")
            if names is not None:
                absence = Absence.of(spec, raw_parameters, network)
                yield from Placeholders(workload, f"spec.{key}", names, absence).problems()
    if isinstance(trial, dict) and isinstance(raw_trial, dict):
        yield from _workload(trial, raw_trial, traits)
        yield from _volumes(trial, problems)
        for key in ("labels", "annotations"):
            yield from _own_labels(trial.get(key, {}), f"spec.trial.{key}")
    final = spec.get("final")
    if isinstance(final, dict):
        if isinstance(raw_trial, dict) and raw_trial.get("template") is not None:
            yield at_key("spec.final", FINAL_OF_TEMPLATE)
        yield from _choose(final, spec)
    if "confirm" in spec:
        yield from _confirm(spec)


def _objectives(spec: Json, raw: Json) -> Iterator[PathProblem]:
    if "objective" in raw and "objectives" in raw:
        yield at_key("spec.objectives", BOTH_OBJECTIVES)
    elif "objective" not in raw and "objectives" not in raw:
        yield PathProblem("spec.objective", NO_OBJECTIVE)
    if raw.get("objectives") == []:
        yield PathProblem("spec.objectives", "expected a list of objectives, got an empty list")
    has_several = spec.get("constraints") or len(raw.get("objectives") or ()) > 1
    if has_several and "regretBelow" in spec.get("budget", {}):
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
    if "pattern" not in metrics and metrics.get("format") != "json":
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
    sources = [key for key in ("file", "prometheus", "dbManager") if metrics.get(key)]
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
    limits = {"wallClock", "gpuHours", "cost"} & set(budget)
    if "overrun" in budget and not limits and not problems.within("spec.budget"):
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
        # The parameters of an unreadable network are unknown.
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
    most = spec.get("budget", {}).get("trials")
    if isinstance(most, int) and most > trials * seeds:
        yield PathProblem(
            "spec.budget.trials",
            f"{most} is more than {trials * seeds}, the reruns that spec.rerun has: {trials} "
            f"trials with {seeds} seeds each; for more, delete them and repeat the command",
        )


def _confirm(spec: Json) -> Iterator[PathProblem]:
    for is_wrong, message in (
        ("objectives" in spec, CONFIRM_SEVERAL),
        ("rerun" in spec, CONFIRM_RERUNS),
        (spec.get("algorithm", {}).get("name") == POPULATION_BASED, CONFIRM_CONTINUED),
    ):
        if is_wrong:
            yield at_key("spec.confirm", message)


def _traits_of(spec: Json) -> RuntimeTraits:
    return traits_of(spec.get("runtime", DEFAULT_RUNTIME))


def _whole_gpus(workload: Json, section: str, traits: RuntimeTraits) -> Iterator[PathProblem]:
    gpu = workload.get("resources", {}).get("gpu", 0)
    if not traits.shares_gpus and isinstance(gpu, float):
        yield PathProblem(
            f"{section}.resources.gpu",
            f"{gpu} is not a whole number, and a cluster shares no GPU; use 1, or local",
        )


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
        kind = template.get("apiVersion"), template.get("kind")
        if "checkpoints" in raw and kind != ("batch/v1", "Job"):
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


def warnings(document: Json, *, is_katib: bool) -> tuple[str, ...]:
    """Return warnings about values that are allowed but seldom intended.

    is_katib: in Katib, each step of a trial with a fidelity is a trial of its own, so none loses a
        checkpoint.
    """
    spec = document["spec"]
    return (
        *unread_variables(spec["trial"]),
        *shells.warnings(spec),
        *not_mentioned(spec),
        *(() if is_katib else _lost_checkpoints(spec)),
        *_idle_devices(spec),
        *_opposite_directions(spec),
        *_rates_without_log(spec, "distribution: logUniform" if is_katib else "scale: log"),
    )


def _rates_without_log(spec: Json, cure: str) -> Iterator[str]:
    for name, domain in spec["parameters"].items():
        if domain["type"] != "float" or not {"step", "distribution"}.isdisjoint(domain):
            continue
        low, high = domain["min"], domain["max"]
        if domain.get("scale") != "log" and low > 0 and high >= _DECADES * low:
            yield (
                f"spec.parameters.{name}: nine of ten random values from {low:g} to {high:g} are "
                f"above {high / 10:g}; if smaller ones are as likely to be good, as for a learning "
                f"rate, write {cure}"
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
    workloads = (spec["trial"], spec.get("final", {}))
    gpus = [workload.get("resources", {}).get("gpu", 0) for workload in workloads]
    if "devices" in spec["trial"] and not any(gpus) and _traits_of(spec).assigns_gpus:
        yield (
            "spec.trial.devices: trials request no GPU, so they get none; set "
            "spec.trial.resources.gpu"
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
