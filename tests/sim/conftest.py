"""The simulation's own logs are noise: what went wrong is said by the violated invariant."""

import logging

logging.getLogger("controller").setLevel(logging.ERROR)
