"""Invalid files, and two runs of the same one: a single error
with all problems, and nothing is started.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.cli import Cli, ended, experiment


def missing(file: Path) -> None:
    assert not file.exists()


def written(content: str | bytes) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        file.write_bytes(content.encode() if isinstance(content, str) else content)

    return write


LAUGHS = "a0: &a0 [lol, lol]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        pytest.param(missing, "there is no such file; tuner init .* writes one", id="missing"),
        pytest.param(Path.mkdir, "is a directory; name the file in it", id="a directory"),
        pytest.param(written(""), "1:1 the file is empty; tuner init - prints one", id="empty"),
        pytest.param(written("# nothing but a comment\n"), "1:1 the file is empty", id="a comment"),
        pytest.param(written("x: [1, 2\ny: 3\n"), r"2:\d+ not YAML: ", id="a syntax error"),
        pytest.param(
            written(bytes(range(256)) * 99),
            "2:118 the byte 0x80 is not UTF-8; save the file as UTF-8",
            id="binary",
        ),
        pytest.param(
            written("xs:\n" + "- 12345678\n" * 1_000_000),
            "11.0 MB is too large for an experiment; at most 1 MB is read",
            id="ten megabytes",
        ),
        pytest.param(
            written(LAUGHS),
            "more than 50000 values once every alias is written out",
            id="a billion laughs",
        ),
        pytest.param(
            written("[" * 10_000),
            "1:65 nested more than 64 levels deep",
            id="ten thousand brackets",
        ),
        pytest.param(
            written("- 1\n- 2\n"), "1:1 expected a mapping with apiVersion, kind", id="a list"
        ),
        pytest.param(
            written("kind: Deployment\napiVersion: apps/v1\n"),
            "kind: Deployment of apps/v1 is not an experiment; write apiVersion: tuner.dev/v1",
            id="of another kind",
        ),
    ],
)
def test_an_invalid_file_is_reported_once_and_starts_nothing(
    cli: Cli, make: Callable[[Path], None], sentence: str
) -> None:
    make(cli.file)
    answers = []
    for verb in ("validate", "run"):
        code, out, err = cli.tuner(verb, cli.file)
        assert (code, out) == (2, "")
        assert "bug" not in err
        assert re.search(sentence, err), err
        assert len(err) < 4000
        answers.append(err)
    assert answers[0] == answers[1]
    assert not list((cli.folder / "state").glob("experiments/*"))


def test_all_problems_of_a_file_are_reported_at_once_with_place_and_cure(cli: Cli) -> None:
    cli.file.write_text("""\
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {name: Bad_Name}
spec:
  objective: {metric: score, direction: up}
  parameters:
    lr: {type: float, min: 0, max: 1, scale: log}
    width: {type: int, min: 9, max: 3}
    depth: {type: int, min: 1, max: 10, step: 4, stepp: 1}
    act: []
    twice: [relu, relu]
    a: {type: float, min: 0, max: 1, when: {b: 1}}
    b: {type: float, min: 0, max: 1, when: {a: 1}}
  paralelism: 2
  algorithm: {name: grd}
  pruning: {name: medain}
  budget: {trials: many}
  trial:
    command: [python, train.py, "--lr=${learning_rate}"]
    timeout: soon
""")
    code, out, err = cli.tuner("validate", cli.file)
    assert (code, out) == (2, "")
    head, *lines = err.splitlines()
    assert head == f"{cli.file}: {len(lines)} problems"
    assert all(re.match(r"  \d+:\d+ \S+: .+", line) for line in lines), err
    found = {line.split()[1].rstrip(":") for line in lines}
    assert found >= {
        "metadata.name",
        "spec.objective.direction",
        "spec.parameters.lr.min",
        "spec.parameters.depth.stepp",
        "spec.parameters.act",
        "spec.paralelism",
        "spec.algorithm.name",
        "spec.pruning.name",
        "spec.budget.trials",
        "spec.trial.command[2]",
        "spec.trial.timeout",
    }
    places = [tuple(map(int, line.split()[0].split(":"))) for line in lines]
    assert places == sorted(places)
    assert "did you mean parallelism?" in err
    assert cli.tuner("run", cli.file)[::2] == (2, err)
    assert cli.tuner("get", "experiments", "-o", "json")[:2] == (0, "[]\n")


@pytest.mark.parametrize("verb", ["run", "validate"])
def test_a_script_is_named_as_one_and_is_run_by_python(cli: Cli, verb: str) -> None:
    script = cli.file.with_name("search.py")
    script.write_text("import tuner\n\nobjective = lambda trial: trial.suggest_float('x', 0, 1)\n")
    code, out, err = cli.tuner(verb, script)
    assert (code, out) == (2, "")
    assert f"runs by itself: python {script}" in err


def test_a_context_is_refused_for_a_local_experiment(cli: Cli) -> None:
    cli.file.write_text(experiment())
    code, out, err = cli.tuner("run", cli.file, "--context", "lab")
    assert (code, out) == (2, "")
    assert (
        "--context: applies to a cluster, and trials run on this machine; add --runtime kubernetes"
        in err
    )


def test_without_a_kubeconfig_a_cluster_is_refused_and_nothing_is_created(
    cli: Cli, tmp_path: Path
) -> None:
    cli.file.write_text(experiment(trial="image: example/tiny:1"))
    cli.env["KUBECONFIG"] = str(tmp_path / "none")
    code, out, err = cli.tuner("run", cli.file, "--runtime", "kubernetes")
    assert (code, out) == (2, "")
    assert "none" in err
    assert "KUBECONFIG" in err
    assert cli.tuner("get", "experiments", "-o", "name")[1] == ""


def test_a_file_for_a_cluster_can_be_checked_without_one(cli: Cli) -> None:
    cli.file.write_text(experiment(trial="image: example/tiny:1") + "  runtime: kubernetes\n")
    code, out, err = cli.tuner("validate", cli.file)
    assert (code, "is valid" in out, err) == (0, True, "")


def test_one_of_two_concurrent_starts_runs_the_experiment_and_the_other_fails(cli: Cli) -> None:
    cli.file.write_text(experiment(trials=3, trial="gracePeriod: 1s"))
    both = [cli.start("run", cli.file) for _ in range(2)]
    codes, said = zip(*map(ended, both), strict=True)
    assert sorted(codes) in ([0, 0], [0, 6]), said
    for process, code, err in zip(both, codes, said, strict=True):
        (other,) = set(both) - {process}
        if code == 6:
            assert f"tiny is being run by process {other.pid} on" in err
    assert [start.split()[:2] for start in cli.starts()] == [["0", "1"], ["1", "1"], ["2", "1"]]
    assert len(cli.json("get", "experiments", "-o", "json")) == 1


def test_another_file_under_the_same_name_is_refused_with_every_difference(cli: Cli) -> None:
    cli.file.write_text(experiment())
    assert cli.tuner("run", cli.file)[0] == 0
    cli.file.write_text(
        experiment(parameters="x: {type: float, min: 0, max: 2}, y: [a, b]", parallelism=3)
    )
    code, out, err = cli.tuner("run", cli.file)
    assert (code, out) == (6, "")
    for difference in (
        "spec.parallelism: 1 -> 3",
        "spec.parameters.x.max: 1 -> 2",
        "spec.parameters.y",
    ):
        assert difference in err
    assert "tuner delete tiny" in err
    assert len(cli.starts()) == 2
