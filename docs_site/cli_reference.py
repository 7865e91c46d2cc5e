"""The page "Command line reference": `tuner VERB --help` of each verb,
as Markdown made from the parsers.

Reads private attributes of argparse (groups and their actions),
which has no public way to list them.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator

from controller.cli.arguments import parser_of, subparsers

HEAD = """\
# Command line reference

What `tuner VERB --help` prints, for all verbs. Tasks, exit codes, JSON and files: [Use the command line](../cli.md).
"""
EVERYWHERE = "everywhere"  # the title of the group of options that all commands have


def page() -> str:
    leaves = {
        words: parser
        for words, parser in _leaves("tuner", parser_of())
        if not words.startswith("tuner debug")
    }
    parts = [HEAD, *_everywhere(leaves["tuner run"])]
    for words, parser in leaves.items():
        parts += _verb(words, parser)
    return "\n".join(parts) + "\n"


def _leaves(
    words: str, parser: argparse.ArgumentParser
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    below = subparsers(parser)
    if not below:
        yield words, parser
    for word, each in below.items():
        yield from _leaves(f"{words} {word}", each)


def _verb(words: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    usage = "\n".join(
        line.removeprefix("usage: ").removeprefix(" " * 7)
        for line in parser.format_usage().splitlines()
    )
    description = (
        (parser.description or "").replace("\n\n", "\0").replace("\n", " ").replace("\0", "\n\n")
    )
    yield f"## {words}\n\n{_text(description)}\n"
    if example := (parser.epilog or "").partition("example:")[2]:
        lines = "\n".join(f"$ {line.strip()}" for line in example.strip().splitlines())
        yield f"```console\n{lines}\n```\n"
    yield f"```text\n{usage}\n```\n"
    yield from _table(
        action
        for group in parser._action_groups
        if group.title != EVERYWHERE
        for action in group._group_actions
    )


def _everywhere(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield "## Options of every command\n"
    yield from _table(
        action
        for group in parser._action_groups
        if group.title == EVERYWHERE
        for action in group._group_actions
    )


def _table(actions: Iterable[argparse.Action]) -> Iterator[str]:
    rows = [row for action in actions if (row := _row(action))]
    if rows:
        yield "\n".join(["| option | meaning |\n| --- | --- |", *rows]) + "\n"


def _row(action: argparse.Action) -> str:
    if action.help == argparse.SUPPRESS or isinstance(action, argparse._HelpAction):
        return ""
    value = _value(action)
    names = [f"`{name} {value}`" if value else f"`{name}`" for name in action.option_strings] or [
        f"`{value}`"
    ]
    return f"| {_cell(', '.join(names))} | {_cell(_text(action.help or ''))} |"


def _value(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    if action.metavar:
        return str(action.metavar)
    return "|".join(map(str, action.choices)) if action.choices else action.dest.upper()


def _text(text: str) -> str:
    """Help is plain text: what Markdown would take for markup is shown as it is."""
    return re.sub(r"([*_\[\]])", r"\\\1", text).replace("<", "&lt;")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
