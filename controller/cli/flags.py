"""The flags of the verbs. Each public name is a function that adds one group of flags.

Besides the standard library, imports only the table of runtimes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from controller.core.runtime_traits import BUILT_IN, DEFAULT_RUNTIME


def _one(*names: str, **options: Any) -> Callable[[argparse.ArgumentParser], None]:
    """Return the function that adds one flag, with the arguments of `add_argument`."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(*names, **options)

    return add


file = _one("file", metavar="FILE", help="the experiment; - is standard input")
foreign_file = _one(
    "file", metavar="FILE", help="the experiment of Katib or Trainer; - is standard input"
)
optional_file = _one(
    "file", metavar="FILE", nargs="?", help="an experiment whose requirements are checked too"
)
file_or_name = _one("target", metavar="FILE|NAME", help="the experiment's file, or its name")


def name_or_changed_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME|FILE", help="the experiment, or its changed file")
    parser.set_defaults(context=None, runtime=None)


def which_failed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("numbers", metavar="N", nargs="*", help="the number of a failed trial")
    parser.add_argument("--failed", action="store_true", help="all failed trials")
    parser.add_argument(
        "--reason",
        metavar="R",
        default="",
        help="only those that failed for this reason: userError, outOfMemory, timeout, "
        "metricsMissing, infrastructure, or a part of the message",
    )


trials = _one(
    "--trials", metavar="+N", default="", help="add N trials; without the +, N is the new total"
)
gpu_hours = _one(
    "--gpu-hours", metavar="+N", default="", help="add N GPU-hours to the budget, or set the total"
)
cost = _one(
    "--cost", metavar="+N", default="", help="add N units of money to the budget, or set the total"
)
name_or_file_to_fill = _one(
    "name", metavar="FILE|NAME", help="the experiment that receives the trials"
)


def sources(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from", metavar="SOURCE", dest="source", required=True, help="where to read the trials"
    )
    parser.add_argument(
        "--study", metavar="S", default="", help="the study, if the store has several"
    )
    parser.add_argument(
        "--value",
        metavar="V",
        default="",
        help="what to import as the value: a CSV column, a metric or an objective",
    )
    parser.add_argument(
        "--fill",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="the value of a parameter that the source lacks; repeatable",
    )


shell = _one("shell", choices=("bash", "zsh", "fish"), help="your shell")
new_file = _one(
    "file", metavar="FILE", nargs="?", default="experiment.yaml", help="(default experiment.yaml)"
)
name = _one("name", metavar="NAME", help="the experiment")
names = _one("names", metavar="NAME", nargs="+", help="the experiments")
experiment_or_study = _one("name", metavar="NAME", help="the experiment, or a study without one")
name_or_all = _one(
    "name", metavar="NAME", nargs="?", help="the experiment (default: all that are not over)"
)
name_or_trial = _one("name", metavar="NAME[/N]", help="the experiment, or its trial number N")
values = _one(
    "values", metavar="PATH=VALUE", nargs="+", help="a key of the file, and its value from now on"
)
overrides = _one(
    "--set",
    metavar="PATH=VALUE",
    action="append",
    default=[],
    help="override a value of the file; repeatable",
)


context = _one(
    "--context", metavar="C", help="context of the kubeconfig (default: the current one)"
)


def cluster(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--context",
        metavar="C",
        dest="cluster",
        help="an experiment of the controller in the cluster of this context of the kubeconfig",
    )


migrated = _one("names", metavar="NAME", nargs="*", help="the experiments (default: all)")


def migration(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--yes", action="store_true", help="do it; without this, only say what would be done"
    )
    parser.add_argument(
        "--undo",
        action="store_true",
        help="give the named experiments back to Katib, and delete Tuner's; keeps their studies",
    )
    parser.add_argument(
        "--ended", action="store_true", help="list experiments that have ended, too"
    )


def all_namespaces(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-A",
        "--all-namespaces",
        action="store_true",
        help="with --context: of all namespaces that you may read, not only the context's",
    )


def where(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runtime",
        metavar="|".join(BUILT_IN),
        help=f"where trials run (default: the file's spec.runtime, else {DEFAULT_RUNTIME})",
    )
    context(parser)


def resumed_where(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runtime",
        metavar="|".join(BUILT_IN),
        help="where trials run, continued from this machine (default: as before)",
    )
    cluster(parser)


applied_file = _one(
    "-f", "--filename", metavar="FILE", dest="file", required=True, help="- is standard input"
)
applied_dry_run = _one(
    "--dry-run", action="store_true", help="have the cluster check it, and change nothing"
)
dry_run = _one(
    "--dry-run",
    choices=("client", "server"),
    help="create nothing: print the cluster's objects (client), or have the cluster check them "
    "(server)",
)
from_cluster = _one(
    "--from-cluster",
    action="store_true",
    help="rebuild NAME from the cluster after its database was lost",
)


def service(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n",
        "--namespace",
        metavar="NS",
        help="the experiment's namespace (default: the file's, or the only one with NAME)",
    )
    service = parser.add_mutually_exclusive_group()
    service.add_argument(
        "--server",
        metavar="ADDRESS",
        help="a running suggestion service (host:port or unix:PATH; separate several with commas)",
    )
    service.add_argument(
        "--storage", metavar="URL", help="the study store (default <state-dir>/studies.db)"
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="token for --server (else TUNER_TOKEN, TUNER_TOKEN_FILE)",
    )
    parser.add_argument(
        "--tls-ca",
        metavar="FILE",
        help="CA of the certificate of --server (a PEM file, or system); else TUNER_TLS_CA, else "
        "no TLS",
    )
    parser.add_argument(
        "--tls-cert",
        metavar="FILE",
        help="client certificate, if --server requires one (else TUNER_TLS_CERT)",
    )
    parser.add_argument("--tls-key", metavar="FILE", help="key of --tls-cert (else TUNER_TLS_KEY)")


def listing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o",
        "--output",
        choices=("table", "json", "yaml", "csv", "name"),
        default="table",
        help="(default table)",
    )
    parser.add_argument(
        "--no-headers", action="store_true", help="omit the header of table and csv"
    )
    parser.add_argument(
        "-w", "--watch", action="store_true", help="print changes until the experiment has ended"
    )


def trial_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sort",
        metavar="COLUMN",
        help="value, number, time, a parameter or a metric; -COLUMN: the largest first",
    )
    parser.add_argument(
        "--state",
        metavar="S",
        action="append",
        default=[],
        help="only trials in this state; repeatable",
    )
    parser.add_argument("--limit", metavar="N", type=int, help="only the first N")
    parser.add_argument("--columns", metavar="A,B,C", help="columns of table and csv")


watch = _one(
    "-w",
    "--watch",
    action="store_true",
    help="refresh every two seconds until the experiment has ended",
)


def page(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--port",
        metavar="PORT",
        type=int,
        help="the port on 127.0.0.1 (default: the last one used, or a free one)",
    )
    parser.add_argument(
        "--optuna", action="store_true", help="show optuna-dashboard instead, which is read-only"
    )


data_output = _one(
    "-o", "--output", choices=("table", "json", "yaml"), default="table", help="(default table)"
)
export_format = _one("--format", choices=("csv", "json"), default="csv", help="(default csv)")


def reporting(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o",
        "--output",
        choices=("table", "json", "yaml", "csv"),
        default="table",
        help="(default table)",
    )
    parser.add_argument(
        "--all", action="store_true", help="show all trials in the table, not only the first 20"
    )
    parser.add_argument("--html", metavar="FILE", help="write a self-contained page with figures")
    parser.add_argument(
        "--figure", metavar="FIGURE", help="write one figure to --to; an unknown name lists all"
    )
    parser.add_argument(
        "--to", metavar="FILE", help="the file of --figure: .svg, .png or .json (Vega-Lite)"
    )


def log_part(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-f", "--follow", action="store_true", help="follow the log until the trial ends"
    )
    parser.add_argument("--tail", metavar="N", type=int, help="only the last N lines of each log")
    parser.add_argument(
        "--since",
        metavar="WHEN",
        help="only lines printed since: 10m, 1h30m, or a time such as 2026-01-31T09:00:00Z",
    )
    parser.add_argument(
        "--attempt", metavar="N", type=int, help="attempt N of the trial (default: the newest)"
    )


def yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    parser.add_argument(
        "--force",
        action="store_true",
        help="delete local data even if the service is unavailable; print what remains on it",
    )
    parser.add_argument(
        "--keep-study",
        action="store_true",
        help="with --context: keep the results in the controller's store",
    )
    parser.add_argument(
        "--local-only",
        action="store_true",
        help="delete local data without contacting the cluster; print what remains on it",
    )


storage = _one("--storage", metavar="URL", help="the study store (default <state-dir>/studies.db)")


def confirmed_best(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--confirmed",
        action="store_true",
        help="the best by the reruns of tuner confirm, and how sure that is",
    )


def confirming(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--top", metavar="K", type=int, default=3, help="how many of the best trials (default 3)"
    )
    parser.add_argument(
        "--seeds", metavar="N", type=int, default=5, help="how many new seeds (default 5)"
    )


trial = _one("name", metavar="NAME/N", help="trial number N of the experiment")
times = _one("--times", metavar="K", type=int, default=1, help="how often (default 1)")
pack_target = _one("--to", metavar="FILE", help="the new file (default NAME.tar.gz)")
pack_source = _one("source", metavar="FILE", help="a file written by tuner pack")
backup_target = _one(
    "target", metavar="DIR|FILE", help="a new folder, or a new FILE.db for the study store only"
)


def backup_keep(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keep",
        metavar="N",
        type=int,
        help="write to a new folder in DIR, named by the time, and keep the newest N of these",
    )


def backup_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        metavar="DIR|FILE",
        help="a folder written by tuner db backup, or one database in it",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="replace existing stores, which are kept under another name",
    )


def controlling(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--storage",
        metavar="URL",
        default="",
        help="keep studies and experiments in PostgreSQL (default: SQLite in --state-dir)",
    )
    parser.add_argument(
        "--watch-namespace",
        metavar="NS",
        action="append",
        default=[],
        help="run only the experiments of this namespace; may be repeated (default: all)",
    )
    parser.add_argument(
        "--katib",
        choices=("all", "annotated"),
        nargs="?",
        const="all",
        help="run the experiments of Katib as well (kubeflow.org/v1beta1): all, or those with the "
        'annotation tuner.dev/controlled: "true"',
    )
    parser.add_argument(
        "--db-manager-port",
        metavar="PORT",
        type=int,
        help="answer Katib's clients that ask its DBManager for values of trials; without TLS",
    )
    parser.add_argument(
        "--allow-service-account",
        metavar="NAME",
        action="append",
        default=[],
        help="let pods of trials have this service account, besides `default`; may be repeated",
    )
    parser.add_argument(
        "--allow-kind",
        metavar="GROUP/KIND",
        action="append",
        default=[],
        help="let templates of trials be of this kind, besides `batch/Job`; may be repeated",
    )
    parser.add_argument(
        "--price",
        metavar="RESOURCE=AMOUNT",
        action="append",
        default=[],
        help="price of an hour of a resource, whatever spec.prices says of it; may be repeated",
    )
    parser.add_argument(
        "--node-price-label",
        metavar="LABEL",
        default="",
        help="the label of nodes that --node-price is about",
    )
    parser.add_argument(
        "--node-price",
        metavar="VALUE:RESOURCE=AMOUNT",
        action="append",
        default=[],
        help="price of an hour of a resource of the nodes whose label has this value, instead of "
        "--price; may be repeated",
    )
    parser.add_argument(
        "--archive",
        metavar="s3://BUCKET/PREFIX",
        default="",
        help="copy the logs of ended attempts to this bucket; AWS_* variables have its credentials",
    )
    parser.add_argument(
        "--keep-logs-for",
        metavar="DURATION",
        default="",
        help="delete older logs from the bucket, such as 720h (default: never)",
    )
    parser.add_argument(
        "--keep-logs-size",
        metavar="SIZE",
        default="",
        help="delete the oldest logs of a bucket beyond this size (default: never)",
    )
    parser.add_argument(
        "--log-limit",
        metavar="SIZE",
        default="1Gi",
        help="keep at most so much of each log, whatever spec.trial.logLimit says (default: 1Gi)",
    )
    parser.add_argument(
        "--kube-api-qps",
        metavar="N",
        type=float,
        help="send at most so many requests a second to the API server, of which one namespace has "
        "at most half (default: 500)",
    )
    parser.add_argument(
        "--running-experiments",
        metavar="N",
        type=int,
        default=1000,
        help="run at most so many experiments at a time, of which one namespace has at most half; "
        "the others wait, and their statuses say so (default: 1000)",
    )
    parser.add_argument(
        "--health-port",
        metavar="PORT",
        type=int,
        help="answer /healthz and /readyz on this port",
    )
    parser.add_argument(
        "--metrics-port",
        metavar="PORT",
        type=int,
        help="answer /metrics on this port, for Prometheus",
    )
    parser.add_argument(
        "--http-port",
        metavar="PORT",
        type=int,
        help="serve the page, and what the command line reads, on this port, over TLS",
    )
    parser.add_argument(
        "--webhook",
        metavar="NAME",
        default="",
        help="keep the certificate of the HTTP port in this ValidatingWebhookConfiguration, and "
        "answer its reviews",
    )
    parser.add_argument(
        "--grpc-port",
        metavar="PORT",
        type=int,
        help="serve the suggestion service on this port, over TLS",
    )
    parser.add_argument(
        "--tls-cert",
        metavar="FILE",
        default="",
        help="the certificate of both ports, re-read when it changes (default: one of its own)",
    )
    parser.add_argument("--tls-key", metavar="FILE", default="", help="its key")
    parser.add_argument(
        "--page-proxy",
        metavar="CIDR",
        action="append",
        default=[],
        help="believe requests to the page from here about who sends them; may be repeated",
    )
    parser.add_argument(
        "--page-proxy-client-ca",
        metavar="FILE",
        default="",
        help="believe only a proxy with a client certificate of an authority in this PEM file; "
        "without --page-proxy, from any address",
    )
    parser.add_argument(
        "--page-proxy-allowed-name",
        metavar="NAME",
        action="append",
        default=[],
        help="the common name of the proxy's certificate; may be repeated",
    )
    parser.add_argument(
        "--page-user-header",
        metavar="NAME",
        default="",
        help="the header in which the proxy names the user, such as X-Forwarded-User",
    )
    parser.add_argument(
        "--page-groups-header",
        metavar="NAME",
        default="",
        help="the header in which the proxy lists the user's groups, with commas",
    )


def serving(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--address", metavar="ADDR", default="127.0.0.1:7117", help="HOST:PORT or unix:PATH"
    )
    storage(parser)
    parser.add_argument(
        "--advertise",
        metavar="ADDR",
        default="",
        help="the address at which clients of other servers reach this server (default: --address)",
    )
    parser.add_argument(
        "--tokens",
        metavar="FILE",
        default="",
        help="tokens and their permissions (docs/api.md, Tokens)",
    )
    parser.add_argument(
        "--tls-cert",
        metavar="FILE",
        default="",
        help="the server's certificate (PEM, followed by its chain)",
    )
    parser.add_argument("--tls-key", metavar="FILE", default="", help="the certificate's key")
    parser.add_argument(
        "--tls-client-ca",
        metavar="FILE",
        default="",
        help="CA that signs client certificates; every client then needs one",
    )
    parser.add_argument(
        "--limits",
        metavar="FILE",
        default="",
        help="limits of clients and namespaces (docs/server.md)",
    )
    parser.add_argument(
        "--metrics-address",
        metavar="ADDR",
        default="",
        help="HOST:PORT for Prometheus: /metrics and /healthz",
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="accept unauthenticated clients; with --tokens: serve without TLS",
    )
    parser.add_argument(
        "--katib",
        metavar="PORTS",
        nargs="?",
        const="6789,6788",
        default="",
        help="also serve Katib's clients, which send no token, at these ports (default 6789,6788)",
    )
    parser.add_argument(
        "--katib-checkpoints",
        metavar="DIR",
        help="the folder with the trials' checkpoints; required for Katib's pbt",
    )
    parser.add_argument(
        "--ui",
        metavar="ADDR",
        nargs="?",
        const="127.0.0.1:0",
        default="",
        help="also serve a web page of the studies at HOST:PORT (default 127.0.0.1 and a free "
        "port)",
    )
    parser.add_argument(
        "--check", action="store_true", help="check the configuration and start nothing"
    )
    parser.add_argument(
        "--sync",
        choices=("normal", "full"),
        default="normal",
        help="what an acknowledged write survives: a crash of the process (normal, default) or of "
        "the machine (full)",
    )
