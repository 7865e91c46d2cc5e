"""The rules of `${name}` in a command, its arguments, variables and templates: which names there
are, what becomes of a word whose parameter a trial lacks, and what no shell reads. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from controller.core.substitute import (
    OPTIONAL,
    TRIAL_NAME,
    bodies,
    is_nothing,
    nodes,
    placeholders,
    unclosed,
)
from controller.spec import shells
from controller.spec.document import Json
from controller.spec.problems import PathProblem
from controller.spec.spelling import meant_by
from suggest.network import TEXTS, Network

_ALONE = re.compile(r"\$\{([^{}]*)\}")
# The variables that `controller.runtime.launch.identity` sets
# for every attempt, whatever the file says.
GIVEN = frozenset(
    {
        "TUNER_EXPERIMENT",
        "TUNER_TRIAL_NAME",
        "TUNER_TRIAL_NUMBER",
        "TUNER_ATTEMPT",
        "TUNER_PARAMETERS",
        "TUNER_OBJECTIVES",
        "TUNER_PARAMETERS_FILE",
        "TUNER_SEED",
        "TUNER_OUTPUT_DIR",
        "TUNER_CHECKPOINT_DIR",
        "TUNER_STAGE",
        "TUNER_METRICS_FILE",
        "TUNER_METRICS_PORT",
        "TUNER_PARAMETER_ANSWERS",
        "TUNER_PARAMETER_PLAN",
        "TUNER_PARAMETER_REQUESTS",
        "KATIB_TRIAL_NAME",
    }
)
# Likely environment variables.
_VARIABLE = re.compile(r"[A-Z][A-Z0-9]*_[A-Z0-9_]*|HOME|PATH|PWD|USER|TMPDIR|HOSTNAME")
_GIVEN_VARIABLE = re.compile(rf"\$\$?\{{?({'|'.join(sorted(GIVEN))})\b\}}?")


@dataclass(frozen=True, slots=True)
class Absence:
    """Which parameters a trial may lack, and for which `${name:+word}` makes a difference."""

    conditional: frozenset[str]
    sometimes_nothing: frozenset[str]
    always_something: frozenset[str]

    @classmethod
    def of(cls, spec: Json, raw: object, network: Network | None) -> Absence:
        given = raw.items() if isinstance(raw, dict) else ()
        conditional = {
            name for name, fields in given if isinstance(fields, dict) and fields.get("when")
        }
        if network is not None:
            conditional.update(p.name for p in network.parameters if p.when)
        parameters = spec.get("parameters", {})
        nothing = {
            name
            for name, fields in parameters.items()
            if any(map(is_nothing, fields.get("values", ())))
        }
        return cls(
            frozenset(conditional),
            frozenset(nothing),
            frozenset(parameters.keys() - conditional - nothing),
        )


def workload_strings(workload: Json, section: str = "spec.trial") -> Iterator[tuple[str, str]]:
    """Yield every string in which `${name}` is substituted, with its path."""
    for key in ("command", "args", "env", "template"):
        for path, value in nodes(workload.get(key), f"{section}.{key}"):
            if isinstance(value, str):
                yield path, value


@dataclass(frozen=True, slots=True)
class Placeholders:
    """The placeholders of a workload.

    section: `spec.trial` or `spec.final`.
    names: The parameters.
    """

    workload: Json
    section: str
    names: list[str]
    absence: Absence

    def problems(self) -> Iterator[PathProblem]:
        """Yield what breaks the rules."""
        yield from self._in_keys()
        words_of_command = (f"{self.section}.command[", f"{self.section}.args[")
        for path, text in workload_strings(self.workload, self.section):
            for name in unclosed(text):
                yield PathProblem(path, f"${{ is never closed; {self._closed(text, name)}")
            for body in bodies(text):
                if message := self._problem_of(path, text, body):
                    yield PathProblem(path, message)
            if path.startswith(words_of_command) and (message := self._dropped_word(path, text)):
                yield PathProblem(path, message)
            if path == f"{self.section}.command[0]" and (message := self._lost_program(text)):
                yield PathProblem(path, message)

    def _in_keys(self) -> Iterator[PathProblem]:
        for path, value in nodes(self.workload.get("template"), f"{self.section}.template"):
            for key in map(str, value) if isinstance(value, dict) else ():
                for name in placeholders(key):
                    rule = f"${{{name}}} is allowed in values only"
                    yield PathProblem(path, f"the key {key!r} is not substituted; {rule}")

    def _closed(self, text: str, name: str) -> str:
        """Return how to close a placeholder."""
        likely: str | None = name
        if name not in self.names:
            likely = meant_by(name, self.names) or next(
                (each for each in self.names if _placeholder_elsewhere(each, text)), None
            )
        likely = likely or next(iter(self.names), "name")
        return f"write ${{{likely}}}, or $${{ for a literal"

    def _problem_of(self, path: str, text: str, body: str) -> str:
        """Return what is wrong with what is between the braces; "" if nothing is."""
        name, optional, word = body.partition(OPTIONAL)
        if name in self.names or name == TRIAL_NAME:
            return self._optional_word(name, word) if optional else ""
        if likely := self._likely(name):
            cure = f"did you mean ${{{likely}{optional}{word}}}?"
        elif name in GIVEN or name in self.workload.get("env", {}) or _VARIABLE.fullmatch(name):
            cure = _read_variable(self.workload, self.section, path, name, text)
        else:
            cure = f"there are {self._listed_names()}"
            if name:
                cure = f"{cure}; write $${{{body}}} for a literal ${{{body}}}"
        return f"${{{body}}} is not a parameter; {cure}"

    def _likely(self, name: str) -> str | None:
        """Return the parameter that was meant."""
        if name in GIVEN:
            return None
        # As in ${params.lr}.
        last = re.split(r"[.:]", name)[-1]
        return last if last in self.names else meant_by(name, self.names)

    def _listed_names(self) -> str:
        names = [name for name in self.names if name]
        if not names:
            return "none"
        return ", ".join(names[:8]) + (", …" if len(names) > 8 else "")

    def _optional_word(self, name: str, word: str) -> str:
        """Return what is wrong with `${name:+word}`; "" if nothing is."""
        if not word:
            cure = f"write the flag in it: ${{{name}:+--{name}}}"
            return f"${{{name}:+}} never writes anything; {cure}"
        if name == TRIAL_NAME or name in self.absence.always_something:
            cure = "write the word alone, or use a choice of true and false (without quotes)"
            return (
                f"${{{name}:+{word}}} is always written, because {name} is never false, null or "
                f"empty; {cure}"
            )
        return ""

    def _dropped_word(self, path: str, text: str) -> str:
        """Refuse a conditional parameter as its own word, unless its flag is dropped too."""
        alone, absence = _ALONE.fullmatch(text), self.absence
        if alone is None or alone[1] not in absence.conditional:
            return ""
        name, before = alone[1], self._before(path)
        flag = _ALONE.fullmatch(before)
        is_dropped_too = flag is not None and flag[1].startswith(f"{name}{OPTIONAL}")
        if is_dropped_too and name not in absence.sometimes_nothing:
            return ""
        if before.startswith("-") and "=" not in before:
            cure = f"{before} would have no value; write {before}={text} as one element"
            if name not in absence.sometimes_nothing:
                cure = f"{cure}, or ${{{name}:+{before}}} before it"
        else:
            cure = f"the next word would take its place; write --{name}={text} as one element"
        return f"{text} is conditional: without it, {cure}"

    def _before(self, path: str) -> str:
        """Return the word before the one at `path`; "" if it is the first."""
        line = shells.words(self.section, self.workload)
        at = next((index for index, (place, _) in enumerate(line) if place == path), 0)
        return line[at - 1][1] if at else ""

    def _lost_program(self, text: str) -> str:
        """Refuse a program that some trials would not have."""
        needs = "and a trial needs its program; use a choice"
        if any(OPTIONAL in body for body in bodies(text)):
            return f"{text} may be nothing, {needs} of programs"
        if any(name in self.absence.conditional for name in placeholders(text)):
            return f"{text} is conditional, {needs} without when"
        return ""


def _is_script(workload: Json, section: str, path: str) -> bool:
    """Return whether a shell reads the word at `path`, as in `sh -c WORD`."""
    return any(place == path for place, _ in shells.scripts(shells.words(section, workload)))


def _read_variable(workload: Json, section: str, path: str, name: str, text: str) -> str:
    """Return advice on how a program can read an environment variable."""
    if _is_script(workload, section, path):
        return f'to have the shell substitute it, write "${name}" or $${{{name}}}'
    flag = text.partition("=")[0] if re.match(r"--?[A-Za-z][\w-]*=", text) else "--flag"
    shell = f"""[sh, -c, 'exec "$@" {flag}="${name}"', sh, PROGRAM, …]"""
    return (
        f"environment variables are not substituted; read {name} in the program, or let a shell do "
        f"it: {shell}"
    )


def unread_variables(trial: Json) -> Iterator[str]:
    """Warn of words such as `--out=$TUNER_OUTPUT_DIR` that no shell reads.

    The program gets them literally.
    """
    section = "spec.trial"
    for path, word in shells.words(section, trial):
        for match in () if _has_shell(trial) else _GIVEN_VARIABLE.finditer(word):
            if match[0] == f"${{{TRIAL_NAME}}}":
                continue
            cure = _read_variable(trial, section, path, match[1], word)
            yield f"{path}: {match[0]} is passed unchanged: {cure}"


def _has_shell(trial: Json) -> bool:
    """Return whether the command line may contain a script."""
    words = trial.get("command", ())
    return any(word == "-c" or word.rpartition("/")[2] in shells.SHELLS for word in words)


def _placeholder_elsewhere(name: str, text: str) -> str | None:
    """Return the placeholder that other tools, templates and shells have for a name, in a text.

    Not our own `${name}`.
    """
    # Compiling takes far longer, and there may be thousands of names.
    if name.lower() not in text.lower():
        return None
    n = re.escape(name)
    dotted = rf"(?:[\w.]*\.)?{n}"
    forms = (
        rf"\$?\{{\{{ *{dotted} *\}}\}}",
        rf"(?<!\$)[#@]?\{{ *{dotted}(?::[^{{}}]*)? *\}}",
        rf"\$[(\[]{dotted}[)\]]",
        rf"%\({n}\)[a-z]",
        rf"%{n}%",
        rf"<{n}>",
        rf"@{n}@",
        rf"(?<![\\$])\${n}(?![\w.-])",
    )
    found = re.search("|".join(forms), text, re.IGNORECASE)
    return None if found is None else found[0]


def not_mentioned(spec: Json) -> Iterator[str]:
    if "parametersFile" in spec["trial"]:
        return
    texts = [text for _, text in workload_strings(spec["trial"])]
    if any("TUNER_PARAMETERS" in text for text in texts):
        return
    mentioned: set[str] = set()
    for text in texts:
        mentioned.update(placeholders(text))
    silent = [name for name in spec["parameters"] if name not in mentioned]
    if "network" in spec and not any(name.startswith("layer") for name in mentioned):
        silent += [name for name in TEXTS if name not in mentioned]
    for path, text in workload_strings(spec["trial"]):
        for name in [*silent]:
            if foreign := _placeholder_elsewhere(name, text):
                yield f"{path}: {foreign} does not become the value of {name}; write ${{{name}}}"
                silent.remove(name)
    places = "template" if "template" in spec["trial"] else "command, args or env"
    if silent:
        it_arrives = "it arrives" if len(silent) == 1 else "they arrive"
        yield f"{', '.join(silent)}: not mentioned in {places}; {it_arrives} in TUNER_PARAMETERS"
    if "fidelity" in spec and (name := spec["fidelity"]["parameter"]) not in mentioned:
        yield (
            f"spec.fidelity.parameter: {name} is not mentioned in {places}, so each step of a "
            "trial may run equally far; it arrives in TUNER_PARAMETERS"
        )
