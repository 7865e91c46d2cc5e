"""The custom resources, as their writers and the controller know them: the kinds, and what an
Experiment has beside the file.
"""

from __future__ import annotations

from controller.kube.client import Kind

EXPERIMENTS = Kind("tuner.dev/v1", "experiments", "Experiment")
TENANT_BUDGETS = Kind("tuner.dev/v1", "tenantbudgets", "TenantBudget", namespaced=False)
_KATIB = "kubeflow.org/v1beta1"
KATIB_EXPERIMENTS = Kind(_KATIB, "experiments", "Experiment")
KATIB_TRIALS = Kind(_KATIB, "trials", "Trial")
KATIB_SUGGESTIONS = Kind(_KATIB, "suggestions", "Suggestion")
# Key of Tuner's own status in that of an Experiment of Katib's.
OWN_STATUS = "tuner"
# Annotations. With the first, the study outlives the resource. The others ask for what `tuner
# resume` and `tuner retry` do, and are removed when that has happened. RETRY has the numbers of
# trials, such as `3,7`, or ALL_FAILED.
KEEP_STUDY, RESUME, RETRY = "tuner.dev/keep-study", "tuner.dev/resume", "tuner.dev/retry"
ALL_FAILED = "failed"
# The uid of Katib's Experiment of the same name, with whose search this one goes on.
FROM_KATIB = "tuner.dev/from-katib"
# The hash of the code of the Python function that its trials call, of `tuner.minimize`.
OBJECTIVE = "tuner.dev/objective"
