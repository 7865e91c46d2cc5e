"""The trials of a history are read together as protobuf reads them one by one."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from suggest.errors import InvalidArgument
from suggest.katib.experiment import read_experiment
from suggest.katib.trial_reader import ToldTrial, TrialReader
from suggest.katib.v1beta1 import api_pb2 as pb
from suggest.trial import TrialState
from tests.service.katib_caller import DONE, a_trial, an_experiment

POINT = {"lr": "0.02", "layers": "2", "kind": "sgd"}
RUNNING, SUCCEEDED = TrialState.RUNNING, TrialState.SUCCEEDED
READER = TrialReader(read_experiment(an_experiment()))


def read(*trials: pb.Trial | bytes) -> list[ToldTrial]:
    raws = [trial if isinstance(trial, bytes) else trial.SerializeToString() for trial in trials]
    told = READER.read(dict(enumerate(raws)))
    return [told.trial(row) for row in range(len(told))]


def problems(*trials: pb.Trial | bytes) -> list[tuple[str, str]]:
    with pytest.raises(InvalidArgument) as caught:
        read(*trials)
    return [(problem.path, problem.message) for problem in caught.value.problems]


def drawn(rng: Random, name: str) -> pb.Trial:
    """Return a trial in any state, with its parameters in any order, and perhaps with further metrics or times."""
    point = {"lr": str(rng.uniform(0.01, 0.9)), "layers": str(rng.randint(1, 4)), "kind": rng.choice(["sgd", "adam"])}
    names = list(point)
    if rng.random() < 0.2:
        rng.shuffle(names)
    condition = rng.choice([DONE, DONE, DONE, *pb.TrialStatus.TrialConditionType.values()])
    trial = a_trial(name, {each: point[each] for each in names}, condition, rng.choice(["0.5", "1", "nan", "", "ä"]))
    if rng.random() < 0.3:
        trial.status.observation.metrics.add(name=rng.choice(["loss", "accuracy"]), value=rng.choice(["7", ""]))
    trial.status.completion_time = rng.choice(["", "2026-01-02T03:04:05Z"])
    return trial


def one_by_one(trial: pb.Trial) -> tuple[str, list[str], str, str]:
    """Return the name, texts, last value of the metric and moment of a trial, as protobuf gives them."""
    given = {each.name: each.value for each in trial.spec.parameter_assignments.assignments}
    values = {each.name: each.value for each in trial.status.observation.metrics}
    moment = trial.status.completion_time or trial.status.start_time
    return trial.name, [given[name] for name in POINT], values.get("accuracy", ""), moment


@pytest.mark.parametrize("is_mixed", [True, False])
def test_trials_that_are_read_together_are_those_that_protobuf_reads(is_mixed: bool) -> None:
    rng = Random(1)
    for count in (1, 2, 40):
        trials = [drawn(rng, f"search-{k}") for k in range(count)]
        if not is_mixed:
            trials = [a_trial(f"search-{k}", POINT, DONE, "0.25") for k in range(count)]
        for trial, told in zip(trials, read(*trials), strict=True):
            name, texts, accuracy, moment = one_by_one(trial)
            assert (told.name, [str(value) for value in told.point], told.moment) == (name, texts, moment)
            if told.state is SUCCEEDED:
                assert told.value == float(accuracy)
            is_well = trial.status.condition in (DONE, pb.TrialStatus.EARLYSTOPPED)
            assert (told.state is SUCCEEDED) == (is_well and accuracy in ("0.5", "0.25", "1", "7"))


def test_a_history_without_trials_is_read() -> None:
    assert read() == []


def test_the_last_of_equal_fields_counts() -> None:
    first = a_trial("search-a", POINT, pb.TrialStatus.RUNNING)
    again = pb.Trial(name="search-b")
    again.status.condition = DONE
    again.spec.parameter_assignments.assignments.add(name="lr", value="0.5")
    again.status.observation.metrics.add(name="accuracy", value="0.75")
    other = a_trial("search-c", POINT, DONE, "0.5")
    [one, two] = read(first.SerializeToString() + again.SerializeToString(), other)
    assert (one.name, one.point, one.state, one.value) == ("search-b", (0.5, 2, "sgd"), SUCCEEDED, 0.75)
    assert (two.name, two.point, two.state, two.value) == ("search-c", (0.02, 2, "sgd"), SUCCEEDED, 0.5)


def test_fields_of_newer_clients_are_ignored() -> None:
    newer = b"\xa2\x06\x03new"  # field 100
    running = a_trial("search-a", POINT, pb.TrialStatus.RUNNING).SerializeToString()
    [one, two] = read(running + newer, a_trial("search-b", POINT, DONE, "1"))
    assert (one.name, one.state, two.name, two.value) == ("search-a", RUNNING, "search-b", 1.0)


@pytest.mark.parametrize(
    "broken",
    [
        b"\x0a\x7fsearch",  # a name that is longer than what follows
        b"\x12\xff\xff\x03",  # a spec that would take in the trials that follow
        b"\xa3\x06",  # a group that does not end
        b"\xa4\x06",  # a group that did not begin
        b"\x0a\x02\xff\xfe",  # a name that is not text
        b"\x12\x06\x1a\x04\x0a\x02\x12\x09",  # a value that is longer than its pair
        b"\xff",
    ],
)
def test_a_trial_whose_bytes_cannot_be_read_is_named(broken: bytes) -> None:
    whole = a_trial("search-a", POINT, DONE, "0.5")
    told = ("trials[1]", "is not a trial: its bytes cannot be read")
    assert problems(whole, broken, whole) == [told]
    assert problems(whole, broken) == [told]


def field(number: int, content: bytes) -> bytes:
    """Return the bytes of a short field with text or with a message."""
    return bytes([number << 3 | 2, len(content)]) + content


def written(name: str, assignments: Sequence[bytes], metrics: Sequence[bytes]) -> bytes:
    """Return a succeeded trial with assignments and metrics of these bytes."""
    spec = field(3, b"".join(field(1, each) for each in assignments))
    status = b"\x18\x02" + field(4, b"".join(field(1, each) for each in metrics))
    return field(1, name.encode()) + field(2, spec) + field(3, status)


@pytest.mark.parametrize("order", [1, -1])
def test_a_value_too_many_in_one_trial_is_not_that_of_another_trial(order: int) -> None:
    lr, layers = field(1, b"lr") + field(2, b"0.02"), field(1, b"layers") + field(2, b"2")
    kind, sgd = field(1, b"kind"), field(2, b"sgd")
    one, two = field(1, b"accuracy") + field(2, b"0.25"), field(1, b"accuracy") + field(2, b"0.5")
    without = written("search-a", [lr, layers, kind], [field(1, b"accuracy")])
    twice = written("search-b", [lr + field(2, b"0.04"), layers, kind + sgd], [one + field(2, b"0.75")])
    whole = written("search-c", [lr, layers, kind + sgd], [two])
    told = {each.name: (each.point, each.value) for each in read(*[without, twice, whole][::order])}
    assert told == {
        "search-a": ((0.02, 2, ""), None),
        "search-b": ((0.04, 2, "sgd"), 0.75),
        "search-c": ((0.02, 2, "sgd"), 0.5),
    }


def test_an_assignment_without_a_name_or_a_value_is_refused() -> None:
    whole = a_trial("search-a", POINT, DONE, "0.5")
    nameless, valueless = (a_trial("search-b", POINT) for _ in range(2))
    nameless.spec.parameter_assignments.assignments[1].name = ""
    valueless.spec.parameter_assignments.assignments[1].value = ""
    assert problems(whole, nameless) == [("trials[1].", "is not a parameter of the experiment")]
    assert problems(whole, valueless)[0][0] == "trials[1].layers"
    both = a_trial("search-b", POINT)
    both.spec.parameter_assignments.assignments[0].value = ""
    both.spec.parameter_assignments.assignments.add(value="0.02")
    assert problems(whole, both) == [("trials[1].", "is not a parameter of the experiment")]
