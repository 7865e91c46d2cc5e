"""Metrics that are not in a trial's log, through all of `tuner`: files,
event files and endpoints.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest

from tests.e2e.cli import Cli, ended, eventually, experiment, why

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "collectors"
SCRAPED = """
import http.server, os, sys, threading, time

class Metrics(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'# TYPE score gauge\\nscore 0.5\\nepoch 3.0\\npython_info{version="3"} 1.0\\n')
        scraped.set()
    def log_message(self, *_):
        pass

scraped = threading.Event()
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["TUNER_METRICS_PORT"])), Metrics)
threading.Thread(target=server.serve_forever, daemon=True).start()
scraped.wait(20)
time.sleep(0.1)
"""
# Lines without a step, so that a line that is read twice is counted twice.
# The file is rotated twice.
ROTATES = """
import os, pathlib, time
path = pathlib.Path(os.environ["TUNER_METRICS_FILE"])
for n in range(1, 91):
    with path.open("a") as file:
        file.write(f"score={n}\\n")
    if n % 30 == 29:
        path.rename(f"{path}.{n}")
    time.sleep(0.02)
"""
# Does what report_metrics of Katib's SDK does, whose address is a constant.
REPORTS = """
import os, time, grpc
from suggest.katib.v1beta1 import api_pb2 as pb

def report_metrics(metrics):
    with grpc.insecure_channel("katib-db-manager.kubeflow:6789") as channel:
        logs = [
            pb.MetricLog(time_stamp="2026-01-02T03:04:05Z", metric=pb.Metric(name=name, value=str(value)))
            for name, value in metrics.items()
        ]
        log = pb.ObservationLog(metric_logs=logs)
        request = pb.ReportObservationLogRequest(trial_name=os.environ["KATIB_TRIAL_NAME"], observation_log=log)
        call = channel.unary_unary(
            "/api.v1.beta1.DBManager/ReportObservationLog",
            request_serializer=pb.ReportObservationLogRequest.SerializeToString,
            response_deserializer=pb.ReportObservationLogReply.FromString,
        )
        call(request, timeout=60)
"""
REPORTS_OFTEN = f"""{REPORTS}
for n in range(1, 61):
    report_metrics({{"score": n}})
    time.sleep(0.02)
"""


def write(
    cli: Cli, program: str, metrics: str, *, words: tuple[str, ...] = (), more: str = ""
) -> None:
    (cli.folder / "train.py").write_text(program)
    text = experiment(["python", "train.py", *words], trials=1, trial="gracePeriod: 1s")
    cli.file.write_text(
        text.replace("  parameters:", f"  metrics: {{{metrics}}}\n{more}  parameters:")
    )


def curve(cli: Cli, metric: str = "score") -> dict[int, float]:
    with sqlite3.connect(cli.folder / "state" / "studies.db") as database:
        query = "SELECT step, value FROM measurements WHERE metric = ? ORDER BY step"
        return dict(database.execute(query, [metric]))


TO_A_FILE = (
    "import os\nopen(os.environ['TUNER_METRICS_FILE'], 'w').write({text!r})\nprint('score=9')"
)


@pytest.mark.parametrize(
    ("metrics", "text", "expected"),
    [
        ("file: m.txt", "epoch=1 score=0.1\nepoch=2 score=0.2", {1: 0.1, 2: 0.2}),
        (
            "file: m.txt, pattern: ['(score) is (.+)', '(epoch) (.+)']",
            "epoch 4\nscore is 0.3\n",
            {1: 0.3},
        ),
        (
            "file: logs/m.json, format: json",
            '{"epoch": 3, "score": "0.3", "timestamp": 17}\n',
            {3: 0.3},
        ),
        ("file: m.json, format: json, step: batch", '{"batch": 30, "score": 0.3}\n', {30: 0.3}),
        (
            "file: m.json, format: json",
            "score=1\n{}\n{\n" + "x" * 10_000_000 + '\n{"score": 0.3}\n',
            {1: 0.3},
        ),
    ],
    ids=["text", "patterns", "json", "step", "not json"],
)
def test_a_file_is_read_instead_of_the_log(
    cli: Cli, metrics: str, text: str, expected: dict[int, float]
) -> None:
    write(cli, TO_A_FILE.format(text=text), metrics)
    code, _, err = cli.tuner("run", cli.file)
    assert code == 0, err
    assert curve(cli) == expected
    assert ("skipped 3 lines of m.json: not a JSON object" in err) == ("x" * 100 in text)


def test_a_containers_path_in_the_command_is_a_path_of_each_trial(cli: Cli) -> None:
    program = (
        "import sys\nprint(sys.argv[1])\nopen(sys.argv[1].split('=')[1], 'w').write('score=0.5')"
    )
    write(
        cli,
        program,
        "file: /var/log/katib/metrics.log",
        words=("--log=/var/log/katib/metrics.log",),
    )
    code, _, err = cli.tuner("run", cli.file)
    assert (code, curve(cli)) == (0, {1: 0.5}), err
    (log,) = (cli.folder / "state").glob("experiments/*/trials/0/1/log.txt")
    assert log.read_text() == f"--log={log.parent}/output/var/log/katib/metrics.log\n"


def test_event_files_are_read(cli: Cli) -> None:
    shutil.copytree(FIXTURES / "tensorflow", cli.folder / "recorded")
    program = (
        "import os, shutil\nshutil.copytree('recorded', os.environ['TUNER_METRICS_FILE'], "
        "dirs_exist_ok=True)"
    )
    write(cli, program, "file: runs, format: tensorboard")
    cli.file.write_text(
        cli.file.read_text().replace("metric: score", "metric: validation/epoch_accuracy")
    )
    code, _, err = cli.tuner("run", cli.file)
    assert code == 0, err
    assert curve(cli, "validation/epoch_accuracy") == {0: 0.9, 1: 0.91, 2: 0.92}
    assert curve(cli, "train/epoch_accuracy") == {0: 0.5, 1: 0.51, 2: 0.52}


def test_an_endpoint_is_scraped(cli: Cli) -> None:
    write(cli, SCRAPED, "prometheus: {}", more="  pruning: {name: median}\n")
    code, _, err = cli.tuner("run", cli.file)
    assert (code, curve(cli)) == (0, {3: 0.5}), err


def test_a_controller_that_is_killed_counts_no_line_twice_and_loses_none(cli: Cli) -> None:
    write(cli, ROTATES, "file: m.txt", more="  pruning: {name: median}\n")
    run_with_kills(cli, kills=4)
    assert curve(cli) == {n: n for n in range(1, 91)}


def test_a_trial_reports_as_katibs_sdk_does(cli: Cli) -> None:
    write(
        cli,
        f"{REPORTS}\nreport_metrics({{'epoch': 7, 'score': 0.5, 'loss': 'nan'}})",
        "dbManager: true",
    )
    code, _, err = cli.tuner("run", cli.file)
    assert (code, curve(cli)) == (0, {7: 0.5}), err


def test_a_killed_controller_loses_no_report(cli: Cli) -> None:
    write(cli, REPORTS_OFTEN, "dbManager: true", more="  pruning: {name: median}\n")
    run_with_kills(cli, kills=3)
    assert curve(cli) == {n: n for n in range(1, 61)}


REPORTS_TWICE = f"""{REPORTS}
report_metrics({{"score": 1}})
while not os.path.exists("go"):
    time.sleep(0.02)
report_metrics({{"score": 2}})
"""


def test_a_report_that_nobody_receives_fails_its_trial(cli: Cli) -> None:
    write(cli, REPORTS_TWICE, "dbManager: true", more="  pruning: {name: median}\n")
    run = cli.start("run", cli.file)
    once_it_reads_more(cli, run, set())
    run.kill()
    run.communicate()
    (lock,) = cli.folder.glob("state/experiments/*/reports.lock")
    os.kill(json.loads(lock.read_bytes())["pid"], signal.SIGKILL)
    (cli.folder / "go").touch()
    (log,) = cli.folder.glob("state/experiments/*/trials/*/*/log.txt")
    eventually(lambda: "StatusCode.UNAVAILABLE" in log.read_text())
    code, _ = ended(cli.start("run", cli.file))
    (trial,) = json.loads(cli.tuner("get", "trials", "tiny", "-o", "json")[1])
    assert (code, trial["state"], trial["attempts"][0]["failureClass"]) == (
        3,
        "failed",
        "userError",
    )


def run_with_kills(cli: Cli, *, kills: int) -> None:
    """Run the experiment to its end, and kill the controller so often after it has read more."""
    read: set[int] = set()
    for _ in range(kills):
        process = cli.start("run", cli.file)
        read = once_it_reads_more(cli, process, read)
        process.kill()
        process.communicate()
    code, err = ended(cli.start("run", cli.file))
    assert code == 0, err


def once_it_reads_more(cli: Cli, process: subprocess.Popen[str], read: set[int]) -> set[int]:
    eventually(
        lambda: process.poll() is not None or len(curve_so_far(cli)) > len(read), within_s=120
    )
    return curve_so_far(cli)


def curve_so_far(cli: Cli) -> set[int]:
    try:
        return set(curve(cli))
    except sqlite3.OperationalError:
        time.sleep(0.02)  # the store is being made
        return set()


@pytest.mark.parametrize(
    ("program", "metrics", "reason"),
    [
        (
            "print('score=1')",
            "file: m.txt",
            "nothing was read from m.txt: the program must write to the path that "
            "TUNER_METRICS_FILE has, or listen "
            "at TUNER_METRICS_PORT",
        ),
        (
            TO_A_FILE.format(text="a\nb"),
            "file: m.txt, format: json",
            'no "score" in m.txt (2 lines are not a JSON object)',
        ),
        (
            TO_A_FILE.format(text='{"Score": 1}'),
            "file: m.txt, format: json",
            'no "score" in m.txt; it has "Score" (1 time): set spec.objective.metric to the name '
            "that is printed, or "
            'print "score"',
        ),
    ],
)
def test_missing_metrics_are_explained(cli: Cli, program: str, metrics: str, reason: str) -> None:
    write(cli, program, metrics)
    cli.tuner("run", cli.file)
    assert why(cli, "tiny/0").startswith(f"Why: exit code 0, but {reason}")
