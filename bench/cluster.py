"""Overhead of a search on a cluster: `tuner run` compared to the same pods
as bare Jobs on the same cluster.

Requires what `make test-cluster` requires, and root for the real node. `--quick` is a smoke test
that keeps no results, `--whole` runs ten thousand trials in twenty namespaces instead of a part of
them, `--only` selects what to measure.
"""

from __future__ import annotations

import argparse

import node
import scale
from record import keep

PARTS = ("node", "rate", "quotas", "logs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--only", choices=PARTS)
    asked = parser.parse_args()
    for part in PARTS:
        if asked.only in (None, part):
            text = (
                node.measured(quick=asked.quick)
                if part == "node"
                else scale.measured(part, asked.quick, asked.whole)
            )
            keep(f"cluster-{part}", text, quick=asked.quick)


if __name__ == "__main__":
    main()
