"""Import finished trials before a search of Python runs:
`tuner.minimize(..., import_from="runs.csv")`.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from controller import app
from controller.phrases import quantity
from suggest.client.search_space import level_of_caller, refuse
from suggest.errors import FailedPrecondition, InvalidArgument
from suggest.imports import Source
from tuner.waiting import waited_for

if TYPE_CHECKING:
    from controller.app.experiment_file import ExperimentFile
    from controller.app.import_sources import SourceChoice
    from controller.app.workspace import Workspace

SOURCES = "a CSV file, the name of a search, the URL of a database, or a dict with this as 'source'"
_MOST_NAMED = 5  # trials that a warning names
_FLAG = re.compile(r"--(from|study|value|fill)\b")
_KEYS = {"from": "source"}  # of the flags that are called otherwise


def import_into(
    file: ExperimentFile, workspace: Workspace, given: object, *, caller: str, context: str | None
) -> None:
    """Import the trials into the file's experiment, and warn of those that do not fit.

    The experiment is created if needed. given: see `import_from` of `tuner.minimize`, or trials
    that were read.

    Raises:
        TypeError: the argument has another form.
        TunerError: the source cannot be read, or none of its trials fits.
    """
    chosen = given if isinstance(given, Source) else _source_choice(caller, given)
    try:
        importing = app.import_trials.import_trials(
            workspace, file, chosen, namespace=None, context=context
        )
        imported = waited_for(importing)
    except InvalidArgument as error:
        problems = [
            replace(p, path=_in_python(p.path), message=_in_python(p.message))
            for p in error.problems
        ]
        raise InvalidArgument(problems) from None
    except FailedPrecondition as error:
        raise FailedPrecondition(_in_python(str(error))) from None
    refused = imported.tally.refused
    if not refused:
        return
    argument = "study" if chosen is given else "import_from"
    named = "; ".join(refused[:_MOST_NAMED]) + ("; …" if len(refused) > _MOST_NAMED else "")
    title = imported.source.title
    if not (imported.tally.new or imported.tally.known or chosen is given):
        raise InvalidArgument.at(argument, f"no trial of {title} could be imported: {named}")
    count = quantity(len(refused), "trial")
    warnings.warn(
        f"{caller}: {argument}: {count} of {title} not imported: {named}",
        stacklevel=level_of_caller(),
    )


def _source_choice(caller: str, given: object) -> SourceChoice:

    # Any: what a person wrote; the messages of the import name what is wrong in it
    written: Mapping[str, Any] = given if isinstance(given, Mapping) else {"source": given}
    fill = written.get("fill", {})
    known = {"source", "study", "value", "fill"}
    if set(written) - known or "source" not in written or not isinstance(fill, Mapping):
        refuse(
            caller,
            "import_from",
            given,
            f"{SOURCES}; its other keys are study, value and fill",
        )
    words = tuple(f"{name}={_text(value)}" for name, value in fill.items())
    source = os.fspath(written["source"])
    return app.import_sources.SourceChoice(
        source, str(written.get("study", "")), str(written.get("value", "")), words
    )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _in_python(text: str) -> str:
    """Return a text with the keys of `import_from` in place of the flags of `tuner import`."""
    return _FLAG.sub(lambda flag: f"import_from[{_KEYS.get(flag[1], flag[1])!r}]", text)
