"""A cluster with all operators to try things on by hand, until Ctrl-C or the end of its input.

`python -m tests.operators.by_hand` has fake nodes; with `--real` it has a real one. Both need root.
"""

from __future__ import annotations

import contextlib
import sys

from tests.cluster import binaries, realnode
from tests.cluster.controlplane import ControlPlane
from tests.operators import operators


def main() -> int:
    real = sys.argv[1:] == ["--real"]
    lacking = operators.missing() or (realnode.missing() if real else binaries.missing(binaries.LEVEL_B))
    if lacking:
        print(lacking, file=sys.stderr)
        return 1
    cluster = realnode.RealNode() if real else ControlPlane(fake_nodes=4)
    try:
        operators.Operators(cluster)
        print(f"export KUBECONFIG={cluster.kubeconfig()}")
        print(f"# kubectl is {binaries.program('kubectl')}")
        print(f"# logs of the parts: {cluster.folder}/*.log", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            sys.stdin.read()
    finally:
        cluster.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
