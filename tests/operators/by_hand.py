"""A cluster with all operators for manual tests, until Ctrl-C or the end of stdin.

`python -m tests.operators.by_hand` has fake nodes; with `--real` it has a real one. Both need root.
"""

from __future__ import annotations

import sys

from tests.cluster import up
from tests.operators import operators

if __name__ == "__main__":
    sys.exit(up.main(operators.Operators, operators.missing()))
