"""`nsga2`, `nsga3` and `regularized-evolution`: evolutionary algorithms
for one objective or several.

This part does not import NumPy. Only trials that succeeded with finite values enter a population.
The model, `evolution_model`, runs in this process, because a point takes milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from suggest.samplers.family import DrawSettings, Family
from suggest.samplers.history import History, ModelSampler
from suggest.settings import setting
from suggest.study import StudySpec
from suggest.workers import ModelSetup, Workers

MODELS = "suggest.samplers.evolution_model:"


@dataclass(frozen=True, slots=True)
class GeneticSettings(DrawSettings):
    population_size: int = setting(
        50, "trials of a generation, and points that survive it", min=4, max=1000
    )
    crossover_probability: float = setting(
        0.9, "probability that a point has two parents", min=0.0, max=1.0
    )
    mutation_probability: float = setting(
        0.0, "probability that a parameter mutates; 0: 1 / (number of parameters)", min=0.0, max=1.0
    )
    crossover_eta: float = setting(
        15.0,
        "distribution index of the crossover (SBX); larger keeps children nearer to their parents",
        min=0.0,
        max=1000.0,
    )
    mutation_eta: float = setting(
        20.0,
        "distribution index of polynomial mutation; larger makes smaller mutations",
        min=0.0,
        max=1000.0,
    )


@dataclass(frozen=True, slots=True)
class AgingSettings(DrawSettings):
    population_size: int = setting(
        50, "most recent trials, from which parents are drawn", min=2, max=1000
    )
    tournament_size: int = setting(
        10, "trials drawn for each parent, which is the best of them", min=1, max=1000
    )
    mutation_eta: float = setting(
        5.0,
        "distribution index of polynomial mutation; larger makes smaller mutations of numbers",
        min=0.0,
        max=1000.0,
    )


# The registry passes `workers` to every algorithm that learns. These algorithms ignore it and
# compute in this process.
def genetic(
    spec: StudySpec, seed: int, settings: GeneticSettings, *, workers: Workers | None = None
) -> ModelSampler:
    setup = ModelSetup(f"{MODELS}GeneticModel", spec, seed, settings)
    return ModelSampler(setup, History(spec.criteria))


def regularized_evolution(
    spec: StudySpec, seed: int, settings: AgingSettings, *, workers: Workers | None = None
) -> ModelSampler:
    setup = ModelSetup(f"{MODELS}AgingModel", spec, seed, settings)
    return ModelSampler(setup, History(spec.criteria, recent=settings.population_size))


ENTRIES = (
    Family(
        "nsga2",
        "A genetic algorithm for several objectives: survivors by fronts and crowding distance "
        "(NSGA-II).",
        GeneticSettings,
        genetic,
    ),
    Family(
        "nsga3",
        "A genetic algorithm for three objectives or more: survivors spread over reference points "
        "(NSGA-III).",
        GeneticSettings,
        genetic,
    ),
    Family(
        "regularized-evolution",
        "Mutates one parameter of a good trial among the most recent ones (regularized evolution).",
        AgingSettings,
        regularized_evolution,
    ),
)
