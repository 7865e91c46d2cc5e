"""Parameters and other arguments in Python programs: their meaning,
and the errors for wrong types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from suggest import domain
from suggest.client import Choice, Client, Float, Int, OpenTrial, Scale, Search, StudyName, maximize
from suggest.client.search_space import named
from suggest.errors import InvalidArgument
from suggest.space import Condition, Parameter, Space
from suggest.study import Algorithm, Study, StudySpec
from suggest.trial import Trial, TrialState

LOG = domain.Float(1e-5, 1, Scale.LOG)


def test_a_log_scale_can_be_written_in_three_ways() -> None:
    assert (
        Float(1e-5, 1, scale="log") == Float(1e-5, 1, log=True) == Float(1e-5, 1, Scale.LOG) == LOG
    )
    assert Int(1, 9, log=True) == domain.Int(1, 9, Scale.LOG)
    assert Float(0, 1, scale="linear", step=0.5) == domain.Float(0, 1, step=0.5)


def test_when_makes_a_parameter_conditional() -> None:
    space = {
        "optimizer": ["sgd", "adam", None],
        "momentum": Float(0, 1, when={"optimizer": "sgd"}),
        "beta": Float(0, 1, log=False, when={"optimizer": ["adam", None]}),
        "steps": Int(1, 3, when={"optimizer": None, "momentum": (0.0, 0.5)}),
        "kind": Choice(["a", "b"], when={"optimizer": [[1, 2]]}),
    }
    assert [p.when for p in named(space)] == [
        (),
        (Condition("optimizer", ("sgd",)),),
        (Condition("optimizer", ("adam", None)),),
        (Condition("optimizer", (None,)), Condition("momentum", (0.0, 0.5))),
        (Condition("optimizer", ([1, 2],)),),
    ]
    assert [p.name for p in named(space)] == list(space)


def test_a_parameter_with_a_name_stays_as_it_is() -> None:
    given = Parameter("other", LOG)
    assert named({"lr": given}) == (given,)


def test_numpy_numbers_and_tuples_are_accepted() -> None:
    assert Float(np.float64(0), np.int64(1)) == domain.Float(0.0, 1)
    assert Int(np.int64(1), np.int64(3)) == domain.Int(1, 3)
    made = Choice([np.int64(3), np.float64(0.5), (1, 2), {"a": (None,)}])
    assert made == domain.Choice((3, 0.5, [1, 2], {"a": [None]}))
    assert [type(value) for value in made.values] == [int, float, list, dict]


def test_a_range_is_whole_numbers_in_order() -> None:
    parameters = named({"a": range(2, 9, 3), "b": range(10, 1, -3), "c": range(3, 4)})
    assert [parameter.domain for parameter in parameters] == [
        Int(2, 8, step=3),
        Int(4, 10, step=3),
        Int(3, 3),
    ]
    assert [*Space(named({"a": range(0)})).problems()], "an empty one has no value"


JSON = "text, a number, a boolean, None, or a list or dict of these"
DOMAIN = "Float, Int, Choice, a range or a list of values"
CALLS: list[tuple[Callable[[], Any], str]] = [
    (lambda: Float("a", 1), "Float: min: expected a number, got 'a' (str)"),
    (lambda: Float(0, None), "Float: max: expected a number, got None (NoneType)"),
    (lambda: Float(0, True), "Float: max: expected a number, got True (bool)"),
    (lambda: Float(0, 1, step="x"), "Float: step: expected a number, got 'x' (str)"),
    (lambda: Float(0, 1, points=2.5), "Float: points: expected a whole number, got 2.5 (float)"),
    (lambda: Float(0, 1, scale=1), "Float: scale: expected 'linear' or 'log', got 1 (int)"),
    (lambda: Float(0, 1, log="yes"), "Float: log: expected True or False, got 'yes' (str)"),
    (
        lambda: Float(0, 1, when="x"),
        "Float: when: expected a dict of parameters to values, such as {'optimizer': 'sgd'}, got "
        "'x' (str)",
    ),
    (lambda: Int(1.5, 3), "Int: min: expected a whole number, got 1.5 (float)"),
    (lambda: Int(1, 3, when={"a": {1}}), f"Int: when['a']: expected {JSON}, got {{1}} (set)"),
    (lambda: Choice("sgd"), "Choice: values: expected a list of values, got 'sgd' (str)"),
    (lambda: Choice({"a"}), "Choice: values: expected a list of values, got {'a'} (set)"),
    (
        lambda: Choice([print]),
        f"Choice: values[0]: expected {JSON}, got {print!r} (builtin_function_or_method)",
    ),
    (lambda: Choice([{1: 2}]), "Choice: values[0]: expected text for a key, got 1 (int)"),
    (lambda: named({"lr": 0.1}), f"study: parameters['lr']: expected {DOMAIN}, got 0.1 (float)"),
    (lambda: named({"lr": "sgd"}), f"study: parameters['lr']: expected {DOMAIN}, got 'sgd' (str)"),
    (
        lambda: named(["lr"]),
        f"study: parameters: expected a dict of names to {DOMAIN}, got ['lr'] (list)",
    ),
    (
        lambda: named({3: LOG}),
        "study: parameters: expected text for the name of a parameter, got 3 (int)",
    ),
    (lambda: maximize(3), "maximize: metric: expected text, got 3 (int)"),
    (
        lambda: study(objective="maximize"),
        'study: objective: expected maximize("METRIC"), minimize("METRIC") or a list of these, '
        "got 'maximize' (str)",
    ),
    (lambda: study(name=3), "study: name: expected text, got 3 (int)"),
    (lambda: study(algorithm=None), "study: algorithm: expected text, got None (NoneType)"),
    (lambda: study(seed="7"), "study: seed: expected a whole number, got '7' (str)"),
    (
        lambda: study(settings=["a"]),
        "study: settings: expected a dict of names to values, got ['a'] (list)",
    ),
    (
        lambda: study(pruning="median"),
        "study: pruning: expected a Pruning or None, got 'median' (str)",
    ),
    (lambda: next(search().trials("30")), "trials: total: expected a whole number, got '30' (str)"),
    (lambda: trial().report(0.9), "report: step: expected a whole number, got 0.9 (float)"),
    (lambda: Client(None), "Client: address: expected text, got None (NoneType)"),  # type: ignore[arg-type]
    (lambda: trial().report(score="0.9"), "report: score: expected a number, got '0.9' (str)"),
    (lambda: trial().report(score=None), "report: score: expected a number, got None (NoneType)"),
    (lambda: trial().complete("best"), "complete: value: expected a number, got 'best' (str)"),
    (
        lambda: trial().fail(ValueError("x")),
        "fail: reason: expected text, got ValueError('x') (ValueError)",
    ),
]


def client() -> Client:
    return Client("unix:/nowhere")  # connects at the first call, and there is none


def study(name: Any = "s", objective: Any = None, **more: Any) -> Search:
    return client().study(
        name, {"x": [1, 2]}, maximize("m") if objective is None else objective, **more
    )


def search() -> Search:
    spec = StudySpec(domain_space(), (maximize("m"),), Algorithm("random"))
    return Search(client(), Study(StudyName("default", "s"), "u", spec, 1))


def domain_space() -> Any:
    from suggest.space import Space

    return Space((Parameter("x", LOG),))


def trial() -> OpenTrial:
    return OpenTrial(search(), Trial(0, TrialState.RUNNING, {"x": 0.5}))


@pytest.mark.parametrize(("call", "message"), CALLS, ids=[message for _, message in CALLS])
def test_a_wrong_type_is_named_with_what_is_accepted(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError) as caught:
        call()
    assert str(caught.value) == message


def test_a_step_beyond_64_bits_is_refused() -> None:
    with pytest.raises(
        ValueError, match=f"report: step: expected a number up to {2**63 - 1}, got {2**70}"
    ):
        trial().report(2**70, score=0.5)


@pytest.mark.parametrize("log", [False, True])
def test_whole_numbers_beyond_the_doubles_are_a_problem_of_the_range(log: bool) -> None:
    assert [problem.path for problem in Int(1, 10**400, log=log).problems()] == ["max"]
    assert "max" in [
        problem.path for problem in Int(1, 10**400, log=log, distribution="normal").problems()
    ]


def test_a_wrong_word_for_a_scale_is_an_invalid_argument() -> None:
    with pytest.raises(
        InvalidArgument, match=r"Float: scale: expected 'linear' or 'log', got 'lgo'"
    ):
        Float(0, 1, scale="lgo")
