"""`tuner run FILE --dry-run` prints or checks the objects for a cluster, and creates nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import yaml

from controller.report.plain_data import yaml_documents
from tests.kube.console import CommandResult, experiment, tuner
from tests.kube.fake_api import FakeApi, Raw
from tests.kube.fake_kueue import FakeKueue

MADE = ("ConfigMap tiny-dryru", "Job tiny-dryru-0", "Pod tiny-dryru-0")


def ask(
    folder: Path, *, text: str = "", how: str = "server", prepare: object = None
) -> tuple[CommandResult, FakeApi]:
    (folder / "x.yaml").write_text(text or experiment())

    async def go() -> tuple[CommandResult, FakeApi]:
        async with FakeApi() as api:
            if callable(prepare):
                prepare(api)
            before = api.version
            answer = await tuner(api, folder, "run", str(folder / "x.yaml"), f"--dry-run={how}")
            assert api.version == before, "something was changed on the server"
            assert not (folder / "state").exists(), "something was stored here"
            return answer, api

    return asyncio.run(go())


def test_a_client_dry_run_prints_the_job_and_its_pod_without_a_request(tmp_path: Path) -> None:
    answer, api = ask(tmp_path, how="client")
    assert (answer.code, answer.err, api.requests) == (0, "", [])
    job, pod = yaml.safe_load_all(answer.out)
    assert (job["kind"], pod["kind"], job["metadata"]["namespace"]) == ("Job", "Pod", "user1")
    assert pod["spec"] == job["spec"]["template"]["spec"]
    assert pod["spec"]["containers"][0]["command"] == [
        "python",
        "train.py",
        "--x=0.5",
        "--act=relu",
    ]
    assert answer.out.startswith("# Trial 0 of tiny as namespace user1 would get it")
    assert "in the middle of their ranges" in answer.out


def test_an_initial_point_of_the_file_is_used_first(tmp_path: Path) -> None:
    answer, _ = ask(tmp_path, how="client", text=experiment(more="initial: [{act: tanh}]"))
    job, _ = yaml.safe_load_all(answer.out)
    assert job["spec"]["template"]["spec"]["containers"][0]["command"][2:] == [
        "--x=0.5",
        "--act=tanh",
    ]
    assert "the first of spec.initial" in answer.out


def test_several_workers_have_a_service(tmp_path: Path) -> None:
    answer, _ = ask(tmp_path, how="client", text=experiment(trial="distributed: {workers: 2}"))
    assert [each["kind"] for each in yaml.safe_load_all(answer.out)] == ["Service", "Job", "Pod"]


def test_the_server_is_asked_about_each_object_and_makes_none(tmp_path: Path) -> None:
    answer, api = ask(tmp_path)
    assert (answer.code, answer.out) == (0, "".join(f"{name}: accepted\n" for name in MADE))
    sent = [(method, path.rpartition("/")[2], query) for method, path, query in api.requests]
    asked = {"fieldValidation": "Strict", "dryRun": "All"}
    assert [one for one in sent if one[0] != "GET"] == [
        ("POST", kind, asked) for kind in ("configmaps", "jobs", "pods")
    ]


def refuse_pods(message: str) -> object:
    def prepare(api: FakeApi) -> None:
        api.refuse = lambda plural, obj: message if plural == "pods" else ""

    return prepare


QUOTA = (
    "exceeded quota: gpus, requested: requests.nvidia.com/gpu={asked}, used: "
    "requests.nvidia.com/gpu=3, limited: requests.nvidia.com/gpu=4"
)


@pytest.mark.parametrize(
    ("message", "code", "said"),
    [
        (
            QUOTA.format(asked=2),
            0,
            "accepted, and would wait now: QuotaExceeded: gpus, requested: requests.nvidia",
        ),
        (
            QUOTA.format(asked=8),
            2,
            "refused: it never fits quota gpus: requests.nvidia.com/gpu 8 of 4; request less",
        ),
        (
            "failed quota: q: must specify limits.cpu for: trial",
            2,
            "set them under spec.trial.resources",
        ),
        (
            'violates PodSecurity "restricted:latest": runAsNonRoot != true',
            2,
            "ask for a namespace that allows it",
        ),
        (
            "maximum cpu usage per Container is 1, but limit is 2",
            2,
            "a LimitRange does not allow it: change spec.trial.resources",
        ),
        ("no PriorityClass with name fast was found", 2, "correct spec.trial.priorityClass"),
    ],
)
def test_a_refused_pod_is_reported_with_the_cure(
    tmp_path: Path, message: str, code: int, said: str
) -> None:
    answer, _ = ask(tmp_path, prepare=refuse_pods(message))
    assert answer.code == code
    *accepted, last = answer.out.splitlines()
    assert accepted == [f"{name}: accepted" for name in MADE[:2]]
    assert last.startswith("Pod tiny-dryru-0: ")
    assert said in last


def test_workers_that_fit_one_by_one_and_never_together_are_refused(tmp_path: Path) -> None:
    def prepare(api: FakeApi) -> None:
        hard = {"requests.nvidia.com/gpu": "1"}
        quota = {
            "metadata": {"name": "gpus", "namespace": "user1"},
            "spec": {"hard": hard},
            "status": {"hard": hard},
        }
        api.put("resourcequotas", quota)

    text = experiment(trial="distributed: {workers: 2}\n    resources: {gpu: 1}")
    answer, _ = ask(tmp_path, text=text, prepare=prepare)
    assert answer.code == 2
    *accepted, last = answer.out.splitlines()
    assert all(line.endswith(": accepted") for line in accepted)
    assert last.startswith("A trial as a whole: refused: ")
    assert "quota gpus" in last


def test_a_missing_queue_is_refused(tmp_path: Path) -> None:
    answer, _ = ask(tmp_path, text=experiment(trial="queue: team-a"), prepare=FakeKueue)
    message = (
        "A trial as a whole: refused: LocalQueue team-a is not in user1; create it, or name "
        "another one"
    )
    assert answer.code == 2
    assert message in answer.out


def test_a_missing_right_is_named_with_its_rule(tmp_path: Path) -> None:
    answer, _ = ask(tmp_path, prepare=lambda api: api.forbid("create", "jobs"))
    assert answer.code == 4
    assert "Job tiny-dryru-0: not allowed: " in answer.out
    assert (
        "the missing rule: - {apiGroups: [batch], resources: [jobs], verbs: [create]}" in answer.out
    )


def test_trials_need_no_right_to_make_pods(tmp_path: Path) -> None:
    answer, _ = ask(tmp_path, prepare=lambda api: api.forbid("create", "pods"))
    assert answer.code == 0
    assert "Pod tiny-dryru-0: not checked: " in answer.out


def test_a_missing_namespace_is_reported_once(tmp_path: Path) -> None:
    answer, _ = ask(tmp_path, prepare=lambda api: api.remove("namespaces", None, "user1"))
    assert answer.code == 2
    assert answer.out.splitlines() == [
        'ConfigMap tiny-dryru: refused: namespaces "user1" not found; create it, or name another '
        "one with --namespace"
    ]


def test_an_unknown_kind_is_reported(tmp_path: Path) -> None:
    wheel = "{apiVersion: x.org/v1, kind: Wheel, spec: {template: {spec: {containers: []}}}}"
    text = f"{experiment().partition('  trial:')[0]}  trial:\n    template: {wheel}\n"
    answer, _ = ask(tmp_path, text=text)
    assert (answer.code, "tuner does not know how a Wheel ends" in answer.err) == (2, True)
    ends = "    success: {type: Done}\n    failure: {type: Failed}\n"
    answer, _ = ask(tmp_path, text=text + ends)
    assert answer.code == 2
    assert "Wheel tiny-dryru-0: refused: " in answer.out


def test_a_dry_run_of_local_trials_contacts_no_server(tmp_path: Path) -> None:
    answer, _ = ask(tmp_path, text=experiment().replace("runtime: kubernetes", "runtime: local"))
    assert (answer.code, answer.out) == (2, "")
    assert (
        "--dry-run: shows the objects for a cluster, and trials run on this machine" in answer.err
    )


def test_yaml_means_the_same_to_every_reader() -> None:
    texts = [
        "yes",
        "1e3",
        "1e-05",
        "0x1f",
        "2026-01-01",
        "12:30",
        "~",
        "",
        "- a",
        "a: b",
        "# c",
        "x #y",
        " a",
        "null",
    ]
    texts += [
        "é",
        "a\nb",
        "a\nb\n",
        "a\n  b",
        "\n",
        "a\n\nb",
        "tab\tbed",
        "10.0.0.1:80",
        ".5",
        "a\x00b",
        "!t",
        "&a",
        "*a",
    ]
    data: Raw = {
        text: {
            "in": texts,
            "numbers": [1, 1.5, 1e-05, -2e20, True, None, [], {}, [[1], {"k": "v\nw"}]],
        }
        for text in texts
    }
    assert list(yaml.safe_load_all(yaml_documents([data, {"b": 1}]))) == [data, {"b": 1}]
