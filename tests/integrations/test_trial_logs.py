"""MLflow, W&B and TensorBoard have every trial once, also after a kill;
one that fails does not end the search.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cli import eventually
from tests.integrations.conftest import Programs

SEARCH = """
import os, pathlib, time, tuner
{imports}

def objective(trial):
    for step in range(3):
        trial.report(step, loss=trial["x"] + step)
    if trial["x"] == 2:
        raise tuner.Infeasible("too large")
    while trial["x"] == 3 and not pathlib.Path("go").exists():
        time.sleep(0.01)

class Slow:
    "Lets the script be killed between the end of the second trial and its log."
    def __call__(self, study, result):
        if result.number == 1 and not pathlib.Path("go").exists():
            pathlib.Path("ended").touch()
            time.sleep(1000)

points = [{{"x": x, "kind": "a"}} for x in (1, 2, 3)]
study = tuner.minimize(
    objective, {{"x": tuner.Int(1, 3), "kind": ["a"]}}, initial=points, trials=3, name="logged", progress=False,
    callbacks=[Slow(), {log}],
)
print(study.unique_name)
"""
TOOLS = {
    "mlflow": (
        "from tuner.integrations.mlflow import MLflowLog",
        'MLflowLog("sqlite:///mlflow.db")',
    ),
    "wandb": (
        "from tuner.integrations.wandb import WandbLog",
        'WandbLog("project", mode="offline")',
    ),
    "tensorboard": (
        "from tuner.integrations.tensorboard import TensorBoardLog",
        'TensorBoardLog("runs")',
    ),
}
Logged = dict[int, tuple[dict[str, Any], list[float]]]  # of each trial: its parameters, its losses


def in_mlflow(folder: Path, label: str) -> Logged:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("tuner")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    assert sorted(run.info.run_name for run in runs) == [f"{label}-{number}" for number in range(3)]
    assert {run.data.tags["tuner.state"]: run.info.status for run in runs} == {
        "succeeded": "FINISHED",
        "infeasible": "FAILED",
    }
    return {
        int(run.data.tags["tuner.trial"]): (
            run.data.params,
            [metric.value for metric in client.get_metric_history(run.info.run_id, "loss")],
        )
        for run in runs
    }


def in_tensorboard(folder: Path, label: str) -> Logged:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.metadata import SESSION_END_INFO_TAG, SESSION_START_INFO_TAG
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    found: Logged = {}
    for trial in (folder / "runs" / label).iterdir():
        events = EventAccumulator(str(trial))
        events.Reload()
        kept = {
            tag: HParamsPluginData.FromString(content)
            for tag, content in events.PluginTagToContent("hparams").items()
        }
        started = kept[SESSION_START_INFO_TAG].session_start_info
        assert SESSION_END_INFO_TAG in kept
        parameters = {
            name: f"{value.number_value:g}{value.string_value}"
            for name, value in started.hparams.items()
        }
        parameters["kind"] = parameters["kind"].lstrip("0")
        found[int(trial.name)] = (parameters, [scalar.value for scalar in events.Scalars("loss")])
    assert list((folder / "runs").iterdir()) == [folder / "runs" / label]
    return found


def in_wandb(folder: Path, label: str) -> Logged:
    found: Logged = {}
    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        parameters: dict[str, Any] = {}
        losses: list[float] = []
        for record in wandb_records(file.read_bytes()):
            parameters |= {
                each.key: each.value_json.strip('"') for each in record.run.config.update
            }
            losses += [
                float(each.value_json)
                for each in record.history.item
                if "loss" in (each.key, *each.nested_key)
            ]
        number = int(file.stem.rpartition("-")[2])
        assert file.stem == f"run-{label}-{number}"
        assert number not in found
        found[number] = ({name: parameters[name] for name in ("x", "kind")}, losses)
    return found


def wandb_records(data: bytes) -> Iterator[Any]:
    """The records of an offline run: a LevelDB log behind a header of seven bytes.

    W&B has no reader in Python.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    at, record = 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:  # the end of a block
            at += left
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        record += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or its last part
            yield Record.FromString(record)
            record = b""


@pytest.mark.filterwarnings("ignore")  # those of the libraries
@pytest.mark.parametrize(
    ("tool", "read"), [("mlflow", in_mlflow), ("tensorboard", in_tensorboard), ("wandb", in_wandb)]
)
def test_every_trial_is_logged_once_though_the_script_is_killed_and_started_again(
    programs: Programs, tool: str, read: Any
) -> None:
    imports, log = TOOLS[tool]
    (programs.folder / "script.py").write_text(SEARCH.format(imports=imports, log=log))
    with programs.start(sys.executable, "script.py") as first:
        eventually((programs.folder / "ended").exists, within_s=120)
        os.kill(first.pid, signal.SIGKILL)
    (programs.folder / "go").touch()
    label = programs.run(sys.executable, "script.py")[0].split()[-1]
    assert read(programs.folder, label) == {
        number: ({"x": f"{number + 1}", "kind": "a"}, [number + 1, number + 2, number + 3])
        for number in range(3)
    }


BROKEN = """
from tuner.integrations.trial_log import TrialLog

class Broken(TrialLog):
    tool = "The tool"
    refused = 2

    def copied(self, search):
        return {0}

    def copy(self, search, result, measurements):
        if self.refused:
            self.refused -= 1
            raise OSError("no connection")
        print(result.number, result.state)
"""


def test_a_failing_tracking_tool_is_reported_once_and_gets_the_missed_data_later(
    programs: Programs,
) -> None:
    (programs.folder / "go").touch()
    text = SEARCH.replace("(1, 2, 3)", "(1, 2, 3, 3, 3)").replace("trials=3", "trials=5")
    out, err = programs.script(text.format(imports=BROKEN, log="Broken()"))
    assert err == (
        "MLflow: trial 1 of logged was not logged, and is tried again after a later trial: "
        "OSError: no connection\n"
    ).replace("MLflow", "The tool")
    assert out.splitlines()[:-1] == ["1 infeasible", "2 succeeded", "3 succeeded", "4 succeeded"]


def test_a_log_is_used_for_several_searches_and_for_stored_ones(programs: Programs) -> None:
    out, _ = programs.script("""
import tuner
from tuner.integrations.trial_log import TrialLog

class Kept(TrialLog):
    tool = "The tool"
    seen = []

    def copied(self, search):
        return {number for name, number in self.seen if name == search}

    def copy(self, search, result, measurements):
        self.seen.append((search, result.number))

log = Kept()
first = tuner.minimize(lambda trial: trial["x"], {"x": [1, 2]}, trials=2, progress=False, callbacks=[log])
second = tuner.minimize(lambda trial: trial["x"], {"x": [1, 2]}, trials=2, progress=False, callbacks=[log])
stored = tuner.minimize(lambda trial: trial["x"], {"x": [1, 2]}, trials=2, progress=False)
log.copy_all(stored)
log.copy_all(first)
print(Kept.seen == [(study.unique_name, number) for study in (first, second, stored) for number in (0, 1)])
""")
    assert out == "True\n"
