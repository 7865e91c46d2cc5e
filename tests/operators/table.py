"""The table kind x outcome of docs/operators.md, written from a run of the tests.

With TUNER_OPERATORS_TABLE=docs/operators.md the tests replace the text between the two MARKS; a run
of some tests replaces only their cells.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from tests.operators.kinds import KINDS
from tests.operators.operators import VERSIONS

MARKS = "<!-- table: make test-operators -->", "<!-- end of table -->"
UNTRIED = "—"
COLUMNS = [str(kind) for kind in KINDS]
Cells: TypeAlias = dict[tuple[str, str], list[str]]  # (outcome, kind) -> observed results


class Table:
    """The collected cells; a cell that was filled twice shows both results."""

    def __init__(self) -> None:
        self._cells: Cells = {}

    def fill(self, outcome: str, kind: str, text: str) -> None:
        texts = self._cells.setdefault((outcome, kind), [])
        if text not in texts:
            texts.append(text)

    def write(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        before, _, rest = text.partition(MARKS[0])
        table, _, after = rest.partition(MARKS[1])
        cells = _read(table) | self._cells
        path.write_text(
            f"{before}{MARKS[0]}\n{_markdown(cells)}{MARKS[1]}{after}", encoding="utf-8"
        )


def _markdown(cells: Cells) -> str:
    """Return a row for each outcome, in the order of arrival, and a column for each kind."""
    outcomes = dict.fromkeys(outcome for outcome, _ in cells)
    rows = [["", *COLUMNS], ["---"] * (len(COLUMNS) + 1)]
    rows += [
        [outcome, *("; ".join(cells.get((outcome, kind), [UNTRIED])) for kind in COLUMNS)]
        for outcome in outcomes
    ]
    tested = ", ".join(f"{name} {version}" for name, version in VERSIONS.items())
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + f"\n\nSeen with {tested}.\n"


def _read(table: str) -> Cells:
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")][
        2:
    ]
    found = (
        (outcome, kind, text)
        for outcome, *texts in rows
        for kind, text in zip(COLUMNS, texts, strict=True)
    )
    return {(outcome, kind): [text] for outcome, kind, text in found if text != UNTRIED}
