"""Silences the logs of simulated runs, since the violated invariant describes the error."""

import logging

logging.getLogger("controller").setLevel(logging.ERROR)
