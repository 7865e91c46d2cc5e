"""A cluster to try things on by hand: `python -m tests.cluster.up`, until Ctrl-C or the end of its input."""

from __future__ import annotations

import contextlib
import sys

from tests.cluster import binaries
from tests.cluster.controlplane import USERS, ControlPlane


def main() -> int:
    lacking = binaries.missing(binaries.LEVEL_B)
    if lacking:
        print(lacking, file=sys.stderr)
        return 1
    cluster = ControlPlane(fake_nodes=4)
    try:
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
