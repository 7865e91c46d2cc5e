"""A deeply nested document from outside neither crashes the process nor takes long."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

from controller.spec import yaml_text
from controller.spec.problems import SpecErrors
from suggest.errors import InvalidArgument
from suggest.nesting import MAX_DEPTH, TooNested, check_yaml, load_json
from suggest.server.access.tokens import read_tokens
from suggest.server.limits_file import read_limits

MILLION = 10**6
LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in itertools.pairwise("abcdefghij")
)
BOMBS = {
    "brackets": "[" * MILLION,
    "braces": "{" * MILLION,
    "closed brackets": "[" * (MILLION // 2) + "]" * (MILLION // 2),
    "flow mappings": "{a: " * (MILLION // 4),
    "dashes": "- " * (MILLION // 2),
    "explicit keys": "? " * (MILLION // 2),
    "indentation": "".join(" " * depth + "a:\n" for depth in range(1000)),
    "aliases": LAUGHS,
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_file_of_tokens_or_limits_that_is_nested_too_deep_is_refused(bomb: str) -> None:
    for read in (read_tokens, read_limits):
        with pytest.raises(
            InvalidArgument,
            match=r"nested more than 64 levels|more than 50,000 values|cannot be read",
        ):
            read(BOMBS[bomb].encode(), place="file.yaml")


@pytest.mark.parametrize("bomb", BOMBS)
def test_an_experiment_that_is_nested_too_deep_is_refused(bomb: str) -> None:
    with pytest.raises(SpecErrors):
        yaml_text.parse(BOMBS[bomb][:MILLION], "experiment.yaml")


def test_a_document_at_the_nesting_limit_is_read() -> None:
    check_yaml("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    assert load_json("[" * MAX_DEPTH + "]" * MAX_DEPTH) == load_json(
        b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    )
    assert load_json(f'["{"[" * 100}", "\\"{"{" * 100}"]') == ["[" * 100, '"' + "{" * 100], (
        "brackets in a text are text"
    )


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"b":'])
def test_too_deeply_nested_json_is_not_read(opening: str) -> None:
    with pytest.raises(TooNested):
        load_json(opening * MILLION)


def test_json_is_read_no_further_than_its_first_bracket_that_is_too_deep() -> None:
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        with pytest.raises(TooNested):
            load_json("[" * MILLION)
    finally:
        sys.setprofile(None)
    assert calls < 10 * MAX_DEPTH


def test_a_kubeconfig_that_is_nested_too_deep_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    pytest.importorskip("kubernetes")
    from controller.kube import kubeconfig

    path = tmp_path / "config"
    path.write_text("[" * MILLION)
    monkeypatch.setenv("KUBECONFIG", str(path))
    with pytest.raises(kubeconfig.BadKubeconfig, match=r"nested more than 64 levels deep"):
        asyncio.run(kubeconfig.load(None))
