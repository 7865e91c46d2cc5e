"""Runtimes by name: an unknown one is an error wherever it is named, and packages register others."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from controller.runtime import registry
from controller.spec import SpecErrors, read
from suggest.errors import FailedPrecondition, InvalidArgument

FILE = """\
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {name: tiny}
spec:
  objective: {metric: score, direction: maximize}
  parameters: {x: {type: float, min: 0, max: 1}}
  runtime: RUNTIME
  trial: {command: [python, train.py]}
"""


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, EntryPoint]:
    """Runtimes of packages by name, in place of those that are installed here."""
    packages: dict[str, EntryPoint] = {}
    monkeypatch.setattr(registry, "_installed", lambda: packages)
    monkeypatch.setattr(registry, "LOADED", {})
    return packages


def entry_point(value: str) -> EntryPoint:
    return EntryPoint("slurm", value, registry.GROUP)


def test_a_runtime_of_a_package_is_accepted_in_a_file(installed: dict[str, EntryPoint]) -> None:
    installed["slurm"] = entry_point("controller.runtime.local.provider:PROVIDER")
    spec = read(FILE.replace("RUNTIME", "slurm"), source="x.yaml").spec
    assert registry.names() == ["local", "kubernetes", "slurm"]
    assert registry.traits_of(spec.runtime) == registry.provider_of("slurm").traits


def test_an_unknown_runtime_in_a_file_is_refused_with_those_that_are_known(
    installed: dict[str, EntryPoint],
) -> None:
    installed["slurm"] = entry_point("controller.runtime.local.provider:PROVIDER")
    with pytest.raises(SpecErrors) as caught:
        read(FILE.replace("RUNTIME", "slrum"), source="x.yaml")
    assert str(caught.value).splitlines()[1] == (
        "  7:12 spec.runtime: 'slrum' is not a runtime; known here: local, kubernetes, slurm; "
        "another one needs its package beside tuner; did you mean slurm?"
    )


def test_an_experiment_whose_runtime_is_no_longer_installed_never_runs_elsewhere(
    installed: dict[str, EntryPoint],
) -> None:
    for question in (registry.traits_of, registry.provider_of):
        with pytest.raises(InvalidArgument, match="'slurm' is not a runtime; known here: local"):
            question("slurm")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("no_such_module:PROVIDER", "cannot be loaded: ModuleNotFoundError: No module named"),
        ("controller.runtime.registry:GROUP", "is not a RuntimeProvider"),
    ],
)
def test_a_package_that_registers_something_else_is_named(
    value: str, message: str, installed: dict[str, EntryPoint]
) -> None:
    installed["slurm"] = entry_point(value)
    with pytest.raises(FailedPrecondition, match=f"the runtime slurm of a package {message}"):
        registry.provider_of("slurm")


def test_choosing_local_imports_nothing_of_kubernetes() -> None:
    program = (
        "import sys\n"
        "from controller.runtime import registry\n"
        "registry.provider_of('local')\n"
        "names = ('controller.kube', 'controller.runtime.kubernetes', 'kubernetes', 'importlib.metadata')\n"
        "print([name for name in sys.modules if name.startswith(names)])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
