"""Plain data as text: the JSON and YAML of `-o`, and manifests for `kubectl create -f -`. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from controller.spec import as_yaml


def data_text(data: object, form: str) -> str:
    """Return plain data in the format of `-o json` or `-o yaml`.

    It has no bare NaN, because `json_number` has replaced it by a word.
    """
    if form == "yaml":
        return as_yaml(data)
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def yaml_documents(objects: Sequence[Mapping[str, object]]) -> str:
    return "".join(f"---\n{as_yaml(obj)}" for obj in objects)
