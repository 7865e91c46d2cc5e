"""The trial programs import each other from their own folder, and so do these tests."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "trial_image"))
# Before torch is imported: tests run in parallel, and threads that wait
# for each other's cores spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")
