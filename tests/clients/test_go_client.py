"""examples/clients/go: a program built by Go's tools tunes a function,
even if it or the server is killed.
"""

from __future__ import annotations

import filecmp
import math
import os
import secrets
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from suggest.client import Client, Outcome, StudyName, Trial, TrialState
from tests.clients.serving import Served
from tests.clients.toolchain import EXAMPLE, ROOT, go, lacks
from tests.conditions import eventually

NAME = StudyName("default", "go-example")
BATCH, STEPS = 4, 10
README = (EXAMPLE / "README.md").read_text(encoding="utf-8")


def arguments(served: Served, *more: str) -> list[str]:
    return [*served.flags, *more]


def run(tune: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [tune, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


@contextmanager
def running(tune: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [tune, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def loss(parameters: dict[str, float | str], step: int) -> float:
    """Return the value that the program computes."""
    lr, momentum, optimizer = parameters["lr"], parameters["momentum"], parameters["optimizer"]
    assert isinstance(lr, float)
    assert isinstance(momentum, float)
    return (
        (math.log10(lr) + 2) ** 2
        + (momentum - 0.9) ** 2
        + (0.5 if optimizer == "sgd" else 0)
        + 1 / (step + 1)
    )


def check_study(client: Client, trials: int) -> None:
    """Check that each trial exists once and has ended, with each step once
    and the value that the program computed.
    """
    found = client.list_trials(NAME)
    assert [t.number for t in found] == list(range(trials))
    steps: dict[int, list[int]] = {t.number: [] for t in found}
    for number, m in client.list_measurements(NAME):
        steps[number].append(m.step)
        assert math.isclose(m.value, loss(dict(found[number].parameters), m.step), rel_tol=1e-12)
    for trial in found:
        assert trial.state in (TrialState.SUCCEEDED, TrialState.PRUNED)
        ran = STEPS if trial.state is TrialState.SUCCEEDED else len(steps[trial.number])
        assert steps[trial.number] == list(range(ran))
        assert trial.value is not None
        assert math.isclose(trial.value, loss(dict(trial.parameters), ran - 1), rel_tol=1e-12)
    batches = Counter(t.request_id for t in found)
    assert batches == {
        f"tune-{first}": min(BATCH, trials - first) for first in range(0, trials, BATCH)
    }


def test_the_go_client_tunes_and_prints_the_best_trial(tune: Path, served: Served) -> None:
    done = run(tune, *arguments(served, "--trials=22"))
    assert (done.returncode, done.stderr) == (0, "")
    with served.client() as client:
        check_study(client, 22)
        (best,) = client.optimal_trials(NAME)
        (again,) = [s for s in client.list_studies() if s.name == NAME]
        assert again.spec.algorithm.name == "tpe"
    *each, last = done.stdout.splitlines()
    assert len(each) == 22
    assert last.startswith(f"best: trial {best.number}: succeeded loss={best.value:.4f}: lr=")


def test_a_restarted_client_gets_the_same_trials_and_runs_none_twice(
    tune: Path, served: Served
) -> None:
    first = run(tune, *arguments(served, "--trials=8"))
    with served.client() as client:
        before = client.list_trials(NAME), client.list_measurements(NAME)
        again = run(tune, *arguments(served, "--trials=8"))
        assert (again.returncode, again.stdout) == (0, first.stdout.splitlines(keepends=True)[-1])
        assert (client.list_trials(NAME), client.list_measurements(NAME)) == before
        replay = client.suggest(NAME, BATCH, client_id="tune", request_id="tune-4")
        assert list(replay.trials) == before[0][4:]


def test_a_killed_client_continues_after_a_restart(tune: Path, served: Served) -> None:
    with running(tune, *arguments(served, "--trials=12", "--pace=30ms")) as process:
        assert process.stdout is not None
        assert [process.stdout.readline()[:6] for _ in range(5)] == ["trial "] * 5
        process.kill()
    done = run(tune, *arguments(served, "--trials=12"))
    assert (done.returncode, done.stderr) == (0, "")
    with served.client() as client:
        check_study(client, 12)


def is_leased(trial: Trial) -> bool:
    return trial.lease_expire_time is not None and trial.lease_expire_time >= datetime.now(UTC)


def test_the_trials_of_a_killed_worker_go_to_another_one(tune: Path, served: Served) -> None:
    worker = arguments(served, "--client=a", "--trials=4", "--pace=10s", "--lease=1s")
    with running(tune, *worker) as process, served.client() as client:

        def leased() -> int:
            return sum(is_leased(trial) for trial in client.list_trials(NAME))

        eventually(lambda: client.list_studies() and leased() == BATCH, within_s=60)
        process.kill()
        eventually(lambda: leased() == 0, within_s=60)
        done = run(tune, *arguments(served, "--client=b", "--trials=4"))
        assert (done.returncode, done.stderr) == (0, "")
        found = client.list_trials(NAME)
        assert [(t.number, t.tries, t.client_id) for t in found] == [
            (n, 2, "b") for n in range(BATCH)
        ]
        assert {m.attempt for _, m in client.list_measurements(NAME)} == {2}
        assert {t.state for t in found} <= {TrialState.SUCCEEDED, TrialState.PRUNED}


def test_steps_longer_than_the_lease_lose_no_trial(tune: Path, served: Served) -> None:
    slow = arguments(served, "--trials=4", "--pace=3s", "--lease=2s")
    with running(tune, *slow) as process, served.client() as client:

        def reported() -> bool:
            request_id = secrets.token_hex(8)
            taken = client.suggest(
                NAME, 4, client_id="o", request_id=request_id, lease_s=60, expired_only=True
            )
            assert taken.trials == ()
            return any(m.step == 3 for _, m in client.list_measurements(NAME))

        eventually(client.list_studies, within_s=60)
        eventually(reported, within_s=60)
        process.kill()


def test_the_client_survives_a_killed_server(tune: Path, served: Served) -> None:
    with running(tune, *arguments(served, "--trials=24", "--pace=20ms")) as process:
        assert process.stdout is not None
        for _ in range(2):
            assert [process.stdout.readline()[:6] for _ in range(6)] == ["trial "] * 6
            served.kill()
            served.start()
        rest, errors = process.communicate(timeout=120)
        assert (process.returncode, errors) == (0, "")
    assert len(rest.splitlines()) == 24 - 12 + 1
    with served.client() as client:
        check_study(client, 24)


@pytest.mark.parametrize(
    "point",
    ["store.insert_study", "store.hand_out", "store.add_measurements", "store.finish_trial"],
)
def test_a_call_whose_reply_was_lost_is_repeated_and_applied_once(
    point: str, tune: Path, served: Served
) -> None:
    served.kill()
    served.start(failpoint=f"{point}.after")
    with running(tune, *arguments(served, "--trials=8")) as process:
        assert served.await_death() == -9
        served.start()
        _, errors = process.communicate(timeout=120)
        assert (process.returncode, errors) == (0, "")
    with served.client() as client:
        check_study(client, 8)


def test_a_trial_that_another_client_ended_is_abandoned_with_a_message(
    tune: Path, served: Served
) -> None:
    with (
        running(tune, *arguments(served, "--trials=4", "--pace=400ms")) as process,
        served.client() as client,
    ):
        eventually(lambda: client.list_studies() and client.list_measurements(NAME), within_s=60)
        client.complete(NAME, 2, Outcome(TrialState.CANCELLED, reason="not wanted"))
        output, errors = process.communicate(timeout=120)
        assert (process.returncode, errors) == (0, "")
        assert client.get_trial(NAME, 2).state is TrialState.CANCELLED
    assert f"trial 2: left: FailedPrecondition: {NAME}: trial 2 " in output
    assert output.count(": succeeded ") == 3 + 1, "and the best"


def test_errors_are_printed_one_per_line(tune: Path, served: Served) -> None:
    done = run(tune, *arguments(served, "--study=A"))
    assert done.returncode == 1
    assert done.stderr.startswith("tune: InvalidArgument\n  study_id: 'A' is not a name; use ")
    served.kill()
    done = run(tune, *arguments(served, "--patience=1s"))
    assert done.returncode == 1
    assert "tune: Unavailable: " in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_a_token_the_client_prints_what_the_server_requires(
    tune: Path, served: Served
) -> None:
    done = run(tune, f"--address={served.address}", f"--ca={served.ca}")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("tune: Unauthenticated: this server requires a token")


def test_token_and_ca_can_come_from_the_environment(tune: Path, served: Served) -> None:
    env = {**os.environ, "TUNER_TLS_CA": str(served.ca), "TUNER_TOKEN_FILE": str(served.token)}
    command = [tune, f"--address={served.address}", "--trials=4"]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_token_is_sent_unencrypted_to_this_machine_only(tune: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    done = run(tune, "--address=192.0.2.1:8765", f"--token={token}", "--patience=1s")
    assert done.returncode == 1
    assert "security" in done.stderr


def test_the_generated_code_is_fresh(tmp_path: Path) -> None:
    assert "\n./generate.sh\n" in README
    go("version", folder=EXAMPLE)
    if not (ROOT / ".venv-proto").exists():
        lacks("protoc is in the environment that `make check` makes, and that is not there")
    done = subprocess.run(
        ["./generate.sh", tmp_path],
        cwd=EXAMPLE,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    # On a machine without the modules, Go prints what it downloads.
    lines = [line for line in done.stderr.splitlines() if not line.startswith("go: downloading ")]
    assert (done.returncode, lines) == (0, [])
    made = sorted(path.name for path in tmp_path.iterdir())
    assert made == sorted(path.name for path in (EXAMPLE / "suggestpb").iterdir())
    assert filecmp.cmpfiles(tmp_path, EXAMPLE / "suggestpb", made, shallow=False)[0] == made


def test_the_code_passes_gofmt_and_vet() -> None:
    go("vet", "./...", folder=EXAMPLE)
    done = subprocess.run(
        ["gofmt", "-l", "."], cwd=EXAMPLE, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")
