"""Report a training library's metrics to the trial:
what the callbacks of all these libraries share.

No library is imported here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tuner.trial import Pruned, Trial, as_number, current_trial

_STEP_WORDS = ("step", "epoch")  # some libraries list them with the metrics


class MetricReporter:
    """Chooses metrics of a library, gives them names that a metric may have, and reports them."""

    def __init__(self, metrics: str | Sequence[str] | None, trial: Trial | None) -> None:
        """
        Args:
            metrics: The names in the library. None: all that are numbers. A single one is the
                objective's value.
            trial: None: that of this process.
        """
        self._chosen = (metrics,) if isinstance(metrics, str) else metrics
        self._trial = trial

    def report(self, step: int, values: Mapping[str, object]) -> None:
        """
        Raises:
            Pruned: The trial is to stop.
            KeyError: A chosen metric was not found.
        """
        if self._chosen is None:
            chosen = {
                name: value
                for name, value in values.items()
                if name not in _STEP_WORDS and _is_number(value)
            }
        elif absent := [name for name in self._chosen if name not in values]:
            raise KeyError(
                f"metric {absent[0]!r} was not computed at step {step}; there are "
                f"{', '.join(values) or 'none'}"
            )
        else:
            chosen = {name: values[name] for name in self._chosen}
        # An empty trial is false.
        trial = current_trial() if self._trial is None else self._trial
        if not chosen:
            if trial.stopped:
                raise Pruned
            return
        trial.report(
            step, **{safe_name(name): as_number(name, value) for name, value in chosen.items()}
        )


def safe_name(name: str) -> str:
    """Return the name with `_` for each character that a metric may not have.

    `valid 0's l2` is `valid_0_s_l2`.
    """
    safe = re.sub(r"[^\w./-]+", "_", name)
    return safe if re.match("[A-Za-z_]", safe) else f"_{safe}"


def _is_number(value: object) -> bool:
    try:
        as_number("", value)
    except TypeError:
        return False
    return True
