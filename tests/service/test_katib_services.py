"""Katib's other services and ports: reports, stopping rules, health, tokens, sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from suggest.client import Client
from suggest.errors import InvalidArgument
from suggest.katib.v1beta1 import api_pb2 as pb
from suggest.server import Protection, Server, ServerOptions
from tests.conditions import eventually
from tests.katib_stubs import DBManagerStub, EarlyStoppingStub, SuggestionStub
from tests.service.granted import secret, tokens_file
from tests.service.katib_caller import DONE, a_request, a_trial, an_experiment
from tests.service.running import a_server

AT_KATIBS_PORTS = ServerOptions(katib=(0, 0))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with a_server(tmp_path / "studies.db", options=AT_KATIBS_PORTS) as server:
        yield server


@pytest.fixture
def channel(server: Server) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.katib_addresses[0]) as channel:
        yield channel


def report(
    channel: grpc.Channel,
    trial: str,
    values: Sequence[str],
    *,
    metric: str = "accuracy",
    second: int = 0,
) -> None:
    """Report values, each a second after the one before;
    second: of the first one; if negative, of all.
    """
    lines = [
        pb.MetricLog(
            time_stamp=f"2026-01-02T03:04:{max(second + place, 0):02}Z",
            metric=pb.Metric(name=metric, value=v),
        )
        for place, v in enumerate(values)
    ]
    log = pb.ObservationLog(metric_logs=lines)
    DBManagerStub(channel).ReportObservationLog(
        pb.ReportObservationLogRequest(trial_name=trial, observation_log=log), timeout=10
    )


def values(
    channel: grpc.Channel, trial: str, *, metric: str = "", start: str = "", end: str = ""
) -> list[str]:
    request = pb.GetObservationLogRequest(
        trial_name=trial, metric_name=metric, start_time=start, end_time=end
    )
    found = (
        DBManagerStub(channel).GetObservationLog(request, timeout=10).observation_log.metric_logs
    )
    return [line.metric.value for line in found]


def refused(call: object, request: object) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call(request, timeout=10)  # type: ignore[operator]
    return caught.value.code(), caught.value.details()


# Reports


def test_an_observation_log_is_returned_as_it_was_reported(channel: grpc.Channel) -> None:
    report(channel, "a", ["0.5", "nan", "unavailable", "Genotype(normal=[])", ""])
    report(channel, "b", ["1"])
    assert values(channel, "a") == ["0.5", "nan", "unavailable", "Genotype(normal=[])", ""]
    request = pb.GetObservationLogRequest(trial_name="a")
    first = (
        DBManagerStub(channel).GetObservationLog(request, timeout=10).observation_log.metric_logs[0]
    )
    assert (first.time_stamp, first.metric.name) == ("2026-01-02T03:04:00Z", "accuracy")


def test_entries_of_one_second_keep_the_order_of_their_arrival(channel: grpc.Channel) -> None:
    for each in ("3", "1", "2"):
        report(channel, "a", [each])
    assert values(channel, "a") == ["3", "1", "2"]


def test_entries_are_ordered_by_time_across_time_zones(channel: grpc.Channel) -> None:
    times = {
        "third": "2026-01-02T03:04:05.5Z",
        "first": "2026-01-02T04:04:05+01:00",
        "second": "2026-01-02T03:04:05.123456789Z",
    }
    log = pb.ObservationLog(
        metric_logs=[
            pb.MetricLog(time_stamp=t, metric=pb.Metric(name="m", value=v))
            for v, t in times.items()
        ]
    )
    DBManagerStub(channel).ReportObservationLog(
        pb.ReportObservationLogRequest(trial_name="a", observation_log=log), timeout=10
    )
    assert values(channel, "a") == ["first", "second", "third"]


def test_an_observation_log_is_filtered_by_metric_and_time(channel: grpc.Channel) -> None:
    report(channel, "a", ["1", "2", "3", "4"])
    report(channel, "a", ["9"], metric="loss")
    assert values(channel, "a", metric="loss") == ["9"]
    span = {"start": "2026-01-02T03:04:01Z", "end": "2026-01-02T03:04:02Z"}
    assert values(channel, "a", metric="accuracy", **span) == ["2", "3"]
    assert values(channel, "nobody") == []


def test_deleting_an_observation_log_keeps_the_others(channel: grpc.Channel) -> None:
    for trial in "ab":
        report(channel, trial, ["1"])
    for _ in range(2):
        DBManagerStub(channel).DeleteObservationLog(
            pb.DeleteObservationLogRequest(trial_name="a"), timeout=10
        )
    assert (values(channel, "a"), values(channel, "b")) == ([], ["1"])


def test_empty_and_long_reports_are_stored(channel: grpc.Channel) -> None:
    """Katib fails in both cases."""
    report(channel, "a", [])
    report(channel, "a", [str(k) for k in range(20_000)], second=-20_000)
    assert values(channel, "a") == [str(k) for k in range(20_000)]


def test_reports_survive_the_server(tmp_path: Path) -> None:
    for expected in ([], ["0.5"]):
        with (
            a_server(tmp_path / "s.db") as server,
            grpc.insecure_channel(server.address) as channel,
        ):
            assert values(channel, "a") == expected
            report(channel, "a", ["0.5"])


def test_reports_count_as_measurements_of_katibs_namespace(tmp_path: Path) -> None:
    limits = tmp_path / "limits.yaml"
    limits.write_text("namespaces: {katib: {measurements: 3}}")
    options = ServerOptions(limits=str(limits), katib=(0,))
    with (
        a_server(tmp_path / "s.db", options=options) as server,
        grpc.insecure_channel(server.katib_addresses[0]) as channel,
    ):
        report(channel, "a", ["0.5"])
        report(channel, "b", ["0.5"])
    with (
        a_server(tmp_path / "s.db", options=options) as server,
        grpc.insecure_channel(server.katib_addresses[0]) as channel,
    ):
        with pytest.raises(
            grpc.RpcError, match="has 2 of the 3 measurements allowed, and 2 more"
        ) as full:
            report(channel, "a", ["0.6", "0.7"])
        assert full.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert values(channel, "a") == ["0.5"]
        DBManagerStub(channel).DeleteObservationLog(
            pb.DeleteObservationLogRequest(trial_name="b"), timeout=10
        )

        def is_stored() -> bool:
            try:
                report(channel, "a", ["0.6", "0.7"])
            except grpc.RpcError:
                return False
            return True

        eventually(is_stored)  # the namespace is counted again
        assert values(channel, "a") == ["0.5", "0.6", "0.7"]


def test_invalid_reports_are_refused_with_a_reason(channel: grpc.Channel) -> None:
    db = DBManagerStub(channel)
    bad = pb.ObservationLog(
        metric_logs=[pb.MetricLog(time_stamp="yesterday", metric=pb.Metric(name="m", value="1"))]
    )
    assert refused(
        db.ReportObservationLog, pb.ReportObservationLogRequest(trial_name="a", observation_log=bad)
    ) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "observation_log.metric_logs[0].time_stamp: 'yesterday' is not a time of RFC 3339; write "
        "it like "
        "2026-01-02T03:04:05Z",
    )
    for call, request in (
        (db.ReportObservationLog, pb.ReportObservationLogRequest()),
        (db.GetObservationLog, pb.GetObservationLogRequest()),
        (db.DeleteObservationLog, pb.DeleteObservationLogRequest()),
        (EarlyStoppingStub(channel).SetTrialStatus, pb.SetTrialStatusRequest()),
    ):
        assert refused(call, request) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "trial_name: name the trial, in 1 to 253 characters",
        )


# Early stopping


def rules(
    channel: grpc.Channel, succeeded: Sequence[str], *, maximize: bool = True, **settings: str
) -> list[pb.EarlyStoppingRule]:
    experiment = an_experiment()
    experiment.spec.objective.type = pb.MAXIMIZE if maximize else pb.MINIMIZE
    experiment.spec.early_stopping.algorithm_name = "medianstop"
    for name, value in settings.items():
        experiment.spec.early_stopping.algorithm_settings.add(name=name, value=value)
    trials = [a_trial(name, {}, DONE) for name in succeeded]
    trials.append(a_trial("running", {}, pb.TrialStatus.RUNNING))
    request = pb.GetEarlyStoppingRulesRequest(experiment=experiment, trials=trials)
    return list(
        EarlyStoppingStub(channel).GetEarlyStoppingRules(request, timeout=10).early_stopping_rules
    )


def test_the_early_stopping_rule_is_the_median_of_the_averages(channel: grpc.Channel) -> None:
    for trial, curve in {"a": "12349", "b": "22229", "c": "99990", "running": "00000"}.items():
        report(channel, trial, list(curve))
    median = pb.EarlyStoppingRule(name="accuracy", value="2.5", comparison=pb.LESS, start_step=4)
    assert rules(channel, "abc") == [median], "of 2.5, 2 and 9; Katib would take their mean"
    median.comparison = pb.GREATER
    assert rules(channel, "abc", maximize=False) == [median]


def test_there_is_no_early_stopping_rule_until_enough_trials_have_reached_the_step(
    channel: grpc.Channel,
) -> None:
    for trial, curve in {"a": "1111", "b": "2222", "short": "333"}.items():
        report(channel, trial, list(curve))
    assert rules(channel, ["a", "b", "short", "silent"]) == []
    assert [
        rule.value for rule in rules(channel, ["a", "b", "short"], min_trials_required="2")
    ] == ["1.5"]
    assert [rule.value for rule in rules(channel, ["a", "b", "short"], start_step="3")] == ["2.0"]


def test_reports_that_are_not_numbers_are_ignored(channel: grpc.Channel) -> None:
    for trial, curve in {
        "a": ["1", "nan", "3", "inf"],
        "b": ["unavailable"] * 4,
        "c": ["4"] * 4,
    }.items():
        report(channel, trial, curve)
    assert [rule.value for rule in rules(channel, "abc", min_trials_required="2")] == ["3.0"]


def test_the_average_of_values_whose_sum_is_no_double_is_one(channel: grpc.Channel) -> None:
    for trial in "abc":
        report(channel, trial, ["1.5e308", "1.5e308"])
    assert [rule.value for rule in rules(channel, "abc", start_step="2")] == ["1.5e+308"]
    assert [
        rule.value for rule in rules(channel, "ab", start_step="2", min_trials_required="2")
    ] == ["1.5e+308"]


def test_invalid_settings_of_early_stopping_are_refused_with_katibs_message(
    channel: grpc.Channel,
) -> None:
    request = pb.ValidateEarlyStoppingSettingsRequest(
        early_stopping=pb.EarlyStoppingSpec(algorithm_name="mean")
    )
    text = refused(EarlyStoppingStub(channel).ValidateEarlyStoppingSettings, request)
    assert text == (grpc.StatusCode.INVALID_ARGUMENT, "unknown algorithm name mean")


def test_a_stopped_trial_does_not_count_for_later_rules(channel: grpc.Channel) -> None:
    for trial, curve in {"a": "1111", "b": "2222", "c": "9999", "stopped": "9999"}.items():
        report(channel, trial, list(curve))
    assert [rule.value for rule in rules(channel, "abc")] == ["2.0"]
    request = pb.SetTrialStatusRequest(trial_name="stopped")
    for _ in range(2):
        assert (
            EarlyStoppingStub(channel).SetTrialStatus(request, timeout=10)
            == pb.SetTrialStatusReply()
        )
    assert [rule.value for rule in rules(channel, [*"abc", "stopped"])] == ["2.0"]
    log = DBManagerStub(channel).GetObservationLog(
        pb.GetObservationLogRequest(trial_name="stopped"), timeout=10
    )
    assert len(log.observation_log.metric_logs) == 4


def test_rules_are_given_without_what_only_katibs_webhook_guarantees(channel: grpc.Channel) -> None:
    request = pb.GetEarlyStoppingRulesRequest(
        experiment=pb.Experiment(name="a"), trials=[pb.Trial(name="a-1")]
    )
    assert (
        not EarlyStoppingStub(channel)
        .GetEarlyStoppingRules(request, timeout=10)
        .early_stopping_rules
    )


# Validation over gRPC, where the status code decides whether Katib's experiment fails or hangs


def test_invalid_settings_are_an_invalid_argument(channel: grpc.Channel) -> None:
    stub = SuggestionStub(channel)
    good = pb.ValidateAlgorithmSettingsRequest(experiment=an_experiment("tpe"))
    assert stub.ValidateAlgorithmSettings(good, timeout=10) == pb.ValidateAlgorithmSettingsReply()
    bad = pb.ValidateAlgorithmSettingsRequest(experiment=an_experiment("annealing"))
    code, message = refused(stub.ValidateAlgorithmSettings, bad)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert message == "unknown algorithm name annealing"


# Ports


@pytest.mark.parametrize(
    "service",
    [
        "",
        "manager.v1beta1.Suggestion",
        "api.v1.beta1.Suggestion",
        "api.v1.beta1.EarlyStopping",
        "api.v1.beta1.DBManager",
        "grpc.health.v1.Health",
    ],
)
def test_health_is_served_under_every_name_that_katibs_probes_use(
    server: Server, service: str
) -> None:
    for address in (server.address, *server.katib_addresses):
        with grpc.insecure_channel(address) as channel:
            request = health_pb2.HealthCheckRequest(service=service)
            reply = health_pb2_grpc.HealthStub(channel).Check(request, timeout=10)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING


def test_both_ports_serve_the_same_experiments(server: Server) -> None:
    replies = []
    for address in (server.address, *server.katib_addresses):
        with grpc.insecure_channel(address) as channel:
            replies.append(
                SuggestionStub(channel).GetSuggestions(a_request(an_experiment()), timeout=10)
            )
    assert replies[0] == replies[1] == replies[2]


def test_katibs_ports_serve_katibs_services_only(channel: grpc.Channel) -> None:
    from suggest.v1.suggest_pb2 import ListStudiesRequest
    from suggest.v1.suggest_pb2_grpc import SuggestServiceStub

    code, _ = refused(
        SuggestServiceStub(channel).ListStudies, ListStudiesRequest(parent="namespaces/katib")
    )
    assert code is grpc.StatusCode.UNIMPLEMENTED


def test_the_main_port_requires_a_token_of_katibs_clients(tmp_path: Path) -> None:
    tokens = tokens_file(
        tmp_path / "tokens.yaml",
        runs=(["read", "run"], ["katib"]),
        elsewhere=(["read", "run"], ["default"]),
    )
    protection = Protection(tokens=str(tokens))
    with a_server(
        tmp_path / "s.db", "127.0.0.1:0", protection=protection, options=AT_KATIBS_PORTS
    ) as server:
        codes = []
        with grpc.insecure_channel(server.address) as channel:
            for name in ("", "elsewhere", "runs"):
                metadata = [("authorization", f"Bearer {secret(name)}")] if name else []
                call = SuggestionStub(channel).GetSuggestions.future(
                    a_request(an_experiment()), timeout=10, metadata=metadata
                )
                codes.append(call.code())
        with grpc.insecure_channel(server.katib_addresses[0]) as channel:
            assert SuggestionStub(channel).GetSuggestions(a_request(an_experiment()), timeout=10)
    assert codes == [
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.OK,
    ]


def test_ports_open_to_other_machines_require_insecure_or_client_certificates(
    tmp_path: Path,
) -> None:
    tokens = str(tmp_path / "tokens.yaml")
    for protection in (
        Protection(tokens=tokens, tls_cert="c", tls_key="k"),
        Protection(tokens=tokens),
    ):
        with pytest.raises(InvalidArgument, match="Katib's clients send no token"):
            Server("sqlite:///s.db", "0.0.0.0:0", protection=protection, options=AT_KATIBS_PORTS)
    Server(
        "sqlite:///s.db", "0.0.0.0:0", protection=Protection(insecure=True), options=AT_KATIBS_PORTS
    )
    certified = Protection(tls_cert="c", tls_key="k", tls_client_ca="ca")
    Server("sqlite:///s.db", "0.0.0.0:0", protection=certified, options=AT_KATIBS_PORTS)


def test_katibs_ports_accept_histories_larger_than_our_request_limit(server: Server) -> None:
    point = {"lr": "0.02", "layers": "2", "kind": "sgd"}
    history = [a_trial(f"search-{k:05}-{'x' * 200}", point, DONE, "0.5") for k in range(15_000)]
    request = a_request(an_experiment("random"), history)
    assert request.ByteSize() > 4 << 20
    with grpc.insecure_channel(server.katib_addresses[0]) as channel:
        assert (
            len(SuggestionStub(channel).GetSuggestions(request, timeout=60).parameter_assignments)
            == 1
        )
    with grpc.insecure_channel(server.address) as channel:
        code, _ = refused(SuggestionStub(channel).GetSuggestions, request)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_millions_of_empty_trials_are_refused_before_they_are_parsed(server: Server) -> None:
    frame = b"\x12\x00" * (7 << 20)
    with (
        grpc.insecure_channel(server.katib_addresses[0]) as channel,
        pytest.raises(grpc.RpcError) as caught,
    ):
        channel.unary_unary("/api.v1.beta1.Suggestion/GetSuggestions")(frame, timeout=60)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == (
        "the request takes up to 266 MiB once decoded; at most 128 MiB: send less at once"
    )


def test_one_trial_too_many_is_refused_before_it_is_parsed(server: Server) -> None:
    frame = a_request(an_experiment()).SerializeToString() + b"\x12\x00" * 50_001
    with (
        grpc.insecure_channel(server.katib_addresses[0]) as channel,
        pytest.raises(grpc.RpcError) as caught,
    ):
        channel.unary_unary("/api.v1.beta1.Suggestion/GetSuggestions")(frame, timeout=10)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == "trials: 50,001 trials; at most 50,000"


def test_a_hundred_thousand_trials_of_an_experiment_are_more_than_a_request_may_have(
    server: Server,
) -> None:
    point = {"lr": "0.02", "layers": "2", "kind": "sgd"}
    request = a_request(
        an_experiment("random"),
        [a_trial(f"search-{k:08}-{'x' * 60}", point, DONE, "0.5") for k in range(100_000)],
    )
    with grpc.insecure_channel(server.katib_addresses[0]) as channel:
        code, said = refused(SuggestionStub(channel).GetSuggestions, request)
        assert (code, "larger than max" in said) == (grpc.StatusCode.RESOURCE_EXHAUSTED, True)
        assert (
            len(
                SuggestionStub(channel)
                .GetSuggestions(a_request(an_experiment()), timeout=60)
                .parameter_assignments
            )
            == 1
        )


def test_large_histories_of_a_caller_wait_until_earlier_ones_are_answered(server: Server) -> None:
    """The study is locked, so no request is answered before the others have come."""
    point = {"lr": "0.02", "layers": "2", "kind": "sgd"}
    history = [a_trial(f"search-{k:05}-{'x' * 200}", point, DONE, "0.5") for k in range(15_000)]
    frame = a_request(an_experiment("random"), history).SerializeToString()
    calls = 8
    ended: SimpleQueue[Any] = SimpleQueue()  # calls
    with grpc.insecure_channel(server.katib_addresses[0]) as channel:
        stub = SuggestionStub(channel)
        stub.GetSuggestions(a_request(an_experiment("random"), history[:1]), timeout=60)
        with Client(server.address) as client:
            [study] = client.list_studies("katib")
        servers = server._servers
        assert servers._studies is not None
        requests = servers._shared.unnamed_requests
        with servers._studies.sessions.writing(study.name):
            method: Any = channel.unary_unary("/api.v1.beta1.Suggestion/GetSuggestions")
            for _ in range(calls):
                method.future(frame, timeout=120).add_done_callback(ended.put)
            eventually(lambda: requests.total.waiting > 0, within_s=60)
            assert ended.empty()
        answers = [ended.get(timeout=60) for _ in range(calls)]
    assert {call.code() for call in answers} == {grpc.StatusCode.OK}
