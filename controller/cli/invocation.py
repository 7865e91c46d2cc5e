"""Adapt the commands in messages to the way in which this process was called,
so that they work as printed.

Only `rendered` adds the program's name and the typed flags to a command. This module is imported
only for messages.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence

from controller.cli.arguments import options_of
from controller.cli.options import is_name
from controller.cli.program import program_words
from controller.phrases import render
from suggest.url_redaction import redacted_url

# Each flag with its attribute and its environment variable,
# in the order in which flags are printed.
_REPEATED = (
    ("--state-dir", "state_dir", "TUNER_STATE_DIR"),
    ("--namespace", "namespace", ""),
    ("--server", "server", ""),
    ("--storage", "storage", ""),
    ("--token-file", "token_file", "TUNER_TOKEN_FILE"),
    ("--tls-ca", "tls_ca", "TUNER_TLS_CA"),
    ("--tls-cert", "tls_cert", "TUNER_TLS_CERT"),
    ("--tls-key", "tls_key", "TUNER_TLS_KEY"),
    ("--context", "context", ""),
    ("--context", "cluster", ""),
)


def rendered(text: str, arguments: argparse.Namespace) -> str:
    """Return `text` with each command as it must be typed in this shell."""
    if "`tuner " not in text:
        return text
    program, file = program_words(), _file(arguments)

    def rewrite(words: Sequence[str]) -> list[str]:
        words = [file if word == "FILE" and file is not None else word for word in words]
        return [*program, *words, *_flags(words, arguments, file)]

    return render(text, rewrite)


def _flags(words: Sequence[str], arguments: argparse.Namespace, file: str | None) -> Iterator[str]:
    """Yield the typed flags that the verb takes and no environment variable replaces."""
    options = options_of(words)
    for flag, attribute, variable in _REPEATED:
        value = getattr(arguments, attribute, None)
        if (
            value
            and (flag, attribute) in options
            and flag not in words
            and value != os.environ.get(variable or "-")
        ):
            yield from (flag, redacted_url(value) if flag == "--storage" else value)
    if file is None or file not in words:
        return
    for override in getattr(arguments, "set", None) or ():
        if ("--set", "set") in options and override not in words:
            yield from ("--set", override)
    runtime = getattr(arguments, "runtime", None)
    if runtime and ("--runtime", "runtime") in options:
        yield from ("--runtime", runtime)
        context = getattr(arguments, "context", None)
        # Beside a runtime, the context of `resume` says where trials run.
        if context and ("--context", "cluster") in options:
            yield from ("--context", context)


def _file(arguments: argparse.Namespace) -> str | None:
    """Return the experiment's file if the command named one; only then is `--set` repeated."""
    for attribute in ("file", "target", "name"):
        word = getattr(arguments, attribute, None)
        if isinstance(word, str):
            return word if attribute == "file" or not is_name(word) else None
    return None
