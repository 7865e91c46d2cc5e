"""Generate the reference of the native file: the table of all keys
and defaults in docs/experiment.md.

    python -m docs_site.file_reference docs/experiment.md

writes the table between the page's two markers. A test fails when the table is outdated.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

from controller.spec.cluster_section import ClusterCondition
from controller.spec.fields import ABSENT, REQUIRED, Key, ListOf, ValueKind
from controller.spec.native import FILE
from controller.spec.parameters import TYPES, ParameterKind
from controller.spec.sections import MapOf, Section
from docs_site.marked_part import replaced, rewrite

BEGIN = "<!-- made by docs_site.file_reference from the reader's tables: begin -->"
END = "<!-- made by docs_site.file_reference from the reader's tables: end -->"
HEAD = "| key | value | default | meaning |\n| --- | --- | --- | --- |"


def table() -> str:
    """Return all keys of the file, in its order, as a Markdown table."""
    return "\n".join([HEAD, *_rows(FILE, "")])


def _rows(section: Section, at: str) -> Iterator[str]:
    for key in section.keys:
        path = f"{at}.{key.name}" if at else key.name
        yield (
            f"| `{path}` | {_cell(key.kind.expected)} | {_cell(_default(key))} | "
            f"{_cell(key.help)} |"
        )
        yield from _below(key.kind, path)


def _below(kind: ValueKind, path: str) -> Iterator[str]:
    match kind:
        case Section():
            yield from _rows(kind, path)
        case ClusterCondition():
            for section in kind.sections:
                yield from _rows(section, path)
        case MapOf(item=item):
            yield from _below(item, f"{path}.NAME")
        case ListOf(item=item):
            yield from _below(item, f"{path}[]")
        case ParameterKind():
            for name, section in TYPES.items():
                yield from _rows(section, f"{path}({name})")
        case _:
            pass


def _default(key: Key) -> str:
    if key.default is REQUIRED:
        return "**required**"
    if key.says:
        return key.says
    if key.default is ABSENT or key.default in ({}, []):
        return "—"
    return f"`{key.default if isinstance(key.default, str) else json.dumps(key.default)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def rewritten(page: str) -> str:
    """Return the page with the current table between its markers."""
    return replaced(page, BEGIN, END, table())


def main() -> None:
    rewrite(sys.argv[1:], rewritten)


if __name__ == "__main__":
    main()
