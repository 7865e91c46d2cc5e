"""The parser of the command line. It imports no function of a verb,
so that `tuner --help` is instant.

A flag may precede or follow its verb: `tuner -v run x.yaml` is the same as `tuner run -v x.yaml`.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TypeAlias

from controller import cli
from controller.cli import flags
from controller.cli.verbs import VERBS, Verb, VerbGroup

# the next word belongs to the verb
_GROUPS = frozenset(verb.name for verb in VERBS if isinstance(verb, VerbGroup))
_LONGEST_LINE = 110  # of a description
_OPEN_ENDED = ("retry",)  # takes any number of words, which argparse expects to be adjacent
# The names that other programs have for these verbs.
_ELSEWHERE = {
    "create": "run",
    "start": "run",
    "optimize": "run",
    "continue": "resume",
    "ps": "top",
    "list": "get experiments",
    "ls": "get experiments",
    "trials": "get trials",
    "status": "describe",
    "show": "describe",
    "kill": "stop",
    "cancel": "stop",
    "rm": "delete",
    "remove": "delete",
}


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line. Exits with 0 after printing help, with 2 after a usage error."""
    parser, verbs, valued = _parser()
    if not argv:
        parser.print_help(sys.stderr)
        parser.exit(2)
    _refuse_bytes(parser, argv)
    argv, of_script = _without_script_words(argv)
    words = _verb_first(_joined(argv), valued)
    if not words[0].startswith("-") and words[0] not in verbs:
        parser.error(_unknown(words[0], verbs))
    _refuse_guesses(parser, words)
    arguments, unknown = parser.parse_known_args(words)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{_if_of_script(words, unknown)}")
    arguments.of_script = of_script
    return arguments


def _if_of_script(words: Sequence[str], unknown: Sequence[str]) -> str:
    """Return how to hand arguments over to the script that a command runs, if it runs one."""
    known = [word for word in words if word not in unknown]
    if words[0] != "run" or not any(word.endswith(".py") for word in known):
        return ""
    # lazy: only mistakes need it
    import shlex

    written = shlex.join([*cli.program.program_words(), *known, "--", *unknown])
    return f"; arguments of the script follow --: {written}"


def _without_script_words(argv: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Split `run study.py -- --epochs 3` into the words for this program and for the script."""
    if "--" in argv and any(word.endswith(".py") for word in argv):
        end = argv.index("--")
        return argv[:end], argv[end + 1 :]
    return argv, ()


def _refuse_bytes(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    """Exit if an argument has bytes that are not UTF-8: neither a store nor JSON holds them."""
    for word in argv:
        if not word.isascii() and any("\ud800" <= character <= "\udfff" for character in word):
            parser.error(
                f"{word!a} is not UTF-8; write it in UTF-8, and rename a file of such a name"
            )


def _joined(argv: Sequence[str]) -> list[str]:
    """Join words such as `--sort -value`: argparse takes no value that begins like a flag."""
    words: list[str] = []
    for word in argv:
        if words and words[-1] == "--sort" and word.startswith("-"):
            words[-1] = f"--sort={word}"
        else:
            words.append(word)
    return words


def options_of(words: Sequence[str]) -> frozenset[tuple[str, str]]:
    """Return the flags of the verb that a command begins with, each with its attribute.

    --context has two: where trials run, and whose controller has the experiment. None without a
    verb.
    """
    parser, _, _ = _parser()
    for word in words:
        chosen = subparsers(parser).get(word)
        if chosen is None:
            break
        parser = chosen
    return frozenset(
        chain.from_iterable(
            ((flag, action.dest) for flag in action.option_strings) for action in parser._actions
        )
    )


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
    "spec.parallelism": (
        "--parallelism",
        "--parallel",
        "--jobs",
        "--n-jobs",
        "--num-workers",
        "--concurrency",
        "-j",
    ),
    "spec.budget.trials": ("--trials", "--max-trials", "--n-trials", "--num-trials", "--budget"),
    "spec.budget.failedTrials": ("--failed-trials", "--max-failed-trials"),
    "spec.budget.wallClock": ("--wall-clock", "--max-duration"),
    "spec.budget.gpuHours": ("--gpu-hours",),
    "spec.budget.cost": ("--cost", "--max-cost"),
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
    """Refuse flags of other programs.

    For `tuner run FILE --parallelism 4` the error shows the equivalent `--set`.
    """
    verb = subparsers(parser).get(words[0])
    if verb is None or "--set" not in verb._option_string_actions:
        return
    known = verb._option_string_actions
    keys: dict[str, str] = {}
    for key, names in _KEYS.items():
        keys |= dict.fromkeys(names, key)
    keys = {flag: key for flag, key in keys.items() if flag not in known}
    for at, word in enumerate(words):
        flag, equals, value = word.partition("=")
        following = value if equals else "".join(words[at + 1 : at + 2])
        if flag == "-n" and following.isdigit():
            suggestion = f"--set spec.budget.trials={following}"
            if "--trials" in known:
                suggestion = f"--trials +{following}"
            parser.error(
                f"-n is --namespace, and {following} is not one; for the number of trials write: "
                f"{suggestion}"
            )
        if flag in keys:
            value = following if following and not following.startswith("-") else "VALUE"
            given = words[at : at + (1 if equals or value == "VALUE" else 2)]
            parser.error(
                f"{words[0]} has no flag {flag}; set it in the file, or with: --set "
                f"{keys[flag]}={value}{_if_of_script(words, given)}"
            )


def _unknown(word: str, verbs: frozenset[str]) -> str:
    # lazy: it costs milliseconds, and only misspellings need it
    from difflib import get_close_matches

    near = get_close_matches(word, sorted(verbs), n=1)
    suggestion = _ELSEWHERE.get(word) or (near[0] if near else "")
    if suggestion:
        return f"there is no verb {word}; did you mean {suggestion}?"
    import shlex

    return f"there is no verb {word}; see {shlex.join(cli.program.program_words())} --help"


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
            if argv[words[0]] not in _OPEN_ENDED and (
                len(words) == 2 or argv[words[0]] not in _GROUPS
            ):
                break
    return [argv[i] for i in words] + [word for i, word in enumerate(argv) if i not in words]


class _Formatter(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30)

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):
            # argparse leaves no room for their indentation.
            self._action_max_length += self._indent_increment

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Wrap each paragraph. Examples are indented, and stay as they are."""
        fill, longest = super()._fill_text, min(width, _LONGEST_LINE)
        lines = text.splitlines()
        return "\n".join(line if line[:1] == " " else fill(line, longest, indent) for line in lines)


@functools.cache  # a command with hints asks for it again
def _parser() -> tuple[argparse.ArgumentParser, frozenset[str], frozenset[str]]:
    """Return the parser, its verbs, and the flags that take the next word as their value."""
    parser = argparse.ArgumentParser(
        prog="tuner",
        description="Hyperparameter tuning that survives crashes: one file, one command.",
        epilog="example:\n  tuner init experiment.yaml\n  tuner run experiment.yaml\n\n"
        "tuner VERB --help describes a verb. Exit codes and Ctrl-C: docs/cli.md",
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action=_PrintVersion, nargs=0, help="print the version and exit"
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True, title="verbs")
    parsers = list(chain.from_iterable(_add(verbs, verb) for verb in VERBS))
    # argparse has no public way to ask for actions
    actions = chain.from_iterable(verb._actions for verb in parsers)
    with_value = [action.option_strings for action in actions if action.nargs is None]
    return parser, frozenset(verbs.choices), frozenset(chain.from_iterable(with_value))


class _PrintVersion(argparse.Action):
    """Prints the version and the commit."""

    def __call__(self, parser: argparse.ArgumentParser, *_unused: object) -> None:
        # Not for `tuner --help`, which loads nothing of the service.
        from suggest.distribution import described

        print(f"tuner {described()}")
        parser.exit()


_Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def _add(subparsers: _Subparsers, verb: Verb | VerbGroup) -> Iterator[argparse.ArgumentParser]:
    """Add a verb, or a group with its verbs. Yields the parser of each verb."""
    more = f"\n\n{verb.more}" if isinstance(verb, Verb) and verb.more else ""
    parser = subparsers.add_parser(
        verb.name,
        help=verb.does,
        description=f"{verb.does[0].upper()}{verb.does[1:]}.{more}",
        epilog=f"example:\n  {verb.example}" if isinstance(verb, Verb) else None,
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    if isinstance(verb, VerbGroup):
        of = parser.add_subparsers(metavar="WHAT", required=True, title="what")
        for nested in verb.verbs:
            yield from _add(of, nested)
        return
    for add in verb.flags:
        add(parser)
    flags.everywhere(parser)
    parser.set_defaults(verb=verb.function)
    yield parser
