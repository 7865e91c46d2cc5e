"""The flags of the verbs. Each public name is a function that adds one flag, or a group of flags.

Besides the standard library, imports only the table of runtimes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, TypeAlias

from controller.core.runtime_traits import BUILT_IN, DEFAULT_RUNTIME

Flags: TypeAlias = "Callable[[argparse._ActionsContainer], None]"


def _flag(*names: str, help: str, **options: Any) -> Flags:
    """Return the function that adds one flag, with the arguments of `add_argument`."""

    def add(parser: argparse._ActionsContainer) -> None:
        parser.add_argument(*names, help=help, **options)

    return add


def _value(name: str, metavar: str, help: str, **options: Any) -> Flags:
    """Return a word, or a flag with a value, which is None without the flag."""
    return _flag(name, metavar=metavar, help=help, **options)


def _text(name: str, metavar: str, help: str, **options: Any) -> Flags:
    """Return a flag with a value, which is "" without the flag."""
    return _flag(name, metavar=metavar, help=help, **{"default": "", **options})


def _number(name: str, metavar: str, help: str, **options: Any) -> Flags:
    """Return a flag with a whole number, which is None without the flag and a default."""
    return _flag(name, metavar=metavar, help=help, **{"type": int, **options})


def _several(name: str, metavar: str, help: str) -> Flags:
    """Return a flag that may be repeated: a list of values."""
    return _flag(name, metavar=metavar, action="append", default=[], help=help)


def _switch(*names: str, help: str) -> Flags:
    """Return a flag without a value."""
    return _flag(*names, action="store_true", help=help)


def _group(*flags: Flags) -> Flags:
    def add(parser: argparse._ActionsContainer) -> None:
        for each in flags:
            each(parser)

    return add


def _either(*flags: Flags) -> Flags:
    """Return flags that exclude each other."""

    def add(parser: argparse._ActionsContainer) -> None:
        _group(*flags)(parser.add_mutually_exclusive_group())

    return add


def _titled(title: str, *flags: Flags) -> Flags:
    """Return flags with a heading in the help."""

    def add(parser: argparse._ActionsContainer) -> None:
        _group(*flags)(parser.add_argument_group(title))

    return add


def _preset(**values: object) -> Flags:
    """Return attributes that the functions of verbs read, and that this verb has no flags for."""

    def add(parser: argparse._ActionsContainer) -> None:
        parser.set_defaults(**values)

    return add


everywhere = _titled(
    "global options",
    _value("--state-dir", "DIR", "where tuner stores its state (else TUNER_STATE_DIR)"),
    _either(
        _switch("-q", "--quiet", help="print only errors on stderr"),
        _switch("-v", "--verbose", help="print debug messages on stderr"),
    ),
    _flag(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="format of stderr (default text)",
    ),
    _flag("--color", choices=("auto", "always", "never"), default="auto", help="(default auto)"),
)

# Words

file = _value("file", "FILE", "the experiment; - is standard input")
foreign_file = _value("file", "FILE", "the experiment of Katib; - is standard input")
optional_file = _value("file", "FILE", "an experiment; also checks what it requires", nargs="?")
new_file = _value("file", "FILE", "(default experiment.yaml)", nargs="?", default="experiment.yaml")
file_or_name = _value("target", "FILE|NAME", "the experiment's file, or its name")
name_or_changed_file = _group(
    _value("name", "NAME|FILE", "the experiment, or its changed file"),
    _preset(context=None, runtime=None),
)
name_or_file_to_fill = _value("name", "FILE|NAME", "the experiment that receives the trials")
name = _value("name", "NAME", "the experiment")
names = _value("names", "NAME", "the experiments", nargs="+")
migrated = _value("names", "NAME", "the experiments (default: all)", nargs="*")
experiment_or_study = _value("name", "NAME", "the experiment, or a study without one")
name_or_all = _value("name", "NAME", "the experiment (default: all that have not ended)", nargs="?")
name_or_trial = _value("name", "NAME[/N]", "the experiment, or its trial number N")
trial = _value("name", "NAME/N", "trial number N of the experiment")
values = _value("values", "PATH=VALUE", "a key of the file, and its new value", nargs="+")
shell = _flag("shell", choices=("bash", "zsh", "fish"), help="your shell")
pack_source = _value("source", "FILE", "a file written by tuner pack")
backup_target = _value(
    "target", "DIR|FILE", "a new folder, or a new FILE.db for the study store only"
)

# Where trials run, and where their experiment and their study are

context = _value("--context", "C", "context of the kubeconfig (default: the current one)")
cluster = _value(
    "--context",
    "C",
    "an experiment of the controller in the cluster of this context of the kubeconfig",
    dest="cluster",
)
where = _group(
    _value(
        "--runtime",
        "|".join(BUILT_IN),
        f"where trials run (default: the file's spec.runtime, else {DEFAULT_RUNTIME})",
    ),
    context,
)
resumed_where = _group(
    _value(
        "--runtime",
        "|".join(BUILT_IN),
        "where trials run, continued from this machine (default: as before)",
    ),
    cluster,
)
all_namespaces = _switch(
    "-A",
    "--all-namespaces",
    help="with --context: all namespaces that you may read, not only the context's",
)
storage = _value("--storage", "URL", "the study store (default <state-dir>/studies.db)")
service = _group(
    _flag(
        "-n",
        "--namespace",
        metavar="NS",
        help="the experiment's namespace (default: the file's, or the only one with NAME)",
    ),
    _either(
        _value(
            "--server",
            "ADDRESS",
            "a running suggestion service (host:port or unix:PATH; separate several with commas)",
        ),
        storage,
    ),
    _value("--token-file", "FILE", "token for --server (else TUNER_TOKEN, TUNER_TOKEN_FILE)"),
    _value(
        "--tls-ca",
        "FILE",
        "CA of the certificate of --server (a PEM file, or system); else TUNER_TLS_CA, else no TLS",
    ),
    _value(
        "--tls-cert",
        "FILE",
        "client certificate, if --server requires one (else TUNER_TLS_CERT)",
    ),
    _value("--tls-key", "FILE", "key of --tls-cert (else TUNER_TLS_KEY)"),
)

place = _group(cluster, service)

# What changes an experiment

overrides = _flag(
    "--set",
    metavar="PATH=VALUE",
    action="append",
    default=[],
    help="override a value of the file; repeatable",
)
dry_run = _flag(
    "--dry-run",
    choices=("client", "server"),
    help="create nothing: print the cluster's objects (client), or have the cluster check them "
    "(server)",
)
from_cluster = _switch(
    "--from-cluster", help="rebuild NAME from the cluster if its database is lost"
)
applied_file = _flag(
    "-f", "--filename", metavar="FILE", dest="file", required=True, help="- is standard input"
)
applied_dry_run = _switch("--dry-run", help="have the cluster check it, and change nothing")
trials = _text("--trials", "+N", "add N trials; without the +, N is the new total")
which_failed = _group(
    _value("numbers", "N", "the number of a failed trial", nargs="*"),
    _switch("--failed", help="all failed trials"),
    _text(
        "--reason",
        "R",
        "only those that failed for this reason: userError, outOfMemory, timeout, metricsMissing, "
        "infrastructure, or a part of the message",
    ),
)
sources = _group(
    _value("--from", "SOURCE", "where to read the trials", dest="source", required=True),
    _text("--study", "S", "the study, if the store has several"),
    _text("--value", "V", "what to import as the value: a CSV column, a metric or an objective"),
    _several("--fill", "NAME=VALUE", "the value of a parameter that the source lacks; repeatable"),
)
migration = _group(
    _switch("--yes", help="do it; without this, only print what would be done"),
    _switch(
        "--undo",
        help="give the named experiments back to Katib, and delete Tuner's; keeps their studies",
    ),
    _switch("--ended", help="list experiments that have ended, too"),
)
yes = _group(
    _switch("--yes", help="do not ask for confirmation"),
    _switch(
        "--force",
        help="delete local data even if the service is unavailable; print what remains on it",
    ),
    _switch("--keep-study", help="with --context: keep the results in the controller's store"),
    _switch(
        "--local-only",
        help="delete local data without contacting the cluster; print what remains on it",
    ),
)
confirming = _group(
    _number("--top", "K", "number of best trials (default 3)", default=3),
    _number("--seeds", "N", "number of new seeds (default 5)", default=5),
)
times = _number("--times", "K", "number of runs (default 1)", default=1)

# What is shown


def _output(*forms: str) -> Flags:
    return _flag("-o", "--output", choices=forms, default="table", help="(default table)")


listing = _group(
    _output("table", "json", "yaml", "csv", "name"),
    _switch("--no-headers", help="omit the header of table and csv"),
    _switch("-w", "--watch", help="print changes until the experiment has ended"),
)
trial_list = _group(
    _value(
        "--sort",
        "COLUMN",
        "value, number, time, a parameter or a metric; -COLUMN: the largest first",
    ),
    _several("--state", "S", "only trials in this state; repeatable"),
    _number("--limit", "N", "only the first N"),
    _value("--columns", "A,B,C", "columns of table and csv"),
)
watch = _switch("-w", "--watch", help="refresh every two seconds until the experiment has ended")
data_output = _output("table", "json", "yaml")
export_format = _flag("--format", choices=("csv", "json"), default="csv", help="(default csv)")
reporting = _group(
    _output("table", "json", "yaml", "csv"),
    _switch("--all", help="show all trials in the table, not only the first 20"),
    _value("--html", "FILE", "write a self-contained page with figures"),
    _value("--figure", "FIGURE", "write one figure to --to; an unknown name lists all"),
    _value("--to", "FILE", "the file of --figure: .svg, .png or .json (Vega-Lite)"),
)
log_part = _group(
    _switch("-f", "--follow", help="follow the log until the trial ends"),
    _number("--tail", "N", "only the last N lines of each log"),
    _number("--attempt", "N", "attempt N of the trial (default: the newest)"),
)
confirmed_best = _switch(
    "--confirmed", help="the best by the reruns of tuner confirm, and how sure that is"
)
page = _group(
    _number("--port", "PORT", "the port on 127.0.0.1 (default: the last one used, or a free one)"),
    _switch("--optuna", help="show optuna-dashboard instead, which is read-only"),
)

# Packs and backups

pack_target = _value("--to", "FILE", "the new file (default NAME.tar.gz)")
backup_keep = _number(
    "--keep",
    "N",
    "write to a new folder in DIR, named by the time, and keep the newest N of these",
)
backup_source = _group(
    _value("source", "DIR|FILE", "a folder written by tuner db backup, or one database in it"),
    _switch("--force", help="replace existing stores, which are kept under another name"),
)

# Servers

controlling = _group(
    _text(
        "--storage",
        "URL",
        "keep studies and experiments in PostgreSQL (default: SQLite in --state-dir)",
    ),
    _several(
        "--watch-namespace",
        "NS",
        "run only the experiments of this namespace; repeatable (default: all)",
    ),
    _flag(
        "--katib",
        choices=("all", "annotated"),
        nargs="?",
        const="all",
        help="also run Katib's experiments (kubeflow.org/v1beta1): all, or those with the "
        'annotation tuner.dev/controlled: "true"',
    ),
    _number(
        "--db-manager-port",
        "PORT",
        "serve values of trials to clients of Katib's DBManager on this port; without TLS",
    ),
    _several(
        "--allow-service-account",
        "NAME",
        "let pods of trials use this service account, besides `default`; repeatable",
    ),
    _several(
        "--allow-kind",
        "GROUP/KIND",
        "let templates of trials be of this kind, besides `batch/Job`; repeatable",
    ),
    _several(
        "--price",
        "RESOURCE=AMOUNT",
        "price of a resource for an hour; takes precedence over spec.prices; repeatable",
    ),
    _text("--node-price-label", "LABEL", "the node label that --node-price refers to"),
    _several(
        "--node-price",
        "VALUE:RESOURCE=AMOUNT",
        "price of a resource for an hour on nodes whose label has this value, instead of "
        "--price; repeatable",
    ),
    _text(
        "--archive",
        "s3://BUCKET/PREFIX",
        "copy the logs of ended attempts to this bucket; AWS_* variables contain the credentials",
    ),
    _text(
        "--keep-logs-for",
        "DURATION",
        "delete older logs from the bucket, such as 720h (default: never)",
    ),
    _text(
        "--keep-logs-size",
        "SIZE",
        "delete the oldest logs of a bucket beyond this size (default: never)",
    ),
    _text(
        "--log-limit",
        "SIZE",
        "keep at most this much of each log, even if spec.trial.logLimit is larger (default: 1Gi)",
        default="1Gi",
    ),
    _number(
        "--kube-api-qps",
        "N",
        "send at most this many requests per second to the API server, at most half of them for "
        "one namespace (default: 500)",
        type=float,
    ),
    _number(
        "--running-experiments",
        "N",
        "run at most this many experiments at a time, at most half of them in one namespace; the "
        "others wait, and their statuses say so (default: 1000)",
        default=1000,
    ),
    _number("--health-port", "PORT", "answer /healthz and /readyz on this port"),
    _number("--metrics-port", "PORT", "answer /metrics on this port, for Prometheus"),
    _number(
        "--http-port",
        "PORT",
        "serve the page and the API of the command line on this port, over TLS",
    ),
    _text(
        "--webhook",
        "NAME",
        "write the certificate of the HTTP port to this ValidatingWebhookConfiguration, and answer "
        "its reviews",
    ),
    _number("--grpc-port", "PORT", "serve the suggestion service on this port, over TLS"),
    _text(
        "--tls-cert",
        "FILE",
        "the certificate of both ports, re-read when it changes (default: self-signed)",
    ),
    _text("--tls-key", "FILE", "its key"),
    _several(
        "--page-proxy",
        "CIDR",
        "trust the user headers of requests to the page from these addresses; repeatable",
    ),
    _text(
        "--page-proxy-client-ca",
        "FILE",
        "trust only a proxy with a client certificate of an authority in this PEM file; without "
        "--page-proxy, from any address",
    ),
    _several(
        "--page-proxy-allowed-name",
        "NAME",
        "the common name of the proxy's certificate; repeatable",
    ),
    _text(
        "--page-user-header",
        "NAME",
        "the header in which the proxy names the user, such as X-Forwarded-User",
    ),
    _text(
        "--page-groups-header",
        "NAME",
        "the header in which the proxy lists the user's groups, separated by commas",
    ),
)
serving = _group(
    _text("--address", "ADDR", "HOST:PORT or unix:PATH", default="127.0.0.1:7117"),
    storage,
    _text(
        "--advertise",
        "ADDR",
        "the address at which clients of other servers reach this server (default: --address)",
    ),
    _text("--tokens", "FILE", "tokens and their permissions (docs/api.md, Tokens)"),
    _text("--tls-cert", "FILE", "the server's certificate (PEM, followed by its chain)"),
    _text("--tls-key", "FILE", "the certificate's key"),
    _text(
        "--tls-client-ca",
        "FILE",
        "CA of client certificates; every client then needs a certificate",
    ),
    _text("--limits", "FILE", "limits of clients and namespaces (docs/server.md)"),
    _text("--metrics-address", "ADDR", "HOST:PORT for Prometheus: /metrics and /healthz"),
    _switch("--insecure", help="accept unauthenticated clients; with --tokens: serve without TLS"),
    _text(
        "--katib",
        "PORTS",
        "also serve Katib's clients, which send no token, at these ports (default 6789,6788)",
        nargs="?",
        const="6789,6788",
    ),
    _value(
        "--katib-checkpoints",
        "DIR",
        "the folder with the trials' checkpoints; required for Katib's pbt",
    ),
    _text(
        "--ui",
        "ADDR",
        "also serve a web page of the studies at HOST:PORT (default 127.0.0.1 and a free port)",
        nargs="?",
        const="127.0.0.1:0",
    ),
    _switch("--check", help="check the configuration and start nothing"),
    _flag(
        "--sync",
        choices=("normal", "full"),
        default="normal",
        help="what an acknowledged write survives: a crash of the process (normal, default) or of "
        "the machine (full)",
    ),
)
