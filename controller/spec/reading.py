"""Read a file's text into an experiment, and report all problems of the file at once.

The order is: YAML, overrides, types (by the tables), rules, the canonical document, the spec.
Reading one file makes no other request.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, TypeGuard, Unpack

from controller.core.model import ExperimentSpec
from controller.named_files import open_without_waiting
from controller.phrases import command
from controller.runtime.registry import traits_if_known
from controller.spec import rules
from controller.spec.document import Json, fill_defaults, from_document
from controller.spec.native import FILE, SUSPEND
from controller.spec.overrides import apply
from controller.spec.problems import (
    NOWHERE,
    LocatedProblem,
    Mark,
    Marks,
    ProblemCollector,
    SpecErrors,
)
from controller.spec.readable import study_part
from controller.spec.yaml_text import (
    MAX_BYTES,
    Data,
    parse,
    parse_documents,
    second_document,
    too_large,
)
from suggest.errors import InvalidArgument, Problem
from suggest.study import StudySpec

if TYPE_CHECKING:
    from controller.spec.katib import KatibReader

STDIN = "-"
_SCRIPT = ".py"
# Raises InvalidArgument for a study that the service would refuse.
Service = Callable[[StudySpec], None]
NamespaceOf = Callable[[str, str], str]  # from the runtime and the experiment's name
ConfigMapOf = Callable[[str, str], Mapping[str, str]]  # from namespace and name; raises NoConfigMap
# The places in the file of the service's field names.
_PLACES = (
    (re.compile(r"space\b"), "spec.parameters"),
    (re.compile(r"objectives\[0\]|objective\b"), "spec.objective"),
    (re.compile(r"algorithm\b"), "spec.algorithm"),
    (re.compile(r"learn_from\b"), "spec.learnFrom"),
    (re.compile(r"pruning\.settings\b|pruning\b"), "spec.pruning"),
)


@dataclass(frozen=True, slots=True)
class Document:
    """A file that was read: its experiment, its text as the person wrote it, and its warnings."""

    source: str
    text: str
    spec: ExperimentSpec
    warnings: tuple[str, ...]
    marks: Marks
    is_native: bool

    @property
    def is_katib(self) -> bool:
        """Return whether the text is a file of Katib's."""
        return self.spec.is_katib

    def locate(self, problems: Iterable[Problem]) -> SpecErrors:
        """Return the service's problems with the study, with their places in this file."""
        return SpecErrors(self.source, _located(problems, self.marks))


def _located(problems: Iterable[Problem], marks: Marks) -> list[LocatedProblem]:
    located = []
    for problem in problems:
        path = marks.place_of(_file_path(problem.path, several="spec.objectives" in marks.keys))
        if path not in marks.values and path not in marks.keys:
            path_in_list = re.sub(r"^(spec\.parameters\..+)\.values(\[[0-9]+\])?$", r"\1\2", path)
            path = path_in_list if path_in_list in marks.values else path
        located.append(LocatedProblem(marks.nearest(path), path, marks.words(problem.message)))
    return located


def _file_path(path: str, *, several: bool) -> str:
    path = re.sub(r"^(study\.)?(spec\.)?", "", path)
    if several and path.startswith("objectives"):
        return f"spec.{path}"
    for pattern, place in _PLACES:
        if match := pattern.match(path):
            return place + path[match.end() :]
    return f"spec.{path}" if path else "spec"


class ReadOptions(TypedDict, total=False):
    """What changes how a file is read.

    overrides: The arguments of `--set`, in order.
    service: Checks the study of a file that has other problems, so that all of them are reported
        at once. If the file has no problems, the caller has to let the service check it.
    namespace_of: Returns the namespace of an experiment whose file names none, and whose runtime
        has contexts.
    config_map_of: Returns the data of a ConfigMap of the cluster that a file of Katib's names.
    handed_over: The controller in a cluster checks it again, and knows more.
    """

    overrides: Sequence[str]
    service: Service | None
    namespace_of: NamespaceOf | None
    config_map_of: ConfigMapOf | None
    handed_over: bool


def read(
    text: str, *, source: str, is_file: bool = True, **options: Unpack[ReadOptions]
) -> Document:
    """Return the experiment that `text` describes.

    Args:
        source: The name of the file in messages.
        is_file: A person can open the file; otherwise messages have no lines.
        options: See `ReadOptions`.

    Raises:
        SpecErrors: The file or an override cannot be used.
    """
    overrides, service = options.get("overrides", ()), options.get("service")
    namespace_of, handed_over = options.get("namespace_of"), options.get("handed_over", False)
    data, marks, others = _documents(text, source)
    if not is_file:
        marks = Marks({}, {"": NOWHERE})
    wrong: list[LocatedProblem] = []
    for position, override in enumerate(overrides):
        try:
            apply(data, marks, override, position=position)
        except SpecErrors as error:
            wrong += error.located
    if namespace_of is not None and (unplaced := _without_namespace(data)):
        namespace = namespace_of(*unplaced)
        apply(data, marks, f"metadata.namespace={namespace}", position=len(overrides))
    is_katib = _is_katib(data)
    problems = ProblemCollector()
    katib = _katib_reader(data, others, problems, options.get("config_map_of"))
    if katib is None and (kind := _of_another_project(data)):
        cure = "write apiVersion: tuner.dev/v1 and kind: Experiment"
        message = f"{kind} is not an experiment; {cure}"
        raise SpecErrors(source, [LocatedProblem(marks.nearest("kind"), "kind", message)])
    if katib is None:
        document = _check(data, problems, handed_over=handed_over)
        warnings = tuple(_suspended(data))
        wrong += problems.located(marks)
    else:
        data = katib.native()
        if data is not None:
            wrong += _set_in_vain(katib.ignored, marks)
        document = _check(data, native := ProblemCollector(), handed_over=handed_over)
        wrong += problems.located(marks)
        marks = replace(marks, place_of=katib.place_of, words=katib.words)
        wrong += native.located(marks)
        warnings = (*katib.warnings, *_not_created(others))
    if wrong:
        if service is not None and document and isinstance(data, dict):
            wrong += _problems_of_service(service, document, data, marks)
        raise SpecErrors(source, wrong)
    all_warnings = (*warnings, *map(marks.locate, rules.warnings(document, is_katib=is_katib)))
    spec = replace(from_document(document), is_katib=is_katib)
    return Document(source, text, spec, all_warnings, marks, is_native=katib is None)


def _set_in_vain(ignored: Mapping[str, str], marks: Marks) -> Iterator[LocatedProblem]:
    """Yield the overrides of keys that Katib ignores: nobody wrote them for Katib."""
    for path, message in ignored.items():
        for place, mark in marks.values.items():
            if mark.override and f"{place}.".startswith(f"{path}."):
                yield LocatedProblem(mark, path, message)
                break


def _katib_reader(
    data: Data,
    others: Iterable[Json],
    problems: ProblemCollector,
    config_map_of: ConfigMapOf | None,
) -> KatibReader | None:
    """Return the reader of a file of Katib's; None for any other."""
    if not _is_katib(data):
        return None
    # Lazy: most files are native.
    from controller.spec.katib import KatibReader
    from controller.spec.katib_template import ConfigMaps

    config_maps = ConfigMaps([each for each in others if _is_config_map(each)], config_map_of)
    return KatibReader(data, problems, config_maps)


def _documents(text: str, source: str) -> tuple[Data, Marks, list[Json]]:
    """Return the experiment, its marks, and the other objects that a Katib file has beside it."""
    documents = parse_documents(text, source)
    objects: list[tuple[Data, Marks]] = []
    for data, marks in documents:
        objects += _objects(data, marks)
    experiments = [
        each for each in objects if _is_katib(each[0]) and each[0].get("kind") == "Experiment"
    ]
    if len(experiments) > 1:
        names = ", ".join(_name_of(data) for data, _ in experiments)
        message = (
            f"the second of {len(experiments)} experiments, {names}; write each into its own "
            "file, and run each file"
        )
        raise SpecErrors(source, [LocatedProblem(experiments[1][1].values[""], "", message)])
    if not experiments:
        if len(documents) > 1:
            raise SpecErrors(source, [second_document(documents[1][1])])
        return (*documents[0], [])
    data, marks = experiments[0]
    return (
        data,
        marks,
        [other for other, _ in objects if isinstance(other, dict) and other is not data],
    )


def _objects(data: Data, marks: Marks) -> Iterator[tuple[Data, Marks]]:
    """Yield a document, or the objects in it if it is a `List`, as kubectl reads it."""
    match data:
        case {"apiVersion": "v1", "kind": "List", "items": list(items)}:
            for index, item in enumerate(items):
                yield item, marks.below(f"items[{index}]")
        case _:
            yield data, marks


def _is_config_map(data: Json) -> bool:
    return (data.get("apiVersion"), data.get("kind")) == ("v1", "ConfigMap")


def _name_of(data: object) -> str:
    match data:
        case {"metadata": {"name": name}}:
            return str(name)
    return "?"


def _not_created(others: Iterable[Json]) -> Iterator[str]:
    """Yield a warning for each object beside the experiment that only kubectl creates."""
    for other in others:
        if not _is_config_map(other):
            name = f"{other.get('kind', 'object')} {_name_of(other)}"
            yield (
                f"{name}: only the experiment of this file is read; if its trials need this, "
                "create it with kubectl"
            )


def _without_namespace(data: Data) -> tuple[str, str] | None:
    """Return the runtime and the name of an experiment that lacks a namespace; else None."""
    match data:
        case {"metadata": {"namespace": str(namespace)}} if namespace:
            return None
        case {"metadata": {"name": str(name)}, "spec": {"runtime": str(runtime)}}:
            return (runtime, name) if traits_if_known(runtime).has_contexts else None
    return None


def _problems_of_service(
    service: Service, document: Json, data: Json, marks: Marks
) -> list[LocatedProblem]:
    try:
        service(study_part(document, data))
    except InvalidArgument as error:
        return _located(error.problems, marks)
    return []


def _is_katib(data: object) -> TypeGuard[Json]:
    return isinstance(data, dict) and str(data.get("apiVersion", "")).startswith("kubeflow.org/")


def _of_another_project(data: object) -> str:
    """Return the kind of an object that no reader reads; "" for what may be a native file."""
    match data:
        case {"apiVersion": str(version), "kind": str(kind)} if kind != "Experiment":
            return "" if version.startswith("tuner.dev/") else f"{kind} of {version}"
    return ""


def _check(data: Data, problems: ProblemCollector, *, handed_over: bool = False) -> Json:
    if data is None:
        return {}
    document = FILE.take(data, "", problems)
    if not isinstance(document, dict) or not isinstance(data, dict):
        return {}
    problems.found += rules.check(document, data, problems, handed_over=handed_over)
    if not problems.found:
        # It is no part of the search, so a change of it makes no revision.
        document["spec"].pop(SUSPEND, None)
        fill_defaults(document)
    return document


def _suspended(data: Data) -> Iterator[str]:
    """Yield a warning for an experiment that runs although its file suspends it."""
    match data:
        case {"spec": {"suspend": True}}:
            yield f"spec.{SUSPEND}: only the controller in a cluster heeds it; here the trials run"


def written(text: str, source: str, overrides: Sequence[str]) -> Data:
    """Return the data of a file with the overrides, and without the defaults of what it omits.

    Raises SpecErrors for text that is not YAML; `read` checks the rest.
    """
    data, marks = parse(text, source)
    for position, override in enumerate(overrides, start=1):
        apply(data, marks, override, position=position)
    return data


def read_path(path: str | Path, **options: Unpack[ReadOptions]) -> Document:
    """Return the experiment in a file; `-` is standard input.

    Raises:
        SpecErrors: As in `read`, and if the file does not exist, is not text, or is a script.
    """
    if str(path) == STDIN:
        source, content = "standard input", sys.stdin.buffer.read(MAX_BYTES + 1)
    else:
        source = str(path)
        content = _content(source)
        if is_script(source):
            raise _unreadable(
                source,
                f"is a script, whose searches are known when it runs: {command('run', source)}; "
                "then name the search that it has made. A script that calls tuner.minimize or "
                f"tuner.optimize_optuna runs by itself: python {source}",
            )
    return read(_decode(content, source), source=source, **options)


def is_script(path: str) -> bool:
    """Return whether a file is a script of Python, whose searches are known when it runs."""
    return path.endswith(_SCRIPT)


def script_text(path: str) -> str:
    """Return the text of a script. Raises SpecErrors if it does not exist or is not text."""
    return _decode(_content(path), path)


def _content(source: str) -> bytes:
    try:
        size = Path(source).stat().st_size
        if size > MAX_BYTES:
            raise _unreadable(source, too_large(size))
        with open(source, "rb", opener=open_without_waiting) as file:
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        cure = f"{command('init', source)} writes one to start from"
        if source.endswith(_SCRIPT):
            cure = "name a script that calls study.optimize, or the file of an experiment"
        raise _unreadable(source, f"there is no such file; {cure}") from None
    except IsADirectoryError:
        raise _unreadable(
            source, "is a directory; name the file in it: " + str(Path(source) / "experiment.yaml")
        ) from None
    except (OSError, ValueError) as error:
        raise _unreadable(
            source, f"cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from error


def _unreadable(source: str, message: str) -> SpecErrors:
    return SpecErrors(source, [LocatedProblem(NOWHERE, "", message)])


def _decode(content: bytes, source: str) -> str:
    if len(content) > MAX_BYTES:
        raise _unreadable(source, too_large(len(content)))
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - content.rfind(b"\n", 0, error.start)
        problem = f"the byte 0x{content[error.start]:02x} is not UTF-8; save the file as UTF-8"
        raise SpecErrors(source, [LocatedProblem(Mark(line, column), "", problem)]) from None
