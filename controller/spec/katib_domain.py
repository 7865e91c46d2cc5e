"""The parameters of Katib's file as those of a native one."""

from __future__ import annotations

import re
from contextlib import suppress

from controller.spec.katib_section import Json, KatibSectionReader, shown
from controller.spec.katib_settings import real
from controller.spec.yaml_text import MAX_NUMBER_LENGTH
from suggest.domain import Normal, Scale, last_step

_TYPES = "int, double, categorical or discrete"
_WHOLE = re.compile(rf"[+-]?[0-9]{{1,{MAX_NUMBER_LENGTH}}}")
# Katib's distributions: the scale, and whether values are normal on it.
_DISTRIBUTIONS = {
    "uniform": ("linear", False),
    "logUniform": ("log", False),
    "normal": ("linear", True),
    "logNormal": ("log", True),
}


class KatibDomainReader(KatibSectionReader):
    """Reads parameters: their types and feasible spaces."""

    def _add_parameter(self, parameter: object, at: str, taken: Json, native_at: str) -> Json:
        """Read a parameter into `taken`, and return its domain; {} if it has problems.

        native_at: The place of all of them in a native file.
        """
        name = parameter.get("name") if isinstance(parameter, dict) else None
        if not isinstance(parameter, dict) or not isinstance(name, str) or not name:
            message = "must be a mapping with a name, parameterType and feasibleSpace"
            self._problems.add(at, message)
            return {}
        if name in taken:
            self._problems.add(f"{at}.name", f"{name} occurs twice; rename one")
            return {}
        self._only(parameter, at, ("name", "parameterType", "feasibleSpace"))
        taken[name] = domain = self._domain(parameter, at)
        self._file.places[f"{native_at}.{name}"] = at
        return domain

    def _domain(self, parameter: Json, at: str) -> Json:
        kind = parameter.get("parameterType")
        space = self._mapping(parameter, "feasibleSpace", at)
        at_space = f"{at}.feasibleSpace"
        self._only(space, at_space, ("min", "max", "step", "list", "distribution"))
        if kind in ("categorical", "discrete"):
            for key in space.keys() & {"min", "max", "step"}:
                self._problems.add(
                    f"{at_space}.{key}", f"a {kind} parameter has a list only; remove it"
                )
            values = self._list(space, "list", at_space)
            if any(not isinstance(value, str) for value in values):
                self._problems.add(
                    f"{at_space}.list", "expected text only; write each value in quotes"
                )
            return {"type": "choice", "values": values}
        if kind not in ("int", "double"):
            self._problems.add(
                f"{at}.parameterType", f"{shown(kind)} is not supported; write {_TYPES}"
            )
            return {}
        if space.get("list"):
            self._problems.add(
                f"{at_space}.list", f"a parameter of type {kind} has min and max; remove it"
            )
        shape = space.get("distribution", "uniform")
        if not isinstance(shape, str) or shape not in _DISTRIBUTIONS:
            words = ", ".join(_DISTRIBUTIONS)
            self._problems.add(
                f"{at_space}.distribution", f"{shown(shape)} is not supported; write {words}"
            )
            return {}
        scale, is_normal = _DISTRIBUTIONS[shape]
        before = len(self._problems.found)
        numbers = {key: self._number(space, key, kind, at_space) for key in ("min", "max", "step")}
        low, high = numbers["min"], numbers["max"]
        if low is not None and high is not None and low > high:
            self._problems.add(
                at_space, f"min {space['min']} is above max {space['max']}; exchange them"
            )
        if scale == "log" and low is not None and low <= 0:
            self._problems.add(f"{at_space}.min", f"must be above 0 with distribution: {shape}")
        step = numbers["step"]
        if step is not None and step <= 0:
            self._problems.add(
                f"{at_space}.step", f"{space['step']} is not a step; use a number above 0"
            )
        if len(self._problems.found) > before or low is None or high is None:
            return {}
        last = high if step is None else last_step(low, high, step)
        native: Json = {"type": "int" if kind == "int" else "float", "min": low, "max": last}
        if last == low < high:
            # The step leads beyond max, so min is the only value.
            return native
        native |= {"scale": scale} if scale == "log" else {}
        native |= {"step": step} if step is not None else {}
        native |= {"distribution": "normal"} if is_normal else {}
        if is_normal and last < high:
            # In Katib, the distribution is that of the range as it is written.
            normal = Normal.within(low, high, Scale(scale))
            native |= {"mean": normal.mean, "deviation": normal.deviation}
        return native

    def _number(self, space: Json, key: str, kind: str, at: str) -> int | float | None:
        raw = space.get(key)
        if raw is None:
            if key != "step":
                self._problems.add(f"{at}.{key}", "must be specified; write a number in quotes")
            return None
        if kind == "int" and isinstance(raw, str) and _WHOLE.fullmatch(raw):
            return int(raw)
        if kind == "double" and isinstance(raw, str):
            with suppress(ValueError):
                return real(raw)
        expected = "a whole number" if kind == "int" else "a number"
        if isinstance(raw, str) and len(raw) > MAX_NUMBER_LENGTH:
            expected += f" of at most {MAX_NUMBER_LENGTH} digits"
        self._problems.add(
            f"{at}.{key}", f'expected {expected} in quotes, such as "1", got {shown(raw)}'
        )
        return None
