"""The contract of a sampler: it is shown every trial of a study,
and proposes points for the next ones.

A sampler's state is a function of the trials that it was shown, in any order, because an engine
rebuilt from the store has to propose what the lost one would have. All randomness for trial n is
derived from (study seed, n).

A sampler whose model computes in a worker process proposes in steps,
which `suggest.proposal` defines.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from suggest.proposal import PointRequest, Steps, completed
from suggest.space import Assignment
from suggest.trial import Trial, TrialBatch


class Sampler(ABC):
    """The sampler of one study. Not thread-safe: its owner holds the study's lock.

    A sampler that may compute in workers derives from `SteppedSampler`.
    """

    @abstractmethod
    def put(self, trial: Trial) -> None:
        """Take a new trial, or a new version of a known one.

        Without a default: a sampler that forgot it would propose points, but learn nothing.
        """

    def put_batch(self, batch: TrialBatch) -> None:
        """As `put` for each trial; a sampler that forgets most trials has a faster way."""
        for trial in batch.trials():
            self.put(trial)

    @abstractmethod
    def propose(self, wanted: Sequence[PointRequest]) -> list[Assignment]:
        """Return a point for each request, or for the first ones only if the space is exhausted.

        A sampler whose family `waits` also returns fewer while a trial has to end first.

        Each point takes the earlier ones into account. Points have active parameters only, in the
        order of the space. A request with fixed values always gets a point. The call has no effect
        on later proposals.
        """

    def steps(self, wanted: Sequence[PointRequest]) -> Steps:
        """Return the steps of `propose`. Trials may be put into the sampler between two of them."""
        # No computation by default.
        yield from ()
        return self.propose(wanted)

    def parents(self, wanted: Sequence[PointRequest]) -> Mapping[int, int]:
        """Return, by proposed trial, the trial from whose checkpoint it continues, if it does.

        The sampler must not be shown a trial between this call and that of `propose`.
        """
        return {}

    def warm_up(self) -> None:  # noqa: B027 - a default that does nothing
        """Load the modules that the first proposal needs.

        Any thread may call this; a repeated call is cheap.
        """


class SteppedSampler(Sampler):
    """A sampler that is defined by its steps."""

    @abstractmethod
    def steps(self, wanted: Sequence[PointRequest]) -> Steps: ...

    def propose(self, wanted: Sequence[PointRequest]) -> list[Assignment]:
        return completed(self.steps(wanted))
