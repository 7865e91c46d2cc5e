"""What a tenant does to its own objects harms neither the controller nor other tenants.

On the small API server, where a test can write what the cluster's own controllers would write.
tests/cluster/test_attacks_on_tenants.py has the attacks that are about rights.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.operator import manager
from tests.kube.fake_kubelet import Script
from tests.kube.operated import NAMESPACE, Installation, Raw, experiment, on_a_cluster

FOREVER = Script(lines=("score=0.5",), forever=True)


def templated(name: str, **pod: object) -> Raw:
    """Return an experiment with a Job as its template, whose pods have these fields."""
    container = {"name": "main", "image": "tiny:1", "args": ["--x=${x}"]}
    template = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "spec": {"template": {"spec": {"containers": [container], **pod}}},
    }
    return experiment(name, trial={"template": template})


@on_a_cluster()
async def test_a_service_that_a_template_names_as_its_subdomain_is_not_deleted(
    installed: Installation,
) -> None:
    installed.api.put("services", {"metadata": {"name": "database", "namespace": NAMESPACE}})
    installed.apply(templated("tiny", subdomain="database"))
    await installed.until_state("succeeded")
    await installed.until(lambda: not installed.jobs)
    assert installed.api.find("services", NAMESPACE, "database")


@on_a_cluster(FOREVER)
async def test_a_status_that_was_forged_is_written_again(installed: Installation) -> None:
    installed.apply(experiment())
    await installed.until(lambda: installed.status().get("running") == 1)
    forged = {
        "state": "succeeded",
        "observedGeneration": 99,
        "revision": 99,
        "best": {"number": 5, "value": 1e300, "parameters": {"<b>": "\x1b[2J"}},
        # Without the time of the last transition.
        "conditions": [{"type": "Running", "status": "True"}, {"type": "Mine", "status": "True"}],
    }
    installed.api.change(
        "experiments", NAMESPACE, "tiny", lambda resource: resource.update(status=forged)
    )
    await installed.until_state("running")
    assert installed.condition("Mine") == {}
    assert installed.condition("Running")["lastTransitionTime"]
    installed.apply(experiment("other"))
    await installed.until(lambda: installed.status("other").get("running") == 1)


def test_a_bug_in_one_status_keeps_no_other_from_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status_of = manager.status_of

    def broken(seen: object, now: object) -> dict[str, object]:
        status = status_of(seen, now)  # type: ignore[arg-type]
        if seen.generation == 7:  # type: ignore[attr-defined]
            raise KeyError("lastTransitionTime")
        return status

    monkeypatch.setattr(manager, "status_of", broken)

    @on_a_cluster()
    async def claim(installed: Installation) -> None:
        hostile = experiment("hostile")
        hostile["metadata"]["generation"] = 7
        installed.apply(hostile)
        installed.apply(experiment("tiny"))
        await installed.until_state("succeeded")
        assert installed.status("hostile").get("observedGeneration") != 7

    claim(tmp_path)
