"""Tests that need torch say so with `@needs_torch`:
gigabytes that not everyone has, and CI must have.

TUNER_TEST_TORCH_REQUIRED=1 lets them fail without it instead of being skipped.
"""

from __future__ import annotations

import importlib.util
import os

import pytest

# Found, not imported: it takes seconds, and pytest reads this in every process.
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None and not os.environ.get("TUNER_TEST_TORCH_REQUIRED"),
    reason="torch is not installed: make torch-packages",
)
