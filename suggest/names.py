"""Resource names: the one place that reads and writes `namespaces/{ns}/studies/{study}/trials/{n}`.

Pure. Each problem names the field that held the name, and shows the expected form.
"""

from __future__ import annotations

import re

from suggest.errors import InvalidArgument, Problem, raise_if
from suggest.study import StudyName

ALL = "-"
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}", re.ASCII)

LABEL_RULE = "lower-case letters, digits and '-', at most 63, with a letter or digit at both ends"


def label_problem(text: str) -> str:
    """Return why the text is not a namespace or a study id; "" if it is one."""
    return "" if _LABEL.fullmatch(text) else f"{text[:80]!r} is not a name; use {LABEL_RULE}"


def namespace_name(namespace: str) -> str:
    return f"namespaces/{namespace}"


def trial_name(study: StudyName, number: int) -> str:
    return f"{study}/trials/{number}"


def all_trials_name(study: StudyName) -> str:
    return f"{study}/trials/{ALL}"


def check_namespace(text: str, field: str, *, wildcard: bool) -> None:
    """Check the name of a namespace. `wildcard` allows `-`, all of them."""
    (namespace,) = _split(text, field, "namespaces/{namespace}")
    if not (wildcard and namespace == ALL):
        _check_labels(field, namespace)


def parse_study(text: str, field: str) -> StudyName:
    namespace, study = _split(text, field, "namespaces/{namespace}/studies/{study}")
    _check_labels(field, namespace, study)
    return StudyName(namespace, study)


def parse_trials(text: str, field: str) -> tuple[StudyName, int | None]:
    """Parse the name of a trial; its number is None for `trials/-`, all trials of the study."""
    namespace, study, number = _split(
        text, field, "namespaces/{namespace}/studies/{study}/trials/{number}"
    )
    _check_labels(field, namespace, study)
    if number == ALL:
        return StudyName(namespace, study), None
    if not _NUMBER.fullmatch(number):
        raise InvalidArgument.at(field, f"{number[:80]!r} is not a trial number; use 0, 1, 2…")
    return StudyName(namespace, study), int(number)


def namespace_in(text: str) -> str | None:
    """Return the namespace with which a name begins, which may be `-`; None if there is none."""
    segments = text.split("/", 2)
    return segments[1] if len(segments) > 1 and segments[0] == "namespaces" else None


def _split(text: str, field: str, form: str) -> list[str]:
    """Return the variable segments of `text`, whose fixed ones must be those of `form`."""
    segments, expected = text.split("/"), form.split("/")
    if len(segments) != len(expected) or segments[::2] != expected[::2]:
        raise InvalidArgument.at(
            field, f"{text[:200]!r} is not of the form {form}" if text else f"missing; use {form}"
        )
    return segments[1::2]


def _check_labels(field: str, *labels: str) -> None:
    raise_if([Problem(field, problem) for label in labels if (problem := label_problem(label))])
