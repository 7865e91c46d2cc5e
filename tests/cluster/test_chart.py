"""deploy/chart: what it renders is what an API server accepts, and what deploy/install.yaml has."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.app.local_experiments import LocalExperiments
from controller.app.state_directory import StateDirectory
from controller.cli.arguments import parse
from controller.cli.operator import node_prices_of, page_proxy, prices_of
from tests import forked
from tests.cluster.binaries import program
from tests.cluster.controlplane import ControlPlane
from tests.cluster.installed import (
    CHART,
    DEFINITION,
    INSTALL,
    KUBEFLOW,
    SYSTEM,
    Kubectl,
    install_text,
    rendered,
)
from tests.cluster.pki import Authority

TERM = (
    "controller.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
    ".nodeSelectorTerms[0].matchExpressions[0]"
)
DATABASE = "postgresql+psycopg://tuner@db/tuner"
VALUES = [
    (),
    ("crds.install=false",),
    ("image.repository=registry.example/tuner@sha256:abcd", "image.pullSecrets={pull}"),
    ("controller.watchNamespaces={default,kube-public}", "controller.kueue=true"),
    (
        "controller.kinds[0].group=jobset.x-k8s.io",
        "controller.kinds[0].kind=JobSet",
        "controller.kinds[0].resources={jobsets}",
        "controller.kinds[1].group=ray.io",
        "controller.kinds[1].kind=RayJob",
        "controller.kinds[1].resources={rayjobs,rayclusters}",
    ),
    ("storage.existingClaim=mine", "networkPolicy.enabled=false", "rbac.aggregate=false"),
    ("rbac.commandLine=false", "controller.kubeApiQps=20,controller.runningExperiments=50"),
    (
        '--set-json=controller.prices={"nvidia.com/gpu":2.5,"cpu":0.04}',
        '--set-json=controller.nodePrices={"label":"pool","prices":{"a100":{"cpu":1}}}',
    ),
    ("katib.enabled=true", "katib.clusterDomain=k8s.example.org"),
    ("katib.enabled=true,katib.definitions=false,katib.experiments=all",),
    ("katib.enabled=true", "katib.definitions=false", "katib.dbManagerNamespace="),
    ("storage.storageClassName=fast", "storage.size=1Ti"),
    (f"storage.postgres.url={DATABASE}", "storage.postgres.existingSecret=tuner-database"),
    ("backup.enabled=true", "backup.schedule=@daily", "image.pullSecrets={pull}"),
    ("backup.enabled=true", "backup.keep=30", "backup.existingClaim=elsewhere"),
    (
        "controller.nodeSelector.pool=system",
        "controller.tolerations[0].operator=Exists",
        f"{TERM}.key=pool",
        f"{TERM}.operator=Exists",
        "controller.podAnnotations.team=ml",
        "controller.verbose=true",
        "controller.priorityClassName=system-cluster-critical",
        "controller.topologySpreadConstraints[0].maxSkew=2",
        "controller.topologySpreadConstraints[0].topologyKey=topology.kubernetes.io/zone",
        "controller.topologySpreadConstraints[0].whenUnsatisfiable=DoNotSchedule",
        "controller.env[0].name=HTTPS_PROXY",
        "controller.env[0].value=http://proxy:3128",
    ),
    (
        "controller.topologySpreadConstraints=null",
        "podDisruptionBudget.enabled=false",
        "metrics.enabled=false",
    ),
    ("networkPolicy.metricsFrom=null", "webhook.enabled=true"),
    ("webhook.enabled=true", "controller.watchNamespaces={default,kube-public}"),
    ("webhook.enabled=true", "katib.enabled=true", "controller.watchNamespaces={default}"),
    (
        "tls.existingSecret=tuner-tls",
        "page.proxy.from[0]=10.0.0.7/32",
        "service.annotations.team=ml",
        "page.proxy.clientCASecret=page-proxy",
        "page.proxy.allowedNames[0]=oauth2-proxy",
        "networkPolicy.clientsFrom[0].namespaceSelector.matchLabels.team=ml",
    ),
    (
        "metrics.serviceMonitor.enabled=true",
        "metrics.serviceMonitor.labels.release=prometheus",
        "metrics.rules.enabled=true",
        "metrics.rules.labels.release=prometheus",
        "metrics.dashboard.enabled=true",
        "metrics.dashboard.labels.folder=ml",
    ),
]
PLATFORM = CHART.parents[1] / "examples" / "platform"
REFUSED = [
    "nope=1",
    "controller.nope=2",
    "storage.size=many",
    "controller.kinds[0].group=x",
    "controller.env[0].nme=x",
    "controller.nodeSelector.pool=1",
    "controller.topologySpreadConstraints[0].maxSkew=1",
    "metrics.serviceMonitor.interval=often",
    "page.proxy.from[0]=anywhere",
    "page.proxy.clientCASecret=page-proxy",
    "page.proxy.allowedNames[0]=oauth2-proxy",
    "storage.postgres.url=postgresql+psycopg://tuner:password@db/tuner",
    "storage.postgres.url=sqlite:///studies.db",
    "backup.keep=0",
]


def test_helm_finds_nothing_to_complain_about() -> None:
    subprocess.run([program("helm"), "lint", "--strict", "--quiet", CHART], check=True)


def test_the_installation_as_one_file_is_the_chart_with_its_defaults() -> None:
    assert INSTALL.read_text(encoding="utf-8") == install_text(), (
        "make deploy/install.yaml writes it again"
    )


@pytest.fixture(scope="module")
def kubectl(level_b: ControlPlane) -> Kubectl:
    """Return kubectl of a cluster with the namespace and the kinds of the Prometheus operator."""
    client = Kubectl(level_b.kubeconfig())
    defined = [
        yaml.safe_load(program(file).read_text(encoding="utf-8"))
        for file in ("servicemonitors.yaml", "prometheusrules.yaml")
    ]
    namespaces = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        for name in (SYSTEM, KUBEFLOW)
    ]
    client.apply([*namespaces, *defined])
    for each in defined:
        client.established(each["metadata"]["name"])
    return client


@pytest.mark.parametrize("settings", VALUES, ids=lambda settings: ",".join(settings) or "defaults")
def test_the_server_accepts_what_the_values_render(
    kubectl: Kubectl, settings: tuple[str, ...]
) -> None:
    text = "---\n".join(json.dumps(document) + "\n" for document in rendered(*settings))
    kubectl(
        "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", given=text
    )


@pytest.mark.parametrize("setting", REFUSED)
def test_the_schema_refuses_unknown_and_wrong_values(setting: str) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        rendered(setting)


@pytest.mark.parametrize("path", ["katib", "controller.nodePrices", "archive.retention.size"])
def test_values_of_an_older_chart_are_refused_by_the_name_of_what_is_missing(
    path: str, tmp_path: Path
) -> None:
    chart = tmp_path / "chart"
    shutil.copytree(CHART, chart)
    values = yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8"))
    group, _, name = path.rpartition(".")
    del (value_at(values, group) if group else values)[name]
    (chart / "values.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    done = subprocess.run(
        [program("helm"), "template", "tuner", chart], capture_output=True, text=True, check=False
    )
    at = "".join(f"/{each}" for each in group.split(".") if each)
    assert f"at '{at}': missing property '{name}'" in done.stderr


def deployment(*settings: str) -> Any:
    (found,) = (each["spec"] for each in rendered(*settings) if each["kind"] == "Deployment")
    return found


def test_a_volume_has_one_replica_and_a_database_two() -> None:
    on_volume, shared = deployment(), deployment(f"storage.postgres.url={DATABASE}")
    assert (on_volume["replicas"], on_volume["strategy"]["type"]) == (1, "Recreate")
    assert (shared["replicas"], shared["strategy"]["type"]) == (2, "RollingUpdate")
    pod = shared["template"]["spec"]
    assert {"name": "state", "emptyDir": {}} in pod["volumes"]
    assert f"--storage={DATABASE}" in pod["containers"][0]["args"]
    kinds = [each["kind"] for each in rendered(f"storage.postgres.url={DATABASE}")]
    assert "PersistentVolumeClaim" not in kinds


def test_the_password_of_the_database_comes_from_a_secret() -> None:
    settings = (f"storage.postgres.url={DATABASE}", "storage.postgres.existingSecret=database")
    (container,) = deployment(*settings)["template"]["spec"]["containers"]
    secret = {"secretKeyRef": {"name": "database", "key": "password"}}
    assert {"name": "PGPASSWORD", "valueFrom": secret} in container["env"]


def test_the_backup_of_a_database_is_refused() -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        rendered("backup.enabled=true", f"storage.postgres.url={DATABASE}")
    assert "PostgreSQL is backed up by its own programs" in refused.value.stderr


def test_the_documented_proxy_with_a_certificate_is_one_that_the_controller_believes(
    kubectl: Kubectl, tmp_path: Path
) -> None:
    docs = (CHART.parents[1] / "docs" / "cluster.md").read_text(encoding="utf-8")
    (values,) = re.findall(r"```yaml\n(page:\n  proxy:\n    clientCASecret.*?)```", docs, re.S)
    (ingress,) = re.findall(r"```yaml\n(apiVersion: networking.*?)```", docs, re.S)
    file = tmp_path / "values.yaml"
    file.write_text(values, encoding="utf-8")
    pod = deployment(f"--values={file}")["template"]["spec"]
    mounted = [each["secret"] for each in pod["volumes"] if each["name"] == "page-proxy"]
    assert [each["secretName"] for each in mounted] == ["page-proxy-ca"]
    authority = Authority(tmp_path).own.certificate
    at = "--page-proxy-client-ca=/etc/tuner/page-proxy/ca.crt"
    args = pod["containers"][0]["args"]
    args[args.index(at)] = f"--page-proxy-client-ca={authority}"
    proxy = page_proxy(parse(args))
    assert proxy is not None
    assert proxy.certificate is not None
    assert proxy.certificate.allowed_names == {"ingress-nginx"}
    annotations = yaml.safe_load(ingress)["metadata"]["annotations"]
    sent = annotations["nginx.ingress.kubernetes.io/auth-response-headers"]
    assert sent.split(", ") == [proxy.user_header, proxy.groups_header]
    kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", given=ingress)


def test_the_documented_prices_are_those_of_the_controller(tmp_path: Path) -> None:
    docs = (CHART.parents[1] / "docs" / "cluster.md").read_text(encoding="utf-8")
    (values,) = re.findall(r"```yaml\n(controller:\n  prices:.*?)```", docs, re.S)
    file = tmp_path / "values.yaml"
    file.write_text(values, encoding="utf-8")
    args = deployment(f"--values={file}")["template"]["spec"]["containers"][0]["args"]
    given = yaml.safe_load(values)["controller"]
    assert prices_of(parse(args).price) == given["prices"]
    assert parse(args).node_price_label == given["nodePrices"]["label"]
    assert node_prices_of(parse(args)) == given["nodePrices"]["prices"]


def test_the_pods_of_backups_are_not_taken_for_controllers() -> None:
    settings = rendered("backup.enabled=true")
    (cron,) = (each for each in settings if each["kind"] == "CronJob")
    labels = cron["spec"]["jobTemplate"]["spec"]["template"]["metadata"]["labels"]
    assert labels == {"app.kubernetes.io/name": "tuner-backup"}


def test_the_backup_job_backs_up_a_state_directory(tmp_path: Path) -> None:
    state = tmp_path / "state"
    LocalExperiments(made(StateDirectory(state))).close()
    (cron,) = (each for each in rendered("backup.enabled=true") if each["kind"] == "CronJob")
    (container,) = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    command = [*container["command"], *container["args"]]
    words = [word.replace("/var/lib/tuner", str(state)) for word in command]
    assert words[0] == "tuner"
    for _ in range(2):
        done = forked.run_tuner(words[1:], folder=tmp_path, env=os.environ)
        assert done.returncode == 0, done.stderr
    (backup, *_) = sorted((state / "backups").iterdir())
    assert (backup / "controller.db").exists()


def made(state: StateDirectory) -> StateDirectory:
    state.make()
    return state


def test_the_controller_runs_under_the_restricted_profile() -> None:
    (deployment,) = (each for each in rendered() if each["kind"] == "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert {"cpu", "memory"} <= set(container["resources"]["requests"])


def test_no_rule_reads_secrets_impersonates_or_has_a_wildcard() -> None:
    rules = [
        rule
        for document in rendered("controller.kueue=true")
        if document["kind"] in ("Role", "ClusterRole")
        for rule in document["rules"]
    ]
    for rule in rules:
        assert "secrets" not in rule["resources"]
        assert not {"impersonate", "escalate", "bind"} & set(rule["verbs"])
        assert "*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"])


def test_every_value_has_a_default_a_comment_and_a_template_that_uses_it() -> None:
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values, lines = yaml.safe_load(text), text.splitlines()
    templates = "".join(
        path.read_text(encoding="utf-8") for path in sorted((CHART / "templates").iterdir())
    )
    places = dict(placed(lines))
    for path in declared(schema):
        assert value_at(values, path) is not None, path
        at = places[path]
        assert "#" in lines[at] or lines[at - 1].strip().startswith("#"), path
        assert re.search(rf"\.Values\.{re.escape(path)}\b", templates), path


def test_the_schema_knows_every_value() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    known = set(declared(schema))
    for group, rule in groups(schema):
        # A list may be set to null, which removes it.
        needed = {key for key, each in rule["properties"].items() if each.get("type") != "array"}
        assert set(rule["required"]) == needed, group
    for path in leaves(values):
        assert path in known or any(path.startswith(f"{each}.") for each in known), path


def placed(lines: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield the path of each key of a YAML file in block style, and its line."""
    above: list[tuple[int, str]] = []
    for at, line in enumerate(lines):
        key = re.match(r"( *)(\w+):", line)
        if key is None:
            continue
        indent = len(key[1])
        above = [(its, name) for its, name in above if its < indent]
        yield ".".join([*(name for _, name in above), key[2]]), at
        above.append((indent, key[2]))


def value_at(values: Any, path: str) -> Any:
    found = values
    for key in path.split("."):
        found = found[key]
    return found


def leaves(values: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}"


def groups(schema: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the path and the rule of each object whose keys are known."""
    yield above, schema
    for key, rule in schema["properties"].items():
        if "properties" in rule:
            yield from groups(rule, f"{above}{key}.")


def declared(schema: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Yield the path of each value; what the schema leaves open is one value."""
    for key, rule in schema["properties"].items():
        if "properties" in rule:
            yield from declared(rule, f"{above}{key}.")
        else:
            yield f"{above}{key}"


def test_the_small_platform_is_accepted(level_b: ControlPlane) -> None:
    kubectl = Kubectl(level_b.kubeconfig())
    values = PLATFORM / "values.yaml"
    documents = [*rendered(f"--values={values}"), *yaml.safe_load_all(tenants_text())]
    kubectl.apply([each for each in documents if each["kind"] == "Namespace"])
    kubectl.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}}])
    kubectl.apply([each for each in documents if each["kind"] == "CustomResourceDefinition"])
    kubectl.established(DEFINITION)
    text = "---\n".join(json.dumps(document) + "\n" for document in documents)
    kubectl("apply", "--server-side", "--dry-run=server", "-f", "-", given=text)
    kubectl("create", "-n", "vision", "--dry-run=server", "-f", str(PLATFORM / "experiment.yaml"))


def tenants_text() -> str:
    return (PLATFORM / "tenants.yaml").read_text(encoding="utf-8")
