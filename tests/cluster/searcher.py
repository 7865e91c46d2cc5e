"""`tuner` on a cluster as a user runs it: with a state directory,
a kubeconfig and experiment files.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

from tests import forked

PATIENCE_S = 180.0


class Searcher:
    """One user in one namespace.

    `close` ends their local processes, but not what runs on the cluster.
    """

    def __init__(self, folder: Path, kubeconfig: Path, namespace: str) -> None:
        self.folder = folder
        self.namespace = namespace
        self.state = folder / "state"
        self.env = {**os.environ, "KUBECONFIG": str(kubeconfig), "TUNER_STATE_DIR": str(self.state)}
        self._started: list[subprocess.Popen[str]] = []

    def file(
        self,
        *,
        name: str = "tiny",
        trials: int = 4,
        spec: str = "",
        trial: str = "",
        env: Mapping[str, str] | None = None,
    ) -> Path:
        """env: of the trial, which also determines the life of a fake pod (see kwok.py)."""
        given = {"KWOK_LOG": "score=${x}", "KWOK_RUN": "300ms", **(env or {})}
        path = self.folder / f"{name}.yaml"
        path.write_text(
            f"""\
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {{name: {name}, namespace: {self.namespace}}}
spec:
  objective: {{metric: score, direction: maximize}}
  parameters:
    x: {{type: float, min: 0, max: 1}}
  algorithm: {{name: random, seed: 1}}
  budget: {{trials: {trials}}}
  canary: 0s
  runtime: kubernetes
{spec}  trial:
    image: tiny:1
    command: [python, train.py, "--x=${{x}}"]
    env: {json.dumps(given)}
    resources: {{gpu: 1}}
    gracePeriod: 1s
{trial}"""
        )
        return path

    def file_of_objects(
        self,
        template: Mapping[str, object],
        *,
        name: str = "tiny",
        trials: int,
        parallelism: int,
        **trial: object,
    ) -> Path:
        """Write an experiment file whose trials are whole objects, as JSON, which is YAML."""
        content = {
            "apiVersion": "tuner.dev/v1",
            "kind": "Experiment",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "objective": {"metric": "score", "direction": "maximize"},
                "parameters": {"x": {"type": "float", "min": 0, "max": 1}},
                "algorithm": {"name": "random", "seed": 1},
                "budget": {"trials": trials},
                "parallelism": parallelism,
                "canary": "0s",
                "runtime": "kubernetes",
                "trial": {"template": template, **trial},
            },
        }
        path = self.folder / f"{name}.yaml"
        path.write_text(json.dumps(content, indent=1))
        return path

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        process = forked.tuner(arguments, folder=self.folder, env=self.env)
        self._started.append(process)
        return process

    def tuner(self, *arguments: str | Path, within_s: float = PATIENCE_S) -> tuple[int, str, str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=within_s)
        return process.returncode, out, err

    def killed(self, path: Path, *, times: int, moments: Random, least_s: float) -> tuple[int, str]:
        """Kill `tuner run` repeatedly, each time after least_s to 2.5 s, then let it finish and
        return its result.
        """
        for _ in range(times):
            process = self.start("run", path)
            time.sleep(moments.uniform(least_s, 2.5))
            process.send_signal(signal.SIGKILL)
            process.communicate()
        code, _, err = self.tuner("run", path)
        return code, err

    def json(self, *arguments: str) -> Any:
        code, out, err = self.tuner(*arguments, "-o", "json")
        assert code == 0, err
        return json.loads(out)

    def trials(self, name: str = "tiny") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.json("get", "trials", name)
        return found

    def states(self, name: str = "tiny") -> dict[str, int]:
        """Return the number of trials per state; empty while there is no such experiment."""
        code, out, _ = self.tuner("get", "trials", name, "-o", "json")
        return Counter(trial["state"] for trial in json.loads(out)) if code == 0 else {}

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()
