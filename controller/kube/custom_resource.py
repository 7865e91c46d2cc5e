"""The custom resource Experiment, as its writers and the controller know it: its kind, and what it
has beside the file.
"""

from __future__ import annotations

from controller.kube.client import Kind

EXPERIMENTS = Kind("tuner.dev/v1", "experiments", "Experiment")
# Annotations. With the first, the study outlives the resource. The others ask for what `tuner
# resume` and `tuner retry` do, and are removed when that has happened. RETRY has the numbers of
# trials, such as `3,7`, or ALL_FAILED.
KEEP_STUDY, RESUME, RETRY = "tuner.dev/keep-study", "tuner.dev/resume", "tuner.dev/retry"
ALL_FAILED = "failed"
# The hash of the code of the Python function that its trials call, of `tuner.minimize`.
OBJECTIVE = "tuner.dev/objective"
