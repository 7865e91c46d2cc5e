"""`spec.final` in a file: what it inherits from `trial`, what it may override,
and the messages for errors.
"""

from __future__ import annotations

import pytest

from controller.core.model import SecretRef
from controller.spec import (
    allowed_in_extension,
    allowed_in_revision,
    diff,
    file_text,
    from_document,
    read,
)
from tests.unit.test_spec_problems import GOOD, problem_lines

TRIAL = """\
    args: [--quiet]
    env: {THREADS: 4, API_KEY: {secret: name/key}}
    resources: {cpu: 2, memory: 1Gi, gpu: 1}
    timeout: 5m
    gracePeriod: 7s
    retries: {infrastructure: 1}
"""


def with_final(final: str, trial: str = TRIAL) -> str:
    return f"{GOOD}{trial}  final:\n" + "".join(f"    {line}\n" for line in final.splitlines())


def test_omitted_keys_are_those_of_the_trial() -> None:
    spec = read(with_final("command: [python, export.py, '--lr=${lr}']"), source="x").spec
    final, trial = spec.final, spec.trial
    assert final is not None
    assert final.command == ("python", "export.py", "--lr=${lr}")
    assert (final.args, final.env, final.resources, final.timeout_s) == (
        trial.args,
        trial.env,
        trial.resources,
        trial.timeout_s,
    )
    assert (final.grace_s, final.retries) == (7.0, trial.retries)


def test_variables_and_resources_are_overridden_one_by_one() -> None:
    spec = read(
        with_final("env: {THREADS: 8}\nresources: {memory: 4Gi}\ntimeout: 1h\nargs: []"), source="x"
    ).spec
    final = spec.final
    assert final is not None
    assert final.env == {"THREADS": "8", "API_KEY": SecretRef("name", "key")}
    assert (final.resources.cpu, final.resources.gpu, final.resources.memory_bytes) == (
        2.0,
        1.0,
        4 << 30,
    )
    assert (final.command, final.args, final.timeout_s) == (spec.trial.command, (), 3600.0)


def test_without_the_key_there_is_no_final_stage() -> None:
    assert read(GOOD, source="x").spec.final is None


def test_a_stored_document_reads_back_the_same() -> None:
    spec = read(with_final("command: [python, export.py]\nresources: {gpu: 0}"), source="x").spec
    assert from_document(spec.document) == spec
    assert read(file_text(spec.document), source="x").spec.document == spec.document


def test_a_changed_final_stage_is_a_revision() -> None:
    before, after = (read(with_final(f"timeout: {n}m"), source="x").spec.document for n in (5, 6))
    (change,) = diff(before, after)
    assert change.path == "spec.final.timeout"
    assert allowed_in_revision(change)
    assert allowed_in_extension(change)


REFUSED = [
    (
        "command: python export.py",
        "22:14 spec.final.command: expected a list of words, [python, train.py], got the string "
        "'python export.py'; write [sh, -c, ...] to have a shell read it",
    ),
    (
        "command: [python, '--lr=${learning_rate}']",
        "22:23 spec.final.command[1]: ${learning_rate} is not a parameter; did you mean ${lr}?",
    ),
    (
        "args: ['${momentum}']",
        "22:12 spec.final.args[0]: ${momentum} is conditional: without it, the next word would "
        "take its place; write --momentum=${momentum} as one element",
    ),
    ("image: other:1", "22:5 spec.final.image: no such key here; did you mean spec.trial.image?"),
    (
        "retries: {timeout: 1}",
        "22:5 spec.final.retries: no such key here; did you mean spec.trial.retries?",
    ),
    (
        "timeout: 0s",
        "22:14 spec.final.timeout: '0s' is too short; write a longer one, or remove the key for "
        "no limit",
    ),
]


@pytest.mark.parametrize(("final", "message"), REFUSED, ids=[case[0][:20] for case in REFUSED])
def test_invalid_keys_are_refused(final: str, message: str) -> None:
    assert problem_lines(with_final(final)) == [message]


def test_a_final_stage_cannot_be_combined_with_a_template() -> None:
    text = GOOD.replace(
        '    command: [python, train.py, "--lr=${lr}", "--layers=${layers}", '
        '"--opt=${optimizer}", "--m=${momentum}"]\n',
        "    template: {apiVersion: batch/v1, kind: Job, metadata: {}, spec: {}}\n  final: "
        "{timeout: 5m}\n  runtime: kubernetes\n",
    )
    (message,) = problem_lines(text)
    assert message.startswith(
        "15:3 spec.final: cannot be combined with trial.template, whose command cannot be replaced"
    )


def test_a_final_stage_on_a_cluster_takes_whole_gpus_only() -> None:
    text = with_final("resources: {gpu: 0.5}", TRIAL + "    image: tuner/x:1\n").replace(
        "  trial:\n", "  runtime: kubernetes\n  trial:\n"
    )
    assert any(
        "spec.final.resources.gpu: 0.5 is not a whole number" in line
        for line in problem_lines(text)
    )
