"""The trials of a model's window as columns of numbers, kept from one proposal to the next.

Stepped values and choices are encoded as their index, other values as themselves. NaN means that
the trial has no value or that it is outside the domain. Each trial is read once, and its column is
freed when it leaves the window.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from suggest.domain import encode as encode_value
from suggest.samplers.frame import Dimension
from suggest.samplers.normal import Floats, Indexes
from suggest.samplers.split import rank
from suggest.space import Choice, Domain, Float, Int, Parameter, Scale, Value
from suggest.study import Criteria
from suggest.trial import Trial, TrialState


class Columns:
    def __init__(self, parameters: Sequence[Parameter], criteria: Criteria) -> None:
        self._domains = [(p.name, p.domain) for p in parameters]
        self._criteria = criteria
        self._rows: dict[int, int] = {}  # trial number -> its column in _values
        self._ranked: set[int] = set()
        self._free: list[int] = []
        self._values = np.empty((len(parameters), 0))
        self._ranks = np.empty((3, 0))

    def __len__(self) -> int:
        return len(self._rows)

    def read(
        self, learned: Sequence[Trial], running: Sequence[Trial]
    ) -> tuple[Floats, Floats, Floats]:
        """Return the finished trials' values and ranks, and the running trials' values.

        The shapes are (parameters, finished), (3, finished) and (parameters, running); see
        `split.rank` for the ranks.
        """
        numbers = [trial.number for trial in learned]
        others = [trial.number for trial in running]
        # Set operations, because usually one trial is new among hundreds of known ones.
        wanted = {*numbers, *others}
        for gone in self._rows.keys() - wanted:
            self._free.append(self._rows.pop(gone))
            self._ranked.discard(gone)
        if new := wanted - self._rows.keys():
            self._add_all(new, learned, running)
        if unranked := set(numbers) - self._ranked:
            for trial in learned:
                if trial.number in unranked and trial.state is not TrialState.RUNNING:
                    self._ranks[:, self._rows[trial.number]] = rank(trial, self._criteria)
                    self._ranked.add(trial.number)
        finished, pending = self._columns_of(numbers), self._columns_of(others)
        return self._values[:, finished], self._ranks[:, finished], self._values[:, pending]

    def _columns_of(self, numbers: Sequence[int]) -> Indexes:
        return np.fromiter(map(self._rows.__getitem__, numbers), np.intp, len(numbers))

    def _add_all(self, new: set[int], learned: Sequence[Trial], running: Sequence[Trial]) -> None:
        # New trials are usually the last ones.
        for trial in (*reversed(learned), *reversed(running)):
            if trial.number in new:
                new.remove(trial.number)
                self._add(trial)
                if not new:
                    break

    def _add(self, trial: Trial) -> None:
        if not self._free:
            size = self._values.shape[1]
            more = max(64, size)
            new_values = np.empty((len(self._domains), more))
            self._values = np.concatenate([self._values, new_values], axis=1)
            self._ranks = np.concatenate([self._ranks, np.zeros((3, more))], axis=1)
            self._free.extend(range(size + more - 1, size - 1, -1))
        row = self._rows[trial.number] = self._free.pop()
        point = trial.parameters
        for k, (name, domain) in enumerate(self._domains):
            self._values[k, row] = encode(domain, point[name]) if name in point else np.nan


def dimension(domain: Domain) -> Dimension:
    """Return the dimension of a domain that has more than one value."""
    match domain:
        case Float() if domain.count is None:
            return Dimension(float(domain.min), float(domain.max), log=domain.scale is Scale.LOG)
        case Int(scale=Scale.LOG, step=1):
            return Dimension(float(domain.min), float(domain.max), log=True, whole=True)
    assert domain.count is not None
    return Dimension(0.0, domain.count - 1.0, whole=True, choice=isinstance(domain, Choice))


def encode(domain: Domain, value: Value) -> float:
    """Return a value as a number; NaN if it is not in the domain."""
    number = encode_value(domain, value)
    return np.nan if number is None else float(number)
