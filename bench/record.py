"""Output of benchmark figures: a table between markers in docs/benchmarks.md,
with a description of the machine.

Standard library only, because a script that measures memory must not import
the libraries that it measures.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import statistics
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
LOAD_AT_START = os.getloadavg()[0]
if LOAD_AT_START > 0.5:
    print(
        f"load average {LOAD_AT_START:.1f}: the machine does other things, figures will be off",
        file=sys.stderr,
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _processor() -> str:
    try:
        found = re.search(
            r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE
        )
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + (
        " (changed)" if git("status", "--porcelain", "-uno") else ""
    )


def machine() -> str:
    """Return a paragraph about the machine and the versions of the measurement,
    and how busy the machine was.
    """
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("optuna", "grpcio", "sqlalchemy")
    )
    load = f"load average {LOAD_AT_START:.1f} before"
    return (
        f"Measured on {datetime.now(UTC):%Y-%m-%d} at {commit()}: {_processor()}, "
        f"{os.cpu_count()} cores, {load}; "
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}, {versions}."
    )


def keep(section: str, text: str, *, quick: bool = False) -> None:
    """Print `text`. Unless it is from a quick run, replace the text between the section's markers
    in the page by it, with a paragraph about the machine.
    """
    text = text if quick else f"{text}\n\n{machine()}"
    print(f"\n{text}\n")
    if quick:
        return
    page = PAGE.read_text(encoding="utf-8")
    pattern = rf"(<!-- {section} -->\n).*?(<!-- /{section} -->)"
    page, places = re.subn(pattern, lambda m: f"{m[1]}\n{text}\n\n{m[2]}", page, flags=re.DOTALL)
    if places != 1:
        sys.exit(
            f"{PAGE}: no section {section}; it needs the two lines <!-- {section} --> and <!-- "
            f"/{section} -->"
        )
    PAGE.write_text(page, encoding="utf-8")


def figures(rows: Sequence[Sequence[str]]) -> str:
    """Return a table of rows as `figure` makes them."""
    return table(["figure", "measured", "at most", "met"], rows)


def figure(what: str, value: float, form: str, at_most: float | None = None) -> list[str]:
    """Return a row of a measured figure, and what is claimed of it.

    form: of the value, such as `.2f s`.
    """
    precision, _, unit = form.partition(" ")
    shown = f"{value:{precision}} {unit}".strip()
    if at_most is None:
        return [what, shown, "", ""]
    return [what, shown, f"{at_most:g} {unit}".strip(), verdict(value, at_most)]


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which a fraction `share` of the values is;
    of few values, the next higher one.
    """
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def verdict(value: float, at_most: float) -> str:
    return "yes" if value <= at_most else "**no**"
