"""The hunt for one planted bug: draw and run experiments until the simulation detects it."""

from __future__ import annotations

import itertools
import tempfile
import time
import unittest.mock
from contextlib import ExitStack
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

import tests.sim.conftest  # noqa: F401 - silences the logs
from controller.core.model import ExperimentState
from tests.sim.invariant import InvariantViolation
from tests.sim.mutants.bugs import MUTANTS, Mutant
from tests.sim.plans import plans
from tests.sim.simulation import Plan, Simulation, stores

# The examples of a run are small at first, longer in a longer run: short ones reach rare bugs sooner.
RUNS, EXAMPLES = 75, 20
_uids = (f"{n:05d}" for n in itertools.count())


def caught(mutant: Mutant | None, folder: Path) -> tuple[str, int]:
    """Return (the violated invariant, the number of experiments);
    the invariant is "" if it detected nothing.
    """
    store, studies = stores(folder)
    played = 0

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
    )
    @given(plan=plans())
    def play(plan: Plan) -> None:
        nonlocal played
        played += 1
        state = Simulation(plan, store=store, studies=studies, uid=next(_uids), home=folder).run()
        assert state in (ExperimentState.SUCCEEDED, ExperimentState.FAILED)

    with ExitStack() as planted:
        planted.callback(store.close)
        planted.callback(studies.close)
        for place, name in mutant.places if mutant is not None else ():
            planted.enter_context(
                unittest.mock.patch.object(place, name, mutant.bug if mutant else None)
            )
        try:
            first = 1 if mutant is None else mutant.rare_run
            for run in sorted(range(1, RUNS + 1), key=lambda run: run != first):
                seed(run)(play)()
        except InvariantViolation as violation:  # any other error is a mistake in the planted bug
            return str(violation).splitlines()[0], played
    return "", played


def hunted(name: str) -> tuple[bool, str]:
    """Return (whether the bug was caught, a line that describes how)."""
    (mutant,) = (each for each in MUTANTS if each.name == name)
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as folder:
            said, played = caught(mutant, Path(folder))
    except Exception as error:
        return False, f"{name:36s} BROKEN: {error!r}"
    verdict = (
        f"caught after {played:3d}: {said[:110]}"
        if said
        else f"SURVIVED {played}; it costs: {mutant.costs}"
    )
    return bool(said), f"{name:36s} {time.monotonic() - began:5.1f} s  {verdict}"
