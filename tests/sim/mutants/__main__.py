"""Plants each bug in turn and runs drawn experiments until the simulation detects it.

Exits 1 if one survives.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.sim.mutants.bugs import MUTANTS
from tests.sim.mutants.hunt import hunted


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("names", nargs="*", help="only these; all by default")
    wanted = arguments.parse_args().names
    names = [mutant.name for mutant in MUTANTS if not wanted or mutant.name in wanted]
    caught_ones = 0
    # A process for each bug, forked from one that has imported everything and planted nothing.
    forking = multiprocessing.get_context("forkserver")
    forking.set_forkserver_preload([hunted.__module__])
    with ProcessPoolExecutor(
        max_workers=os.cpu_count(), mp_context=forking, max_tasks_per_child=1
    ) as pool:
        try:
            for found in as_completed([pool.submit(hunted, name) for name in names]):
                was_caught, line = found.result()
                caught_ones += was_caught
                print(line, flush=True)
        except BaseException:  # Ctrl-C: the pool would hunt for all others first
            pool.shutdown(cancel_futures=True)
            raise
    print(f"{caught_ones} of {len(names)} mutants caught")
    return 0 if caught_ones == len(names) else 1


if __name__ == "__main__":
    sys.exit(main())
