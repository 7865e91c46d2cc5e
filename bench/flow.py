"""Which functions and files of Tuner a suggestion, a local trial and `tuner get trials` pass.

Each flow runs in its own process under a profile function of all threads. A function counts once,
however often it is called; functions of libraries and of the standard library do not count.

    python bench/flow.py                  the number of functions and files of each flow
    python bench/flow.py --list get       also their names, by file
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

import suggest
from controller.app.state_directory import StateDirectory
from controller.app.workspace import Workspace
from controller.core.model import Experiment, Uid
from controller.search import ExperimentStudy
from controller.spec import read
from suggest.trial import Measurement, Outcome, TrialState

MODELED = 12  # trials after which the algorithm has a model
CANDIDATES = 6  # suggestions of which the shortest counts
ROOT = Path(suggest.__file__).parents[1]
FILE = """
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {name: flow}
spec:
  objective: {metric: loss, direction: minimize}
  parameters:
    x: {type: float, min: 0, max: 1}
    y: {type: float, min: 0, max: 1}
  algorithm: {name: tpe, seed: 1}
  parallelism: 1
  budget: {trials: 3}
  trial:
    command: [sh, -c, "echo step=1 loss=${x}"]
"""


class Trace:
    """The functions of Tuner that were called while it was `on`, in any thread of this process."""

    def __init__(self) -> None:
        self._seen: set[CodeType] = set()
        self._on = False

    def begin(self) -> None:
        self._seen, self._on = set(), True

    def end(self) -> set[CodeType]:
        self._on = False
        return self._seen

    def keep(self, seen: set[CodeType]) -> None:
        """Report what an earlier part of the flow has passed."""
        self._seen = seen

    @contextmanager
    def installed(self) -> Iterator[None]:
        threading.setprofile(self._called)
        sys.setprofile(self._called)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        if self._on and event == "call":
            self._seen.add(frame.f_code)

    def by_file(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = defaultdict(list)
        for code in self._seen:
            path = Path(code.co_filename)
            # of a module or a class
            is_body = code.co_name in ("<module>", "<lambda>") or not code.co_flags & 0x2
            if (
                path.is_relative_to(ROOT)
                and ".venv" not in path.parts
                and "bench" not in path.parts
                and not is_body
            ):
                found[str(path.relative_to(ROOT))].append(code.co_qualname)
        return {file: sorted(functions) for file, functions in sorted(found.items())}


def suggestion(trace: Trace, folder: Path) -> None:
    """Ask for a trial whose parameters were computed before, as a run does:
    from the loop's call to its return.
    """
    document = read(FILE, source="flow.yaml")
    uid = Uid("abcde12345")
    experiment = Experiment(uid, document.spec, 1, str(folder), study="")

    async def run() -> None:
        state = StateDirectory(folder)
        state.make()
        async with Workspace(state).connected("") as client:
            study = ExperimentStudy(experiment, client)
            await study.make(begun=False)
            least: set[CodeType] | None = None
            for number in range(MODELED + CANDIDATES):
                await asyncio.sleep(0.5)  # the next point is computed meanwhile
                trace.begin()
                (trial,) = (await study.suggest(1, handed_out=number)).trials
                seen = trace.end()
                measured = [Measurement(1, "loss", 1, float(number))]
                await study.complete(trial.number, Outcome(TrialState.SUCCEEDED), measured)
                # On a busy machine, a point is sometimes not ready, and is computed in the call.
                if number >= MODELED and (least is None or len(seen) < len(least)):
                    least = seen
            assert least is not None
            trace.keep(least)

    asyncio.run(run())


def trial(trace: Trace, folder: Path) -> None:
    """Run a local trial: from the request for it until its outcome is stored."""
    suggest_now, complete_now = ExperimentStudy.suggest, ExperimentStudy.complete

    async def suggested(self, count, **options):  # type: ignore[no-untyped-def]
        # the second of three trials, so that neither start nor end of the run counts
        if options["handed_out"] == 1:
            trace.begin()
        return await suggest_now(self, count, **options)

    async def completed(self, number, outcome, measurements):  # type: ignore[no-untyped-def]
        done = await complete_now(self, number, outcome, measurements)
        if number == 1:
            trace.end()
        return done

    ExperimentStudy.suggest, ExperimentStudy.complete = suggested, completed  # type: ignore[method-assign]
    file = folder / "flow.yaml"
    file.write_text(FILE)
    assert _tuner("run", str(file), "--quiet", "--state-dir", str(folder / "state")) == 0


def get(trace: Trace, folder: Path) -> None:
    """List the trials of an experiment: the whole command, without its imports."""
    file = folder / "flow.yaml"
    file.write_text(FILE)
    state = ("--state-dir", str(folder / "state"))
    program = str(Path(sys.executable).parent / "tuner")
    subprocess.run(
        [program, "run", str(file), "--quiet", *state], check=True, stdout=subprocess.DEVNULL
    )
    trace.begin()
    assert _tuner("get", "trials", "flow", *state) == 0
    trace.end()


def _tuner(*words: str) -> int:
    from controller.cli.main import main  # here, so that its import is a part of the flow

    with contextlib.redirect_stdout(io.StringIO()):
        return main(words)


FLOWS: dict[str, Callable[[Trace, Path], None]] = {
    "suggestion": suggestion,
    "trial": trial,
    "get": get,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--list", choices=FLOWS, help="print the functions of one flow")
    parser.add_argument("--flow", choices=FLOWS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.flow is None:
        for name in FLOWS:
            listed = ["--list", name] if arguments.list == name else []
            subprocess.run([sys.executable, __file__, "--flow", name, *listed], check=True)
        return
    trace = Trace()
    with tempfile.TemporaryDirectory() as folder, trace.installed():
        FLOWS[arguments.flow](trace, Path(folder))
    by_file = trace.by_file()
    print(
        f"{arguments.flow:12} {sum(map(len, by_file.values())):4} functions  {len(by_file):3} "
        f"files",
        flush=True,
    )
    if arguments.list:
        for file, functions in by_file.items():
            print(f"  {file}")
            for function in functions:
                print(f"    {function}")


if __name__ == "__main__":
    main()
