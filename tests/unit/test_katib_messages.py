"""This server says about settings what Katib's services say, as their Python classes print it.

Where Katib has several services for an algorithm, one of them counts. Where it has no message, or
raises an exception, this server has its own.
"""

from __future__ import annotations

from itertools import product

import pytest

from suggest.errors import InvalidArgument
from suggest.katib.early_stopping import read_settings
from suggest.katib.experiment import validate
from suggest.katib.v1beta1 import api_pb2 as pb
from tests.service.katib_caller import NUMBERS, an_experiment, whole

HYPERBAND = {"r_l": "9", "resource_name": "n"}
POPULATION = {"suggestion_trial_dir": "/c", "n_population": "8", "truncation_threshold": "0.2"}
NOT_WHOLE = "failed to validate {name}({text}): invalid literal for int() with base 10: '{text}'"
NOT_A_NUMBER = "failed to validate {name}({text}): could not convert string to float: '{text}'"
GREAT, GREATE = (f"{{name}} should be {word} or equal than zero" for word in ("great", "greate"))
ALL = ("random", "tpe", "multivariate-tpe", "grid", "cmaes", "bayesianoptimization")
BOTH_TPE = ("tpe", "multivariate-tpe")
BAYES = ("bayesianoptimization",)
# Algorithms, a setting, texts, and what is said of each: where a text is all that is wrong.
OF_ONE_SETTING = [
    (("random", "tpe", "bayesianoptimization"), "random_state", ["-1"], GREAT),
    (("multivariate-tpe", "cmaes"), "random_state", ["-1"], GREATE),
    (ALL, "random_state", ["one", "1.5", ""], NOT_WHOLE),
    (BOTH_TPE, "n_startup_trials", ["-1"], GREATE),
    (BOTH_TPE, "n_startup_trials", ["few"], NOT_WHOLE),
    (BOTH_TPE, "n_ei_candidates", ["-1"], GREATE),
    (BOTH_TPE, "n_ei_candidates", ["few"], NOT_WHOLE),
    (("tpe",), "gamma", ["0", "1", "nan"], "gamma should be in the range of (0, 1)"),
    (("tpe",), "gamma", ["x"], NOT_A_NUMBER),
    (("tpe",), "prior_weight", ["0", "-1", "nan"], "prior_weight should be great than zero"),
    (("tpe",), "prior_weight", ["x"], NOT_A_NUMBER),
    (("tpe",), "n_EI_candidates", ["0", "-1"], "n_EI_candidates should be great than zero"),
    (("tpe",), "n_EI_candidates", ["x"], NOT_WHOLE),
    (("cmaes",), "sigma", ["-1", "nan"], GREATE),
    (("cmaes",), "sigma", ["x"], NOT_A_NUMBER),
    (
        ("cmaes",),
        "restart_strategy",
        ["often", ""],
        "{name} {text} is not supported in CMAES optimization",
    ),
    *(
        (BAYES, name, ["XX", ""], "{name} {text} is not supported in Bayesian optimization")
        for name in ("base_estimator", "acq_func", "acq_optimizer")
    ),
    (BAYES, "n_initial_points", ["-1"], GREAT),
    (BAYES, "n_initial_points", ["x"], NOT_WHOLE),
    (ALL, "seed", ["1"], "unknown setting seed for algorithm {algorithm}"),
    (("sobol",), "sigma", ["1"], "unknown setting sigma for algorithm sobol"),
]
OF_SEVERAL: list[tuple[str, dict[str, str], str]] = [
    ("hyperband", {}, "r_l and resource_name must be set."),
    ("hyperband", {"r_l": "9"}, "r_l and resource_name must be set."),
    ("hyperband", {"resource_name": "n"}, "r_l and resource_name must be set."),
    *(
        ("hyperband", HYPERBAND | {"r_l": text}, "r_l must be a positive float number.")
        for text in ("many", "-1", "0", "")
    ),
    (
        "hyperband",
        HYPERBAND | {"resource_name": "zz"},
        "value of resource_name setting must be in parameters.",
    ),
    (
        "pbt",
        {},
        "Required params missing: suggestion_trial_dir, n_population, truncation_threshold",
    ),
    (
        "pbt",
        {"n_population": "8"},
        "Required params missing: suggestion_trial_dir, truncation_threshold",
    ),
    ("pbt", POPULATION | {"n_population": "4"}, "Param(n_population) should be >= 5"),
    (
        "pbt",
        POPULATION | {"truncation_threshold": "2"},
        "Param(truncation_threshold) should be between 0 and 1, inclusive",
    ),
    ("simulated", {}, "unknown algorithm name simulated"),
]
KATIB_SAYS = [
    (algorithm, {name: text}, says.format(algorithm=algorithm, name=name, text=text))
    for algorithms, name, texts, says in OF_ONE_SETTING
    for algorithm, text in product(algorithms, texts)
] + OF_SEVERAL
ABOUT_STOPPING = [
    ("min_trials_required", "0", "min_trials_required must be greater than zero (>0)"),
    ("min_trials_required", "x", NOT_WHOLE.format(name="min_trials_required", text="x")),
    ("start_step", "0", "start_step must be greater or equal than one (>=1)"),
    ("start_step", "1.5", NOT_WHOLE.format(name="start_step", text="1.5")),
    ("steps", "1", "unknown setting steps for algorithm medianstop"),
]


def said(experiment: pb.Experiment) -> str:
    with pytest.raises(InvalidArgument) as caught:
        validate(experiment)
    return "; ".join(problem.message for problem in caught.value.problems)


@pytest.mark.parametrize(("algorithm", "settings", "message"), KATIB_SAYS)
def test_a_setting_is_refused_in_katibs_words(
    algorithm: str, settings: dict[str, str], message: str
) -> None:
    space = [whole("n", "1", "9")] if algorithm == "grid" else NUMBERS
    assert said(an_experiment(algorithm, space, settings=settings)) == message


@pytest.mark.parametrize(("name", "value", "message"), ABOUT_STOPPING)
def test_a_setting_of_medianstop_is_refused_in_katibs_words(
    name: str, value: str, message: str
) -> None:
    setting = pb.EarlyStoppingSetting(name=name, value=value)
    with pytest.raises(InvalidArgument) as caught:
        read_settings(
            pb.EarlyStoppingSpec(algorithm_name="medianstop", algorithm_settings=[setting])
        )
    assert [problem.message for problem in caught.value.problems] == [message]


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        (
            "tpe",
            {"random_state": "10", "gamma": "0.25", "prior_weight": "1.0", "n_EI_candidates": "24"},
        ),
        ("cmaes", {"sigma": "inf"}),
        ("hyperband", HYPERBAND | {"eta": "0"}),
        ("hyperband", HYPERBAND | {"eta": "2.5"}),
    ],
)
def test_a_setting_that_katib_accepts_is_accepted(algorithm: str, settings: dict[str, str]) -> None:
    validate(an_experiment(algorithm, NUMBERS, settings=settings))


@pytest.mark.parametrize(
    "algorithm", ["random", "tpe", "multivariate-tpe", "bayesianoptimization", "sobol", "grid"]
)
def test_what_only_katibs_webhook_guarantees_is_not_asked_for(algorithm: str) -> None:
    validate(
        pb.Experiment(spec=pb.ExperimentSpec(algorithm=pb.AlgorithmSpec(algorithm_name=algorithm)))
    )


@pytest.mark.parametrize(("step", "points"), [("0.8", 5), ("0.25", 5), ("2", 3)])
def test_a_step_of_an_int_below_one_reaches_every_whole_number(step: str, points: int) -> None:
    [parameter] = validate(an_experiment("random", [whole("n", "1", "5", step)])).texts
    assert parameter.domain.count == points
