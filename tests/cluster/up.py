"""A cluster for manual tests, until Ctrl-C or the end of stdin.

`python -m tests.cluster.up` has fake nodes; with `--real` it has a real one, and needs root.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable

from tests.cluster import binaries, realnode
from tests.cluster.controlplane import USERS, ControlPlane


def main(prepare: Callable[[ControlPlane], object] | None = None, lacking: str = "") -> int:
    """prepare: adds more to the cluster; lacking: returns what is missing for that."""
    real = sys.argv[1:] == ["--real"]
    lacking = lacking or (realnode.missing() if real else binaries.missing(binaries.LEVEL_B))
    if lacking:
        print(lacking, file=sys.stderr)
        return 1
    cluster = realnode.RealNode() if real else ControlPlane(fake_nodes=4)
    try:
        if prepare is not None:
            prepare(cluster)
        print(f"export KUBECONFIG={cluster.kubeconfig()}")
        print(f"# kubectl is {binaries.program('kubectl')}")
        for user in USERS:
            print(f"# without rights: {cluster.kubeconfig(user)}")
        print(f"# logs of the parts: {cluster.folder}/*.log", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            sys.stdin.read()
    finally:
        cluster.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
