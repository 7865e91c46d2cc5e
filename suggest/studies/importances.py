"""How much each parameter of a search matters, from trials that were read."""

from __future__ import annotations

from collections.abc import Iterable

from suggest.space import Space
from suggest.study import MIN_TRIALS_TO_RANK, Direction, Importance
from suggest.trial import Trial, TrialState


def importances(space: Space, trials: Iterable[Trial], *, direction: Direction) -> list[Importance]:
    """Return the importance of each parameter, the most important first.

    They have no values if there are too few trials. Succeeded and pruned trials count. The same
    trials give the same result. Takes at most two seconds.
    """
    judged = [
        t
        for t in trials
        if t.state in (TrialState.SUCCEEDED, TrialState.PRUNED) and t.value is not None
    ]
    if len(judged) < MIN_TRIALS_TO_RANK:
        names = [p.name for p in space.parameters if p.domain.count != 1]
        return [Importance(name, sum(name in t.parameters for t in judged)) for name in names]
    # Optuna, which takes half a second to import
    from suggest.optuna_storage import importance

    return importance.importances(space, judged, direction=direction)
