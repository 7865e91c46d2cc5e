"""Train a network on the digits, and report its metrics where one of Katib's collectors reads them.

    python reporting.py --to text --place /katib/metrics.log -- --lr=0.1 --epochs=3

What follows `--` goes to ../digits/train.py, which trains and prints a line per epoch.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TRAIN = Path(__file__).resolve().parent.parent / "digits" / "train.py"
Report = Callable[[int, dict[str, float]], None]


def training(arguments: list[str]) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield each epoch with its metrics. Exits as the training does if it fails."""
    with subprocess.Popen(
        [sys.executable, str(TRAIN), *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if line.startswith("epoch="):
                named = dict(word.split("=") for word in line.split())
                yield int(named.pop("epoch")), {name: float(value) for name, value in named.items()}
    if process.returncode:
        sys.exit(process.returncode)


def to_text(place: str) -> Report:
    """Return a function that writes lines such as `{metricName: accuracy, metricValue: 0.97}` for
    Katib's filters.
    """

    def report(epoch: int, metrics: dict[str, float]) -> None:
        with Path(place).open("a") as file:
            for name, value in metrics.items():
                file.write(f"{{metricName: {name}, metricValue: {value}}};{{epoch {epoch}}}\n")

    return report


def to_json(place: str) -> Report:
    """Return a function that writes a JSON object per epoch. Katib's values are strings."""

    def report(epoch: int, metrics: dict[str, float]) -> None:
        with Path(place).open("a") as file:
            values = {name: str(value) for name, value in metrics.items()}
            file.write(json.dumps({"epoch": str(epoch), **values}) + "\n")

    return report


def to_tensorboard(place: str) -> Report:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(place)

    def report(epoch: int, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            writer.add_scalar(name, value, epoch)
        writer.flush()

    return report


def to_prometheus(place: str) -> Report:
    """Return a function that sets gauges, and waits until they have been scraped."""
    page, scraped = [""], threading.Event()

    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = page[0]
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body.encode())
            if body == page[0]:
                scraped.set()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("", int(place)), Metrics)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def report(epoch: int, metrics: dict[str, float]) -> None:
        page[0] = f"epoch {epoch}\n" + "".join(
            f"{name} {value}\n" for name, value in metrics.items()
        )
        scraped.clear()
        scraped.wait(5)

    return report


def to_db_manager(place: str) -> Report:
    """Return a function that does what `report_metrics` of Katib's SDK does,
    with Katib's address.
    """
    import grpc

    from suggest.katib.v1beta1 import api_pb2 as api

    def report(epoch: int, metrics: dict[str, float]) -> None:
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        values = {"epoch": epoch, **metrics}.items()
        logs = [
            api.MetricLog(time_stamp=stamp, metric=api.Metric(name=name, value=str(v)))
            for name, v in values
        ]
        request = api.ReportObservationLogRequest(
            trial_name=os.environ["KATIB_TRIAL_NAME"],
            observation_log=api.ObservationLog(metric_logs=logs),
        )
        with grpc.insecure_channel("katib-db-manager.kubeflow:6789") as channel:
            call = channel.unary_unary(
                "/api.v1.beta1.DBManager/ReportObservationLog",
                request_serializer=api.ReportObservationLogRequest.SerializeToString,
                response_deserializer=api.ReportObservationLogReply.FromString,
            )
            call(request, timeout=30)

    return report


WAYS = {
    "text": to_text,
    "json": to_json,
    "tensorboard": to_tensorboard,
    "prometheus": to_prometheus,
    "db-manager": to_db_manager,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--to", choices=WAYS, required=True)
    parser.add_argument("--place", default="", help="the file, the directory or the port")
    parser.add_argument("arguments", nargs="*", help="of ../digits/train.py")
    options = parser.parse_args()
    report = WAYS[options.to](options.place)
    for epoch, metrics in training(options.arguments):
        report(epoch, metrics)


if __name__ == "__main__":
    main()
