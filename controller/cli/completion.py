"""`tuner completion SHELL`, and the hidden `tuner __complete WORDS`
that its scripts call at each TAB.

Verbs and flags come from the parser, names from the state directory. A TAB must be fast
and must not change anything, so this module imports only argparse, json and sqlite3,
and opens controller.db for reading only.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from controller import app, report
from controller.cli.arguments import parser_of, subparsers

MOST_TRIALS = 500  # the newest trials, which are offered
# The placeholder of a value in the help says what the value is.
_FILES = frozenset({"FILE", "FILE|NAME", "NAME|FILE", "SOURCE"})
_EXPERIMENTS = frozenset({"NAME", "NAME[/N]", "FILE|NAME", "NAME|FILE", "SOURCE"})
_STATES = (
    "queued",
    "running",
    "paused",
    "succeeded",
    "pruned",
    "infeasible",
    "failed",
    "cancelled",
)
_LOOKED_AT = 5  # the trials whose metrics are offered as columns


def script(arguments: argparse.Namespace) -> int:
    file = Path(__file__).parent / "completions" / f"tuner.{arguments.shell}"
    print(file.read_text(encoding="utf-8"), end="")
    return 0


def complete(words: Sequence[str]) -> int:
    """Print the completions of the last of `words`.

    First `files`, `directories` or `words`, then one per line. A description may follow a
    completion, after a tab. `files` means that names of files are completions as well.
    """
    kind, candidates = "words", dict[str, str]()
    with suppress(OSError, sqlite3.Error, ValueError):  # errors would disturb the command line
        kind, candidates = _CommandLine(words or [""]).answer()
    print(kind)
    for word, meaning in candidates.items():
        print(f"{word}\t{meaning}")
    return 0


class _CommandLine:
    """The typed words: the verb, the flags, and the word to complete."""

    def __init__(self, words: Sequence[str]) -> None:
        *before, self._current = _without_breaks(words)
        self._parser = parser_of()
        self._given: dict[str, str] = {}  # flags with their values
        self._positionals: list[str] = []
        self._pending: argparse.Action | None = None  # the flag whose value is completed
        for word in before:
            self._take(word)

    def _take(self, word: str) -> None:
        if self._pending is not None:
            self._given[self._pending.dest] = word
            self._pending = None
        elif word.startswith("-") and word != "-":
            flag, equals, value = word.partition("=")
            action = self._flags().get(flag)
            if action is not None and equals:
                self._given[action.dest] = value
            elif action is not None and action.nargs is None:
                self._pending = action
        elif word in (below := subparsers(self._parser)):
            self._parser = below[word]
        else:
            self._positionals.append(word)

    def _flags(self) -> dict[str, argparse.Action]:
        """Return the flags of the verb, or the flags of every verb while none was typed."""
        parser = self._parser
        while below := subparsers(parser):
            parser = next(iter(below.values()))
        flags: dict[str, argparse.Action] = {}
        for action in parser._actions:
            flags |= dict.fromkeys(action.option_strings, action)
        return flags

    def answer(self) -> tuple[str, dict[str, str]]:
        if self._pending is not None:
            return self._values(self._pending, self._current)
        flag, equals, value = self._current.partition("=")
        if equals and flag in self._flags():
            kind, values = self._values(self._flags()[flag], value)
            return kind, {f"{flag}={word}": meaning for word, meaning in values.items()}
        if self._current.startswith("-"):
            flags = {
                flag: action.help or ""
                for flag, action in self._flags().items()
                if flag.startswith("--")
            }
            if self._current == "-":
                flags |= {flag: action.help or "" for flag, action in self._flags().items()}
            return "words", _beginning(flags, self._current)
        below = subparsers(self._parser)
        if below:
            return "words", _beginning(
                {name: _help(self._parser, name) for name in below}, self._current
            )
        actions = self._parser._get_positional_actions()
        if len(self._positionals) < len(actions):
            return self._values(actions[len(self._positionals)], self._current)
        if actions and actions[-1].nargs in ("+", "*"):
            return self._values(actions[-1], self._current)
        return "words", {}

    def _values(self, action: argparse.Action, current: str) -> tuple[str, dict[str, str]]:
        metavar = str(action.metavar or "")
        if action.choices is not None:
            return "words", _beginning({str(choice): "" for choice in action.choices}, current)
        if metavar == "DIR":
            return "directories", {}
        candidates: dict[str, str] = {}
        if action.dest in ("state", "columns"):  # a comma-separated list
            head, comma, current = current.rpartition(",")
            offered = _STATES if action.dest == "state" else self._columns()
            return "words", {
                head + comma + word: "" for word in _beginning(dict.fromkeys(offered, ""), current)
            }
        if action.dest == "sort":
            offered = self._columns()
            candidates = _beginning(
                {**dict.fromkeys(offered, ""), **{f"-{word}": "" for word in offered}}, current
            )
        elif metavar == "NS":
            candidates = _beginning(dict.fromkeys(self._namespaces(), ""), current)
        elif metavar in _EXPERIMENTS:
            candidates = self._names(current, trials=metavar == "NAME[/N]")
        return ("files" if metavar in _FILES else "words"), candidates

    # Names in controller.db

    def _query(self, statement: str, *values: str) -> list[tuple[str, ...]]:
        """Return the rows of a query; none if there is no store: completion never creates one."""
        return self._query_in("controller.db", statement, *values)

    def _query_in(self, file: str, statement: str, *values: str) -> list[tuple[str, ...]]:
        path = _state_directory(self._given.get("state_dir")) / file
        if not path.is_file():
            return []
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=0.2)
        ) as connection:
            return connection.execute(statement, values).fetchall()

    def _namespaces(self) -> list[str]:
        return [
            row[0]
            for row in self._query("SELECT DISTINCT namespace FROM experiments ORDER BY namespace")
        ]

    def _names(self, current: str, *, trials: bool) -> dict[str, str]:
        name, slash, number = current.partition("/")
        namespace = self._given.get("namespace", "")
        if not slash:
            query = "SELECT name, state FROM experiments WHERE ? IN (namespace, '') ORDER BY name"
            return _beginning({row[0]: row[1] for row in self._query(query, namespace)}, current)
        if not trials:
            return {}
        query = (
            "SELECT CASE trial WHEN -1 THEN 'final' ELSE trial END, state, max(attempts.number) "
            "FROM attempts JOIN (SELECT uid AS whose FROM experiments WHERE name = ? AND ? IN "
            "(namespace, '')) ON uid = whose WHERE (CASE trial WHEN -1 THEN 'final' ELSE trial "
            f"END) || '' GLOB ? GROUP BY trial ORDER BY trial DESC LIMIT {MOST_TRIALS}"
        )
        prefix = number if number.isalnum() else ""
        return {
            f"{name}/{row[0]}": row[1]
            for row in reversed(self._query(query, name, namespace, f"{prefix}*"))
        }

    def _columns(self) -> list[str]:
        """Return the columns; with the experiment's parameters and metrics if it is named."""
        columns = list(report.text_tables.HEADINGS)
        query = (
            "SELECT document, study FROM revisions JOIN experiments USING (uid) WHERE "
            "experiments.name = ? ORDER BY number DESC LIMIT 1"
        )
        rows = self._query(query, self._positionals[0]) if self._positionals else []
        if not rows:
            return columns
        document, study = rows[0]
        spec = json.loads(document)["spec"]
        return [
            *columns,
            *spec["parameters"],
            *(f"metrics.{name}" for name in self._metrics(study, spec)),
        ]

    def _metrics(self, study: str, spec: dict[str, Any]) -> list[str]:
        """Return the metrics that the first trials reported, except the objective's."""
        _, namespace, _, name = study.split("/")
        query = (
            "SELECT DISTINCT metric FROM measurements WHERE namespace = ? AND study = ? AND trial "
            f"< {_LOOKED_AT} ORDER BY metric"
        )
        objective = spec.get("objective", {}).get("metric")
        rows = self._query_in("studies.db", query, namespace, name)
        return [metric for (metric,) in rows if metric != objective]


def _without_breaks(words: Sequence[str]) -> Iterator[str]:
    """Join `--output=json`: bash splits it in three and replaces only what follows the `=`."""
    whole: list[str] = []
    for word in words[:-1]:
        if whole and (word == "=" or (whole[-1].endswith("=") and whole[-1].startswith("-"))):
            whole[-1] += word
        else:
            whole.append(word)
    last = words[-1]
    if whole and whole[-1].startswith("--") and whole[-1].endswith("="):
        yield from (*whole[:-1], whole[-1][:-1], last)
    elif last == "=" and whole and whole[-1].startswith("--"):
        yield from (*whole, "")
    else:
        yield from (*whole, last)


def _beginning(candidates: dict[str, str], current: str) -> dict[str, str]:
    return {word: meaning for word, meaning in candidates.items() if word.startswith(current)}


def _help(parser: argparse.ArgumentParser, name: str) -> str:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return next(
                (
                    str(choice.help or "")
                    for choice in action._choices_actions
                    if choice.dest == name
                ),
                "",
            )
    return ""


def _state_directory(flag: str | None) -> Path:
    return app.state_directory.StateDirectory.find(flag).root
