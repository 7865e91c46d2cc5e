"""The trials of a history are read as protobuf reads them, however many there are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random

import pytest
from google.protobuf.message import DecodeError

from suggest.errors import InvalidArgument
from suggest.katib.experiment import read_experiment
from suggest.katib.trial_history import TRIAL, StudyIndex
from suggest.katib.trial_reader import MOST_PROBLEMS, HistoryTrial, TrialReader
from suggest.katib.v1beta1 import api_pb2 as pb
from suggest.trial import Trial, TrialState
from tests.service.katib_caller import DONE, a_trial, an_experiment, choice, double, whole

POINT = {"lr": "0.02", "layers": "2", "kind": "sgd"}
RUNNING, SUCCEEDED, FAILED = TrialState.RUNNING, TrialState.SUCCEEDED, TrialState.FAILED
SPACE = (double("lr", "0", "0.9"), whole("layers", "1", "4"), choice("kind", "sgd", "adam"))
READER = TrialReader(read_experiment(an_experiment(parameters=SPACE)))


def read(*trials: pb.Trial | bytes) -> list[HistoryTrial]:
    raws = [trial if isinstance(trial, bytes) else trial.SerializeToString() for trial in trials]
    columns = READER.read(dict(enumerate(raws)))
    return [columns.trial(row) for row in range(len(columns))]


def problems(*trials: pb.Trial | bytes) -> list[tuple[str, str]]:
    with pytest.raises(InvalidArgument) as caught:
        read(*trials)
    return [(problem.path, problem.message) for problem in caught.value.problems]


def drawn(rng: Random, name: str) -> pb.Trial:
    """Return a trial in any state, with its parameters in any order,
    and perhaps with further metrics or times.
    """
    point = {
        "lr": str(rng.uniform(0.01, 0.9)),
        "layers": str(rng.randint(1, 4)),
        "kind": rng.choice(["sgd", "adam"]),
    }
    names = list(point)
    if rng.random() < 0.2:
        rng.shuffle(names)
    condition = rng.choice([DONE, DONE, DONE, *pb.TrialStatus.TrialConditionType.values()])
    trial = a_trial(
        name,
        {each: point[each] for each in names},
        condition,
        rng.choice(["0.5", "1", "nan", "", "ä"]),
    )
    if rng.random() < 0.3:
        trial.status.observation.metrics.add(
            name=rng.choice(["loss", "accuracy"]), value=rng.choice(["7", ""])
        )
    trial.status.completion_time = rng.choice(["", "2026-01-02T03:04:05Z"])
    return trial


def expected(trial: pb.Trial) -> HistoryTrial | None:
    """Return a trial as protobuf gives it, None if it is refused.

    Where its point is and why it failed are left out.
    """
    given = {each.name: each.value for each in trial.spec.parameter_assignments.assignments}
    metrics = {each.name: each.value for each in trial.status.observation.metrics}
    if given.keys() != POINT.keys() or not 0 < len(trial.name) <= 253 or "\0" in trial.name:
        return None
    lr, layers = number(given["lr"]), number(given["layers"])
    if lr is None or layers is None or layers != int(layers):
        return None
    state, value = RUNNING, None
    if trial.status.condition in (DONE, pb.TrialStatus.EARLYSTOPPED):
        value = number(metrics.get("accuracy", ""))
        ended_well = SUCCEEDED if trial.status.condition == DONE else TrialState.PRUNED
        state = FAILED if value is None else ended_well
    elif trial.status.condition in (
        pb.TrialStatus.KILLED,
        pb.TrialStatus.FAILED,
        pb.TrialStatus.METRICSUNAVAILABLE,
    ):
        state = FAILED
    moment = trial.status.completion_time or trial.status.start_time
    return HistoryTrial(
        trial.name, (lr, int(layers), given["kind"]), True, True, state, value, "", moment
    )


def number(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def compared(trial: HistoryTrial) -> HistoryTrial:
    return trial._replace(is_inside=True, reason="")


@pytest.mark.parametrize(
    "draw", [drawn, lambda _, name: a_trial(name, POINT, DONE, "0.25")], ids=["mixed", "alike"]
)
def test_trials_that_are_read_together_are_those_that_protobuf_reads(
    draw: Callable[[Random, str], pb.Trial],
) -> None:
    rng = Random(1)
    for count in (1, 2, 10, 61, 200):
        trials = [draw(rng, f"search-{k}") for k in range(count)]
        assert list(map(compared, read(*trials))) == list(map(expected, trials))


def mutant(rng: Random, raw: bytes) -> bytes:
    """Return a trial's bytes with one or two of them changed, removed,
    inserted or repeated elsewhere.
    """
    found = bytearray(raw)
    for _ in range(rng.randint(1, 2)):
        at, length = rng.randrange(len(found)), rng.randint(0, 12)
        there = rng.randrange(len(found))
        byte = bytes([rng.choice([0, 1, 2, 3, 4, 8, 10, 18, 24, 26, 34, rng.randrange(256)])])
        found[at : at + rng.choice([0, 1, length])] = rng.choice(
            [b"", byte, byte, found[there : there + length]]
        )
        found = found or bytearray(byte)
    return bytes(found)


def test_trials_with_a_mutated_one_among_many_are_those_that_protobuf_reads() -> None:
    rng = Random(3)
    many = [drawn(rng, f"search-{k}") for k in range(10)]
    refused = accepted = 0
    for turn in range(400):
        trial, raw = None, mutant(rng, drawn(rng, f"search-x{turn}").SerializeToString())
        with suppress(DecodeError):
            trial = pb.Trial.FromString(raw)
        with suppress(InvalidArgument):
            found = list(map(compared, read(*many, raw)))
            assert found[:-1] == list(map(expected, many))
            if trial is not None and found[-1].is_whole:
                assert found[-1] == expected(trial)
            accepted += 1
            continue
        assert trial is None or expected(trial) is None
        refused += 1
    assert min(refused, accepted) > 40


@pytest.mark.parametrize(
    "unusual",
    [
        b"\x23\x24",  # a group
        b"\x25\x08\x01\x08\x01",  # a fixed32, whose bytes are also two fields with a varint
        b"\x1a\x0b\x18" + b"\xff" * 9 + b"\x01",  # a negative condition
        b"\x8a\x00\x08search-x",  # a name whose tag has a byte too many
        b"\x0a\x08search-x" * 2000,
    ],
)
def test_bytes_that_encoders_do_not_write_are_read_as_protobuf_reads_them(unusual: bytes) -> None:
    raw = a_trial("search-x", POINT, pb.TrialStatus.RUNNING).SerializeToString() + unusual
    assert list(map(compared, read(raw))) == [expected(pb.Trial.FromString(raw))]


@pytest.mark.parametrize("name", ["säarch-☃", "search\x7f", "s" * 253])
def test_names_that_are_not_ascii_are_read(name: str) -> None:
    assert [trial.name for trial in read(a_trial(name, POINT, DONE, "0.5"))] == [name]


@pytest.mark.parametrize("order", [("lr", "layers", "kind"), ("kind", "lr", "layers")])
def test_parameters_in_any_order_are_those_of_the_space(order: Sequence[str]) -> None:
    trials = [
        a_trial(f"search-{k}", {name: POINT[name] for name in order}, DONE, "0.5") for k in range(2)
    ]
    assert {trial.point for trial in read(*trials)} == {(0.02, 2, "sgd")}
    others = [a_trial(f"other-{k}", POINT, DONE, "0.5") for k in range(2)]
    assert {trial.point for trial in read(*trials, *others)} == {(0.02, 2, "sgd")}


@pytest.mark.parametrize("count", [1, 10, 61])
def test_a_trial_that_has_not_ended_may_lack_parameters(count: int) -> None:
    good = a_trial("search-a", POINT, DONE, "0.5")
    begun = [a_trial(f"search-{k}", {"lr": "0.5"}, pb.TrialStatus.CREATED) for k in range(count)]
    [whole, *others] = read(good, *begun)
    assert (whole.is_whole, {other.is_whole for other in others}) == (True, {False})
    ended = a_trial("search-b", {"lr": "0.5"}, DONE, "0.5")
    assert problems(good, *begun, ended)[0][0] == f"trials[{count + 1}].layers"


def test_a_trial_names_its_objective_if_the_experiment_does_not() -> None:
    experiment = an_experiment(parameters=SPACE)
    experiment.spec.objective.objective_metric_name = ""
    trial = a_trial("search-a", POINT, DONE, "0.5")
    trial.spec.objective.objective_metric_name = "accuracy"
    columns = TrialReader(read_experiment(experiment)).read({0: trial.SerializeToString()})
    assert columns.values == [0.5]


def test_a_history_without_trials_is_read() -> None:
    assert read() == []


@pytest.mark.parametrize("count", [1, 10, 61])
@pytest.mark.parametrize("raw", [b"", b"\x0a\x00"], ids=["no bytes", "empty name"])
def test_trials_that_say_nothing_are_refused_for_their_names(raw: bytes, count: int) -> None:
    message = "give each trial its name, of 1 to 253 characters"
    expected = [(f"trials[{place}].name", message) for place in range(count)][:MOST_PROBLEMS]
    assert problems(*[raw] * count) == expected


def test_the_last_of_equal_fields_counts() -> None:
    first = a_trial("search-a", POINT, pb.TrialStatus.RUNNING)
    again = pb.Trial(name="search-b")
    again.status.condition = DONE
    again.spec.parameter_assignments.assignments.add(name="lr", value="0.5")
    again.status.observation.metrics.add(name="accuracy", value="0.75")
    other = a_trial("search-c", POINT, DONE, "0.5")
    [one, two] = read(first.SerializeToString() + again.SerializeToString(), other)
    assert (one.name, one.point, one.state, one.value) == (
        "search-b",
        (0.5, 2, "sgd"),
        SUCCEEDED,
        0.75,
    )
    assert (two.name, two.point, two.state, two.value) == (
        "search-c",
        (0.02, 2, "sgd"),
        SUCCEEDED,
        0.5,
    )


def test_a_field_too_many_in_one_trial_is_not_that_of_another_trial() -> None:
    twice = a_trial("search-a", POINT, pb.TrialStatus.RUNNING).SerializeToString()
    twice += pb.Trial(
        status=pb.TrialStatus(condition=DONE, start_time="2026-02-03T04:05:06Z")
    ).SerializeToString()
    # encoders leave out CREATED, which is 0
    without = a_trial("search-b", POINT, pb.TrialStatus.CREATED, moment="")
    for trials in ((twice, without), (without, twice)):
        ended = {each.name: (each.state, each.moment) for each in read(*trials)}
        assert ended == {"search-a": (FAILED, "2026-02-03T04:05:06Z"), "search-b": (RUNNING, "")}


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
    good = a_trial("search-a", POINT, DONE, "0.5")
    problem = ("trials[1]", "is not a trial: its bytes cannot be read")
    assert problems(good, broken, good) == [problem]
    assert problems(good, broken) == [problem]
    assert problems(good, broken, *[good] * 60) == [problem]


@pytest.mark.parametrize("count", [1, 10, 61])
def test_a_metric_whose_name_is_not_text_is_refused_among_any_number_of_trials(count: int) -> None:
    good = a_trial("search-a", POINT, DONE, "0.5").SerializeToString()
    broken = good + field(3, field(4, field(1, field(1, b"\xff\xfe"))))
    assert problems(*[good] * (count - 1), broken) == [
        (f"trials[{count - 1}]", "is not a trial: its bytes cannot be read")
    ]


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
    twice = written(
        "search-b", [lr + field(2, b"0.04"), layers, kind + sgd], [one + field(2, b"0.75")]
    )
    good = written("search-c", [lr, layers, kind + sgd], [two])
    points = {
        each.name: (each.point, each.value) for each in read(*[without, twice, good][::order])
    }
    assert points == {
        "search-a": ((0.02, 2, ""), None),
        "search-b": ((0.04, 2, "sgd"), 0.75),
        "search-c": ((0.02, 2, "sgd"), 0.5),
    }


def test_a_step_that_an_earlier_version_wrote_above_max_is_the_same_point() -> None:
    experiment = read_experiment(
        an_experiment(parameters=(double("x", "-1", "0.11", "0.36666666666666667"),))
    )
    stored = Trial(0, SUCCEEDED, {"x": 0.1000000000000001}, value=0.5, labels={TRIAL: "search-a"})
    known = StudyIndex.of(experiment, str, [stored]).known
    sent = a_trial("search-a", {"x": "0.1000000000000001"}, DONE, "0.5").SerializeToString()
    columns = TrialReader(experiment).read({0: sent})
    assert known.have_points_of(columns, known.shared(columns))


def test_an_assignment_without_a_name_or_a_value_is_refused() -> None:
    good = a_trial("search-a", POINT, DONE, "0.5")
    nameless, valueless = (a_trial("search-b", POINT) for _ in range(2))
    nameless.spec.parameter_assignments.assignments[1].name = ""
    valueless.spec.parameter_assignments.assignments[1].value = ""
    assert problems(good, nameless) == [("trials[1].", "is not a parameter of the experiment")]
    assert problems(good, valueless)[0][0] == "trials[1].layers"
    both = a_trial("search-b", POINT)
    both.spec.parameter_assignments.assignments[0].value = ""
    both.spec.parameter_assignments.assignments.add(value="0.02")
    assert problems(good, both) == [("trials[1].", "is not a parameter of the experiment")]


@pytest.mark.parametrize("text", ["2", "9007199254740993", "-7", "0"])
def test_whole_values_are_floats_as_they_are_after_a_restart(text: str) -> None:
    trials = [a_trial(f"search-{k}", POINT, DONE, text) for k in range(2)]
    assert {(type(trial.value), trial.value) for trial in read(*trials)} == {(float, float(text))}
