"""The parts of a training, each compared with a slow reference implementation."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from tests.torch_here import needs_torch

pytestmark = needs_torch


def test_one_gather_equals_shifting_flipping_and_erasing_each_image() -> None:
    import torch
    from augment import drawn

    from tests.trial.small_trainings import LEARN, recipe, seen_slowly, training

    flags = ("--batch=48", "--translate=16", "--cutout=7", "--flip=random")
    views = training(*flags, "--width=2").views
    plans = drawn(recipe(*flags), 3, len(LEARN))
    assert plans.shape == (2, 6, 48)
    assert sorted(plans[:, 0].flatten().tolist()) == list(range(96)), "each image is seen once"
    for plan in plans:
        seen = views(plan)
        assert seen.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(seen, seen_slowly(plan.numpy(), 7))


def test_an_epoch_depends_on_the_seed_and_its_number_only() -> None:
    import torch
    from augment import drawn

    from tests.trial.small_trainings import recipe

    def plan(seed: int, epoch: int) -> torch.Tensor:
        return drawn(recipe("--batch=10", f"--seed={seed}"), epoch, 40)

    assert torch.equal(plan(1, 5), plan(1, 5))
    assert not torch.equal(plan(1, 5), plan(1, 6))
    assert not torch.equal(plan(1, 5), plan(2, 5))


def test_alternate_flips_show_each_image_both_ways_in_two_epochs() -> None:
    from augment import drawn

    from tests.trial.small_trainings import recipe

    ways = []
    for epoch in (4, 5):
        plan = drawn(recipe("--batch=40"), epoch, 40)[0].numpy()
        ways.append(plan[3][np.argsort(plan[0])])
    assert (ways[0] + ways[1] == 1).all()
    assert 0 < ways[0].sum() < 40, "not all the same way in one epoch"


def test_the_split_is_fixed_and_balanced_and_subsets_never_contain_held_out_images() -> None:
    from augment import split

    labels = np.random.default_rng(5).permutation(np.repeat(np.arange(10), 50)).astype(np.uint8)
    learn, held = split(labels, 50, 450)
    assert sorted([*learn, *held]) == list(range(500))
    assert np.bincount(labels[held]).tolist() == [5] * 10
    fewer, less = split(labels, 20, 100)
    assert set(fewer) <= set(learn)
    assert set(less) <= set(held)
    assert np.bincount(labels[fewer]).tolist() == [10] * 10
    assert all((a == b).all() for a, b in zip(split(labels, 20, 100), (fewer, less), strict=True))


def test_whitening_filters_make_patches_uncorrelated() -> None:
    import torch
    from network import whitening_filters

    noise = torch.randn(40, 3, 32, 32, generator=torch.Generator().manual_seed(1)) * torch.tensor(
        [[[1.0]], [[2]], [[4]]]
    )
    images = noise + 0.6 * noise.roll(1, 2) + 0.3 * noise.roll(1, 3)
    filters = whitening_filters(images.split(9)).reshape(24, 12).double().numpy()
    pixels = images.double().numpy()
    patches = np.array(
        [
            pixels[n, :, r : r + 2, c : c + 2].flatten()
            for n in range(40)
            for r in range(31)
            for c in range(31)
        ]
    )
    variances, directions = np.linalg.eigh(patches.T @ patches / len(patches))
    expected = (directions / np.sqrt(variances + 5e-4)).T[::-1]
    assert np.abs(filters[:12]) == pytest.approx(np.abs(expected), rel=1e-2, abs=1e-2)
    assert (filters[12:] == -filters[:12]).all()
    answers = patches @ filters[:12].T
    spread = variances[::-1] / (variances[::-1] + 5e-4)
    assert answers.T @ answers / len(patches) == pytest.approx(np.diag(spread), abs=1e-2)


@pytest.mark.parametrize(
    ("flags", "total", "expected"),
    [
        (
            ("--recipe=fast", "--peak=0.5"),
            10,
            [0.2, 0.36, 0.52, 0.68, 0.84, 1, 0.814, 0.628, 0.442, 0.256],
        ),
        (("--recipe=sweep", "--peak=0.25"), 8, [0.5, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0]),
        (("--recipe=fast",), 1, [1]),
        (("--recipe=fast", "--peak=0"), 3, [1, 0.69, 0.38]),
        (("--recipe=fast", "--peak=1"), 4, [0.2, 0.4, 0.6, 0.8]),
        (("--recipe=sweep", "--peak=1"), 4, [0.25, 0.5, 0.75, 1]),
    ],
)
def test_the_learning_rate_rises_and_falls_linearly(
    flags: tuple[str, ...], total: int, expected: list[float]
) -> None:
    from tests.trial.small_trainings import recipe

    assert recipe(*flags).schedule(total) == pytest.approx(expected)


def test_the_six_test_views_are_the_image_and_its_flip_each_shifted_by_a_pixel() -> None:
    import torch
    from torch.nn import functional

    from tests.trial.small_trainings import JUDGE, training

    small = training("--width=4", "--batch=24")
    small.epoch()
    rows = torch.from_numpy(JUDGE)
    with torch.inference_mode():
        small.network.eval()
        x = small.views(torch.stack([rows, *torch.zeros(5, len(rows), dtype=torch.int64)]))
        padded = functional.pad(x, (1, 1, 1, 1), mode="reflect")

        def both(images: torch.Tensor) -> torch.Tensor:
            return (small.network(images) + small.network(images.flip(3))) / 2

        expected = both(x) / 2 + (both(padded[:, :, :32, :32]) + both(padded[:, :, 2:, 2:])) / 4
        found = small.six_views(rows)
    assert torch.allclose(found, expected, atol=1e-5)


def test_a_resumed_training_ends_like_an_uninterrupted_one() -> None:
    import torch

    from tests.trial.small_trainings import JUDGE, training

    flags = ("--width=4", "--batch=24", "--epochs=2.5", "--whiten-epochs=1")
    whole, first, second = (training(*flags) for _ in range(3))
    losses = [whole.epoch() for _ in range(whole.epochs)]
    first.epoch()
    kept = first.state()
    first.epoch()  # which does not change the saved state
    second.restore(kept)
    assert [second.epoch() for _ in range(2)] == losses[1:]
    assert second.accuracy(JUDGE) == whole.accuracy(JUDGE)
    assert all(map(torch.equal, second.tensors(), whole.tensors()))
    assert losses[2][1] == 48, "half an epoch"


@pytest.mark.parametrize(("recipe", "dtype"), [("fast", "float16"), ("sweep", "bfloat16")])
def test_half_precision_trains_to_nearly_the_same_accuracy(recipe: str, dtype: str) -> None:
    import torch

    from tests.trial.small_trainings import training

    flags = (f"--recipe={recipe}", "--width=4", "--batch=48", "--epochs=2", "--lr=0.1")
    exact, rough = training(*flags), training(*flags, dtype=getattr(torch, dtype))
    for _ in range(2):
        assert rough.epoch()[0] == pytest.approx(exact.epoch()[0], abs=0.05)
    assert all(tensor.dtype == torch.float32 for tensor in rough.tensors())


def test_an_exported_model_takes_images_without_this_code(tmp_path: Path) -> None:
    import torch
    from export import export

    from tests.trial.small_trainings import JUDGE, SMALL, training

    small = training("--width=4", "--batch=24")
    small.epoch()
    path = export(
        small.recipe, small.network.state_dict(), [tmp_path / "output", tmp_path / "kept"]
    )
    assert [str(file.relative_to(tmp_path)) for file in sorted(tmp_path.rglob("*.*"))] == [
        "kept/model.pt",
        "output/model.pt",
    ]
    assert (tmp_path / "kept" / "model.pt").read_bytes() == path.read_bytes()
    images = torch.from_numpy(SMALL.images[JUDGE]).permute(0, 3, 1, 2) / 255
    with (
        torch.inference_mode(),
        warnings.catch_warnings(action="ignore", category=FutureWarning),
    ):  # an old export format
        answers = torch.jit.load(str(path))(images).argmax(1).numpy()
    right = np.mean(answers == SMALL.labels[JUDGE])
    assert right == pytest.approx(small.accuracy(JUDGE)[0])


WORLD = {"WORLD_SIZE": "4", "MASTER_ADDR": "digits-0.digits", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1, 0)),
        ({"WORLD_SIZE": "1", "RANK": "0"}, (0, 1, 0)),
        ({**WORLD, "RANK": "3"}, (3, 4, 0)),
        ({**WORLD, "RANK": "3", "LOCAL_RANK": "1", "JOB_COMPLETION_INDEX": "0"}, (3, 4, 1)),
        ({**WORLD, "JOB_COMPLETION_INDEX": "2"}, (2, 4, 0)),
    ],
)
def test_a_worker_gets_its_rank_from_torchrun_or_an_indexed_job(
    environment: dict[str, str], expected: tuple[int, int, int]
) -> None:
    from world import worker_of

    worker = worker_of(environment)
    assert (worker.rank, worker.size, worker.local) == expected


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        (WORLD, "RANK is not set: torchrun and tuner set it"),
        ({**WORLD, "RANK": "4"}, "RANK=4 is not below WORLD_SIZE=4: ranks count from 0"),
        ({**WORLD, "RANK": "first"}, "RANK=first is not a whole number"),
        (
            {"WORLD_SIZE": "2", "RANK": "0"},
            "WORLD_SIZE is 2, and MASTER_ADDR is not set: torchrun and tuner set it",
        ),
    ],
)
def test_an_invalid_rank_or_world_size_is_refused(
    environment: dict[str, str], sentence: str
) -> None:
    from errors import ConfigurationError
    from world import worker_of

    with pytest.raises(ConfigurationError) as refusal:
        worker_of(environment)
    assert str(refusal.value) == sentence
