"""Which columns of a CSV file say how a trial ended, and what their words mean. Pure.

The exports of W&B, MLflow, Ray Tune and others name such columns and their words in their own ways,
and a trial whose column is overlooked counts as a success. A column is recognized by its name
(`State`, `run.status`), by its words (`crashed`) or, if its cells are true and false, by a name
that is such a word (`failed`). An exit code of 0 is a success.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from suggest.errors import did_you_mean
from suggest.trial import TrialState


class NotTold(Enum):
    """The ends of trials that a search learns nothing from."""

    NOT_FINISHED = "not finished"
    CANCELLED = "cancelled"


End = TrialState | NotTold

_WORDS: Mapping[End, str] = {
    TrialState.SUCCEEDED: "succeeded success successful complete completed finished done ok "
    "terminated",
    TrialState.FAILED: "failed fail failure error errored crashed crash killed timedout timeout "
    "diverged",
    TrialState.PRUNED: "pruned earlystopped stoppedearly",
    TrialState.INFEASIBLE: "infeasible invalid",
    NotTold.NOT_FINISHED: "running queued waiting pending scheduled starting created new active "
    "inprogress paused stopping preempting preempted suspended",
    NotTold.CANCELLED: "cancelled canceled usercancelled usercanceled syscanceled aborted "
    "abandoned",
}
_ENDS: dict[str, End] = {}
for _end, _words in _WORDS.items():
    _ENDS |= dict.fromkeys(_words.split(), _end)
_NAMES = ("state", "status")  # the last word of the column's name
_ANSWERS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
# a column of this name may have numbers for a reason
_NO_QUESTIONS = {"error", "failure", "fail", "new", "active"}
_WHOLE = re.compile(r"-?\d{1,9}(?:\.0)?")
_EXIT_CODES = {"exitcode", "returncode", "exitstatus"}  # columns of numbers: 0 is a success
# words that say nothing of a trial in a column of another name
_VAGUE = {"new", "active", "created", "invalid"}


@dataclass(frozen=True, slots=True)
class StateColumn:
    """A column that says how trials ended.

    `answers` is what true means if its cells are true and false.
    """

    name: str
    answers: End | None = None
    is_exit_code: bool = False

    def end(self, row: Mapping[str, str]) -> End:
        """Return how the trial of a row ended; an empty cell says nothing.

        Raises ValueError for an unknown word.
        """
        text = row[self.name].strip()
        if not text:
            return TrialState.SUCCEEDED
        if self.answers is not None:
            return self._answered(_ANSWERS[text.lower()])
        if self.is_exit_code:
            return TrialState.SUCCEEDED if float(text) == 0 else TrialState.FAILED
        word = _plain(text)
        if word not in _ENDS:
            known = "succeeded, finished, failed, crashed, pruned, infeasible, running"
            hint = (
                did_you_mean(word, _ENDS)
                or "; rename the column if it does not say how a trial ended"
            )
            raise ValueError(f"{self.name}: {text!r} is not a state such as {known}{hint}")
        return _ENDS[word]

    def _answered(self, answer: bool) -> End:
        if self.answers is TrialState.SUCCEEDED:
            return TrialState.SUCCEEDED if answer else NotTold.NOT_FINISHED
        return self.answers if answer and self.answers else TrialState.SUCCEEDED


@dataclass(frozen=True, slots=True)
class StateColumns:
    """The columns that say how trials ended, and those that may say it, but with other words."""

    used: Sequence[StateColumn]
    unused: Sequence[str] = ()

    def end(self, row: Mapping[str, str]) -> tuple[End, str]:
        """Return how a row's trial ended, and the first column that says more than success.

        Raises ValueError for an unknown word.
        """
        ends = [(column.end(row), column.name) for column in self.used]
        return next(
            (told for told in ends if told[0] is not TrialState.SUCCEEDED),
            (TrialState.SUCCEEDED, ""),
        )


def state_columns(names: Iterable[str], rows: Sequence[Mapping[str, str]]) -> StateColumns:
    """Return which of the columns say how trials ended.

    Of columns by their name, `state` and `status` come first.
    """
    used: list[StateColumn] = []
    unused: list[str] = []
    for name in sorted(
        names, key=lambda name: (name.lower() not in _NAMES, _last_word(name) not in _NAMES)
    ):
        cells = {text for row in rows if (text := row[name].strip().lower())}
        known = all(_plain(cell) in _ENDS for cell in cells)
        question = _ENDS.get(_plain(re.split(r"[/:]", name)[-1]))
        if _plain(name) in _EXIT_CODES and all(_WHOLE.fullmatch(cell) for cell in cells):
            used.append(StateColumn(name, is_exit_code=True))
        elif name.lower() in _NAMES and not used:
            used.append(StateColumn(name))
        elif _last_word(name) in _NAMES:
            if known:
                used.append(StateColumn(name))
            else:
                unused.append(name)
        elif known and any(_tells(cell) for cell in cells):
            used.append(StateColumn(name))
        elif (
            cells
            and question is not None
            and cells <= _ANSWERS.keys()
            and _plain(name) not in _NO_QUESTIONS
        ):
            used.append(StateColumn(name, question))
    return StateColumns(used, unused)


def _tells(cell: str) -> bool:
    """Return whether a word tells of a trial's end other than success, in any column."""
    word = _plain(cell)
    return _ENDS[word] is not TrialState.SUCCEEDED and word not in _VAGUE


def _last_word(name: str) -> str:
    """Return the last word of a column's name, in lower case.

    It is `state` for `run_state`, `Run State` and `runState`.
    """
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)
    return words[-1].lower() if words else ""


def _plain(text: str) -> str:
    """Drop a word's enumeration and separators: `inprogress` of `TrialState.IN_PROGRESS`."""
    word = text.strip().lower().rpartition(".")[2]
    word = re.sub(r"^(\w*_)?(state|status)_", "", word)
    return re.sub(r"[\W_]", "", word)
