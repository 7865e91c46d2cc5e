"""The table kind x outcome of docs/operators.md, as a run of the tests saw it.

With TUNER_OPERATORS_TABLE=docs/operators.md the tests replace what stands there between the two MARKS.
"""

from __future__ import annotations

from pathlib import Path

from tests.operators.kinds import KINDS
from tests.operators.operators import VERSIONS

MARKS = "<!-- table: make test-operators -->", "<!-- end of table -->"
UNTRIED = "—"


class Table:
    """Cells as they come in; a cell that was filled twice shows both."""

    def __init__(self) -> None:
        self._cells: dict[tuple[str, str], list[str]] = {}

    def fill(self, outcome: str, kind: str, text: str) -> None:
        texts = self._cells.setdefault((outcome, kind), [])
        if text not in texts:
            texts.append(text)

    def markdown(self) -> str:
        """A row for each outcome, in the order in which the tests tell them, a column for each kind."""
        outcomes = list(dict.fromkeys(outcome for outcome, _ in self._cells))
        names = [str(kind) for kind in KINDS]
        rows = [["", *names], ["---"] * (len(names) + 1)]
        rows += [[outcome, *(self._text(outcome, name) for name in names)] for outcome in outcomes]
        tested = ", ".join(f"{name} {version}" for name, version in VERSIONS.items())
        return "\n".join(["| " + " | ".join(row) + " |" for row in rows]) + f"\n\nSeen with {tested}.\n"

    def write(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        (before, rest), (_, after) = text.split(MARKS[0]), text.split(MARKS[1])
        del rest
        path.write_text(f"{before}{MARKS[0]}\n{self.markdown()}{MARKS[1]}{after}", encoding="utf-8")

    def _text(self, outcome: str, kind: str) -> str:
        return "; ".join(self._cells.get((outcome, kind), [UNTRIED]))
