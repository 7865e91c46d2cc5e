"""This server says about settings what Katib's services say, as their Python classes print it.

Where Katib has several services for an algorithm, one of them counts. Where it has no message, or
raises an exception, this server has its own.
"""

from __future__ import annotations

import pytest

from suggest.errors import InvalidArgument
from suggest.katib.early_stopping import read_settings
from suggest.katib.experiment import validate
from suggest.katib.v1beta1 import api_pb2 as pb
from tests.service.katib_caller import NUMBERS, an_experiment, whole

HYPERBAND = {"r_l": "9", "resource_name": "n"}
POPULATION = {"suggestion_trial_dir": "/c", "n_population": "8", "truncation_threshold": "0.2"}
KATIB_SAYS: list[tuple[str, dict[str, str], str]] = [
    ("random", {"random_state": "-1"}, "random_state should be great or equal than zero"),
    ("tpe", {"random_state": "-1"}, "random_state should be great or equal than zero"),
    (
        "multivariate-tpe",
        {"random_state": "-1"},
        "random_state should be greate or equal than zero",
    ),
    ("cmaes", {"random_state": "-1"}, "random_state should be greate or equal than zero"),
    (
        "bayesianoptimization",
        {"random_state": "-1"},
        "random_state should be great or equal than zero",
    ),
    (
        "random",
        {"random_state": "one"},
        "failed to validate random_state(one): invalid literal for int() with base 10: 'one'",
    ),
    (
        "tpe",
        {"random_state": "one"},
        "failed to validate random_state(one): invalid literal for int() with base 10: 'one'",
    ),
    (
        "multivariate-tpe",
        {"random_state": "one"},
        "failed to validate random_state(one): invalid literal for int() with base 10: 'one'",
    ),
    (
        "grid",
        {"random_state": "one"},
        "failed to validate random_state(one): invalid literal for int() with base 10: 'one'",
    ),
    (
        "cmaes",
        {"random_state": "one"},
        "failed to validate random_state(one): invalid literal for int() with base 10: 'one'",
    ),
    (
        "bayesianoptimization",
        {"random_state": "one"},
        "failed to validate random_state(one): invalid literal for int() with base 10: 'one'",
    ),
    (
        "random",
        {"random_state": "1.5"},
        "failed to validate random_state(1.5): invalid literal for int() with base 10: '1.5'",
    ),
    (
        "tpe",
        {"random_state": "1.5"},
        "failed to validate random_state(1.5): invalid literal for int() with base 10: '1.5'",
    ),
    (
        "multivariate-tpe",
        {"random_state": "1.5"},
        "failed to validate random_state(1.5): invalid literal for int() with base 10: '1.5'",
    ),
    (
        "grid",
        {"random_state": "1.5"},
        "failed to validate random_state(1.5): invalid literal for int() with base 10: '1.5'",
    ),
    (
        "cmaes",
        {"random_state": "1.5"},
        "failed to validate random_state(1.5): invalid literal for int() with base 10: '1.5'",
    ),
    (
        "bayesianoptimization",
        {"random_state": "1.5"},
        "failed to validate random_state(1.5): invalid literal for int() with base 10: '1.5'",
    ),
    (
        "random",
        {"random_state": ""},
        "failed to validate random_state(): invalid literal for int() with base 10: ''",
    ),
    (
        "tpe",
        {"random_state": ""},
        "failed to validate random_state(): invalid literal for int() with base 10: ''",
    ),
    (
        "multivariate-tpe",
        {"random_state": ""},
        "failed to validate random_state(): invalid literal for int() with base 10: ''",
    ),
    (
        "grid",
        {"random_state": ""},
        "failed to validate random_state(): invalid literal for int() with base 10: ''",
    ),
    (
        "cmaes",
        {"random_state": ""},
        "failed to validate random_state(): invalid literal for int() with base 10: ''",
    ),
    (
        "bayesianoptimization",
        {"random_state": ""},
        "failed to validate random_state(): invalid literal for int() with base 10: ''",
    ),
    ("tpe", {"n_startup_trials": "-1"}, "n_startup_trials should be greate or equal than zero"),
    (
        "tpe",
        {"n_startup_trials": "few"},
        "failed to validate n_startup_trials(few): invalid literal for int() with base 10: 'few'",
    ),
    ("tpe", {"n_ei_candidates": "-1"}, "n_ei_candidates should be greate or equal than zero"),
    (
        "tpe",
        {"n_ei_candidates": "few"},
        "failed to validate n_ei_candidates(few): invalid literal for int() with base 10: 'few'",
    ),
    (
        "multivariate-tpe",
        {"n_startup_trials": "-1"},
        "n_startup_trials should be greate or equal than zero",
    ),
    (
        "multivariate-tpe",
        {"n_startup_trials": "few"},
        "failed to validate n_startup_trials(few): invalid literal for int() with base 10: 'few'",
    ),
    (
        "multivariate-tpe",
        {"n_ei_candidates": "-1"},
        "n_ei_candidates should be greate or equal than zero",
    ),
    (
        "multivariate-tpe",
        {"n_ei_candidates": "few"},
        "failed to validate n_ei_candidates(few): invalid literal for int() with base 10: 'few'",
    ),
    ("tpe", {"gamma": "0"}, "gamma should be in the range of (0, 1)"),
    ("tpe", {"gamma": "1"}, "gamma should be in the range of (0, 1)"),
    ("tpe", {"gamma": "nan"}, "gamma should be in the range of (0, 1)"),
    ("tpe", {"gamma": "x"}, "failed to validate gamma(x): could not convert string to float: 'x'"),
    ("tpe", {"prior_weight": "0"}, "prior_weight should be great than zero"),
    ("tpe", {"prior_weight": "-1"}, "prior_weight should be great than zero"),
    ("tpe", {"prior_weight": "nan"}, "prior_weight should be great than zero"),
    (
        "tpe",
        {"prior_weight": "x"},
        "failed to validate prior_weight(x): could not convert string to float: 'x'",
    ),
    ("tpe", {"n_EI_candidates": "0"}, "n_EI_candidates should be great than zero"),
    ("tpe", {"n_EI_candidates": "-1"}, "n_EI_candidates should be great than zero"),
    (
        "tpe",
        {"n_EI_candidates": "x"},
        "failed to validate n_EI_candidates(x): invalid literal for int() with base 10: 'x'",
    ),
    ("cmaes", {"sigma": "-1"}, "sigma should be greate or equal than zero"),
    ("cmaes", {"sigma": "nan"}, "sigma should be greate or equal than zero"),
    (
        "cmaes",
        {"sigma": "x"},
        "failed to validate sigma(x): could not convert string to float: 'x'",
    ),
    (
        "cmaes",
        {"restart_strategy": "often"},
        "restart_strategy often is not supported in CMAES optimization",
    ),
    ("cmaes", {"restart_strategy": ""}, "restart_strategy  is not supported in CMAES optimization"),
    (
        "bayesianoptimization",
        {"base_estimator": "XX"},
        "base_estimator XX is not supported in Bayesian optimization",
    ),
    (
        "bayesianoptimization",
        {"base_estimator": ""},
        "base_estimator  is not supported in Bayesian optimization",
    ),
    (
        "bayesianoptimization",
        {"acq_func": "XX"},
        "acq_func XX is not supported in Bayesian optimization",
    ),
    (
        "bayesianoptimization",
        {"acq_optimizer": "XX"},
        "acq_optimizer XX is not supported in Bayesian optimization",
    ),
    (
        "bayesianoptimization",
        {"n_initial_points": "-1"},
        "n_initial_points should be great or equal than zero",
    ),
    (
        "bayesianoptimization",
        {"n_initial_points": "x"},
        "failed to validate n_initial_points(x): invalid literal for int() with base 10: 'x'",
    ),
    ("random", {"seed": "1"}, "unknown setting seed for algorithm random"),
    ("tpe", {"seed": "1"}, "unknown setting seed for algorithm tpe"),
    ("multivariate-tpe", {"seed": "1"}, "unknown setting seed for algorithm multivariate-tpe"),
    ("grid", {"seed": "1"}, "unknown setting seed for algorithm grid"),
    ("cmaes", {"seed": "1"}, "unknown setting seed for algorithm cmaes"),
    (
        "bayesianoptimization",
        {"seed": "1"},
        "unknown setting seed for algorithm bayesianoptimization",
    ),
    ("hyperband", {}, "r_l and resource_name must be set."),
    ("hyperband", {"r_l": "9"}, "r_l and resource_name must be set."),
    ("hyperband", HYPERBAND | {"r_l": "many"}, "r_l must be a positive float number."),
    ("hyperband", HYPERBAND | {"r_l": "-1"}, "r_l must be a positive float number."),
    (
        "hyperband",
        HYPERBAND | {"resource_name": "zz"},
        "value of resource_name setting must be in parameters.",
    ),
    ("hyperband", HYPERBAND | {"r_l": ""}, "r_l must be a positive float number."),
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
ABOUT_STOPPING = [
    ("min_trials_required", "0", "min_trials_required must be greater than zero (>0)"),
    (
        "min_trials_required",
        "x",
        "failed to validate min_trials_required(x): invalid literal for int() with base 10: 'x'",
    ),
    ("start_step", "0", "start_step must be greater or equal than one (>=1)"),
    (
        "start_step",
        "1.5",
        "failed to validate start_step(1.5): invalid literal for int() with base 10: '1.5'",
    ),
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
