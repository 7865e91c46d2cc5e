"""What a search costs on a cluster beside its trials: `tuner run`, and the same pods as bare Jobs, on one cluster.

Needs what `make test-cluster` needs, and root for the real node. `--quick` is a smoke test that keeps nothing,
`--whole` runs ten thousand trials in twenty namespaces instead of a part of them, `--only` names what to measure.
"""

from __future__ import annotations

import argparse
import sys

import crowd
import node
from record import keep, machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--only", choices=("node", "rate", "quotas", "logs"))
    asked = parser.parse_args()
    texts = []
    if asked.only in (None, "node"):
        texts.append(node.measured(quick=asked.quick))
    if asked.only in (None, "rate", "quotas", "logs"):
        texts += crowd.measured(quick=asked.quick, whole=asked.whole, only=asked.only)
    text = "\n\n".join(texts)
    if asked.quick or asked.only:
        print(text)
    else:
        keep("cluster", f"{text}\n\n{machine()}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
