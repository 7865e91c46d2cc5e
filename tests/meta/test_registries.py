"""The registries of algorithms and pruning rules name their modules;
each has exactly the entries of these.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

import pytest

from suggest.pruners import registry as pruners
from suggest.samplers import registry as samplers


@pytest.mark.parametrize(
    "modules", [samplers._MODULES, pruners._MODULES], ids=["algorithms", "pruning rules"]
)
def test_a_registry_has_exactly_the_entries_of_its_modules(modules: Mapping[str, str]) -> None:
    declared = [
        (entry.name, module)
        for module in set(modules.values())
        for entry in importlib.import_module(module).ENTRIES
    ]
    assert sorted(declared) == sorted(modules.items())
