"""The trial's programs import each other as neighbours, and so do these tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "trial_image"))
