"""The trial's programs import each other as neighbours, and so do these tests."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "trial_image"))
# Before anybody imports torch: tests run side by side, and threads that wait for each other's cores spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")
