"""Twelve steps of both recipes compared with plain torch modules
and torch.optim, to detect silent errors.

In float64 they use the recipes' learning rates: only an error in a recipe can cause a difference.
In float32 they use small ones: a rounding error can flip a ReLU, and large steps amplify that.
"""

from __future__ import annotations

import pytest

from tests.torch_here import needs_torch

FAST = ("--recipe=fast", "--width=8", "--whiten-epochs=2", "--cutout=6")
SWEEP = ("--recipe=sweep", "--width=4", "--peak=0.3333333333")
OTHER_KNOBS = (
    *(
        "--recipe=sweep",
        "--width=4",
        "--batch-norm=false",
        "--label-smoothing=0.1",
        "--lookahead=true",
    ),
    *("--momentum=0.8", "--lr=0.1", "--flip=alternate", "--weight-decay=0.01"),
)


@needs_torch
@pytest.mark.parametrize("flags", [FAST, SWEEP, OTHER_KNOBS], ids=["fast", "sweep", "other knobs"])
def test_twelve_steps_equal_those_of_plain_torch(flags: tuple[str, ...]) -> None:
    import torch

    torch.set_default_dtype(torch.float64)
    try:
        assert max(differences(*flags)) < 1e-9
    finally:
        torch.set_default_dtype(torch.float32)


@needs_torch
@pytest.mark.parametrize(
    "flags", [(*FAST, "--lr=2"), (*SWEEP, "--lr=0.002")], ids=["fast", "sweep"]
)
def test_twelve_steps_in_float32_equal_those_of_plain_torch(flags: tuple[str, ...]) -> None:
    assert max(differences(*flags)) < 1e-5


def differences(*flags: str) -> list[float]:
    """Return the differences of the mean loss in each step and of each weight
    and running statistic at the end.
    """
    import torch

    from tests.trial.plain_recipes import PlainTraining, weights_of
    from tests.trial.small_trainings import training

    ours = training(*flags, "--batch=24", "--epochs=3", "--seed=3", dtype=torch.get_default_dtype())
    plain = PlainTraining(ours)
    assert ours.total == plain.total == 12
    start = [weight.clone() for weight in weights_of(ours.network)]
    take, losses = ours.step, []

    def noted() -> None:
        before = ours.loss.item()
        take()
        losses.append((ours.loss.item() - before) / 24)

    ours.step = noted
    for _ in range(3):
        ours.epoch()
    expected = [loss for epoch in range(3) for loss in plain.epoch(epoch)]
    found = weights_of(ours.network)
    assert (
        max((now - then).abs().max().item() for now, then in zip(found, start, strict=True)) > 1e-3
    ), "it has learned"
    ends = zip(found, weights_of(plain.network), strict=True)
    return [
        *(abs(mine - its) for mine, its in zip(losses, expected, strict=True)),
        *((mine - its).abs().max().item() for mine, its in ends),
    ]
