"""Katib's experiments as specs of studies: what is read,
what is refused and in which words, and texts of values.
"""

from __future__ import annotations

import json

import pytest

from suggest.errors import InvalidArgument
from suggest.katib.experiment import read_experiment, validate
from suggest.katib.parameters import TextValues
from suggest.katib.v1beta1 import api_pb2 as pb
from suggest.space import Choice, Domain, Float, Int, Normal, Scale
from suggest.study import Algorithm, Direction, Fidelity, Objective
from suggest.trial import ValueColumn
from tests.service.katib_caller import NUMBERS, an_experiment, choice, double, whole

X = double("x", "0", "1")


def refusal(experiment: pb.Experiment) -> str:
    with pytest.raises(InvalidArgument) as caught:
        validate(experiment)
    return str(caught.value)


def domain_of(parameter: pb.ParameterSpec, *, algorithm: str = "random") -> Domain:
    [text] = read_experiment(an_experiment(algorithm, [parameter])).texts
    return text.domain


DOMAINS = {
    "a double": (double("x", "0.5", "1"), Float(0.5, 1.0)),
    "a double without a distribution": (
        double("x", "0.5", "1", distribution=pb.DISTRIBUTION_UNSPECIFIED),
        Float(0.5, 1.0),
    ),
    "a logarithmic one in steps": (
        double("x", "0.1", "1", "0.2", pb.LOG_UNIFORM),
        Float(0.1, 0.9, Scale.LOG, 0.2),
    ),
    "steps": (double("x", "0.1", "0.5", "0.1"), Float(0.1, 0.5, step=0.1)),
    "steps that do not lead to the end": (
        double("x", "0.1", "0.55", "0.2"),
        Float(0.1, 0.5, step=0.2),
    ),
    "a step that is wider than the range": (double("x", "0.1", "0.5", "2"), Float(0.1, 0.1)),
    "an int": (whole("x", "-1", "5"), Int(-1, 5)),
    "an int in steps": (whole("x", "1", "6", "2"), Int(1, 5, step=2)),
    "a logarithmic int": (whole("x", "1", "65", "3", pb.LOG_UNIFORM), Int(1, 64, Scale.LOG, 3)),
    "a category": (choice("x", "a", "b"), Choice(("a", "b"))),
    "a discrete one": (choice("x", "0.5", "8", kind=pb.DISCRETE), Choice(("0.5", "8"))),
    "a normal one, three deviations from its ends": (
        double("x", "1", "7", distribution=pb.NORMAL),
        Float(1.0, 7.0, normal=Normal(4.0, 1.0)),
    ),
    "a lognormal one": (
        double("x", "1", "1000000", distribution=pb.LOG_NORMAL),
        Float(1.0, 1e6, Scale.LOG, normal=Normal.within(1.0, 1e6, Scale.LOG)),
    ),
    "a normal int in steps": (
        whole("x", "0", "60", "5", pb.NORMAL),
        Int(0, 60, Scale.LINEAR, 5, Normal(30.0, 10.0)),
    ),
}


@pytest.mark.parametrize("name", DOMAINS)
def test_a_parameter_becomes_a_domain(name: str) -> None:
    parameter, domain = DOMAINS[name]
    assert domain_of(parameter) == domain


def test_a_grid_is_even_whatever_the_distribution() -> None:
    parameter = double("x", "0.1", "0.5", "0.1", pb.LOG_UNIFORM)
    assert domain_of(parameter, algorithm="grid") == Float(0.1, 0.5, step=0.1)


BAD_PARAMETERS = {
    "min above max": (double("x", "2", "1"), "x: min 2 is above max 1; exchange them"),
    "no number": (double("x", "low", "1"), "x: expected a number such as \"0.1\", got 'low'"),
    "nan": (double("x", "nan", "1"), "x: expected a number such as \"0.1\", got 'nan'"),
    "no min": (double("x", "", "1"), "x: must be specified; write a number as text"),
    "half an int": (
        whole("x", "0.5", "1"),
        "x: expected a whole number of at most 16 digits such as \"1\", got '0.5'",
    ),
    "an int beyond the exact ones": (
        whole("x", "1", "1000000000000000000"),
        "x: expected a whole number of at most 16 digits such as \"1\", got '1000000000000000000'",
    ),
    "a log from zero": (
        double("x", "0", "1", distribution=pb.LOG_UNIFORM),
        "x: 0 cannot be on a log scale; use a min above 0",
    ),
    "a lognormal from zero": (
        double("x", "0", "1", distribution=pb.LOG_NORMAL),
        "x: 0 cannot be on a log scale; use a min above 0",
    ),
    "a normal one without width": (
        double("x", "1", "1", distribution=pb.NORMAL),
        "x: min equals max, so a normal distribution has no width; use uniform",
    ),
    "a step of zero": (double("x", "0", "1", "0"), "x: 0 is not a step; use a number above 0"),
    "tiny steps": (
        double("x", "0", "1", "1e-18"),
        "x: 1e-18 makes more than 10^15 values; use a larger step",
    ),
    "an empty list": (choice("x"), "x: is empty; give one value or more"),
    "a value twice": (choice("x", "a", "a"), "x: has a value twice; remove one"),
    "a discrete text": (
        choice("x", "a", kind=pb.DISCRETE),
        "x: expected a number such as \"0.1\", got 'a'",
    ),
    "no type": (
        pb.ParameterSpec(name="x"),
        "x: is not supported; use int, double, discrete or categorical",
    ),
    "an unknown type": (
        pb.ParameterSpec(name="x", parameter_type=9),  # of a newer client
        "x: is not supported; use int, double, discrete or categorical",
    ),
    "an unknown distribution": (
        double("x", "0", "1", distribution=9),  # likewise
        "x: distribution 9 is not supported",
    ),
    "a step that is text": (
        double("x", "0", "1", "small"),
        "x: expected a number such as \"0.1\", got 'small'",
    ),
    "an infinite end": (double("x", "0", "inf"), "x: expected a number such as \"0.1\", got 'inf'"),
    "an int with a list": (
        pb.ParameterSpec(
            name="x", parameter_type=pb.INT, feasible_space=pb.FeasibleSpace(list=["1"])
        ),
        "x: an int or a double has min and max; omit the list",
    ),
    "a name with a brace": (
        choice("{x", "a"),
        "'{x' is not a name; use 1 to 253 characters that can be printed, without { and }",
    ),
}


@pytest.mark.parametrize("name", BAD_PARAMETERS)
def test_a_bad_parameter_is_refused_with_its_place(name: str) -> None:
    parameter, message = BAD_PARAMETERS[name]
    text = refusal(an_experiment("random", [parameter]))
    assert text.startswith("experiment.spec.parameter_specs.parameters[0].")
    assert text.endswith(message)


def hyperband(**settings: str) -> pb.Experiment:
    return an_experiment(
        "hyperband", NUMBERS, settings={"r_l": "9", "resource_name": "n", **settings}
    )


FAILED = "failed to validate"
PBT = {"suggestion_trial_dir": "/ckpt", "n_population": "8", "truncation_threshold": "0.25"}


def pbt(**settings: str) -> pb.Experiment:
    return an_experiment("pbt", NUMBERS, settings={**PBT, **settings})


def in_katibs_words() -> dict[str, tuple[pb.Experiment, str]]:
    def setting(algorithm: str, name: str, value: str) -> pb.Experiment:
        return an_experiment(algorithm, NUMBERS, settings={name: value})

    return {
        "cmaes on one number": (
            an_experiment("cmaes", [X, choice("kind", "a", "b")]),
            "cmaes only supports two or more dimensional continuous search space.",
        ),
        "a grid that is too small": (
            an_experiment("grid", [whole("n", "1", "3")], trials=4),
            "Max Trial Count: 4 > all possible search combinations: 3",
        ),
        "a grid without a step": (
            an_experiment("grid", [X]),
            "failed to validate parameters(x): Param x step is nil; For discrete search space, "
            "all parameters must "
            "include step",
        ),
        "a large population": (
            pbt(n_population="1001"),
            f"{FAILED} n_population(1001): at most 1000",
        ),
        "a folder that is relative": (
            pbt(suggestion_trial_dir="ckpt"),
            f"{FAILED} suggestion_trial_dir(ckpt): expected the absolute path of a folder",
        ),
        "r_l below 1": (
            hyperband(r_l="0.5"),
            "failed to validate r_l(0.5): at least 1, and below 2^53: resources are whole numbers",
        ),
        "eta of 1": (
            hyperband(eta="1"),
            "failed to validate eta(1): eta should be greater than one",
        ),
        "a resource that is no int": (
            hyperband(resource_name="x"),
            "x, of resource_name, must be an int: it counts what is trained",
        ),
    }


@pytest.mark.parametrize("name", in_katibs_words())
def test_what_katib_refuses_is_refused_with_its_message(name: str) -> None:
    experiment, message = in_katibs_words()[name]
    assert refusal(experiment) == message


def test_a_repeated_name_is_refused() -> None:
    message = refusal(an_experiment("random", [X, X]))
    assert message.endswith("Detect duplicated parameter name: x")


def test_all_problems_are_reported_at_once() -> None:
    experiment = an_experiment("random", [double("x", "2", "1")], settings={"seed": "1"})
    message = refusal(experiment)
    assert "unknown setting seed" in message
    assert "min 2 is above max 1" in message


ALGORITHMS = {
    "random": ({"random_state": "7"}, Algorithm("random", 7, {})),
    "grid": ({"random_state": "7"}, Algorithm("grid", 7, {})),
    "tpe": (
        {
            "n_startup_trials": "5",
            "n_ei_candidates": "0",
            "gamma": "0.25",
            "prior_weight": "1.0",
            "random_state": "1",
        },
        Algorithm("tpe", 1, {"multivariate": False, "startupTrials": 5, "candidates": 1}),
    ),
    "multivariate-tpe": (
        {"n_ei_candidates": "30"},
        Algorithm("tpe", None, {"multivariate": True, "candidates": 30}),
    ),
    "bayesianoptimization": (
        {
            "base_estimator": "RF",
            "n_initial_points": "8",
            "acq_func": "gp_hedge",
            "acq_optimizer": "auto",
        },
        Algorithm("gp", None, {"startupTrials": 8}),
    ),
    "cmaes": (
        {"sigma": "0.5", "restart_strategy": "none"},
        Algorithm("cmaes", None, {"populationGrowth": 1}),
    ),
    "sobol": ({}, Algorithm("sobol", None, {})),
    "hyperband": ({"r_l": "9", "resource_name": "n", "eta": "3"}, Algorithm("random", None, {})),
    "pbt": (
        PBT,
        Algorithm("pbt", None, {"resampleProbability": 0.0, "population": 8, "truncation": 0.25}),
    ),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_takes_the_settings_of_all_of_katibs_services_for_it(name: str) -> None:
    settings, algorithm = ALGORITHMS[name]
    parameters = [whole("n", "1", "5")] if name == "grid" else NUMBERS
    assert (
        read_experiment(an_experiment(name, parameters, settings=settings)).spec.algorithm
        == algorithm
    )


def test_the_objective_is_maximized_or_minimized() -> None:
    assert read_experiment(an_experiment()).spec.objective == Objective(
        "accuracy", Direction.MAXIMIZE
    )


# Texts


@pytest.mark.parametrize("distribution", [pb.UNIFORM, pb.LOG_UNIFORM, pb.NORMAL, pb.LOG_NORMAL])
def test_the_text_of_a_value_means_that_value(distribution: pb.Distribution) -> None:
    [text] = read_experiment(
        an_experiment("random", [double("x", "0.5", "2", distribution=distribution)])
    ).texts
    assert isinstance(text.domain, Float)
    shares = (0.001, 0.25, 0.5, 0.999)
    values = [text.domain.min + share * (text.domain.max - text.domain.min) for share in shares]
    texts = [text.text(value) for value in values]
    assert text.values(texts) == TextValues(ValueColumn(values, texts), [], [])


def test_texts_outside_of_the_domain_and_those_without_a_value_are_told_apart() -> None:
    number, count, kind = read_experiment(
        an_experiment(
            "random",
            [double("x", "0", "2"), whole("n", "1", "9", step="2"), choice("kind", "a", "b")],
        )
    ).texts
    found = [
        number.values(["1.5", "3", "nan", "much"]),
        count.values(["3", "4", "3.0", "2.5"]),
        kind.values([*"aca"]),
    ]
    assert [
        (list(each.column.values), list(each.column.json), each.outside, each.unreadable)
        for each in found
    ] == [
        ([1.5, 3.0, None, None], ["1.5", "3.0", "null", "null"], [1, 2, 3], [2, 3]),
        ([3, 4, 3, None], ["3", "4", "3", "null"], [1, 3], [3]),
        ([*"aca"], ['"a"', '"c"', '"a"'], [1], []),
    ]


@pytest.mark.parametrize(
    "texts",
    [
        ["0.5", "1e-05", "1.50", "2E-1"],
        ["0.5", "1", "0", "-0", "2"],
        ["1", "2"],
        ["0.5", ".5", "5e-1 ", "+1.0"],
        ["0.5", "0.1" + 5000 * "0"],
        ["0.5", "1_0e-1"],
        ["0.25", "0.5"],
    ],
)
def test_numbers_are_stored_as_json_that_means_the_same_numbers(texts: list[str]) -> None:
    number, count = read_experiment(
        an_experiment("random", [double("x", "0", "2"), whole("n", "0", str(10**15))])
    ).texts
    column = number.values(texts).column
    assert (
        repr(column.values)
        == repr(list(map(float, texts)))
        == repr([json.loads(text) for text in column.json])
    )
    column = count.values(["0", "12", "-0", "999999999999999"]).column
    assert (
        repr(column.values)
        == repr([0, 12, 0, 10**15 - 1])
        == repr([json.loads(text) for text in column.json])
    )


@pytest.mark.parametrize(
    "text",
    ["1,2", "[1.0", "nan", "Infinity", "-Infinity", "1e999", "null", '"1.0"', "", "9" * 9999],
)
def test_what_is_json_but_no_number_of_the_domain_is_no_value(text: str) -> None:
    [number] = read_experiment(an_experiment("random", [double("x", "0", "2")])).texts
    assert number.values(["0.5", text, "1.5"]).outside == [1]


@pytest.mark.parametrize("length", [17, 308, 309, 400, 4301, 9999, 20_000])
@pytest.mark.parametrize("sign", ["", "-"])
@pytest.mark.parametrize("others", [2, 20, 1000])
def test_a_number_of_any_length_outside_of_the_domain_is_told_from_those_within(
    length: int, sign: str, others: int
) -> None:
    texts = read_experiment(
        an_experiment("random", [double("x", "0", "2"), whole("n", "1", "100")])
    ).texts
    for text, within in zip(texts, ("0.5", "7"), strict=True):
        found = text.values([*[within] * others, sign + "9" * length])
        assert (found.outside, list(found.column.values[:-1])) == (
            [others],
            [float(within)] * others,
        )
        assert found.unreadable == ([others] if length > 308 else [])


def test_the_resource_of_hyperband_is_searched_at_its_levels() -> None:
    experiment = read_experiment(hyperband(r_l="10.2"))
    assert experiment.fidelity == Fidelity("n", 1, 10, 3)
    assert experiment.fidelity.levels == (1, 3, 10)
    assert experiment.spec.space.by_name["n"].domain == Int(1, 10)


def test_the_state_that_katibs_hyperband_keeps_in_its_settings_does_not_matter() -> None:
    with_state = hyperband(
        current_s="2", s_max="2", evaluating_trials="9", r="1.0", n="9", b_l="27", current_i="1"
    )
    assert read_experiment(with_state).key == read_experiment(hyperband()).key


def test_experiments_differ_by_what_is_searched_only() -> None:
    def key(algorithm: str = "tpe", **other: object) -> str:
        experiment = an_experiment(algorithm, **other)  # type: ignore[arg-type]
        return read_experiment(experiment).key

    assert key() == key(trials=50)
    assert (
        len(
            {
                key(),
                key("random"),
                key(name="other"),
                key(parameters=NUMBERS),
                key(settings={"gamma": "0.1"}),
            }
        )
        == 5
    )
