"""The part of a page between two markers, which a program writes again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path


def replaced(page: str, begin: str, end: str, text: str) -> str:
    """Return the page with this text between its markers."""
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{text}\n{end}{after}"


def rewrite(names: Iterable[str], rewritten: Callable[[str], str]) -> None:
    """Write each of these files again."""
    for name in names:
        path = Path(name)
        path.write_text(rewritten(path.read_text(encoding="utf-8")), encoding="utf-8")
