"""Speed of the page of `tuner ui`: to an interactive table, to all its rows, and from a printed
metric to the screen.

    python bench/page.py [TRIALS...]

Requires what `make ui-packages` installs. The delay of an update is from the trial's time,
printed as a metric, to the browser's time when the cell has changed; both clocks are on
the same machine. Memory is that of the server's process and of the page's JavaScript,
after all that. Prints the figures as JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright
from processes import TUNER, resident_mb

PROGRAM = """
import time
for step in range(1, 241):
    print("step=%d score=%d clock=%.3f" % (step, step, time.time() % 100), flush=True)
    time.sleep(0.5)
"""
FILE = """
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {name: page}
spec:
  objective: {metric: score, direction: maximize}
  parameters: {x: {type: float, min: 0, max: 1}, y: {type: float, min: 0, max: 1}}
  algorithm: {name: random, seed: 1}
  budget: {trials: 1}
  trial: {command: [python, trial.py]}
"""
# Seconds from the clock in the first row to now, for each new reading.
WATCH = """async (readings) => {
  const found = [];
  let before = null;
  while (found.length < readings) {
    await new Promise(requestAnimationFrame);
    const heads = [...document.querySelectorAll("thead th")].map((each) => each.textContent);
    const cell = document.querySelector("tbody tr")?.children[heads.indexOf("clock")]?.textContent;
    if (cell && cell !== "–" && cell !== before) {
      if (before !== null) found.push((Date.now() / 1000 % 100 - Number(cell) + 100) % 100);
      before = cell;
    }
  }
  return found;
}"""


def measured(trials: int, folder: Path) -> dict[str, object]:
    (folder / "trial.py").write_text(PROGRAM)
    file = folder / "experiment.yaml"
    file.write_text(FILE)
    state = ["--state-dir", str(folder / "state")]
    if trials:
        rows = "".join(f"{i / trials},{i * 7 % trials / trials},{i % 997}\n" for i in range(trials))
        (folder / "many.csv").write_text("x,y,value\n" + rows)
        command = [TUNER, "import", str(file), "--from", str(folder / "many.csv"), *state]
        subprocess.run(command, check=True, capture_output=True)
    page = subprocess.Popen([TUNER, "ui", "-q", *state], stdout=subprocess.PIPE, text=True)
    assert page.stdout is not None
    link = page.stdout.readline().strip()
    program = shutil.which("chromium") or shutil.which("google-chrome")
    figures: dict[str, object] = {"trials": trials}
    running = None
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=program, args=["--no-sandbox", "--enable-precise-memory-info"]
            )
            tab = browser.new_page()
            tab.goto(link)
            if trials:
                address = link.partition("?")[0] + "#/search/default/page"
                for which in ("first_s", "again_s"):
                    tab.goto("about:blank")
                    began = time.perf_counter()
                    tab.goto(address)
                    tab.wait_for_selector("tbody tr a", timeout=60_000)
                    figures[f"interactive_{which}"] = round(time.perf_counter() - began, 2)
                    tab.wait_for_selector(f".count:text-is('{trials:,} trials')", timeout=120_000)
                    figures[f"complete_{which}"] = round(time.perf_counter() - began, 2)
                began = time.perf_counter()
                tab.fill("input[type=search]", "x<0.5")
                tab.wait_for_selector(".count:has-text(' of ')")
                figures["filter_s"] = round(time.perf_counter() - began, 2)
                tab.fill("input[type=search]", "")
            running = subprocess.Popen(
                [TUNER, "run", "-q", str(file), *state], stdout=subprocess.DEVNULL
            )
            if not trials:
                tab.click("main a:text-is('page')")
            # the trial prints for two minutes, or until it is stopped
            delays = tab.evaluate(WATCH, 8)
            figures["update_s"] = {
                "median": round(statistics.median(delays), 3),
                "max": round(max(delays), 3),
                "min": round(min(delays), 3),
            }
            figures["server_mb"] = round(resident_mb(page.pid))
            tab.context.new_cdp_session(tab).send("HeapProfiler.collectGarbage")
            figures["javascript_mb"] = round(
                tab.evaluate("performance.memory.usedJSHeapSize") / 1e6
            )
            browser.close()
    finally:
        if running is not None:
            running.terminate()
            running.wait()
        page.terminate()
        page.wait()
    return figures


if __name__ == "__main__":
    os.environ.pop("TUNER_STATE_DIR", None)
    for trials in map(int, sys.argv[1:] or ("0", "10000")):
        with tempfile.TemporaryDirectory(prefix="tuner-") as folder:
            print(json.dumps(measured(trials, Path(folder))), flush=True)
