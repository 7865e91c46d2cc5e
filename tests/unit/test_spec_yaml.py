"""YAML text to data: the scalars of YAML 1.2, the limits, and one clear error for invalid text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from controller.spec import SpecErrors, read, read_path
from controller.spec.yaml_text import MAX_BYTES, MAX_DEPTH, Data, parse, plain_scalar

LEVELS = "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(9)
)
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + LEVELS


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 0.0001),
        ("1.0e-4", 0.0001),
        (".5", 0.5),
        ("1.", 1.0),
        ("-7", -7),
        ("0o17", 15),
        ("0x1F", 31),
        ("010", 10),
        ("true", True),
        ("False", False),
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("2001-01-01", "2001-01-01"),
        ("~", None),
        ("null", None),
        ("", None),
        ("-.inf", float("-inf")),
        ("1e", "1e"),
        ("9" * 400, "9" * 400),
    ],
)
def test_plain_scalars_are_those_of_yaml_1_2(text: str, value: Data) -> None:
    assert plain_scalar(text) == value
    assert type(plain_scalar(text)) is type(value)


def test_quoted_scalars_and_those_tagged_as_strings_are_strings() -> None:
    assert parse("[\"1\", 'true', !!str 1, |\n 1\n]".replace(", |\n 1\n", ""), "x")[0] == [
        "1",
        "true",
        "1",
    ]


def test_aliases_are_written_out_with_places_of_their_own() -> None:
    data, marks = parse("a: &a {x: 1}\nb: *a\n", "x")
    assert data == {"a": {"x": 1}, "b": {"x": 1}}
    assert (marks.values["b.x"].line, marks.values["b.x"].column) == (1, 11)


def test_json_is_yaml() -> None:
    assert parse('{"a":1,"b":[true,null]}', "x")[0] == {"a": 1, "b": [True, None]}


def test_characters_that_json_escapes_in_two_halves_are_read() -> None:
    for text in ("🚀", "a\U0001f680\U0001d54f", "\\🚀", "\\ud83d\\ude80", "\x85\u2028\x7f"):
        assert parse(json.dumps({text: [text]}), "x")[0] == {text: [text]}
    literal = "a: '\\ud83d\\ude80'"
    assert parse(literal, "x")[0] == {"a": "\\ud83d\\ude80"}


OF_HELM = (
    "{{ … }} is of a template; let Helm, or the program that it is for, write the file first: "
    "helm template CHART"
)
ANSWERS = [
    ("", "1:1 the file is empty; `tuner init -` prints one to start from"),
    ("# nothing yet\n", "1:1 the file is empty; `tuner init -` prints one to start from"),
    ("- a\n", "1:1 expected a mapping with apiVersion, kind, metadata and spec, got a list"),
    (
        "hello\n",
        "1:1 expected a mapping with apiVersion, kind, metadata and spec, got the string 'hello'",
    ),
    ("a: 1\n---\nb: 2\n", "2:1 a second document begins here; one file holds one experiment"),
    (
        "a:\n\tb: 1\n",
        "2:1 not YAML: found character that cannot start any token while scanning for the next "
        "token; "
        "indent with spaces, YAML takes no tabs there",
    ),
    (
        "a: [1,\nb: 2\n",
        "3:1 not YAML: did not find expected ',' or ']' while parsing a flow sequence",
    ),
    ("a: 'x\n", "2:1 not YAML: found unexpected end of stream while scanning a quoted scalar"),
    (
        "a: [x, --lr=${lr}]\n",
        "1:14 not YAML: did not find expected ',' or ']' while parsing a flow sequence; "
        'put quotes around what contains ${…}: "--lr=${lr}"',
    ),
    ("b: 1\na: 1\na: 2\n", "3:1 a: this key is already in line 2; keep one of the two"),
    ("a: *b\n", "1:4 unknown alias *b; no anchor &b comes before it"),
    ("a: &a [*a]\n", "1:8 alias *a is inside its own anchor &a"),
    ("a: !!python/none x\n", "1:4 unsupported tag tag:yaml.org,2002:python/none; remove it"),
    ("a: !!map {b: 1}\n", "1:4 unsupported tag tag:yaml.org,2002:map; remove it"),
    ("{a: 1}: 2\n", "1:1 a key must be a plain word; put quotes around text that has { or [ in it"),
    ("a: {{ .Values.a }}\n", f"1:5 {OF_HELM}"),
    ("{{- if .Values.b }}\na: 1\n{{- end }}\n", f"1:2 {OF_HELM}"),
    ("a: \x00\n", "1:4 the character '\\x00' is not allowed in YAML"),
    ("b: 1\na: x\x07\n", "2:5 the character '\\x07' is not allowed in YAML"),
    ("a: \ud800\n", "1:4 the character '\\ud800' is not allowed in YAML"),
    ('a: "\\0"\n', "1:4 the character '\\x00' is not allowed in a value"),
    (BOMB, "5:4 more than 50000 values once every alias is written out; write less"),
    ("[" * 5_000, f"1:65 nested more than {MAX_DEPTH} levels deep"),
    ("{a: " * 5_000, f"1:257 nested more than {MAX_DEPTH} levels deep"),
    (
        "".join(" " * i + "a:\n" for i in range(900)),
        f"65:65 nested more than {MAX_DEPTH} levels deep",
    ),
    ("a: b\n" * 2_000_000, "1:1 10.0 MB is too large for an experiment; at most 1 MB is read"),
]


@pytest.mark.parametrize(("text", "line"), ANSWERS, ids=range(len(ANSWERS)))
def test_text_that_is_not_an_experiment_gets_one_clear_message(text: str, line: str) -> None:
    with pytest.raises(SpecErrors) as caught:
        read(text, source="experiment.yaml")
    assert str(caught.value) == f"experiment.yaml: 1 problem\n  {line}"


def test_aliases_cannot_nest_deeper_than_brackets_may() -> None:
    chain = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 2_000))
    with pytest.raises(SpecErrors, match="nested more than"):
        parse(chain, "x")


def test_a_byte_order_mark_and_windows_line_ends_are_no_problem() -> None:
    assert parse("\ufeffa: 1\r\nb: 2\r\n", "x")[0] == {"a": 1, "b": 2}


def test_an_unreadable_file_is_reported_in_one_sentence(tmp_path: Path) -> None:
    def answer(path: Path) -> str:
        with pytest.raises(SpecErrors) as caught:
            read_path(path)
        return str(caught.value).replace(str(tmp_path), "…")

    (tmp_path / "large.yaml").write_bytes(b"a" * (MAX_BYTES + 1))
    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nb: caf\xe9\n")
    cure = "`tuner init …/none.yaml` writes one to start from"
    assert answer(tmp_path / "none.yaml") == f"…/none.yaml: there is no such file; {cure}"
    assert answer(tmp_path) == "…: is a directory; name the file in it: …/experiment.yaml"
    assert (
        answer(tmp_path / "large.yaml")
        == "…/large.yaml: 1.0 MB is too large for an experiment; at most 1 MB is read"
    )
    assert answer(tmp_path / "latin.yaml") == (
        "…/latin.yaml: 1 problem\n  2:7 the byte 0xe9 is not UTF-8; save the file as UTF-8"
    )


def test_reading_imports_nothing_heavy_and_a_stored_spec_not_even_yaml() -> None:
    heavy = {"yaml", "grpc", "numpy", "optuna", "sqlalchemy"}
    program = f"import sys, controller.spec; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
