"""What is wrong with a request by itself, before any study is looked at: the fields and their limits.

Pure. Everything is returned as a list, with paths of the request, so that whoever asks can raise it all at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from suggest.engine import check_spec
from suggest.errors import InvalidArgument, Problem
from suggest.imports import FinishedTrial
from suggest.study import StudySpec
from suggest.trial import Measurement, Outcome

MAX_COUNT = 1000
MAX_MEASUREMENTS = 10_000
MAX_IMPORTED = 1000
MAX_RENEWED = 1000
MAX_STUDY_BYTES = 5 << 19  # in a reply: with labels and a reason, each of its trials fits into one, too
MIN_LEASE_S, MAX_LEASE_S = 0.1, 7 * 86400.0
MAX_REOPENED = 1000


def raise_if(problems: Sequence[Problem]) -> None:
    if problems:
        raise InvalidArgument(tuple(problems))


def spec_problems(spec: StudySpec) -> list[Problem]:
    problems = [Problem(_spec_path(p.path), p.message) for p in check_spec(spec)]
    seed = spec.algorithm.seed
    if seed is not None and not 0 <= seed < 2**63:
        problems.append(Problem("spec.algorithm.seed", f"{seed} is no seed; use 0 to 2^63 - 1"))
    return problems


def size_problems(path: str, what: str, size: int) -> list[Problem]:
    """`size`: in a reply, in bytes. What cannot be read again must not be stored."""
    if size <= MAX_STUDY_BYTES:
        return []
    return [Problem(path, f"{what} takes {size:,} bytes in a reply; at most {MAX_STUDY_BYTES:,}: use shorter values")]


def request_id_problems(request_id: str) -> list[Problem]:
    if 0 < len(request_id) <= 128:
        return []
    return [Problem("request_id", "is needed to recognise a repetition; use 1 to 128 characters, best random ones")]


def suggest_problems(count: int, *, client_id: str, request_id: str, lease_s: float | None = None) -> list[Problem]:
    problems = []
    if not 1 <= count <= MAX_COUNT:
        problems.append(Problem("count", f"{count} trials at once; ask for 1 to {MAX_COUNT}"))
    if not 0 < len(client_id) <= 256:
        problems.append(Problem("client_id", "say who asks, in 1 to 256 characters"))
    if lease_s is not None and not MIN_LEASE_S <= lease_s <= MAX_LEASE_S:
        problems.append(Problem("lease_duration", f"{lease_s:g} s; use 0.1 s to 7 days, or none for no lease"))
    return problems + request_id_problems(request_id)


def renewal_problems(count: int) -> list[Problem]:
    if 1 <= count <= MAX_RENEWED:
        return []
    return [Problem("leases", f"{count} at once; send 1 to {MAX_RENEWED}")]


def measurement_problems(count: int) -> list[Problem]:
    if count <= MAX_MEASUREMENTS:
        return []
    return [Problem("measurements", f"{count} at once; send at most {MAX_MEASUREMENTS}")]


def outcome_problems(outcome: Outcome) -> list[Problem]:
    if outcome.value is None or math.isfinite(outcome.value):
        return []
    path = f"outcome.{outcome.state.value}.value"
    return [Problem(path, f"{outcome.value} is not finite; leave it out, or complete the trial as failed")]


def completion_problems(outcome: Outcome, measurements: Sequence[Measurement]) -> list[Problem]:
    return measurement_problems(len(measurements)) + outcome_problems(outcome)


def addition_problems(
    outcome: Outcome | None, measurements: Sequence[Measurement], *, request_id: str
) -> list[Problem]:
    problems = request_id_problems(request_id) + measurement_problems(len(measurements))
    if outcome is not None:
        problems += outcome_problems(outcome)
    elif measurements:
        problems.append(Problem("measurements", "only a finished trial has some; set outcome too"))
    return problems


def reopening_problems(numbers: Sequence[int]) -> list[Problem]:
    problems = []
    if not 1 <= len(numbers) <= MAX_REOPENED:
        problems.append(Problem("numbers", f"{len(numbers)} at once; send 1 to {MAX_REOPENED}"))
    elif len(set(numbers)) != len(numbers):
        twice = next(number for place, number in enumerate(numbers) if number in numbers[:place])
        problems.append(Problem("numbers", f"{twice} is there twice; send each number once"))
    return problems


def import_problems(trials: Sequence[FinishedTrial], *, source: str, request_id: str) -> list[Problem]:
    problems = request_id_problems(request_id)
    if not 0 < len(source) <= 256:
        problems.append(Problem("source", "say where they come from, in 1 to 256 characters"))
    if not 1 <= len(trials) <= MAX_IMPORTED:
        problems.append(Problem("trials", f"{len(trials)} at once; send 1 to {MAX_IMPORTED}"))
    measured = sum(len(trial.measurements) for trial in trials)
    if measured > MAX_MEASUREMENTS:
        problems.append(Problem("trials", f"{measured} measurements at once; send at most {MAX_MEASUREMENTS}"))
    for i, trial in enumerate(trials):
        problems += [Problem(f"trials[{i}].{p.path}", p.message) for p in outcome_problems(trial.outcome)]
        if len(trial.source_id) > 128:
            problems.append(Problem(f"trials[{i}].source_id", "has more than 128 characters"))
        if len(trial.labels) > 63:
            problems.append(Problem(f"trials[{i}].labels", "at most 63: one more says where it comes from"))
    return problems


def _spec_path(path: str) -> str:
    """A path of the noun as one of the message, where parameters lie directly in the spec."""
    first, dot, rest = path.partition(".")
    return f"spec.{'parameters' if first == 'space' else first}{dot}{rest}"
