"""The list of all modules in docs/architecture.md,
made from the first sentences of their docstrings.

`python -m docs_site.modules docs/architecture.md` writes it. It imports no module that it lists.
"""

from __future__ import annotations

import ast
import sys
from itertools import groupby
from pathlib import Path

from docs_site.marked_part import replaced, rewrite

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("suggest", "controller", "tuner", "hydra_plugins", "docs_site")
# Generated code.
OMITTED = ("suggest/v1", "suggest/katib/v1beta1", "controller/runtime/local/collectors/tensorboard")
BEGIN = "<!-- made by docs_site.modules from docstrings: begin -->"
END = "<!-- made by docs_site.modules from docstrings: end -->"


def tables() -> str:
    """Return a table for each folder, with each of its modules and what it is for."""
    parts = []
    for folder, modules in groupby(_modules(), key=lambda path: path.parent):
        rows = [f"| `{path.relative_to(ROOT)}` | {_purpose(path)} |" for path in modules]
        parts.append(
            f"**`{folder.relative_to(ROOT)}/`**\n\n| module | what it is for |\n| --- | --- |\n"
            + "\n".join(rows)
        )
    return "\n\n".join(parts)


def rewritten(page: str) -> str:
    return replaced(page, BEGIN, END, tables())


def _modules() -> list[Path]:
    found = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return sorted(
        (path for path in found if path.name != "__init__.py" and not _is_omitted(path)),
        key=lambda path: (path.parent, path.name),
    )


def _is_omitted(path: Path) -> bool:
    return path.relative_to(ROOT).as_posix().startswith(OMITTED)


def _purpose(path: Path) -> str:
    described = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    first, _, _ = described.partition("\n\n")
    sentence, _, _ = first.replace("\n", " ").partition(". ")
    return sentence.removesuffix(".").replace("|", "\\|")


def main() -> None:
    rewrite(sys.argv[1:], rewritten)


if __name__ == "__main__":
    main()
