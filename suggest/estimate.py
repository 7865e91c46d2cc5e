"""What a model says of a study beyond its trials. A pure value."""

from __future__ import annotations

from dataclasses import dataclass

LEAST_TRIALS = 10  # with fewer values a model knows too little
NOISY = 0.01  # share of the variance; less makes no difference to which trial is best


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a Gaussian process says of the objective, without the noise of single trials.

    Values are in the unit of the objective.

    trial: the succeeded trial with the best estimated value.
    value, low, high: its estimated value, and the bounds of the 95 % interval.
    noise: the standard deviation of trials with the parameters of this trial.
    noise_share: the share of the variance of all values that is noise, 0 to 1.
    regret_bound: with probability 0.9, no point of the space is better than `value` by more than
        this (Makarova et al. 2022, Automatic termination for hyperparameter optimization). At least
        0.
    trials: how many values the process is fitted to.
    """

    trial: int
    value: float
    low: float
    high: float
    noise: float
    noise_share: float
    regret_bound: float
    trials: int

    @property
    def is_noisy(self) -> bool:
        return self.noise_share >= NOISY
