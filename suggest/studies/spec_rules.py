"""What every stored study must obey, with paths of the API: its spec, and its size in a reply."""

from __future__ import annotations

from collections.abc import Sequence

from suggest.engine import check_spec
from suggest.errors import InvalidArgument, Problem
from suggest.study import StudySpec

MAX_STUDY_BYTES = 5 << 19  # in a reply: with labels and a reason, each of its trials fits into one, too


def raise_if(problems: Sequence[Problem]) -> None:
    if problems:
        raise InvalidArgument(tuple(problems))


def spec_problems(spec: StudySpec) -> list[Problem]:
    problems = [Problem(_spec_path(p.path), p.message) for p in check_spec(spec)]
    seed = spec.algorithm.seed
    if seed is not None and not 0 <= seed < 2**63:
        problems.append(Problem("spec.algorithm.seed", f"{seed} is not a seed; use 0 to 2^63 - 1"))
    return problems


def size_problems(path: str, what: str, size: int) -> list[Problem]:
    """`size`: in a reply, in bytes. What cannot be read again must not be stored."""
    if size <= MAX_STUDY_BYTES:
        return []
    return [Problem(path, f"{what} takes {size:,} bytes in a reply; at most {MAX_STUDY_BYTES:,}: use shorter values")]


def _spec_path(path: str) -> str:
    """A path of the noun as one of the message, where parameters lie directly in the spec."""
    first, dot, rest = path.partition(".")
    return f"spec.{'parameters' if first == 'space' else first}{dot}{rest}"
