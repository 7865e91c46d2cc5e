"""The parser of the command line: verbs, flags and help. Imports only argparse, so that `tuner --help` is instant.

A flag may precede or follow its verb: `tuner -v run x.yaml` is the same as `tuner run -v x.yaml`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from controller.cli import flags

_GROUPS = ("get", "db", "debug")  # the next word belongs to the verb
_OPEN_ENDED = ("retry",)  # takes any number of words, which argparse expects to be adjacent
# The names that other programs have for these verbs.
_ELSEWHERE = {
    "apply": "run", "create": "run", "start": "run", "optimize": "run", "continue": "resume", "ps": "top",
    "list": "get experiments", "ls": "get experiments", "trials": "get trials", "status": "describe",
    "show": "describe", "kill": "stop", "cancel": "stop", "rm": "delete", "remove": "delete",
}  # fmt: skip


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line. Exits the process with 0 after printing help, and with 2 after a usage error."""
    parser, verbs, valued = _parser()
    if not argv:
        parser.print_help(sys.stderr)
        parser.exit(2)
    words = _verb_first(_joined(argv), valued)
    if not words[0].startswith("-") and words[0] not in verbs:
        parser.error(_unknown(words[0], verbs))
    _refuse_guesses(parser, words)
    return parser.parse_args(words)


def _joined(argv: Sequence[str]) -> list[str]:
    """Join words such as `--sort -value`, because argparse takes no value that begins like a flag."""
    words: list[str] = []
    for word in argv:
        if words and words[-1] == "--sort" and word.startswith("-"):
            words[-1] = f"--sort={word}"
        else:
            words.append(word)
    return words


def options_of(words: Sequence[str]) -> frozenset[str]:
    """Return the flags of the verb that a command begins with; none if it does not begin with a verb."""
    parser, _, _ = _parser()
    for word in words:
        chosen = subparsers(parser).get(word)
        if chosen is None:
            break
        parser = chosen
    return frozenset(option for action in parser._actions for option in action.option_strings)


def parser_of() -> argparse.ArgumentParser:
    """Return the parser, for completion."""
    return _parser()[0]


def subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parser's subparsers by the words that select them."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


# Keys of the experiment's file, with the flags that other programs have for them.
_KEYS = {
    "spec.parallelism": ("--parallelism", "--parallel", "--jobs", "--n-jobs", "--num-workers", "--concurrency", "-j"),
    "spec.budget.trials": ("--trials", "--max-trials", "--n-trials", "--num-trials", "--budget"),
    "spec.budget.failedTrials": ("--failed-trials", "--max-failed-trials"),
    "spec.budget.wallClock": ("--wall-clock", "--max-duration"),
    "spec.algorithm.name": ("--algorithm", "--sampler"),
    "spec.algorithm.seed": ("--seed",),
    "spec.pruning.name": ("--pruning", "--pruner"),
    "spec.objective.metric": ("--metric",),
    "spec.objective.direction": ("--direction",),
    "spec.trial.timeout": ("--timeout",),
    "spec.trial.image": ("--image",),
    "spec.trial.resources.gpu": ("--gpu", "--gpus"),
}


def _refuse_guesses(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Refuse flags of other programs: for `tuner run FILE --parallelism 4` the error shows the equivalent `--set`."""
    verb = subparsers(parser).get(words[0])
    if verb is None or "--set" not in verb._option_string_actions:
        return
    known = verb._option_string_actions
    keys = {flag: key for key, flags_of in _KEYS.items() for flag in flags_of if flag not in known}
    for at, word in enumerate(words):
        flag, equals, value = word.partition("=")
        following = value if equals else "".join(words[at + 1 : at + 2])
        if flag == "-n" and following.isdigit():
            more = f"--trials +{following}" if "--trials" in known else f"--set spec.budget.trials={following}"
            parser.error(f"-n is --namespace, and {following} is not one; for the number of trials write: {more}")
        if flag in keys:
            value = following if following and not following.startswith("-") else "VALUE"
            parser.error(f"{words[0]} has no flag {flag}; set it in the file, or with: --set {keys[flag]}={value}")


def _unknown(word: str, verbs: frozenset[str]) -> str:
    from difflib import get_close_matches  # lazy: it costs milliseconds, and only misspellings need it

    near = get_close_matches(word, sorted(verbs), n=1)
    meant = _ELSEWHERE.get(word) or (near[0] if near else "")
    if meant:
        return f"there is no verb {word}; did you mean {meant}?"
    import shlex

    from controller.cli.invocation import program_words

    return f"there is no verb {word}; see {shlex.join(program_words())} --help"


def _verb_first(argv: list[str], valued: frozenset[str]) -> list[str]:
    """Move the verb to the front. `valued` are the flags that take the next word as their value."""
    words: list[int] = []  # positions of the words that are not flags
    skip = False
    for index, word in enumerate(argv):
        if skip:
            skip = False
        elif word == "--":
            break
        elif word.startswith("-") and word != "-":
            skip = word in valued
        else:
            words.append(index)
            if argv[words[0]] not in _OPEN_ENDED and (len(words) == 2 or argv[words[0]] not in _GROUPS):
                break
    return [argv[i] for i in words] + [word for i, word in enumerate(argv) if i not in words]


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30)


def _parser() -> tuple[argparse.ArgumentParser, frozenset[str], frozenset[str]]:
    """Return the parser, its verbs, and the flags that take the next word as their value."""
    parser = argparse.ArgumentParser(
        prog="tuner",
        description="Hyperparameter tuning that survives: one file, one command.",
        epilog="example:\n  tuner init experiment.yaml\n  tuner run experiment.yaml\n\n"
        "tuner VERB --help describes a verb. Exit codes and Ctrl-C: docs/cli.md",
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_PrintVersion, nargs=0, help="print the version and exit")
    verbs = parser.add_subparsers(metavar="VERB", required=True, title="verbs")
    made = list(_verbs(verbs))
    return (
        parser,
        frozenset(verbs.choices),
        frozenset(
            option
            for verb in made
            for action in verb._actions  # argparse has no public way to ask
            if action.option_strings and action.nargs is None
            for option in action.option_strings
        ),
    )


class _PrintVersion(argparse.Action):
    """Prints the version, which is looked up only on demand: importlib.metadata is slower than all of the help."""

    def __call__(self, parser: argparse.ArgumentParser, *_unused: object) -> None:
        from controller import version

        print(f"tuner {version()}")
        parser.exit()


_Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
_Flags = Callable[[argparse.ArgumentParser], None]


def _verbs(verbs: _Verbs) -> Iterator[argparse.ArgumentParser]:
    def verb(
        name: str, does: str, module: str, *takes: _Flags, example: str, more: str = ""
    ) -> argparse.ArgumentParser:
        return _add(verbs, name, does, module, *takes, example=example, more=more)

    yield verb(
        "run", "run an experiment; the same file again resumes it", "lifecycle:run",
        flags.file, flags.overrides, flags.where, flags.service, flags.dry_run,
        example="tuner run experiment.yaml --set spec.parallelism=4",
        more="Progress on stderr, the best trial on stdout. Ctrl-C stops cleanly: interrupted trials cost nothing and\n"
        "run again on resume. A second Ctrl-C kills.",
    )  # fmt: skip
    yield verb(
        "resume", "continue an experiment after a stop, a pause or an allowed change", "lifecycle:resume",
        flags.file_or_name, flags.overrides, flags.where, flags.service, flags.from_cluster,
        example="tuner resume experiment.yaml",
        more="With a file: changes under spec.trial, spec.final, spec.parallelism, spec.budget and spec.pruning are\n"
        "accepted and recorded as a revision. Lifts a pause, and runs again the trials that failed for it; of an\n"
        "experiment that has ended it runs a final stage that failed, or is new in the file.",
    )  # fmt: skip
    yield verb(
        "retry", "run failed trials again, then continue the search", "lifecycle:retry",
        flags.file_or_name_to_retry, flags.which_failed, flags.overrides, flags.service,
        example="tuner retry digits --failed --reason outOfMemory",
        more="Each runs as a new attempt of the same trial: same number, same parameters. Its earlier failure no\n"
        "longer counts in budget.failedTrials. No controller may be running; the experiment may have ended. With a\n"
        "FILE, its changes are accepted as tuner resume accepts them.",
    )  # fmt: skip
    yield verb(
        "extend", "add trials, widen ranges or add choices, then continue the search", "lifecycle:extend",
        flags.file_or_name_to_extend, flags.trials, flags.overrides, flags.service,
        example="tuner extend digits --trials +20 --set spec.parameters.lr.max=10",
        more="Of an experiment that nobody runs now, finished or not. All its trials are kept, and the search learns\n"
        "from them. Ranges may become wider, steps finer, choices more; anything else would be another search, and\n"
        "is refused. New choices: --set 'spec.parameters.optimizer=[sgd, adam, lamb]'; each is tried once at first.\n"
        "With a file: takes what has changed in it.",
    )  # fmt: skip
    yield verb(
        "import", "import finished trials from elsewhere to learn from", "lifecycle:import_trials",
        flags.name_or_file_to_fill, flags.sources, flags.overrides, flags.where, flags.service,
        example="tuner import experiment.yaml --from results.csv",
        more="SOURCE is an experiment's name, the URL of a store (sqlite:///studies.db, postgresql+psycopg://…) or of\n"
        "an Optuna database, or a CSV file with a column for each parameter and one for the value. Each trial is\n"
        "taken once, however often you say it; none costs budget, none is run. With a FILE whose experiment is not\n"
        "there yet, the experiment is made, and waits for tuner run.",
    )  # fmt: skip
    yield verb(
        "validate", "check a file and start nothing", "check:validate",
        flags.file, flags.overrides, flags.where, flags.service,
        example="tuner validate experiment.yaml",
    )  # fmt: skip
    yield verb(
        "init", "write a commented file to start from", "check:init", flags.new_file,
        example="tuner init experiment.yaml",
    )  # fmt: skip
    yield verb(
        "convert", "write an experiment file of Katib's as a native one", "check:convert", flags.katib_file,
        flags.overrides, flags.where, flags.service,
        example="tuner convert katib.yaml > experiment.yaml",
        more="Prints a native file that means the same as FILE, of apiVersion kubeflow.org/v1beta1. Warnings say\n"
        "what has no effect here. tuner run takes Katib's file as it is, too.",
    )  # fmt: skip
    yield verb(
        "schema",
        "print the file's JSON Schema, for editors",
        "check:schema",
        example="tuner schema > tuner.schema.json",
    )
    get = verbs.add_parser("get", help="list experiments, studies or trials", formatter_class=_Formatter,
                           description="List experiments, studies or trials.", allow_abbrev=False)  # fmt: skip
    of = get.add_subparsers(metavar="WHAT", required=True, title="what")
    yield _add(
        of, "experiments", "list experiments", "show:experiments", flags.listing, flags.service,
        example="tuner get experiments",
    )  # fmt: skip
    yield _add(
        of, "studies", "list the studies of a service or a store", "show:studies", flags.listing, flags.service,
        example="tuner get studies --server localhost:7117",
        more="Of --server or --storage, else of the state directory's store; those of experiments too.",
    )  # fmt: skip
    yield _add(
        of, "trials", "list the trials of an experiment, or of a study", "show:trials",
        flags.experiment_or_study, flags.listing, flags.trial_list, flags.service,
        example="tuner get trials digits --sort -value --state succeeded --limit 10 --columns number,value,lr,loss",
        more="Metrics that trials report beside the objective are columns metrics.NAME. NAME may be a study, made by\n"
        "clients of the service: tuner get studies.",
    )  # fmt: skip
    yield verb(
        "describe", "show the details of an experiment or a trial, and why it is so", "show:describe",
        flags.name_or_trial, flags.service,
        example="tuner describe digits/12",
    )  # fmt: skip
    yield verb(
        "logs", "print what a trial printed", "show:logs", flags.name_or_trial, flags.log_part, flags.service,
        example="tuner logs -f digits/12",
        more="NAME alone: the running trials (each line after its trial's number), else the last one.\n"
        "--since is exact to ten seconds, and rather too long than too short.",
    )  # fmt: skip
    yield verb(
        "report", "list the trials, best first, and what each parameter does to the value", "show:report",
        flags.name, flags.reporting, flags.service,
        example="tuner report digits",
        more="Of any experiment, running or not. The first 20 trials; -o json, yaml and csv have all of them.",
    )  # fmt: skip
    yield verb(
        "best", "print the best trial", "show:best", flags.name, flags.best_output, flags.service,
        example="tuner best digits -o json",
    )  # fmt: skip
    yield verb(
        "export", "write all trials as CSV or JSON", "show:export",
        flags.experiment_or_study, flags.export_format, flags.service,
        example="tuner export digits --format csv > digits.csv",
    )  # fmt: skip
    yield verb(
        "stop", "cancel an experiment's trials and end it", "lifecycle:stop", flags.name, flags.service,
        example="tuner stop digits",
        more="Running trials are cancelled. tuner resume NAME continues with new ones.",
    )  # fmt: skip
    yield verb(
        "delete", "remove an experiment with its trials' folders", "lifecycle:delete",
        flags.name, flags.yes, flags.service,
        example="tuner delete digits --yes",
    )  # fmt: skip
    yield verb(
        "top", "show running trials, the resources they hold, and what others wait for", "show:top",
        flags.name, flags.watch, flags.service,
        example="tuner top digits -w",
    )  # fmt: skip
    yield verb(
        "ui", "watch searches in a browser, on this machine", "ui:ui", flags.page, flags.service,
        example="tuner ui",
        more="Prints a link that is valid once. Served to this machine only; from elsewhere: ssh -L. Extra: ui.",
    )  # fmt: skip
    yield verb(
        "doctor", "find out what would keep trials from running: machine, cluster, file", "check:doctor",
        flags.optional_file, flags.overrides, flags.where, flags.service,
        example="tuner doctor experiment.yaml --context lab",
        more="Changes nothing. Exit code 0 when nothing FAILs, 4 where a right is missing, else 7.",
    )  # fmt: skip
    yield verb(
        "serve", "run the suggestion service", "serve:serve", flags.serving,
        example="tuner serve --address 127.0.0.1:7117 --tokens tokens.yaml --storage sqlite:////var/lib/tuner/studies.db",
    )  # fmt: skip
    yield verb(
        "completion", "print the script that completes commands, flags and names in your shell", "completion:script",
        flags.shell,
        example="source <(tuner completion bash)",
        more="Permanent installation: docs/cli.md",
    )  # fmt: skip
    yield verb("version", "print versions", "about:print_version", example="tuner version")
    db = verbs.add_parser("db", help="check, upgrade, back up and restore the databases",
                          description="Check, upgrade, back up and restore the databases.",
                          formatter_class=_Formatter, allow_abbrev=False)  # fmt: skip
    of = db.add_subparsers(metavar="WHAT", required=True, title="what")
    yield _add(
        of, "check", "print the schema of the study store", "db:check", flags.storage,
        example="tuner db check --storage postgresql+psycopg://tuner@db.example.org/tuner",
        more="Changes nothing. Exit code 0 if it is the newest, 5 if there is no store, 7 if it is another.",
    )  # fmt: skip
    yield _add(
        of, "upgrade", "upgrade the study store to the newest schema", "db:upgrade", flags.storage,
        example="tuner db upgrade --storage postgresql+psycopg://tuner@db.example.org/tuner",
    )  # fmt: skip
    yield _add(
        of, "backup", "copy the databases while they are in use", "db:back_up",
        flags.backup_target, flags.storage,
        example="tuner db backup backups/2026-11-23",
        more="Copies studies.db and controller.db of the state directory as they were at one moment, and verifies the\n"
        "copies; with --storage that store alone. Logs and outputs of trials are not in it. PostgreSQL: use pg_dump.",
    )  # fmt: skip
    yield _add(
        of, "restore", "replace the databases with a backup", "db:restore",
        flags.backup_source, flags.storage,
        example="tuner db restore backups/2026-11-23 --force",
        more="Stop the servers and runs that use them first; it refuses while one does.",
    )  # fmt: skip
    debug = verbs.add_parser("debug", help="help with tests of tuner itself",
                             description="Help with tests of tuner itself.",
                             formatter_class=_Formatter, allow_abbrev=False)  # fmt: skip
    of = debug.add_subparsers(metavar="WHAT", required=True, title="what")
    yield _add(
        of, "failpoints", "list the failpoints for TUNER_FAILPOINT", "about:failpoints",
        example="TUNER_FAILPOINT=runtime.start.after:3 tuner run experiment.yaml",
    )  # fmt: skip


def _add(
    verbs: _Verbs, name: str, does: str, verb: str, *takes: _Flags, example: str, more: str = ""
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(
        name,
        help=does,
        description=f"{does[0].upper()}{does[1:]}." + (f"\n\n{more}" if more else ""),
        epilog=f"example:\n  {example}",
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    for add in takes:
        add(parser)
    _common(parser)
    parser.set_defaults(verb=verb)
    return parser


def _common(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("everywhere")
    group.add_argument("--state-dir", metavar="DIR", help="where tuner keeps its state (else TUNER_STATE_DIR)")
    volume = group.add_mutually_exclusive_group()
    volume.add_argument("-q", "--quiet", action="store_true", help="print only errors on stderr")
    volume.add_argument("-v", "--verbose", action="store_true", help="print debug messages on stderr")
    group.add_argument("--log-format", choices=("text", "json"), default="text", help="format of stderr (default text)")
    group.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="(default auto)")
