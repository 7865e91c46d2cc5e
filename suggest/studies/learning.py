"""Reads what a new study learns from: the trials of the earlier studies that its spec names, and of
similar ones.

They are read once, before the study is stored. Which trials are taken, and which studies are
similar, is decided in `suggest.earlier`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from suggest import earlier
from suggest.errors import Problem, raise_if, under
from suggest.study import SIMILAR, EarlierStudy, Study, StudyName, StudySpec
from suggest.trial import NO_LABELS, TrialState

if TYPE_CHECKING:
    from suggest.storage.sql_store import StudyStore

STUDIES_PER_PAGE = 500
# The trials of this many similar studies are read, the most recent ones.
MOST_READ = 50


def learned(store: StudyStore, name: StudyName, spec: StudySpec) -> StudySpec:
    """Return the spec with the trials of the studies that it learns from.

    Raises InvalidArgument with the problems of all named ones.
    """
    problems: list[Problem] = []
    found: list[EarlierStudy] = []
    for place, each in enumerate(spec.learn_from):
        if each.study == SIMILAR:
            continue
        source = _source(store, replace(name, study=each.study), each, spec)
        if isinstance(source, EarlierStudy):
            found.append(source)
        else:
            problems += under(f"spec.learn_from[{place}]", source)
    raise_if(problems)
    for each in spec.learn_from:
        if each.study == SIMILAR:
            found += _similar(store, name, replace(spec, learn_from=tuple(found)), each.weight)
    return replace(spec, learn_from=tuple(found))


def _source(
    store: StudyStore, name: StudyName, each: EarlierStudy, spec: StudySpec
) -> EarlierStudy | list[Problem]:
    record = store.study(name)
    if record is None:
        return [
            Problem(
                "study",
                f"there is no study {name.study} in {name.namespace}; name a finished one",
            )
        ]
    if problems := earlier.source_problems(each, spec, record.study):
        return problems
    if running := store.trial_counts([name])[name].get(TrialState.RUNNING):
        return [earlier.unfinished_problem(each, running)]
    pages = store.pages_of_trials(name, [TrialState.SUCCEEDED])
    found = earlier.taken(each, spec, record.study, chain.from_iterable(pages))
    return found if isinstance(found, EarlierStudy) else [found]


def _similar(
    store: StudyStore, name: StudyName, spec: StudySpec, weight: float
) -> Iterator[EarlierStudy]:
    """Yield the most recent finished studies of the namespace that are similar, until there are
    enough with those that the spec names.
    """
    named = {each.study for each in spec.learn_from}
    candidates = (
        study
        for study in _studies(store, name.namespace)
        if study.name.study not in named and earlier.is_similar(spec, study)
    )
    newest = heapq.nlargest(MOST_READ, candidates, key=lambda study: str(study.create_time))
    left = earlier.MOST_EARLIER - len(named)
    for study in newest:
        if not left:
            return
        source = _source(store, study.name, EarlierStudy(study.name.study, weight), spec)
        if isinstance(source, EarlierStudy) and earlier.is_search(source):
            yield source
            left -= 1


def _studies(store: StudyStore, namespace: str) -> Iterator[Study]:
    last: StudyName | None = None
    while page := store.studies(namespace, labels=NO_LABELS, after=last, limit=STUDIES_PER_PAGE):
        yield from page
        last = page[-1].name
