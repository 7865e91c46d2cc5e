"""The flags that the command line accepts, and its errors. Torch is neither needed nor imported."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import cifar10
import pytest
import recipe

PAGE = (Path(__file__).parents[2] / "docs" / "cifar10.md").read_text(encoding="utf-8")


def refused(*flags: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end:
        cifar10.parser().parse_args(flags)
    assert isinstance(end.value.code, int)
    return end.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "sentence"),
    [
        ("--lr=0", "argument --lr: 0 is not allowed; it is above 0 and at most 1000"),
        ("--lr=nan", "argument --lr: nan is not allowed; it is above 0 and at most 1000"),
        ("--momentum=1", "argument --momentum: 1 is not allowed; it is at least 0 and below 1"),
        ("--batch=0", "argument --batch: 0 is not allowed; it is 1 to 65536"),
        ("--batch=1e3", "argument --batch: 1e3 is not allowed; it is 1 to 65536"),
        ("--batch-norm=maybe", "argument --batch-norm: maybe is not allowed; it is true | false"),
        ("--flip=both", "argument --flip: both is not allowed; it is none | random | alternate"),
        ("--epochs=0", "argument --epochs: 0 is not allowed; it is above 0 and at most 10000"),
        (
            "--train-images=0",
            "argument --train-images: 0 is not allowed; it is a number of images from 1",
        ),
        ("--seed=-1", "argument --seed: -1 is not allowed; it is a number from 0"),
    ],
)
def test_a_flag_out_of_range_is_refused_in_one_sentence(
    flag: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(flag, capsys=capsys) == (2, f"cifar10.py: {sentence}; see --help\n")


def test_the_string_off_means_false() -> None:
    for text in ("false", "off", "False", "no", "0"):
        options = cifar10.parser().parse_args(["--recipe=sweep", "--batch-norm", text])
        assert recipe.chosen(options).knobs["batch_norm"] is False


def test_each_recipe_has_its_own_defaults() -> None:
    fast, sweep = (
        recipe.chosen(cifar10.parser().parse_args(["--recipe", name])) for name in recipe.RECIPES
    )
    assert (fast.knobs["lr"], fast.knobs["momentum"], fast.batch, fast.cutout) == (
        11.5,
        0.85,
        1024,
        0,
    )
    assert (sweep.knobs["lr"], sweep.knobs["momentum"], sweep.batch, sweep.cutout) == (
        0.4,
        0.9,
        512,
        5,
    )


def test_unusable_parameters_are_infeasible_with_the_reason_as_the_last_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["cifar10.py", "--recipe=fast", "--batch-norm=false"])
    monkeypatch.setattr(cifar10.signal, "signal", lambda *_: None)
    assert cifar10.main() == 42
    assert (
        capsys.readouterr()
        .out.splitlines()[-1]
        .startswith("--batch-norm false is for --recipe sweep")
    )


def test_a_batch_larger_than_the_data_is_infeasible() -> None:
    small = recipe.chosen(cifar10.parser().parse_args(["--batch=200"]))
    with pytest.raises(
        recipe.Infeasible,
        match="--batch 200 is larger than the 199 training images; use at most 199",
    ):
        small.steps(199)
    assert small.steps(200) == 10


def test_the_page_shows_every_flag_with_its_defaults_and_its_range() -> None:
    for knob in recipe.KNOBS:
        fast, sweep = recipe.shown(knob.fast), recipe.shown(knob.sweep)
        assert (
            f"| `{knob.flag}` | {fast} | {sweep} | {knob.range.replace('|', '/')} | {knob.about} |"
            in PAGE
        )
    flags = [
        flag
        for action in cifar10.parser()._actions
        for flag in action.option_strings
        if flag.startswith("--")
    ]
    assert [flag for flag in flags if flag not in PAGE and flag != "--help"] == []


def test_the_commands_on_the_page_are_valid() -> None:
    commands = re.findall(
        r"^(?:python|torchrun .*) trial_image/cifar10.py(.*)$", PAGE, re.MULTILINE
    )
    assert len(commands) >= 4
    for command in commands:
        cifar10.parser().parse_args(shlex.split(command))


def test_a_command_line_is_parsed_without_torch() -> None:
    program = Path(cifar10.__file__)
    code = (
        f"import sys; sys.path.insert(0, {str(program.parent)!r}); import cifar10; "
        f"cifar10.parser(); "
    )
    shown = subprocess.run(
        [sys.executable, "-c", code + "print('torch' in sys.modules, 'numpy' in sys.modules)"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert shown.stdout == "False False\n"
