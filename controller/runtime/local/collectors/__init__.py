"""Collectors: they read a local trial's measurements where the experiment's
file says, and keep them as lines.

Each attempt has one. It appends to `metrics.txt` in the attempt's folder,
which the controller reads like a log: from the start after a restart. On a
cluster the sidecar in `trial_image/collector` writes the same lines to its own
log; the cases in `tests/fixtures/collectors` hold for both. A collector parses
no lines of text, and interprets no value.
"""

from controller.runtime.local.collectors.collected import COLLECTED_FILE, Collector
from controller.runtime.local.collectors.making import collector_of, prepare

__all__ = ["COLLECTED_FILE", "Collector", "collector_of", "prepare"]
