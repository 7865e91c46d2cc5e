"""examples/operators: one whole file for each kind that is known, which needs nothing but its template."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.app.sample_manifests import manifests_of
from controller.app.validate import warnings
from controller.runtime.kubernetes.demand import demand_of
from controller.runtime.kubernetes.kinds import PRESETS, preset_of
from controller.spec import Document, read

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "operators").glob("*.yaml"))


def document(path: Path) -> Document:
    return read(path.read_text(), source=path.name)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_valid_and_nothing_is_warned_of(path: Path) -> None:
    found = document(path)
    assert list(warnings(found)) == []
    assert set(found.spec.trial.cluster) == {"template"}
    (made,) = manifests_of(found.spec)
    assert demand_of([made]).pods > 0
    assert f"tuner run {path.name}" in path.read_text()


def test_every_known_kind_has_an_example() -> None:
    kinds = [preset_of(manifests_of(document(path).spec)[0]) for path in EXAMPLES]
    assert sorted(str(kind) for kind in kinds) == sorted(str(preset) for preset in PRESETS)
