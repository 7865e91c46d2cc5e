"""Parse durations and amounts such as `1h30m` and `512Mi`,
and write them in one canonical spelling.

Pure functions. `parse_*` raise ValueError with a message that ends with the cure.
"""

from __future__ import annotations

import re

_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:d|h|ms|m|s))+")
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(d|h|ms|m|s)")
_SECONDS = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)(Ki|Mi|Gi|Ti|Pi|Ei|k|M|G|T|P|E)?")
_LOOSE_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgtpKMGTP])i?[bB]?(?:ytes)?")
_BYTES = {name: 1024 ** (i + 1) for i, name in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))}
_BYTES |= {name: 1000 ** (i + 1) for i, name in enumerate(("k", "M", "G", "T", "P", "E"))}
MIN_BYTES = 1024**2
DURATION_SCHEMA = r"^ *([0-9]+(\.[0-9]+)? *(d|h|ms|m|s) *)+$"
AMOUNT_SCHEMA = r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|Pi|Ei|k|M|G|T|P|E)?$"


def parse_duration(text: str) -> float:
    """Return the seconds of a duration such as `90s`, `30m`, `6h`, `1h30m` or `1d`."""
    compact = text.replace(" ", "")
    if not _DURATION.fullmatch(compact) or len(compact) > 60:
        raise ValueError(f"{text!r} is not a duration; write 90s, 30m, 6h, 1h30m or 1d")
    return sum(float(number) * _SECONDS[unit] for number, unit in _DURATION_PART.findall(compact))


def format_duration(seconds: float) -> str:
    """Return the canonical spelling of a duration: 5400 seconds are always `1h30m`."""
    if seconds != int(seconds):
        return f"{round(seconds, 3)!r}s"
    remaining = int(seconds)
    parts = ""
    for unit in ("d", "h", "m", "s"):
        count, remaining = divmod(remaining, int(_SECONDS[unit]))
        parts += f"{count}{unit}" if count else ""
    return parts or "0s"


def parse_bytes(raw: str | int | float) -> int:
    """Return the bytes of a Kubernetes quantity such as `512Mi`, `1G` or 1073741824."""
    text = f"{raw:.0f}" if isinstance(raw, float) else str(raw)
    amount_match = _AMOUNT.fullmatch(text)
    if amount_match is None or len(text) > 30:
        match = _LOOSE_AMOUNT.fullmatch(text)
        cure = f"{match[1]}{match[2].upper()}i" if match else "512Mi or 16Gi"
        raise ValueError(f"{text!r} is not an amount of memory; write {cure}")
    number, unit = amount_match.groups()
    amount = int(float(number) * (_BYTES[unit] if unit else 1))
    if 0 < amount < MIN_BYTES:
        mebibytes = f"{number.removesuffix('.0')}Mi"
        raise ValueError(f"{text} is {amount} bytes; write {mebibytes} or {number}Gi")
    return amount


def format_bytes(amount: int) -> str:
    for unit in ("Gi", "Mi", "Ki"):
        if amount and amount % _BYTES[unit] == 0:
            return f"{amount // _BYTES[unit]}{unit}"
    return str(amount)


def parse_cpu(raw: str | int | float) -> float:
    """Return the cores of an amount such as 2, 0.5 or `500m`."""
    text = str(raw)
    try:
        return float(text[:-1]) / 1000 if text.endswith("m") else float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number of CPUs; write 2, 0.5 or 500m") from None
