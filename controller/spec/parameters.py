"""One parameter under `spec.parameters`: `[a, b]`, or a mapping whose keys depend on its type.

This module checks types only; the rules for ranges, steps and conditions are in `suggest.space`.
"""

from __future__ import annotations

from controller.spec.fields import (
    ANY,
    INVALID,
    REQUIRED,
    Key,
    ListOf,
    Number,
    Schema,
    WholeNumber,
    Word,
    refuse,
)
from controller.spec.problems import ProblemCollector
from controller.spec.sections import NO_MERGE_KEYS, MapOf, Section
from controller.spec.spelling import meant_by


class OneOrMore:
    """A value or a list of values, kept as a list.

    A single value that is a list is therefore written `[[1, 2]]`.
    """

    expected = "a value or a list of values"

    def take(self, raw: object, at: str, problems: ProblemCollector) -> object:
        return raw if isinstance(raw, list) else [raw]

    def schema(self) -> Schema:
        return ANY.schema()


SCALE = Key(
    "scale",
    Word(("linear", "log")),
    "Whether the search treats equal differences (`linear`) or equal ratios (`log`) alike.",
    "linear",
)
DISTRIBUTION = (
    Key(
        "distribution",
        Word(("uniform", "normal")),
        "Whether values are equally likely on the scale, or normally distributed within the range.",
        says="`uniform`",
    ),
    Key(
        "mean",
        Number(),
        "Mean of `distribution: normal`; with `scale: log`, the geometric mean.",
        says="halfway between min and max on the scale",
    ),
    Key(
        "deviation",
        Number(),
        "Standard deviation of `distribution: normal`; with `scale: log`, the geometric one, a "
        "factor above 1.",
        says="a sixth of the range on the scale",
    ),
)
WHEN = Key(
    "when",
    MapOf(OneOrMore(), "a mapping of parameters to values"),
    "The parameter is active only if these parameters have these values.",
)
VALUES = ListOf(ANY, "a list of choices")
TYPES: dict[str, Section] = {
    "float": Section(
        (
            Key("type", Word(("float",)), "A real number.", REQUIRED),
            Key("min", Number(), "Smallest value.", REQUIRED),
            Key("max", Number(), "Largest value.", REQUIRED),
            SCALE,
            Key("step", Number(), "Allows only the values min + k * step."),
            Key(
                "points",
                WholeNumber(),
                "Number of values that a grid tries, evenly spaced on the scale; other algorithms "
                "ignore it.",
            ),
            *DISTRIBUTION,
            WHEN,
        )
    ),
    "int": Section(
        (
            Key("type", Word(("int",)), "A whole number.", REQUIRED),
            Key("min", WholeNumber(), "Smallest value.", REQUIRED),
            Key("max", WholeNumber(), "Largest value.", REQUIRED),
            SCALE,
            Key("step", WholeNumber(), "Allows only the values min + k * step.", 1),
            *DISTRIBUTION,
            WHEN,
        )
    ),
    "choice": Section(
        (
            Key("type", Word(("choice",)), "One of several values.", REQUIRED),
            Key(
                "values",
                VALUES,
                "The values: strings, numbers, booleans, null, lists, mappings.",
                REQUIRED,
            ),
            WHEN,
        )
    ),
}


class ParameterKind:
    """A parameter.

    A plain list is a choice and has the same canonical form as the mapping with `type: choice`.
    """

    expected = "a list of choices, or a mapping such as {type: float, min: 0, max: 1}"

    def take(self, raw: object, at: str, problems: ProblemCollector) -> object:
        if isinstance(raw, list):
            values = VALUES.take(raw, at, problems)
            return INVALID if values is INVALID else {"type": "choice", "values": values}
        if not isinstance(raw, dict):
            return refuse(raw, at, problems, self.expected)
        kind = raw.get("type")
        if kind is None and "<<" in raw:
            problems.add(f"{at}.<<", NO_MERGE_KEYS, at_key=True)
            return INVALID
        if kind is None:
            misspelled = [key for key in raw if isinstance(key, str) and meant_by(key, ("type",))]
            for key in misspelled:
                problems.add(f"{at}.{key}", "no such key; did you mean type?", at_key=True)
            if not misspelled:
                problems.add(f"{at}.type", "is missing; write float, int or choice")
            return INVALID
        section = TYPES.get(kind) if isinstance(kind, str) else None
        if section is None:
            suggestion = meant_by(kind, TYPES) if isinstance(kind, str) else None
            cure = f"did you mean {suggestion}?" if suggestion else "use float, int or choice"
            if kind in ("bool", "boolean"):
                name = at.removeprefix("spec.parameters.")
                cure = (
                    f"write [true, false]; ${{{name}:+--{name}}} in the command is then the "
                    "flag, or nothing"
                )
            problems.add(f"{at}.type", f"{kind!r} is not a type of parameter; {cure}")
            return INVALID
        before = len(problems.found)
        parameter = section.take(raw, at, problems)
        if isinstance(parameter, dict) and parameter.get("distribution") == "uniform":
            # The same as if it were absent.
            del parameter["distribution"]
        if isinstance(parameter, dict) and "distribution" not in parameter:
            for key in parameter.keys() & {"mean", "deviation"}:
                problems.add(
                    f"{at}.{key}",
                    "belongs to a normal distribution; add distribution: normal, or remove it",
                )
        return parameter if len(problems.found) == before else INVALID

    def schema(self) -> Schema:
        return {
            "oneOf": [
                VALUES.schema() | {"minItems": 1},
                *(section.schema() for section in TYPES.values()),
            ]
        }
