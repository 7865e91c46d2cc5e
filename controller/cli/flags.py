"""What verbs take: each function gives a parser one group of flags. Decides nothing, imports argparse only."""

from __future__ import annotations

import argparse


def file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the experiment; - is standard input")


def optional_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", nargs="?", help="an experiment: also check what its trials need")


def file_or_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="FILE|NAME", help="the experiment's file, or its name")


def file_or_name_to_extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME|FILE", help="the experiment, or its file with changes in it")
    parser.set_defaults(context=None, runtime=None)


def file_or_name_to_retry(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME|FILE", help="the experiment, or its corrected file")
    parser.set_defaults(context=None, runtime=None)


def which_failed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("numbers", metavar="N", nargs="*", help="a failed trial's number")
    parser.add_argument("--failed", action="store_true", help="all failed trials")
    parser.add_argument(
        "--reason",
        metavar="R",
        default="",
        help="of those only the ones that failed so: userError, outOfMemory, timeout, metricsMissing, infrastructure, "
        "or words of the reason",
    )


def trials(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trials", metavar="+N", default="", help="so many more; without the +, so many in all")


def name_or_file_to_fill(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="FILE|NAME", help="the experiment that is to learn from them")


def sources(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--from", metavar="SOURCE", dest="source", required=True, help="where the trials are")
    parser.add_argument("--study", metavar="S", default="", help="which study of a store, if it has several")
    parser.add_argument(
        "--value", metavar="V", default="", help="what the value is there: a CSV's column, a metric, an objective"
    )
    parser.add_argument(
        "--fill",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a parameter that is missing there; repeatable",
    )


def shell(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="which one")


def new_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", nargs="?", default="experiment.yaml", help="(default experiment.yaml)")


def name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the experiment")


def experiment_or_study(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the experiment, or a study without one")


def name_or_trial(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME[/N]", help="the experiment, or its trial number N")


def overrides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set", metavar="PATH=VALUE", action="append", default=[], help="override a value of the file; repeatable"
    )


def where(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runtime", choices=("local", "kubernetes"), help="where trials run (default local)")
    parser.add_argument("--context", metavar="C", help="of the Kubernetes configuration")


def dry_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dry-run", choices=("client", "server"),
        help="make nothing: print what a cluster would get (client), or have it check that (server)",
    )  # fmt: skip


def from_cluster(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from-cluster", action="store_true", help="the database is lost: rebuild what the cluster still has of NAME"
    )


def service(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--namespace", metavar="NS", help="whose experiment (default: the file's, else any)")
    service = parser.add_mutually_exclusive_group()
    service.add_argument(
        "--server", metavar="ADDRESS", help="a running suggestion service (host:port, unix:PATH; several with commas)"
    )
    service.add_argument("--storage", metavar="URL", help="the study store (default <state-dir>/studies.db)")
    parser.add_argument(
        "--token-file", metavar="FILE", help="your token for --server (else TUNER_TOKEN, TUNER_TOKEN_FILE)"
    )
    parser.add_argument(
        "--tls-ca", metavar="FILE", help="who may vouch for --server, or system; without it no TLS (else TUNER_TLS_CA)"
    )
    parser.add_argument(
        "--tls-cert", metavar="FILE", help="your certificate, where --server asks for one (else TUNER_TLS_CERT)"
    )
    parser.add_argument("--tls-key", metavar="FILE", help="its key (else TUNER_TLS_KEY)")


def listing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", choices=("table", "json", "yaml", "csv", "name"), default="table", help="(default table)"
    )
    parser.add_argument("--no-headers", action="store_true", help="of table and csv")
    parser.add_argument(
        "-w", "--watch", action="store_true", help="go on with what changes, until the experiment has ended"
    )


def trial_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sort", metavar="COLUMN", help="value, number, time, a parameter or a metric; -COLUMN: the largest first"
    )
    parser.add_argument(
        "--state", metavar="S", action="append", default=[], help="only trials in that state; repeatable"
    )
    parser.add_argument("--limit", metavar="N", type=int, help="the first N only")
    parser.add_argument("--columns", metavar="A,B,C", help="these, of table and csv")


def watch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-w", "--watch", action="store_true", help="again every two seconds, until it has ended")


def best_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", choices=("table", "json", "yaml"), default="table", help="(default table)")


def export_format(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", choices=("csv", "json"), default="csv", help="(default csv)")


def reporting(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", choices=("table", "json", "yaml", "csv"), default="table", help="(default table)"
    )
    parser.add_argument("--all", action="store_true", help="all trials in the table, not the first 20 only")


def log_part(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the trial ends")
    parser.add_argument("--tail", metavar="N", type=int, help="the last N lines of each log only")
    parser.add_argument(
        "--since", metavar="WHEN", help="what was printed since: 10m, 1h30m, or a time such as 2026-01-31T09:00:00Z"
    )
    parser.add_argument("--attempt", metavar="N", type=int, help="of a trial: that attempt, not the newest")


def yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument(
        "--force",
        action="store_true",
        help="also if its service is gone: remove what is here, say what is left there",
    )
    parser.add_argument(
        "--local-only",
        action="store_true",
        help="its cluster is gone: ask it nothing, remove what is here, say what is left there",
    )


def storage(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--storage", metavar="URL", help="the study store (default <state-dir>/studies.db)")


def backup_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="DIR|FILE", help="a new folder; or a new FILE.db for the study store alone")


def backup_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="DIR|FILE", help="a folder of tuner db backup, or one database in it")
    parser.add_argument(
        "--force", action="store_true", help="replace the stores that are there; they are kept under another name"
    )


def serving(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--address", metavar="ADDR", default="127.0.0.1:7117", help="HOST:PORT or unix:PATH")
    storage(parser)
    parser.add_argument(
        "--advertise", metavar="ADDR", default="", help="where other servers' clients reach this one (default ADDRESS)"
    )
    parser.add_argument(
        "--tokens", metavar="FILE", default="", help="who may come, and what each may do (docs/api.md, Tokens)"
    )
    parser.add_argument("--tls-cert", metavar="FILE", default="", help="the server's certificate (PEM, chain after it)")
    parser.add_argument("--tls-key", metavar="FILE", default="", help="the certificate's key")
    parser.add_argument(
        "--tls-client-ca", metavar="FILE", default="", help="who may vouch for clients; each needs a certificate then"
    )
    parser.add_argument(
        "--limits", metavar="FILE", default="", help="how much clients and namespaces may have (docs/server.md)"
    )
    parser.add_argument(
        "--metrics-address", metavar="ADDR", default="", help="HOST:PORT for Prometheus: /metrics and /healthz"
    )
    parser.add_argument(
        "--insecure", action="store_true", help="let all in who reach HOST:PORT; with --tokens: without TLS"
    )
    parser.add_argument("--check", action="store_true", help="start nothing: say what is well and what is not")
    parser.add_argument(
        "--sync", choices=("normal", "full"), default="normal",
        help="what an answered write survives: the process's death (default normal), or also the machine's",
    )  # fmt: skip
