"""The token file, which maps tokens, given by their SHA-256, to grants.

This module parses and validates bytes; `suggest.server.access.file_reloader` decides when to reload
them. A token is never stored, shown or logged. Lookups use a digest with a key that only this
process knows, so that neither a copy of the file nor the time of a reply reveals anything.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from typing import Any

from suggest import names, strict_yaml
from suggest.errors import InvalidArgument, Problems, did_you_mean, raise_if
from suggest.server.access.caller import AccessVerb, Grant

MIN_TOKEN = 20  # characters; a digest does not protect a token that can be guessed
ALL = "all"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}", re.ASCII)
_RESERVED = ("unix",)  # the name of callers without a token
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII | re.IGNORECASE)
_KEYS = ("sha256", "token", "namespaces", "verbs")
_NOTHING = Grant("", frozenset(), frozenset())


class Tokens:
    def __init__(self, grants: Mapping[bytes, Grant], *, plain: bool) -> None:
        """`grants` are by the SHA-256 of the token.

        `plain`: the file contains some tokens in plain text.
        """
        self._key = secrets.token_bytes(32)
        self._grants = {self._keyed_digest(digest): grant for digest, grant in grants.items()}
        self.plain = plain

    def __len__(self) -> int:
        return len(self._grants)

    def grant(self, token: str) -> Grant | None:
        return self._grants.get(self._keyed_digest(hashlib.sha256(token.encode()).digest()))

    def _keyed_digest(self, digest: bytes) -> bytes:
        return hmac.digest(self._key, digest, "sha256")


def read_tokens(content: bytes, *, place: str) -> Tokens:
    """Parse a token file, which messages call `place`. Raises InvalidArgument with all problems."""
    problems = Problems()
    grants: dict[bytes, Grant] = {}
    plain = False
    for name, entry in _entries(content, place).items():
        all_problems = Problems()
        at = f"{place}: tokens.{name if isinstance(name, str) else '?'}"
        digest, grant = _token(name, entry, at, all_problems)
        if digest in grants:
            all_problems.add(at, f"has the same secret as {grants[digest].name}; give each its own")
        problems += all_problems
        if not all_problems:
            plain = plain or "token" in entry
            grants[digest] = grant
    raise_if(problems)
    return Tokens(grants, plain=plain)


def _entries(content: bytes, place: str) -> Mapping[Any, Any]:  # the types that YAML has
    document = strict_yaml.load(content, place=place, page="docs/api.md")
    entries = document.get("tokens") if isinstance(document, dict) else None
    if not isinstance(entries, dict) or not entries or len(document) > 1:
        raise InvalidArgument.at(
            place,
            "must have the key `tokens:` and no other at the top, with a name for each token "
            "below it",
        )
    return entries


def _token(name: object, entry: object, at: str, problems: Problems) -> tuple[bytes, Grant]:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _RESERVED:
        problems.add(
            at, "a token's name is a letter, then letters, digits, - and _, at most 63; not unix"
        )
    if not isinstance(entry, dict):
        problems.add(at, "must have sha256 (or token), namespaces and verbs")
        return b"", _NOTHING
    for key in entry:
        if key not in _KEYS:
            hint = did_you_mean(str(key), _KEYS)
            problems.add(at, f"unknown key {str(key)[:40]}; use {', '.join(_KEYS)}{hint}")
    digest = _digest(entry, at, problems)
    namespaces = _words(entry.get("namespaces"), f"{at}.namespaces", problems)
    verbs = _words(entry.get("verbs"), f"{at}.verbs", problems)
    verbs_known = [verb.value for verb in AccessVerb]
    for word in namespaces or ():
        if problem := names.label_problem(word):
            problems.add(f"{at}.namespaces", problem)
    for word in verbs or ():
        if word not in verbs_known:
            message = (
                f"{word[:40]!r} is not a verb; use {', '.join(verbs_known)}, or "
                f"all{did_you_mean(word, verbs_known)}"
            )
            problems.add(f"{at}.verbs", message)
    allowed = (
        frozenset(AccessVerb)
        if verbs is None
        else frozenset(AccessVerb(word) for word in verbs if word in verbs_known)
    )
    return digest, Grant(str(name), allowed, namespaces)


def _digest(entry: Mapping[Any, Any], at: str, problems: Problems) -> bytes:
    token, digest = entry.get("token"), entry.get("sha256")
    if (token is None) == (digest is None):
        problems.add(at, "needs either sha256 (of the token, in hex) or the token itself")
    elif digest is not None:
        if isinstance(digest, str) and _DIGEST.fullmatch(digest):
            return bytes.fromhex(digest)
        problems.add(
            f"{at}.sha256",
            "must be 64 hex digits in quotes; make it with: printf %s TOKEN | sha256sum",
        )
    elif (
        not isinstance(token, str)
        or len(token) < MIN_TOKEN
        or token != token.strip()
        or not token.isascii()
    ):
        problems.add(
            f"{at}.token",
            f"must be a random text of {MIN_TOKEN} ASCII characters or more; make one with: "
            f"openssl rand -hex 32",
        )
    else:
        return hashlib.sha256(token.encode()).digest()
    return b""


def _words(value: object, at: str, problems: Problems) -> frozenset[str] | None:
    """Read a list of words; None means all."""
    if value == ALL:
        return None
    if isinstance(value, list) and value and all(isinstance(word, str) for word in value):
        return frozenset(value)
    problems.add(at, f"must be a non-empty list, or {ALL}")
    return frozenset()
