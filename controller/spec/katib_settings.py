"""Settings of Katib's algorithms, read from the texts of a file."""

from __future__ import annotations

import math
import re

from controller.spec.yaml_text import MAX_NUMBER_LENGTH
from suggest.domain import Value
from suggest.katib_settings import TRIAL_DIR, KatibSetting


def taken(setting: KatibSetting, text: str) -> Value:
    """Return the value of the native setting; None for its default.

    Raises ValueError with what is expected.
    """
    if setting.to == TRIAL_DIR:
        if not text.startswith("/") or not text.strip("/"):
            raise ValueError("expected the absolute path of a folder")
        return text.rstrip("/")
    if setting.words:
        if text not in setting.words:
            raise ValueError(f"expected one of {', '.join(setting.words)}")
        return setting.words[text]
    if setting.kind is str:
        return text
    value: float | None = None
    if not (setting.is_optional and text == "None"):
        value = _number(setting, text)
    return text if setting.is_as_written else value


def _number(setting: KatibSetting, text: str) -> float:
    if setting.kind is float:
        number = real(text)
    elif len(text) > MAX_NUMBER_LENGTH:
        raise ValueError(f"expected a number of at most {MAX_NUMBER_LENGTH} digits")
    elif re.fullmatch(r"[0-9]+", text):
        number = int(text)
    else:
        number = math.nan
    if not setting.holds(number):
        raise ValueError(f"expected {setting.expected}")
    return max(number, setting.least_used)


def real(text: str) -> float:
    value = (
        float(text)
        if re.fullmatch(r"[+-]?([0-9]*[.])?[0-9]+([eE][+-]?[0-9]+)?", text)
        else math.nan
    )
    if not math.isfinite(value):
        raise ValueError("expected a number")
    return value
