"""Removes the secrets from a storage URL.

Both halves use it wherever such a URL is printed, logged or stored.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

HIDDEN = "***"

_SECRET = re.compile(
    r"passw(or)?d|passphrase|pwd|secret|token|credential|(^|[_-])key$", re.IGNORECASE
)
# Secrets in a query, and in libpq's `name=value` form, where a value may be quoted.
_SETTING = re.compile(r"(?P<name>[\w%.-]+)(?P<equals>\s*=\s*)(?P<value>'(?:\\.|[^'\\])*'|[^&;\s]*)")


def redacted_url(text: str) -> str:
    """Return the URL without password and secret parameters (`password`, `sslpassword`, …).

    The URL may be malformed. In doubt, too much is hidden,
    because a password may contain unescaped @, / and ?.
    """
    scheme, separator, rest = text.partition("://")
    if separator and not scheme.startswith("sqlite"):  # whose path may contain anything
        place, question, query = rest.partition("?")
        if "@" not in place and ":" in place and "@" in query:
            place, question, query = rest, "", ""
        userinfo, at, host = place.rpartition("@")
        user, colon, _ = userinfo.partition(":")
        rest = f"{user}{colon}{HIDDEN if colon else ''}{at}{host}{question}{query}"
    return _SETTING.sub(_redacted_setting, f"{scheme}{separator}{rest}")


def _redacted_setting(found: re.Match[str]) -> str:
    if not _SECRET.search(unquote(found["name"])) or not found["value"]:
        return found[0]
    return f"{found['name']}{found['equals']}{HIDDEN}"
