"""Writes the commit into wheels and source archives, for `tuner version`."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        # An editable installation asks git each time.
        if version == "editable":
            return
        root = Path(self.root)
        distribution = runpy.run_path(str(root / "suggest" / "distribution.py"))
        commit = distribution["commit_of"](root)
        # A wheel that is built from a source archive contains the archive's file.
        if commit:
            file = root / "build" / distribution["COMMIT_FILE"]
            file.parent.mkdir(exist_ok=True)
            file.write_text(f"{commit}\n", encoding="utf-8")
            build_data["force_include"][str(file)] = f"suggest/{file.name}"
