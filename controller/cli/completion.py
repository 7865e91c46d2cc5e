"""`tuner completion SHELL`, and the completions that its script asks for at each TAB.

argcomplete reads verbs, flags and choices off the parser; the names are from the state directory. A
TAB must be fast and must not change anything, so this module imports only argparse, argcomplete,
json and sqlite3, and opens controller.db for reading only.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing, suppress
from typing import Any

import argcomplete
from argcomplete.completers import BaseCompleter, DirectoriesCompleter, FilesCompleter
from argcomplete.shell_integration import shellcode

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
    print(shellcode(["tuner"], shell=arguments.shell), end="")
    return 0


def complete() -> None:
    """Answer a script of `tuner completion`, and exit."""
    parser = parser_of()
    _prepare(parser)
    argcomplete.autocomplete(parser, always_complete_options=False)


def _prepare(parser: argparse.ArgumentParser) -> None:
    """Let the arguments of all verbs be completed by `_ArgumentValues`."""
    for below in subparsers(parser).values():
        _prepare(below)
    for action in parser._actions:  # argparse has no public way to ask
        if action.choices is None:
            # an attribute of argcomplete
            action.completer = _ArgumentValues()  # type: ignore[attr-defined]


class _ArgumentValues(BaseCompleter):
    """Offers the values of an argument, with what they mean. argcomplete selects by the prefix."""

    def __call__(
        self,
        *,
        prefix: str,
        action: argparse.Action,
        parser: argparse.ArgumentParser,
        parsed_args: argparse.Namespace,
    ) -> Mapping[str, str]:
        offered: dict[str, str] = {}
        with suppress(OSError, sqlite3.Error, ValueError):  # errors would disturb the command line
            offered = self._known(prefix, action, _StoredNames(parsed_args))
        if action.metavar in _FILES:
            offered |= dict.fromkeys(FilesCompleter()(prefix), "")
        return offered

    def _known(self, prefix: str, action: argparse.Action, names: _StoredNames) -> dict[str, str]:
        head, comma, _last = prefix.rpartition(",")
        if action.dest == "state":
            return {f"{head}{comma}{state}": "" for state in _STATES}
        if action.dest == "columns":
            return {f"{head}{comma}{column}": "" for column in names.columns()}
        if action.dest == "sort":
            columns = names.columns()
            return dict.fromkeys([*columns, *(f"-{column}" for column in columns)], "")
        if action.metavar == "NS":
            return dict.fromkeys(names.namespaces(), "")
        if action.metavar == "DIR":
            return dict.fromkeys(DirectoriesCompleter()(prefix), "")
        if action.metavar in _EXPERIMENTS:
            return names.experiments(prefix, trials=action.metavar == "NAME[/N]")
        return {}


class _StoredNames:
    """Names in controller.db, by the flags of the command line."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        flag = getattr(arguments, "state_dir", None)
        self._root = app.state_directory.StateDirectory.find(flag).root
        self._namespace = getattr(arguments, "namespace", None) or ""

    def _query(self, statement: str, *values: str) -> list[tuple[str, ...]]:
        """Return the rows of a query; none if there is no store: completion never creates one."""
        return self._query_in("controller.db", statement, *values)

    def _query_in(self, file: str, statement: str, *values: str) -> list[tuple[str, ...]]:
        path = self._root / file
        if not path.is_file():
            return []
        uri = f"{path.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=0.2)) as connection:
            return connection.execute(statement, values).fetchall()

    def namespaces(self) -> list[str]:
        query = "SELECT DISTINCT namespace FROM experiments ORDER BY namespace"
        return [namespace for (namespace,) in self._query(query)]

    def experiments(self, prefix: str, *, trials: bool) -> dict[str, str]:
        name, slash, number = prefix.partition("/")
        if not slash:
            query = "SELECT name, state FROM experiments WHERE ? IN (namespace, '') ORDER BY name"
            return {row[0]: row[1] for row in self._query(query, self._namespace)}
        if not trials:
            return {}
        query = (
            "SELECT CASE trial WHEN -1 THEN 'final' ELSE trial END, state, max(attempts.number) "
            "FROM attempts JOIN (SELECT uid AS whose FROM experiments WHERE name = ? AND ? IN "
            "(namespace, '')) ON uid = whose WHERE (CASE trial WHEN -1 THEN 'final' ELSE trial "
            f"END) || '' GLOB ? GROUP BY trial ORDER BY trial DESC LIMIT {MOST_TRIALS}"
        )
        beginning = number if number.isalnum() else ""
        rows = self._query(query, name, self._namespace, f"{beginning}*")
        return {f"{name}/{row[0]}": row[1] for row in reversed(rows)}

    def columns(self) -> list[str]:
        """Return the columns; with the experiment's parameters and metrics if it is named."""
        columns = list(report.text_tables.HEADINGS)
        query = (
            "SELECT document, study FROM revisions JOIN experiments USING (uid) WHERE "
            "experiments.name = ? ORDER BY number DESC LIMIT 1"
        )
        name = getattr(self._arguments, "name", None)
        rows = self._query(query, name) if name else []
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
