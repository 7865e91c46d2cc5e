"""The native file described to machines: a JSON Schema for editors, made from the reader's own tables.

It says what shapes there are; what must hold between keys (conditions, placeholders) only `tuner validate` knows.
"""

from __future__ import annotations

from typing import Any

from controller.spec.native import FILE

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of the native experiment file."""
    return {"$schema": DIALECT, "title": "Tuner experiment", **FILE.schema()}
