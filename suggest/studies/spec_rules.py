"""Rules for every stored study: validity of the spec, and size in a reply.

Problems have paths of the API.
"""

from __future__ import annotations

from suggest.engine import check_spec
from suggest.errors import Problem, Problems
from suggest.study import StudySpec

# in a reply; small enough that each trial, with labels and a reason, fits into a reply too
MAX_STUDY_BYTES = 5 << 19


def spec_problems(spec: StudySpec, *, runs_here: bool = True) -> list[Problem]:
    problems = Problems()
    for problem in check_spec(spec, runs_here=runs_here):
        problems.add(_spec_path(problem.path), problem.message)
    seed = spec.algorithm.seed
    if seed is not None and not 0 <= seed < 2**63:
        problems.add("spec.algorithm.seed", f"{seed} is not a seed; use 0 to 2^63 - 1")
    return problems


def size_problems(path: str, subject: str, size: int) -> list[Problem]:
    """Check `size`, in bytes in a reply.

    A study that does not fit into a reply could never be read, so refuse it.
    """
    if size <= MAX_STUDY_BYTES:
        return []
    return [
        Problem(
            path,
            f"{subject} takes {size:,} bytes in a reply; at most {MAX_STUDY_BYTES:,}: use shorter "
            f"values",
        )
    ]


def _spec_path(path: str) -> str:
    """Translate a path of `StudySpec` to one of the protobuf message.

    There, parameters are directly in the spec.
    """
    first, dot, remainder = path.partition(".")
    return f"spec.{'parameters' if first == 'space' else first}{dot}{remainder}"
