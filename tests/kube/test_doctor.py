"""`tuner doctor` prints one line with the cure for each problem, and changes nothing."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from controller.runtime.kubernetes.kinds import NOT_INSTALLED
from tests.kube.console import CommandResult, experiment, tuner
from tests.kube.fake_api import USER, FakeApi, Raw
from tests.kube.fake_kueue import FakeKueue

Prepare = Callable[[FakeApi], object]


def see(
    folder: Path,
    *words: str,
    text: str = "",
    prepare: Prepare | None = None,
    config: Callable[[FakeApi], Raw] | None = None,
) -> tuple[CommandResult, dict[str, str]]:
    """Return its output, and its lines by subject: `ok …`."""
    if text:
        (folder / "x.yaml").write_text(text)
        words = (str(folder / "x.yaml"), *words)

    async def go() -> CommandResult:
        async with FakeApi() as api:
            if prepare is not None:
                prepare(api)
            before = api.version
            answer = await tuner(
                api, folder, "doctor", *words, config=None if config is None else config(api)
            )
            assert api.version == before, "something was changed on the server"
            assert not (folder / "state").exists(), "something was stored here"
            return answer

    answer = asyncio.run(go())
    found = {}
    for line in answer.out.splitlines():
        if line.startswith("  "):
            continue  # more of the same
        level, what, detail = line[:4].strip(), *line[6:].split("  ", 1)
        found[what] = f"{level} {detail.strip()}"
    return answer, found


def test_a_healthy_cluster_is_all_ok(tmp_path: Path) -> None:
    answer, lines = see(tmp_path)
    assert (answer.code, answer.err) == (0, "")
    assert {line.split()[0] for line in lines.values()} == {"ok"}
    assert lines["kubeconfig"] == "ok context fake"
    assert lines["server"].endswith("Kubernetes v1.34.4")
    assert lines["credentials"] == f"ok {USER}"
    assert lines["namespace"] == "ok user1"
    assert lines["rights"] == "ok all that trials in user1 need"
    assert lines["clock"] == "ok as the server's"
    assert lines["nodes"] == "ok 0, none with GPUs"


def test_without_a_cluster_this_machine_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from controller.cli.main import main

    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert main(["doctor", "--state-dir", str(tmp_path / "state")]) == 0


@pytest.mark.parametrize(
    ("prepare", "code", "what", "line"),
    [
        pytest.param(
            lambda api: setattr(api, "ahead_s", 90),
            0,
            "clock",
            "warn this machine is 90s behind the server",
            id="clock",
        ),
        pytest.param(
            lambda api: api.remove("namespaces", None, "user1"),
            7,
            "namespace",
            "FAIL there is no namespace user1; create it, or name another one with -n",
            id="no namespace",
        ),
        pytest.param(
            lambda api: (api.remove("namespaces", None, "user1"), api.forbid("get", "namespaces")),
            7,
            "namespace",
            'FAIL namespaces "user1" not found; create it',
            id="no namespace, no right to look",
        ),
        pytest.param(
            lambda api: api.forbid("get", "namespaces"),
            0,
            "namespace",
            "ok user1",
            id="no right to look",
        ),
        pytest.param(
            lambda api: (api.forbid("create", "jobs"), api.forbid("watch", "jobs")),
            4,
            "right jobs",
            "FAIL create, watch denied; add to your Role in user1: "
            "- {apiGroups: [batch], resources: [jobs], verbs: [create, watch]}",
            id="rights",
        ),
        pytest.param(
            lambda api: api.forbid("get", "pods/log"),
            4,
            "right pods/log",
            'FAIL get denied; add to your Role in user1: - {apiGroups: [""], resources: '
            "[pods/log], verbs: [",
            id="a subresource",
        ),
        pytest.param(
            lambda api: api.forbid("list", "resourcequotas"),
            0,
            "right resourcequotas",
            "warn list denied (lost: waiting for room",
            id="what trials can do without",
        ),
        pytest.param(
            lambda api: setattr(api, "token", "secret"),
            4,
            "credentials",
            "FAIL http://127",
            id="401",
        ),
    ],
)
def test_problems_are_reported_with_the_cure(
    tmp_path: Path, prepare: Prepare, code: int, what: str, line: str
) -> None:
    answer, lines = see(tmp_path, prepare=prepare)
    assert lines[what].startswith(line), answer.out
    assert answer.code == code


def test_an_unreachable_server_ends_the_checks(tmp_path: Path) -> None:
    def gone(api: FakeApi) -> Raw:
        config = api.kubeconfig()
        config["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:1"
        return config

    answer, lines = see(tmp_path, config=gone)
    assert (answer.code, list(lines)[-1]) == (7, "server")
    assert lines["server"].startswith("FAIL http://127.0.0.1:1 (context 'fake') cannot be reached")


def test_an_unknown_context_fails_with_the_known_ones(tmp_path: Path) -> None:
    answer, lines = see(tmp_path, "--context", "lab")
    assert answer.code == 7
    assert lines["kubeconfig"].startswith("FAIL ")
    assert lines["kubeconfig"].endswith("choose one with --context: fake")


def signing_in(*, cluster: Raw | None = None, **user: object) -> Callable[[FakeApi], Raw]:
    def config(api: FakeApi) -> Raw:
        made = api.kubeconfig()
        made["users"][0]["user"] = user
        made["clusters"][0]["cluster"] |= cluster or {}
        return made

    return config


def jwt(expires_at: str) -> str:
    claims = json.dumps({"exp": datetime.fromisoformat(expires_at).timestamp()}).encode()
    return f"e30.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.x"


CREDENTIAL = {
    "apiVersion": "client.authentication.k8s.io/v1",
    "kind": "ExecCredential",
    "status": {"token": "x", "expirationTimestamp": "2999-01-01T12:00:00Z"},
}
PLUGIN = {
    "apiVersion": CREDENTIAL["apiVersion"],
    "command": "echo",
    "args": [json.dumps(CREDENTIAL)],
}


@pytest.mark.parametrize(
    ("config", "what", "line"),
    [
        (signing_in(), "login", "ok without credentials"),
        (signing_in(token="x"), "login", "ok by a token of the kubeconfig"),
        (
            signing_in(token=jwt("2999-01-01T12:00:00Z")),
            "login",
            "warn by a token of the kubeconfig, until 2999-01-01 12:00 UTC; a run that lasts "
            "longer ends then, "
            "unless the token is replaced: use tokenFile or an exec plugin",
        ),
        (
            signing_in(token=jwt("1999-01-01T12:00:00Z")),
            "login",
            "warn by a token of the kubeconfig, which expired at 1999-01-01 12:00 UTC; log in "
            "again",
        ),
        (
            signing_in(exec=PLUGIN),
            "login",
            "ok by the plugin echo, which runs again at 2999-01-01 12:00 UTC",
        ),
        (signing_in(**{"as": "ana"}), "impersonation", "ok user tester acts as ana"),
        (
            signing_in(cluster={"insecure-skip-tls-verify": True}),
            "tls",
            "warn the server's certificate is not verified "
            "(insecure-skip-tls-verify), so anybody in between can take the credentials; set "
            "certificate-authority-data "
            "instead",
        ),
        (
            signing_in(cluster={"proxy-url": "http://me:secret@127.0.0.1:1"}),
            "proxy",
            "ok http://127.0.0.1:1, from proxy-url",
        ),
    ],
)
def test_the_login_method_is_shown(
    tmp_path: Path, config: Callable[[FakeApi], Raw], what: str, line: str
) -> None:
    answer, lines = see(tmp_path, config=config)
    assert lines[what] == line, answer.out
    assert "secret" not in answer.out


@pytest.mark.parametrize(
    ("config", "what", "said"),
    [
        (
            signing_in(cluster={"proxy-url": "socks5://127.0.0.1:1"}),
            "kubeconfig",
            "is a SOCKS proxy, which tuner does",
        ),
        (
            signing_in(**{"auth-provider": {"name": "gcp"}}),
            "kubeconfig",
            "use an exec plugin (gke-gcloud-auth-plugin)",
        ),
        (signing_in(tokenfile="x"), "kubeconfig", "did you mean tokenFile?"),
        (
            signing_in(**{"auth-provider": {"name": "oidc"}}),
            "credentials",
            "use the exec plugin kubelogin",
        ),
    ],
)
def test_a_kubeconfig_that_tuner_cannot_use_fails_with_a_cure(
    tmp_path: Path, config: Callable[[FakeApi], Raw], what: str, said: str
) -> None:
    answer, lines = see(tmp_path, config=config)
    assert lines[what].startswith("FAIL ")
    assert said in lines[what]
    assert answer.code == (4 if what == "credentials" else 7)


def named(name: str) -> Raw:
    return {"metadata": {"name": name, "namespace": "user1"}}


def quota(api: FakeApi, used: str, hard: str = "8") -> None:
    amounts = {"hard": {"requests.nvidia.com/gpu": hard}, "used": {"requests.nvidia.com/gpu": used}}
    api.put(
        "resourcequotas", named("gpus") | {"spec": {"hard": amounts["hard"]}, "status": amounts}
    )


def node(api: FakeApi, name: str, gpus: int, *images: str) -> None:
    status = {
        "allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": str(gpus)},
        "images": [{"names": list(images)}],
    }
    api.put("nodes", {"metadata": {"name": name}, "spec": {}, "status": status})


def test_quotas_limits_and_gpus_are_shown(tmp_path: Path) -> None:
    def prepare(api: FakeApi) -> None:
        quota(api, "8")
        node(api, "a", 4)
        node(api, "b", 0)
        limit = {"type": "Container", "max": {"cpu": "2"}, "default": {"cpu": "500m"}}
        api.put("limitranges", named("small") | {"spec": {"limits": [limit]}})

    answer, lines = see(tmp_path, prepare=prepare)
    assert answer.code == 0
    assert (
        lines["quota gpus"]
        == "warn requests.nvidia.com/gpu 8/8; full: requests.nvidia.com/gpu, so trials wait"
    )
    assert lines["limits small"] == "ok Container at most cpu 2; else cpu 500m"
    assert lines["nodes"] == "ok 2, 1 of them with GPUs: 4 nvidia.com/gpu"


NEEDY = """imagePullSecrets: [hub]
    priorityClass: fast
    runtimeClass: gvisor
    serviceAccount: trainer
    env: {KEY: {secret: api/key}}
    volumes: {data: {mount: /data, claim: cifar}}
    resources: {gpu: 1}"""


def test_objects_that_the_file_needs_must_exist(tmp_path: Path) -> None:
    answer, lines = see(tmp_path, text=experiment(trial=NEEDY))
    assert answer.code == 7
    for what in (
        "Secret hub",
        "PersistentVolumeClaim cifar",
        "ServiceAccount trainer",
        "Secret api",
    ):
        assert lines[what] == "FAIL does not exist in user1; create it, or correct the file"
    for what in ("PriorityClass fast", "RuntimeClass gvisor"):
        assert lines[what] == "FAIL does not exist; create it, or correct the file"
    assert lines["image"].startswith("ok the first trial pulls example/tiny:1")


def test_a_file_that_has_all_it_needs_is_all_ok(tmp_path: Path) -> None:
    def prepare(api: FakeApi) -> None:
        for plural, name in (
            ("secrets", "hub"),
            ("persistentvolumeclaims", "cifar"),
            ("serviceaccounts", "trainer"),
        ):
            api.put(plural, named(name))
        api.put("secrets", named("api") | {"data": {"key": "eA=="}})
        api.put("priorityclasses", {"metadata": {"name": "fast"}, "value": 1})
        api.put("runtimeclasses", {"metadata": {"name": "gvisor"}, "handler": "runsc"})
        quota(api, "3")
        node(api, "a", 4, "docker.io/example/tiny:1")

    answer, lines = see(tmp_path, text=experiment(trial=NEEDY), prepare=prepare)
    assert answer.code == 0, answer.out
    assert {line.split()[0] for line in lines.values()} == {"ok"}
    assert lines["image"] == "ok example/tiny:1 is on 1 of 1 nodes already"
    assert lines["dry run Job"] == lines["dry run Pod"] == "ok accepted"


def test_a_request_that_never_fits_fails(tmp_path: Path) -> None:
    answer, lines = see(
        tmp_path,
        text=experiment(trial="resources: {gpu: 9}"),
        prepare=lambda api: (quota(api, "0"), node(api, "a", 4)),
    )
    assert answer.code == 7
    assert lines["room"].startswith("FAIL ")
    assert "nvidia.com/gpu" in lines["room"]


def test_a_kind_of_a_template_needs_rights_of_its_own(tmp_path: Path) -> None:
    def prepare(api: FakeApi) -> None:
        api.define("x.org/v1", "wheels", "Wheel")
        api.forbid("watch", "wheels")

    wheel = (
        "template: {apiVersion: x.org/v1, kind: Wheel, spec: {template: {spec: {containers: "
        "[]}}}}\n"
    )
    wheel += "    success: {type: Done}\n    failure: {type: Failed}\n"
    text = f"{experiment().partition('  trial:')[0]}  trial:\n    {wheel}"
    answer, lines = see(tmp_path, text=text, prepare=prepare)
    assert (answer.code, lines["dry run Wheel"]) == (4, "ok accepted")
    assert lines["right wheels"].endswith(
        "- {apiGroups: [x.org], resources: [wheels], verbs: [watch]}"
    )


def of_a_template(kind: str, version: str) -> str:
    pod = (
        "{metadata: {}, spec: {restartPolicy: Never, containers: [{name: main, image: i:1, "
        "args: ['${x}', '${act}']}]}}"
    )
    spec = f"{{replicaSpecs: {{Master: {{restartPolicy: Never, template: {pod}}}}}}}"
    template = f"template: {{apiVersion: {version}, kind: {kind}, spec: {spec}}}"
    return f"{experiment().partition('  trial:')[0]}  trial:\n    {template}\n"


def test_an_unknown_version_of_a_kind_is_a_warning(tmp_path: Path) -> None:
    version, kind = "kubeflow.org/v2", "PyTorchJob"
    answer, lines = see(
        tmp_path,
        text=of_a_template(kind, version),
        prepare=lambda api: api.define(version, "pytorchjobs", kind),
    )
    assert (answer.code, lines["dry run PyTorchJob"]) == (0, "ok accepted")
    (warning,) = [line for line in answer.out.splitlines() if line.startswith("warn")]
    assert (
        "tuner knows PyTorchJob of kubeflow.org/v1 (Training Operator 1.9), and treats "
        "kubeflow.org/v2" in warning
    )


def test_a_kind_that_is_not_installed_fails(tmp_path: Path) -> None:
    answer, lines = see(tmp_path, text=of_a_template("PyTorchJob", "kubeflow.org/v1"))
    assert (answer.code, lines["dry run PyTorchJob"].split()[0]) == (7, "FAIL")
    assert "has no kind PyTorchJob in kubeflow.org/v1" in lines["dry run PyTorchJob"]


@pytest.mark.parametrize(
    ("queues", "code", "line"),
    [
        pytest.param([("team-a", "Ready", "")], 0, "ok ClusterQueue gpus", id="there"),
        pytest.param(
            [("team-b", "Ready", "")],
            7,
            "FAIL LocalQueue team-a is not in user1; create it, or name another "
            "one in spec.trial.queue: team-b",
            id="another",
        ),
        pytest.param(
            [],
            7,
            "FAIL LocalQueue team-a is not in user1; create it, or name another one in "
            "spec.trial.queue: none",
            id="none",
        ),
        pytest.param(
            [("team-a", "Stopped", "LocalQueue is stopped")],
            0,
            "warn LocalQueue is stopped; trials wait until it is active",
            id="stopped",
        ),
        pytest.param(
            [("team-a", "ClusterQueueIsInactive", "Can't submit new workloads to clusterQueue")],
            0,
            "warn ClusterQueue gpus: Can't submit new workloads to clusterQueue; trials wait "
            "until it is "
            "active",
            id="inactive",
        ),
    ],
)
def test_a_queue_is_looked_up(
    tmp_path: Path, queues: list[tuple[str, str, str]], code: int, line: str
) -> None:
    def prepare(api: FakeApi) -> None:
        played = FakeKueue(api)
        for name, reason, message in queues:
            played.queue(name, reason=reason, message=message)

    answer, lines = see(tmp_path, text=experiment(trial="queue: team-a"), prepare=prepare)
    assert (answer.code, lines["queue team-a"]) == (code, line)


def test_a_queue_needs_kueue(tmp_path: Path) -> None:
    answer, lines = see(tmp_path, text=experiment(trial="queue: team-a"))
    assert (answer.code, lines["queue team-a"]) == (7, f"FAIL {NOT_INSTALLED}")


def test_without_rights_to_kueue_trials_run_and_the_missing_information_is_named(
    tmp_path: Path,
) -> None:
    def prepare(api: FakeApi) -> None:
        FakeKueue(api)
        api.forbid("watch", "workloads")
        api.forbid("list", "localqueues")

    answer, lines = see(tmp_path, text=experiment(trial="queue: team-a"), prepare=prepare)
    assert (answer.code, "queue team-a" in lines) == (0, False)
    assert lines["right workloads"] == (
        "warn watch denied (lost: why Kueue keeps a trial waiting); add to your Role in user1: "
        "- {apiGroups: [kueue.x-k8s.io], resources: [workloads], verbs: [watch]}"
    )
    assert lines["right localqueues"].startswith(
        "warn list denied (lost: whether spec.trial.queue exists"
    )


def test_the_right_to_read_intermediate_objects_is_checked(tmp_path: Path) -> None:
    def prepare(api: FakeApi) -> None:
        api.define("trainer.kubeflow.org/v1alpha1", "trainjobs", "TrainJob")
        api.forbid("get", "jobsets")

    template = "template: {apiVersion: trainer.kubeflow.org/v1alpha1, kind: TrainJob}"
    ends = "success: {type: Complete}\n    failure: {type: Failed}\n"
    text = f"{experiment().partition('  trial:')[0]}  trial:\n    {template}\n    {ends}"
    answer, lines = see(tmp_path, text=text, prepare=prepare)
    assert answer.code == 0, answer.out
    assert lines["right jobsets"] == (
        "warn get denied (lost: why the pods of a TrainJob are refused); add to your Role in "
        "user1: "
        "- {apiGroups: [jobset.x-k8s.io], resources: [jobsets], verbs: [get]}"
    )


def test_a_secret_without_the_key_says_which_it_has(tmp_path: Path) -> None:
    _, lines = see(
        tmp_path,
        text=experiment(trial="env: {KEY: {secret: api/key}}"),
        prepare=lambda api: api.put("secrets", named("api") | {"data": {"token": "eA=="}}),
    )
    assert lines["Secret api"] == "FAIL has no key key; its keys are token"


def test_a_broken_file_gives_one_line_and_the_other_checks_run(tmp_path: Path) -> None:
    answer, lines = see(tmp_path, text="kind: Experiment\n")
    assert answer.code == 7
    assert lines["file"].startswith("FAIL ")
    assert lines["namespace"] == "ok user1"


def test_a_command_in_a_finding_can_be_typed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from controller.cli.main import main

    state, path = tmp_path / "state", tmp_path / "x.yaml"
    main(["doctor", str(path), "--state-dir", str(state)])
    first = capsys.readouterr().out.splitlines()[0]
    assert f" init {path} --state-dir {state} writes one to start from" in first
