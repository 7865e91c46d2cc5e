"""The knobs of a training: names, ranges, defaults, and their meaning
to the optimizer. Does not import torch.

Two recipes share all knobs. `fast` is a small network without residuals that is trained
in ten epochs; its learning rate and decay are decoupled from momentum and batch size, so
that each can be changed separately. `sweep` is the well-known ResNet-9 with the usual
learning rate of SGD, for the mean loss.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from errors import Infeasible

Value = float | int | bool | str

FLIPS = ("none", "random", "alternate")
PRECISIONS = ("auto", "float32", "float16", "bfloat16")
RECIPES = ("fast", "sweep")
UNIT = 1024  # the batch size for which the rate and decay of the fast recipe are given


@dataclass(frozen=True, slots=True)
class Knob:
    """A hyperparameter with its range.

    The range includes `low` unless `above` is set, and `high` unless `below` is set.
    """

    name: str
    fast: Value
    sweep: Value
    low: float = 0.0
    high: float = 0.0
    above: bool = False
    below: bool = False
    choices: tuple[str, ...] = ()
    about: str = ""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def range(self) -> str:
        if self.choices:
            return " | ".join(self.choices)
        if isinstance(self.fast, bool):
            return "true | false"
        if self.above or self.below:
            low = f"above {self.low:g}" if self.above else f"at least {self.low:g}"
            return f"{low} and {'below' if self.below else 'at most'} {self.high:g}"
        return f"{self.low:g} to {self.high:g}"

    def parse(self, text: str) -> Value:
        """Parse a value. Raises argparse.ArgumentTypeError with the value and the allowed range."""
        value: Value | None = None
        if self.choices:
            value = text if text in self.choices else None
        elif isinstance(self.fast, bool):
            value = _BOOLEANS.get(text.lower())
        else:
            value = self._number(text)
        if value is None:
            raise argparse.ArgumentTypeError(f"{text} is not allowed; it is {self.range}")
        return value

    def _number(self, text: str) -> float | int | None:
        try:
            value = int(text) if isinstance(self.fast, int) else float(text)
        except ValueError:
            return None
        inside = (value > self.low if self.above else value >= self.low) and (
            value < self.high if self.below else value <= self.high
        )
        return value if inside else None


# The texts that `tuner` and people write for booleans. Any other text is an error.
_BOOLEANS = {
    "true": True,
    "on": True,
    "yes": True,
    "1": True,
    "false": False,
    "off": False,
    "no": False,
    "0": False,
}

KNOBS = (
    Knob(
        "epochs",
        9.9,
        24.0,
        0,
        10_000,
        above=True,
        about="passes over the training images; fractions are allowed",
    ),
    Knob("batch", 1024, 512, 1, 65_536, about="images per step, over all workers"),
    Knob(
        "lr",
        11.5,
        0.4,
        0,
        1_000,
        above=True,
        about="peak rate: fast: decoupled, for 1,024 images; sweep: of the mean",
    ),
    Knob("momentum", 0.85, 0.9, 0, 1, below=True, about="Nesterov's"),
    Knob(
        "weight_decay",
        0.0153,
        0.0005,
        0,
        10,
        about="fast: decoupled, for 1,024 images; sweep: as in SGD",
    ),
    Knob(
        "bias_lr",
        64.0,
        1.0,
        0,
        10_000,
        above=True,
        about="factor of the rate, for the biases of batch norm",
    ),
    Knob(
        "label_smoothing",
        0.2,
        0.0,
        0,
        1,
        below=True,
        about="share of the target spread over all classes",
    ),
    Knob(
        "width",
        64,
        64,
        2,
        1_024,
        about="channels of the first block; the others are multiples of it",
    ),
    Knob(
        "logit_scale", 1 / 9, 0.125, 0, 100, above=True, about="factor of the last layer's outputs"
    ),
    Knob(
        "batch_norm",
        True,
        True,
        about="off only with --recipe sweep: convolutions have biases instead",
    ),
    Knob(
        "bn_momentum",
        0.4,
        0.1,
        0,
        1,
        above=True,
        about="share of a batch in the running statistics, as in torch",
    ),
    Knob(
        "translate",
        2,
        4,
        0,
        16,
        about="the most pixels that an image is moved by; edges are reflected",
    ),
    Knob(
        "flip",
        "alternate",
        "random",
        choices=FLIPS,
        about="horizontal flips; alternate: each image every other epoch",
    ),
    Knob("cutout", 0, 5, 0, 31, about="side of the square that is blanked in each image; 0: none"),
    Knob(
        "lookahead",
        True,
        False,
        about="every fifth step, move toward a slow average of the weights",
    ),
    Knob("peak", 0.23, 5 / 24, 0, 1, about="share of the steps after which the rate is highest"),
    Knob(
        "whiten_epochs",
        3.0,
        3.0,
        0,
        10_000,
        about="fast: how long the biases of the whitening layer learn",
    ),
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """The knobs of a training, all in range, and the values derived from them."""

    name: str
    seed: int
    knobs: Mapping[str, Value]

    def number(self, name: str) -> float:
        value = self.knobs[name]
        assert not isinstance(value, str)
        return float(value)

    def whole(self, name: str) -> int:
        return int(self.number(name))

    def on(self, name: str) -> bool:
        return self.knobs[name] is True

    @property
    def batch(self) -> int:
        return self.whole("batch")

    @property
    def cutout(self) -> int:
        return self.whole("cutout")

    @property
    def fingerprint(self) -> str:
        return json.dumps({"recipe": self.name, "seed": self.seed, **self.knobs}, sort_keys=True)

    def steps(self, images: int) -> int:
        """Return the steps of the whole training.

        Incomplete batches are dropped, so all steps have the same shapes.
        """
        if self.batch > images:
            raise Infeasible(
                f"--batch {self.batch} is larger than the {images} training images; use at most "
                f"{images}"
            )
        # Subtract a rounding error: a tenth of seventy steps is seven.
        return math.ceil(images // self.batch * self.number("epochs") - 1e-9)

    def rates(self) -> tuple[float, float]:
        """Return the peak rates (weights, batch norm's biases) for the loss *summed* over a batch.

        The sum keeps small gradients from vanishing in half precision.
        """
        momentum = self.number("momentum")
        # With Nesterov momentum a gradient is applied 1 + 1/(1-momentum) times in total; the
        # decoupled rate is the sum.
        scale = UNIT * (1 + 1 / (1 - momentum)) if self.name == "fast" else self.batch
        rate = self.number("lr") / scale
        return rate, rate * self.number("bias_lr")

    def decays(self) -> tuple[float, float]:
        """Return the decays (of the weights, of the biases).

        decay * weight is added to the summed gradient.
        """
        decay = self.number("weight_decay") * self.batch
        if self.name == "sweep":
            return decay, decay
        per_step = decay / (UNIT * (1 + 1 / (1 - self.number("momentum"))))
        rate, bias_rate = self.rates()
        return per_step / rate, per_step / bias_rate

    def schedule(self, total: int) -> list[float]:
        """Return each step's fraction of the peak: a linear rise to 1, then a linear fall."""
        # The sweep's schedule starts at 0, and its first step is already one step up.
        start, end, lead = (0.2, 0.07, 0) if self.name == "fast" else (0.0, 0.0, 1)
        top = int(self.number("peak") * total + 1e-9)

        def at(step: int) -> float:
            if step < top:
                return start + (1 - start) * step / top
            return 1 + (end - 1) * (step - top) / max(total - top, 1)

        return [at(step + lead) for step in range(total)]


def add_knobs(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--recipe", choices=RECIPES, default="fast", help="whose defaults hold (default: fast)"
    )
    parser.add_argument(
        "--seed",
        type=whole("a number from 0", 0, 2**32 - 1),
        default=0,
        help="of weights, order and augmentation",
    )
    for knob in KNOBS:
        defaults = f"{shown(knob.fast)} fast, {shown(knob.sweep)} sweep"
        text = f"{knob.about}; {knob.range} (default: {defaults})".replace("%", "%%")
        parser.add_argument(knob.flag, type=knob.parse, metavar=_metavar(knob), help=text)


def chosen(options: argparse.Namespace) -> Recipe:
    """Return the recipe of the options.

    Raises Infeasible if knobs are in range but contradict each other.
    """
    name = options.recipe
    knobs = {knob.name: knob.fast if name == "fast" else knob.sweep for knob in KNOBS}
    given = {knob.name: getattr(options, knob.name) for knob in KNOBS}
    knobs |= {key: value for key, value in given.items() if value is not None}
    if name == "fast" and not knobs["batch_norm"]:
        raise Infeasible(
            "--batch-norm false is for --recipe sweep: the fast network does not learn without it"
        )
    return Recipe(name, options.seed, MappingProxyType(knobs))


def whole(unit: str, low: int, high: int) -> Callable[[str], int]:
    """Return an argparse type for a whole number in a range."""

    def parse(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text} is not allowed; it is {unit}")
        return int(text)

    return parse


def _metavar(knob: Knob) -> str:
    if knob.choices or isinstance(knob.fast, bool):
        return "X"
    return "N" if isinstance(knob.fast, int) else "X"


def shown(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.4g}" if isinstance(value, float) else str(value)
