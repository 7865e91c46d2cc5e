"""Redact the values of environment variables that look like secrets.

Everything that is printed, exported, logged or written beside a trial goes through this module.
Stored data keeps the values, because a resumed experiment needs them: the file as the person wrote
it (mode 0600), and the document in `controller.db` (in a directory of mode 0700). A value that must
not be stored at all belongs in `{secret: name/key}`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from controller.core.model import SecretRef

HIDDEN = "[redacted]"
_SINGULAR = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL")
_SECRET_WORDS = (*_SINGULAR, *(f"{word}S" for word in _SINGULAR))


def looks_secret(name: str) -> bool:
    """Return whether a variable's name suggests a secret.

    API_KEY, HF_TOKEN and DBPASSWORD do; TOKENIZERS_PARALLELISM does not.
    """
    return any(word.endswith(_SECRET_WORDS) for word in re.split(r"[^A-Z0-9]+", name.upper()))


def redacted(env: Mapping[str, object]) -> dict[str, object]:
    """Return the environment as it may be shown. References to secrets are not redacted."""
    return {
        name: HIDDEN if looks_secret(name) and not isinstance(value, SecretRef | dict) else value
        for name, value in env.items()
    }


def redacted_document(document: Mapping[str, object]) -> dict[str, object]:
    """Return a copy of the document as it may be shown.

    Variables that a template lists as `{name, value}` are redacted as well.
    """
    redacted = _redacted(document)
    assert isinstance(redacted, dict)
    return redacted


def _redacted(data: object) -> object:
    if isinstance(data, list):
        return [_redacted(item) for item in data]
    if not isinstance(data, dict):
        return data
    copy = {key: _redacted(value) for key, value in data.items()}
    env = copy.get("env")
    if isinstance(env, dict):
        copy["env"] = redacted(env)
    name = copy.get("name")
    if isinstance(name, str) and isinstance(copy.get("value"), str) and looks_secret(name):
        copy["value"] = HIDDEN
    return copy
