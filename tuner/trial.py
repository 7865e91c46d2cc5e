"""What an objective function sees of its trial: parameters, `report`, folders. Lives in the trial's own process.

Metrics are printed as `tuner.NAME=VALUE` on standard output, which the controller reads from the trial's log; so they
survive whatever happens to either process. Prints of the objective do not look like that and are never taken for
metrics.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PATTERN = r"tuner\.([A-Za-z_][\w./-]*)=(\S+)"
STEP = "step"


class Pruned(Exception):  # what happened, not an error
    """The trial was asked to stop: it was pruned, cancelled, or the search was interrupted. Let it pass."""


class Infeasible(Exception):  # what happened, not an error
    """Raise this where the parameters cannot work: no failure, and the search learns it. The message is the reason."""


class Trial(Mapping[str, Any]):
    """The running trial: a mapping of its active parameters."""

    def __init__(self, parameters: Mapping[str, Any], metric: str) -> None:
        """metric: the objective's."""
        self.parameters = dict(parameters)
        self.number = int(os.environ["TUNER_TRIAL_NUMBER"]) if "TUNER_TRIAL_NUMBER" in os.environ else 0
        self.attempt = int(os.environ.get("TUNER_ATTEMPT", "1"))
        self._metric = metric
        self._step = -1
        self._reported = False
        self._stopped = False

    def __getitem__(self, name: str) -> Any:
        try:
            return self.parameters[name]
        except KeyError:
            names = ", ".join(self.parameters)
            raise KeyError(f"trial {self.number} has no parameter {name!r}; it has {names}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.parameters)

    def __len__(self) -> int:
        return len(self.parameters)

    @property
    def output_dir(self) -> Path:
        """For files of this attempt; it is kept with the experiment."""
        return Path(os.environ["TUNER_OUTPUT_DIR"])

    @property
    def checkpoint_dir(self) -> Path:
        """Survives retries and interruptions of the trial: look here for a checkpoint before training starts."""
        return Path(os.environ["TUNER_CHECKPOINT_DIR"])

    def report(self, step: int | None = None, **metrics: float) -> None:
        """Metric values at a step (default: one after the last).

        A single metric under any name is the objective's; of several, the one that has its name.

        Raises:
            Pruned: the trial is to stop.
            TypeError: a value is not a number.
        """
        self._step = self._step + 1 if step is None else _whole(step)
        values = {name: as_number(name, value) for name, value in metrics.items()}
        if len(values) == 1 and self._metric not in values:
            values[self._metric] = next(iter(values.values()))
        self._reported |= self._metric in values
        _print({STEP: self._step, **values})
        if self._stopped:
            raise Pruned

    def end(self, returned: object) -> None:
        """Print the value that the objective returned. Raises TypeError: neither a number nor, after a report, None."""
        if returned is None and self._reported:
            return
        if returned is None:
            raise TypeError("the objective returned None and reported nothing; return a number")
        value = as_number("the objective's return value", returned)
        _print({STEP: self._step + 1, self._metric: value})

    def stop(self) -> None:
        """Raise Pruned now, in the main thread, and again at each report."""
        self._stopped = True
        raise Pruned


def as_number(name: str, value: object) -> float:
    """Of Python, NumPy, or a tensor with one element. Raises TypeError.

    `suggest.client.search_space.measured` does the same; importing it would bring asyncio into every trial.
    """
    if not isinstance(value, str | bytes):
        try:
            return float(value)  # type: ignore[arg-type]  # what it cannot take is refused
        except (TypeError, ValueError, RuntimeError):  # RuntimeError: of a tensor of PyTorch with several elements
            pass
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    raise TypeError(f"{name}: expected a number, got {shown} ({type(value).__name__})")


def _whole(step: object) -> int:
    number = as_number("step", step)
    if not math.isfinite(number) or number != int(number):
        raise TypeError(f"step: expected a whole number, got {step!r}")
    return int(number)


def _print(values: Mapping[str, float | int]) -> None:
    """One write to the descriptor: nothing that the objective does to sys.stdout is in the way."""
    line = " ".join(f"tuner.{name}={value!r}" for name, value in values.items())
    os.write(1, f"\n{line}\n".encode())
