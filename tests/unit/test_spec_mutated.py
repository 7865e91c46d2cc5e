"""A file in which any value was replaced by any other is refused with its place,
or it is a whole experiment.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from controller.app.experiment_file import check_rules
from controller.app.validate import notices
from controller.search import study_spec
from controller.spec import SpecErrors, file_text, read
from suggest import wire
from suggest.errors import InvalidArgument
from suggest.server.admin import check
from tests.unit.searches import examples

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = [
    json.dumps(document)
    for path in sorted(EXAMPLES.rglob("*.yaml"))
    for document in yaml.load_all(path.read_text(), yaml.CSafeLoader)
    if isinstance(document, dict) and document.get("kind") == "Experiment"
]
HOSTILE: list[Any] = [
    None,
    True,
    0,
    -1,
    0.5,
    2**53 + 2,
    2**64,
    10**200,
    1e308,
    float("nan"),
    float("inf"),
    "",
    " ",
    "a",
    "1",
    "-1",
    "0x10",
    "1e999",
    "10s",
    "4Gi",
    "9E",
    "${x}",
    "${",
    "a\x7fb",
    "\u2028",
    "\n\n",
    "a\nb\n\n",
    "x" * 400,
    [],
    [None],
    [[]],
    [{}],
    [1],
    ["a"],
    {},
    {"": None},
    {"name": ["x"]},
    {"a": {"b": [1]}},
]


def places(data: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the keys that lead to each value."""
    for key in (
        data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    ):
        yield (*above, key)
        yield from places(data[key], (*above, key))


@st.composite
def mutated(draw: st.DrawFn) -> str:
    data = json.loads(draw(st.sampled_from(FILES)))
    for _ in range(draw(st.integers(1, 2))):
        *above, key = draw(st.sampled_from(list(places(data))))
        holder = data
        for each in above:
            holder = holder[each]
        if draw(st.booleans()) or isinstance(holder, list):
            holder[key] = copy.deepcopy(draw(st.sampled_from(HOSTILE)))
        else:
            del holder[key]
    return json.dumps(data)


@pytest.mark.parametrize("runtime", ["local", "kubernetes"])
def test_a_mutated_file_is_refused_or_whole(runtime: str) -> None:
    @given(mutated())
    @examples(2000)
    def go(text: str) -> None:
        try:
            document = read(
                text, source="mutated.yaml", overrides=[f"spec.runtime={runtime}"], service=check
            )
            check(study_spec(document.spec))
            check_rules(document, Path())
        except (SpecErrors, InvalidArgument):
            return
        json.dumps(document.spec.document, allow_nan=False)
        assert read(file_text(document.spec.document), source="written.yaml").spec == document.spec
        assert wire.write_spec(study_spec(document.spec)).IsInitialized()
        list(notices(document))

    go()
