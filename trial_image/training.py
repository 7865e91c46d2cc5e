"""One training: steps, epochs, state and accuracy. Prints nothing.

A step consists of the same few calls on every device. On a GPU it is captured once as a CUDA graph
and replayed, because the kernels of a small network take less time than their launches. Everything
that differs between steps is read from two buffers.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from augment import ROWS, Views, drawn, plain
from network import Fast, Norm, build
from optimizer import LOOK_EVERY, Lookahead, NesterovSGD, groups_of
from recipe import Recipe
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from world import World

# steps before capturing, in which libraries choose their algorithms and allocate memory
EAGER_STEPS = 3
LOOKED_AT = 5_000  # images from whose patches the whitening filters are computed
AT_ONCE = {"cuda": 2_500, "cpu": 500}  # batch size of inference


@dataclass(frozen=True, slots=True)
class Images:
    """All images on the device. pixels: (n, 32, 32, 3) uint8; labels: (n,) int64."""

    pixels: Tensor
    labels: Tensor

    @staticmethod
    def on(device: torch.device, pixels: np.ndarray, labels: np.ndarray) -> Images:
        return Images(torch.from_numpy(pixels).to(device), torch.from_numpy(labels).to(device))


class TrainingRun:
    """A training on the given rows of images.

    `dtype` is that of activations; everything learned is float32.
    """

    def __init__(
        self,
        recipe: Recipe,
        images: Images,
        rows: np.ndarray,
        *,
        world: World,
        dtype: torch.dtype,
        sync_bn: bool = False,
    ) -> None:
        self.recipe, self.images, self.world = recipe, images, world
        self.rows = torch.from_numpy(np.ascontiguousarray(rows, dtype=np.int64))
        # raises Infeasible, so call it before building anything
        self.total = recipe.steps(len(rows))
        self.per_epoch = len(rows) // recipe.batch
        self.parts = recipe.schedule(self.total)
        self.device = images.pixels.device
        # for sums of many values, never half precision
        self.wide = torch.promote_types(dtype, torch.float32)
        self.views = Views(images.pixels, dtype=dtype, cutout=recipe.cutout)
        self.seen_plain = Views(images.pixels, dtype=dtype)
        self.network = build(recipe, world if sync_bn and not world.alone else None)
        if isinstance(self.network, Fast):
            seen, looked_at = (
                Views(images.pixels, dtype=torch.float32),
                plain(self.rows[:LOOKED_AT].to(self.device)),
            )
            self.network.look_at(seen(part) for part in looked_at.split(AT_ONCE["cpu"], dim=1))
        self.network.to(self.device, memory_format=torch.channels_last)
        self.optimizer = NesterovSGD(groups_of(self.network, recipe), recipe.number("momentum"))
        self.lookahead = Lookahead(self.network) if recipe.on("lookahead") else None
        self.done = 0  # completed epochs
        self.first_step_s: float | None = None
        self.plan = torch.zeros(
            ROWS, recipe.batch // world.size, dtype=torch.int64, device=self.device
        )
        # sum over this worker's images since the start of the epoch
        self.loss = torch.zeros((), device=self.device)
        graphed = self.device.type == "cuda" and world.alone
        self.step: Callable[[], None] = Captured(self.compute) if graphed else self.compute

    @property
    def epochs(self) -> int:
        """The number of epochs, the last of which may be partial."""
        return math.ceil(self.total / self.per_epoch)

    def compute(self) -> None:
        """Run one step with `plan` and the optimizer's `rates`."""
        scores = self.network(self.views(self.plan))
        loss = F.cross_entropy(
            scores.to(self.wide),
            self.images.labels[self.plan[0]],
            reduction="sum",
            label_smoothing=self.recipe.number("label_smoothing"),
        )
        gradients = list(torch.autograd.grad(loss, self.optimizer.weights))
        self.world.add_up(gradients)
        self.optimizer.step(gradients)
        self.loss += loss.detach()

    def epoch(self) -> tuple[float, int]:
        """Train for one more, perhaps partial, epoch.

        Return the mean loss, and the images seen by all workers.
        """
        number, self.done = self.done, self.done + 1
        plans = drawn(self.recipe, number, len(self.rows))
        plans[:, 0] = self.rows[plans[:, 0]]
        plans = plans[:, :, self.world.share_of(self.recipe.batch)].contiguous().to(self.device)
        first = number * self.per_epoch
        last = min(first + self.per_epoch, self.total)
        rates = torch.tensor(
            [self.optimizer.rates_at(self.parts[step], number) for step in range(first, last)]
        )
        rates = rates.to(self.device)
        self.network.train()
        self.loss.zero_()
        for step in range(first, last):
            self.plan.copy_(plans[step - first])
            self.optimizer.rates.copy_(rates[step - first])
            self._timed_once()
            if self.lookahead and (step + 1) % LOOK_EVERY == 0:
                self.lookahead.look(Lookahead.weight(step + 1, self.total))
        if self.lookahead and last == self.total:
            self.lookahead.look(1.0)
        self._agree_on_statistics()
        self.world.add_up([self.loss])
        images_seen = (last - first) * self.recipe.batch
        return self.loss.item() / images_seen, images_seen

    def _timed_once(self) -> None:
        if self.first_step_s is not None:
            self.step()
            return
        began = time.perf_counter()
        self.step()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.first_step_s = time.perf_counter() - began

    def _agree_on_statistics(self) -> None:
        """Average batch norm's running statistics: each worker's saw only its own images."""
        norms = [module for module in self.network.modules() if isinstance(module, Norm)]
        means = [norm.running_mean for norm in norms]
        variances = [norm.running_var for norm in norms]
        self.world.average(means + variances)

    @torch.inference_mode()
    def accuracy(self, rows: np.ndarray, *, views: int = 1) -> tuple[float, float]:
        """Return (accuracy, mean loss) on these images; each worker evaluates a part.

        `views` per image: 1 or 6.
        """
        self.network.eval()
        mine = torch.from_numpy(
            np.ascontiguousarray(rows[self.world.rank :: self.world.size], dtype=np.int64)
        )
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        for part in mine.to(self.device).split(AT_ONCE[self.device.type]):
            scores = (
                self.six_views(part)
                if views > 1
                else self.network(self.seen_plain(plain(part))).to(self.wide)
            )
            labels = self.images.labels[part]
            sums += torch.stack(
                [
                    (scores.argmax(1) == labels).sum(),
                    F.cross_entropy(scores, labels, reduction="sum"),
                ]
            )
        self.world.add_up([sums])
        right, loss = (sums / len(rows)).tolist()
        return right, loss

    def six_views(self, part: Tensor) -> Tensor:
        """Return mean scores.

        Half from the image and its mirror image, half from both shifted by one pixel.
        """

        def both(shift: int) -> Tensor:
            straight, mirrored = (
                self.network(
                    self.seen_plain(plain(part, down=shift, right=shift, mirrored=mirrored))
                ).to(self.wide)
                for mirrored in (False, True)
            )
            return (straight + mirrored) / 2

        return both(0) / 2 + (both(-1) + both(1)) / 4

    def tensors(self) -> list[Tensor]:
        """Return all tensors of the state in a fixed order, not copies."""
        slow = self.lookahead.slow if self.lookahead else []
        return [*self.network.state_dict().values(), *self.optimizer.velocity, *slow]

    def state(self) -> dict[str, Any]:
        """Return a copy of the present state."""
        return {
            "epochs": self.done,
            "tensors": [tensor.detach().to("cpu", copy=True) for tensor in self.tensors()],
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.done = int(state["epochs"])
        with torch.no_grad():
            for tensor, saved in zip(self.tensors(), state["tensors"], strict=True):
                tensor.copy_(saved)


class Captured:
    """A step that runs eagerly a few times, and is then captured as a CUDA graph and replayed.

    The first steps are real ones, on a separate stream, as capturing requires; capturing itself
    runs nothing. If it fails, a message is printed once and all steps run eagerly.
    """

    def __init__(self, step: Callable[[], None]) -> None:
        self.step, self.count = step, 0
        self.graph: Any = None
        self.stream = torch.cuda.Stream()

    def __call__(self) -> None:
        self.count += 1
        if self.count <= EAGER_STEPS:
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                self.step()
            torch.cuda.current_stream().wait_stream(self.stream)
            return
        if self.count == EAGER_STEPS + 1:
            self.graph = self._captured()
        if self.graph is None:
            self.step()
        else:
            self.graph.replay()

    def _captured(self) -> Any:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self.step()
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = f"the step is not captured as a CUDA graph, and runs as it is: {error}"
            print(reason.splitlines()[0], file=sys.stderr)
            return None
        return graph
