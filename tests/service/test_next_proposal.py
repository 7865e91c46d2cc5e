"""The end of a trial prepares the next proposal, so that the next request
does not wait for its computation.
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from suggest.server.admin import open_store
from suggest.studies import StudyService
from suggest.study import Algorithm, StudySpec
from suggest.trial import Outcome, TrialState
from tests.service.running import NAME, SPEC

LEARNS = StudySpec(
    SPEC.space, SPEC.objectives, Algorithm("tpe", settings={"startupTrials": 1}, seed=1)
)
WITHIN_S, MOMENT_S = 30, 0.1


def is_prepared(studies: StudyService) -> bool:
    with studies.sessions.writing(NAME) as writer:
        return writer.engine.is_prepared


@pytest.mark.parametrize("first_cpu_s", [0.0, 1.0])
def test_the_end_of_a_trial_prepares_the_next_proposal(tmp_path: Path, first_cpu_s: float) -> None:
    """One slow proposal, for example one that imports modules, does not end this."""
    with closing(open_store(f"sqlite:///{tmp_path}/s.db")) as store:
        studies = StudyService(store, address="")
        studies.create_study(NAME, LEARNS, request_id="create")
        studies.suggest(NAME, 1, client_id="c", request_id="first")
        studies.sessions._sessions[NAME].cost.add(first_cpu_s)
        deadline, number = time.monotonic() + WITHIN_S, 0
        while True:  # on a busy machine the preparation may be skipped, so try the next trial
            given = studies.suggest(NAME, 1, client_id="c", request_id=f"{number}").trials
            assert not is_prepared(studies), "what was handed out is no longer the next"
            studies.complete(NAME, given[0].number, Outcome(TrialState.SUCCEEDED, 0.5))
            moment = time.monotonic() + MOMENT_S
            while not (prepared := is_prepared(studies)) and time.monotonic() < moment:
                time.sleep(0.005)
            if prepared:
                break
            assert time.monotonic() < deadline, "no proposal was made ahead"
            number += 1
        studies.close()


def test_a_search_is_loaded_after_the_first_trial_although_default_chose_another_one_before(
    tmp_path: Path,
) -> None:
    program = f"""
import sys
from suggest.server.admin import open_store
from suggest.space import Choice, Float, Parameter, Space
from suggest.studies import StudyService
from suggest.study import Algorithm, Direction, Objective, StudyName, StudySpec
from suggest.trial import Outcome, TrialState
from tests.conditions import eventually

studies = StudyService(open_store("sqlite:///{tmp_path}/s.db"), address="")
for k, domain in enumerate([Choice(("a", "b")), Float(0, 1)]):
    name, algorithm = StudyName("default", f"s{{k}}"), Algorithm("default", settings={{"trials": 9}})
    goal = Objective("loss", Direction.MINIMIZE)
    studies.create_study(name, StudySpec(Space((Parameter("x", domain),)), (goal,), algorithm), request_id="create")
    studies.suggest(name, 1, client_id="c", request_id="1")
    studies.complete(name, 0, Outcome(TrialState.SUCCEEDED, 0.5))
    assert k or "numpy" not in sys.modules, "grid needs none"
eventually(lambda: "suggest.samplers.tpe_model" in sys.modules, within_s={WITHIN_S})
studies.close()
"""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
