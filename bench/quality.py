"""Quality of proposals: Tuner's algorithms compared to its peers and random search,
on the problems of `forty.py`, `many_minima.py`, `cliffs.py`, `scales.py`, `zeros.py` and
`branches.py`.

A contestant does not know the outcomes of running trials. Games are saved, one per line, and known
games are not played again, so a stopped run is continued by the same command.
`--half tune --who default,gp --seeds 3` plays those contestants on the half to tune on. `--keep`
writes docs/benchmarks.md, and `--summary` prints the results.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from forty_games import SETS, run
from forty_summary import show
from games import PROGRAMS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", type=Path, help="what has been played, added to")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--who", default="", help="the contestants, with commas")
    parser.add_argument("--only", default="", help="problems whose name has this in it")
    parser.add_argument("--half", choices=(*SETS, "both"), default="measure")
    parser.add_argument(
        "--parallel", default="1,8", help="how many trials run at a time, with commas"
    )
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2, help="games at a time, each in a process")
    parser.add_argument(
        "--interpreter", default="", help=f"a Python that has {' or '.join(PROGRAMS)}"
    )
    parser.add_argument("--summary", action="store_true", help="print the results so far")
    parser.add_argument(
        "--keep", action="store_true", help="write the page from what has been played; play nothing"
    )
    asked = parser.parse_args()
    os.nice(10)
    if asked.keep or asked.summary:
        show(asked)
    else:
        run(asked)


if __name__ == "__main__":
    main()
