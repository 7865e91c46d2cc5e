"""Silences the logs of simulated runs, since the violated invariant describes the error."""

import logging

# Hypothesis checks for it, perhaps during the import in a thread of the simulated study.
import numpy  # noqa: F401

logging.getLogger("controller").setLevel(logging.ERROR)
