"""Katib's hyperband: a configuration that continues is another trial, with more of the resource."""

from __future__ import annotations

from suggest.katib.hyperband import Training, next_trainings
from suggest.study import Direction, Fidelity

EPOCHS = Fidelity("epochs", 1, 9, 3)  # levels 1, 3, 9


def chosen(
    *trainings: tuple[str, float, float | None], count: int = 1
) -> list[tuple[str | None, int]]:
    """The next trainings of a search that maximizes, after these: configuration, resource, value."""
    history = [Training((name,), resource, value) for name, resource, value in trainings]
    found = next_trainings(EPOCHS, Direction.MAXIMIZE, history, count)
    return [
        (None if configuration is None else str(configuration[0]), at)
        for configuration, at in found
    ]


def test_new_configurations_begin_in_the_brackets() -> None:
    found = chosen(count=60)
    assert {name for name, _ in found} == {None}
    resources = [at for _, at in found]
    assert resources.count(1) > resources.count(3) > resources.count(9) > 0


def test_the_best_third_continues_with_the_next_resource() -> None:
    first = ("a", 1, 0.5), ("b", 1, 0.9), ("c", 1, 0.1)
    assert chosen(*first)[0] == ("b", 3)
    assert [name for name, _ in chosen(*first, count=3)] == ["b", None, None]
    assert chosen(*first[:2])[0][0] is None, "two are too few to choose a third of them"


def test_a_configuration_that_runs_with_the_next_resource_is_not_chosen_again() -> None:
    first = ("a", 1, 0.5), ("b", 1, 0.9), ("c", 1, 0.1)
    assert chosen(*first, ("b", 3, None))[0][0] is None, "it runs there, or has failed"


def test_the_highest_resource_comes_first_and_is_the_end() -> None:
    low = [
        (name, 1.0, value)
        for name, value in zip("abcdefghi", (9, 8, 7, 6, 5, 4, 3, 2, 1), strict=True)
    ]
    middle = [("a", 3.0, 9.0), ("b", 3.0, 8.0), ("c", 3.0, 7.0)]
    assert chosen(*low, *middle)[0] == ("a", 9)
    assert chosen(*low, *middle, ("a", 9, 9.5))[0][0] is None


def test_brackets_do_not_compete() -> None:
    late = [("x", 3.0, 0.1), ("y", 3.0, 0.2), ("z", 3.0, 0.3)]
    assert chosen(("a", 1, 5.0), ("b", 1, 6.0), *late)[0] == ("z", 9)


def test_resources_beside_the_levels_and_failed_trials_do_not_count() -> None:
    assert chosen(("a", 2, 0.9), ("b", 2, 0.8), ("c", 2, 0.7))[0][0] is None
    assert chosen(("a", 1, None), ("b", 1, None), ("c", 1, 0.7))[0][0] is None


def test_a_training_that_was_repeated_after_a_failure_counts() -> None:
    told = ("a", 1, None), ("a", 1, 0.9), ("b", 1, 0.5), ("c", 1, 0.1)
    assert chosen(*told)[0] == ("a", 3)
