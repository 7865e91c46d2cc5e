"""The objects that are sent to a cluster for one attempt."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controller.core.model import Resources, SecretRef
from controller.runtime.kubernetes.job_builder import as_is, build_objects, grace_of, timeout_of
from controller.runtime.kubernetes.kinds import ByType, kind_of, missing_conditions, status_rules_of
from controller.runtime.kubernetes.labels import labels_of, name_problem, owned
from controller.runtime.kubernetes.preflight import pods_of
from controller.runtime.protocol import Launch
from tests.unit.launches import a_launch

GIB = 1 << 30
ANCHOR = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "digits-x7k2q", "uid": "4711"},
}


def the_job(launch: Launch, *, owner: Any = None) -> dict[str, Any]:
    job = build_objects(launch)[-1]
    return job if owner is None else owned(job, owner)


def the_pod(launch: Launch) -> dict[str, Any]:
    spec: dict[str, Any] = the_job(launch)["spec"]["template"]["spec"]
    return spec


def the_container(launch: Launch) -> dict[str, Any]:
    container: dict[str, Any] = the_pod(launch)["containers"][0]
    return container


def env_of(container: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


LABELS = {
    "app.kubernetes.io/managed-by": "tuner",
    "tuner.dev/experiment": "digits",
    "tuner.dev/uid": "x7k2qaaaaaaaaaaa",
    "tuner.dev/trial": "12",
    "tuner.dev/attempt": "1",
}


def test_the_whole_job_of_a_small_trial() -> None:
    identity = {
        "TUNER_EXPERIMENT": "digits",
        "TUNER_TRIAL_NAME": "digits-x7k2q-12",
        "TUNER_TRIAL_NUMBER": "12",
        "TUNER_ATTEMPT": "1",
        "TUNER_SEED": "566170137",
        "TUNER_PARAMETERS": '{"lr": 0.1, "activation": "tanh"}',
        "TUNER_OBJECTIVES": '{"accuracy": "maximize"}',
        "TUNER_OUTPUT_DIR": "/tuner/output",
        "TUNER_CHECKPOINT_DIR": "/tuner/checkpoints/12",
        "KATIB_TRIAL_NAME": "digits-x7k2q-12",
    }
    container = {
        "name": "trial",
        "image": "registry.example/digits:3",
        "command": ["python", "train.py", "--lr=0.1"],
        "env": [{"name": name, "value": value} for name, value in identity.items()],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "tuner-tmp", "mountPath": "/tmp"},
            {"name": "tuner-output", "mountPath": "/tuner/output"},
            {"name": "tuner-checkpoints", "mountPath": "/tuner/checkpoints/12"},
        ],
    }
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 30,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "shareProcessNamespace": True,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [
            {"name": "tuner-tmp", "emptyDir": {}},
            {"name": "tuner-output", "emptyDir": {}},
            {"name": "tuner-checkpoints", "emptyDir": {}},
        ],
    }
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": "digits-x7k2q-12",
            "namespace": "default",
            "labels": LABELS,
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "ConfigMap", "name": "digits-x7k2q", "uid": "4711"}
            ],
            "annotations": {
                "tuner.dev/parameters": '{"lr": 0.1, "activation": "tanh"}',
                "tuner.dev/grace-seconds": "30",
                "tuner.dev/timeout-seconds": "7200",
            },
        },
        "spec": {
            "backoffLimit": 0,
            "podReplacementPolicy": "Failed",
            "ttlSecondsAfterFinished": 604800,
            "template": {"metadata": {"labels": LABELS}, "spec": pod},
        },
    }
    assert [owned(each, ANCHOR) for each in build_objects(a_launch())] == [job]


def test_requests_equal_limits_and_zero_is_omitted() -> None:
    asked = Resources(
        0.5, 16 * GIB, 1, 10 * GIB, {"nvidia.com/mig-1g.10gb": 2, "example.com/none": 0}
    )
    amounts = {
        "cpu": "500m",
        "memory": "16Gi",
        "nvidia.com/gpu": "1",
        "ephemeral-storage": "10Gi",
        "nvidia.com/mig-1g.10gb": "2",
    }
    assert the_container(a_launch(resources=asked))["resources"] == {
        "requests": amounts,
        "limits": amounts,
    }
    odd = the_container(a_launch(resources=Resources(4, 1_500_000)))["resources"]["limits"]
    assert odd == {"cpu": "4", "memory": "1500000"}


def test_no_shell_interprets_the_arguments() -> None:
    launch = a_launch("sh", "-c", "echo $(date) $HOME $$", env={"A": "$(B)"})
    assert the_container(launch)["command"] == ["sh", "-c", "echo $$(date) $HOME $$$$"]
    assert env_of(the_container(launch))["A"] == "$$(B)"


@pytest.mark.parametrize(
    "text", ["$", "$$", "$$$", "$(A)", "$$(A)", "a$b", "$($A)$", "$(A)$(B)", "no"]
)
def test_kubernetes_does_not_expand_the_arguments(text: str) -> None:
    assert expanded_by_kubernetes(as_is(text)) == text


def expanded_by_kubernetes(text: str) -> str:
    """Expand like Kubernetes: $$ is $, $(NAME) is a variable, and everything else is unchanged."""
    out, at = "", 0
    while at < len(text):
        if text.startswith("$$", at):
            out, at = out + "$", at + 2
        elif text.startswith("$(", at) and ")" in text[at:]:
            out, at = out + "<variable>", text.index(")", at) + 1
        else:
            out, at = out + text[at], at + 1
    return out


def test_secrets_come_from_the_cluster() -> None:
    env = env_of(the_container(a_launch(env={"API_KEY": SecretRef("keys", "api")})))
    assert env["API_KEY"] == {"secretKeyRef": {"name": "keys", "key": "api"}}


def test_settings_of_the_pod_are_passed_on() -> None:
    tolerations = [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}]
    launch = a_launch(
        imagePullPolicy="Always",
        imagePullSecrets=["regcred"],
        nodeSelector={"pool": "gpu"},
        tolerations=tolerations,
        priorityClass="batch",
        serviceAccount="trainer",
    )
    pod = the_pod(launch)
    assert the_container(launch)["imagePullPolicy"] == "Always"
    assert pod["imagePullSecrets"] == [{"name": "regcred"}]
    assert (pod["nodeSelector"], pod["tolerations"]) == ({"pool": "gpu"}, tolerations)
    assert (pod["priorityClassName"], pod["serviceAccountName"]) == ("batch", "trainer")
    assert pod["automountServiceAccountToken"]


def test_how_long_a_vanished_node_is_tolerated_reaches_the_pod() -> None:
    tolerations = [
        {
            "key": f"node.kubernetes.io/{taint}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": 30,
        }
        for taint in ("unreachable", "not-ready")
    ]
    assert the_pod(a_launch(tolerations=tolerations))["tolerations"] == tolerations


def volumes_and_mounts(launch: Launch) -> tuple[dict[str, Any], dict[str, Any]]:
    volumes = {volume.pop("name"): volume for volume in the_pod(launch)["volumes"]}
    return volumes, {
        mount.pop("mountPath"): mount for mount in the_container(launch)["volumeMounts"]
    }


def test_volumes_of_every_source_are_mounted() -> None:
    volumes, mounts = volumes_and_mounts(
        a_launch(
            shm="2Gi",
            volumes={
                "data": {"mount": "/data", "claim": "cifar10", "readOnly": True},
                "share": {"mount": "/share", "nfs": {"server": "nas", "path": "/x"}},
                "cache": {"mount": "/cache", "emptyDir": {"sizeLimit": "1Gi"}},
            },
        )
    )
    assert volumes["data"] == {"persistentVolumeClaim": {"claimName": "cifar10", "readOnly": True}}
    assert volumes["share"] == {"nfs": {"server": "nas", "path": "/x"}}
    assert volumes["cache"] == {"emptyDir": {"sizeLimit": "1Gi"}}
    assert volumes["tuner-shm"] == {"emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}}
    assert mounts["/data"] == {"name": "data", "readOnly": True}
    assert mounts["/dev/shm"] == {"name": "tuner-shm"}


def test_a_volume_of_the_file_replaces_ours() -> None:
    volumes, mounts = volumes_and_mounts(
        a_launch(volumes={"fast": {"mount": "/tmp/", "emptyDir": {}}})
    )
    assert "tuner-tmp" not in volumes
    assert sorted(mounts) == ["/tmp/", "/tuner/checkpoints/12", "/tuner/output"]


def test_checkpoints_are_a_folder_of_the_claim_that_the_images_user_can_write() -> None:
    launch = a_launch(checkpoints={"claim": "kept"})
    volumes, mounts = volumes_and_mounts(launch)
    assert volumes["tuner-checkpoints"] == {"persistentVolumeClaim": {"claimName": "kept"}}
    assert mounts["/tuner/checkpoints/12"] == {
        "name": "tuner-checkpoints",
        "subPath": "digits-x7k2q/12",
    }
    assert the_pod(launch)["securityContext"]["fsGroup"] > 0


def of_a_child(**keys: Any) -> Launch:
    launch = a_launch(checkpoints={"claim": "kept"}, **keys)
    assert launch.cluster is not None
    return replace(
        launch, cluster=replace(launch.cluster, parent_checkpoint="/tuner/checkpoints/3")
    )


def test_a_child_gets_its_parents_checkpoint_before_its_program_starts() -> None:
    launch = of_a_child(imagePullPolicy="Always")
    pod = the_pod(launch)
    (copier,) = pod["initContainers"]
    trial = pod["containers"][0]
    for key in ("image", "imagePullPolicy", "securityContext"):
        assert copier[key] == trial[key]
    assert copier["command"][-3:] == [
        "/tuner/checkpoints/3",
        "/tuner/checkpoints/12",
        "/tuner/checkpoints/digits-x7k2q-12.partial",
    ]
    assert copier["volumeMounts"] == [
        {"name": "tuner-checkpoints", "mountPath": "/tuner/checkpoints", "subPath": "digits-x7k2q"}
    ]


def test_the_copy_container_requests_no_gpu_but_every_resource_that_a_quota_may_require() -> None:
    launch = of_a_child()
    assert launch.cluster is not None
    resources = Resources(cpu=2, memory_bytes=GIB, gpu=1)
    template = replace(launch.cluster.template, resources=resources)
    pod = the_pod(replace(launch, cluster=replace(launch.cluster, template=template)))
    asked = {"cpu": "2", "memory": "1Gi"}
    assert pod["initContainers"][0]["resources"] == {"requests": asked, "limits": asked}


def test_a_job_of_a_template_gets_its_parents_checkpoint_where_a_variable_says() -> None:
    launch = of_a_child(template=a_job())
    pod = the_pod(launch)
    (copier,) = pod["initContainers"]
    trial = pod["containers"][0]
    assert copier["image"] == trial["image"]
    assert copier["command"][-3:-1] == ["/tuner/checkpoints/3", "/tuner/checkpoints/12"]
    assert env_of(trial)["TUNER_CHECKPOINT_DIR"] == "/tuner/checkpoints/12"
    assert trial["volumeMounts"] == [
        {
            "name": "tuner-checkpoints",
            "mountPath": "/tuner/checkpoints/12",
            "subPath": "digits-x7k2q/12",
        }
    ]
    assert pod["volumes"] == [
        {"name": "tuner-checkpoints", "persistentVolumeClaim": {"claimName": "kept"}}
    ]
    without = the_pod(a_launch(template=a_job()))
    assert "TUNER_CHECKPOINT_DIR" not in env_of(without["containers"][0])


def test_without_a_claim_or_a_parent_nothing_is_copied() -> None:
    assert "initContainers" not in the_pod(a_launch(checkpoints={"claim": "kept"}))
    alone = a_launch()
    assert alone.cluster is not None
    orphan = replace(
        alone, cluster=replace(alone.cluster, parent_checkpoint="/tuner/checkpoints/3")
    )
    assert "initContainers" not in the_pod(orphan)


def copied(folder: Path, *, rank: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the copier's command on a folder of this machine."""
    command = the_pod(of_a_child())["initContainers"][0]["command"]
    command = [word.replace("/tuner/checkpoints", str(folder)) for word in command]
    env = {"PATH": os.environ["PATH"], "JOB_COMPLETION_INDEX": str(rank)}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=False)


def test_the_copy_is_whole_or_absent_and_is_made_once(tmp_path: Path) -> None:
    (tmp_path / "3" / "deep").mkdir(parents=True)
    (tmp_path / "3" / "deep" / "weights").write_text("good")
    (tmp_path / "digits-x7k2q-12.partial").mkdir()  # an earlier run was killed
    (tmp_path / "digits-x7k2q-12.partial" / "half").touch()
    assert copied(tmp_path).returncode == 0
    assert [str(p.relative_to(tmp_path / "12")) for p in sorted((tmp_path / "12").rglob("*"))] == [
        "deep",
        "deep/weights",
    ]
    (tmp_path / "12" / "deep" / "weights").write_text("better")
    assert copied(tmp_path).returncode == 0  # another attempt of the trial
    assert copied(tmp_path, rank=1).returncode == 0
    assert (tmp_path / "12" / "deep" / "weights").read_text() == "better"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["12", "3"]


def test_a_parent_without_a_checkpoint_leaves_an_empty_folder(tmp_path: Path) -> None:
    assert copied(tmp_path).returncode == 0
    assert list((tmp_path / "12").iterdir()) == []


def test_a_copy_that_fails_says_why_and_leaves_nothing_under_the_name(tmp_path: Path) -> None:
    (tmp_path / "3").mkdir()
    (tmp_path / "digits-x7k2q-12.partial").write_text("")
    program = tmp_path / "cp"
    program.write_text("#!/bin/sh\necho no space left >&2; exit 1\n")
    program.chmod(0o755)
    command = the_pod(of_a_child())["initContainers"][0]["command"]
    command = [word.replace("/tuner/checkpoints", str(tmp_path)) for word in command]
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    failed = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=30, check=False
    )
    assert (failed.returncode, failed.stderr) == (1, "no space left\n")
    assert not (tmp_path / "12").exists()


def test_a_program_that_writes_beside_its_files_is_given_a_writable_root() -> None:
    assert the_container(a_launch())["securityContext"]["readOnlyRootFilesystem"] is True
    writable = the_container(a_launch(readOnlyRootFilesystem=False))
    assert writable["securityContext"]["readOnlyRootFilesystem"] is False


def test_a_queue_gets_a_suspended_job() -> None:
    job = the_job(a_launch(queue="team-a"))
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    assert job["spec"]["suspend"] is True
    assert "suspend" not in the_job(a_launch())["spec"]


def test_nodes_that_failed_an_attempt_are_the_last_choice() -> None:
    launch = a_launch(nodes=("gpu-7", "gpu-8", "gpu-7"))
    (term,) = the_pod(launch)["affinity"]["nodeAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    assert term["preference"]["matchFields"] == [
        {"key": "metadata.name", "operator": "NotIn", "values": ["gpu-7"]},
        {"key": "metadata.name", "operator": "NotIn", "values": ["gpu-8"]},
    ]
    assert "affinity" not in the_pod(a_launch())


MARKS: dict[str, Any] = {
    "experiment_labels": {"team": "vision", "stage": "search", "tuner.dev/trial": "7"},
    "labels": {"stage": "trial", "app": "file"},
    "annotations": {"sidecar.istio.io/inject": "false", "note": "of the file"},
}
MARKED = {"team": "vision", "stage": "trial", "app": "file", **LABELS}


def test_labels_and_annotations_of_the_file_reach_jobs_services_and_pods() -> None:
    """Those of the trial take precedence over those of the experiment, and ours over all."""
    service, job = build_objects(a_launch(**MARKS, distributed={"workers": 2}))
    pod = job["spec"]["template"]["metadata"]
    for about in (service["metadata"], job["metadata"], pod):
        assert about["labels"] == MARKED
        assert about["annotations"]["sidecar.istio.io/inject"] == "false"
    assert "tuner.dev/parameters" in job["metadata"]["annotations"]
    assert set(pod["annotations"]) == set(MARKS["annotations"])


def test_a_template_s_own_labels_and_annotations_take_precedence_over_the_file_s() -> None:
    template = a_job()
    template["spec"]["template"]["metadata"]["annotations"] = {"note": "of the pod"}
    job = the_job(a_launch(template=template, **MARKS))
    pod = job["spec"]["template"]["metadata"]
    assert pod["labels"] == MARKED | {"app": "x"}
    assert pod["annotations"] == MARKS["annotations"] | {"note": "of the pod"}
    assert job["metadata"]["labels"]["stage"] == "trial"
    assert job["metadata"]["annotations"]["note"] == "mine", "that of the template's object"


def test_pods_are_placed_as_the_file_says_and_a_retry_still_avoids_the_failed_node() -> None:
    mine = {
        "weight": 1,
        "preference": {"matchExpressions": [{"key": "disk", "operator": "Exists"}]},
    }
    affinity = {
        "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [mine]},
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []},
    }
    before = copy.deepcopy(affinity)
    launch = a_launch(
        affinity=affinity, schedulerName="volcano", runtimeClass="gvisor", nodes=("gpu-7",)
    )
    pod = the_pod(launch)
    assert (pod["schedulerName"], pod["runtimeClassName"]) == ("volcano", "gvisor")
    first, second = pod["affinity"]["nodeAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    assert first == mine
    assert second["preference"]["matchFields"][0]["values"] == ["gpu-7"]
    assert pod["affinity"]["podAntiAffinity"] == affinity["podAntiAffinity"]
    assert affinity == before, "the next attempt has another node to avoid"


def test_pods_are_spread_among_those_of_the_experiment_unless_the_file_selects_others() -> None:
    rule = {
        "maxSkew": 1,
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "ScheduleAnyway",
    }
    other = rule | {"labelSelector": {"matchLabels": {"team": "vision"}}}
    pod = the_pod(a_launch(topologySpread=[rule, other], distributed={"workers": 2}))
    ours = {"matchLabels": {"tuner.dev/uid": LABELS["tuner.dev/uid"]}}
    assert pod["topologySpreadConstraints"] == [rule | {"labelSelector": ours}, other]


def test_several_workers_are_an_indexed_job_and_a_service_that_names_them() -> None:
    service, job = (
        owned(each, ANCHOR) for each in build_objects(a_launch(distributed={"workers": 3}))
    )
    assert service == {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            k: job["metadata"][k] for k in ("name", "namespace", "labels", "ownerReferences")
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"batch.kubernetes.io/job-name": "digits-x7k2q-12"},
        },
    }
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 3, 3)
    assert spec["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    env = env_of(spec["template"]["spec"]["containers"][0])
    rank = {
        "fieldRef": {
            "fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"
        }
    }
    expected = {
        "MASTER_ADDR": "digits-x7k2q-12-0.digits-x7k2q-12",
        "MASTER_PORT": "29500",
        "WORLD_SIZE": "3",
        "RANK": rank,
        "PET_MASTER_ADDR": "digits-x7k2q-12-0.digits-x7k2q-12",
        "PET_MASTER_PORT": "29500",
        "PET_NNODES": "3",
        "PET_NODE_RANK": rank,
        "PET_NPROC_PER_NODE": "1",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
    }
    assert {name: env[name] for name in expected} == expected


def test_the_port_of_the_meeting_point_can_be_chosen() -> None:
    env = env_of(the_container(a_launch(env={"MASTER_PORT": "4000"}, distributed={"workers": 2})))
    assert (env["MASTER_PORT"], env["PET_MASTER_PORT"]) == ("4000", "4000")


def test_one_worker_is_a_plain_job() -> None:
    (job,) = build_objects(a_launch(distributed={"workers": 1}))
    assert "completionMode" not in job["spec"]
    assert "MASTER_ADDR" not in env_of(the_container(a_launch(distributed={"workers": 1})))


def test_a_dry_run_validates_the_pod_as_well() -> None:
    job = the_job(a_launch())
    (pod,) = pods_of([job])
    assert pod["metadata"] == {"labels": LABELS, "name": "digits-x7k2q-12", "namespace": "default"}
    assert pod["spec"] == job["spec"]["template"]["spec"]


def test_timeout_and_grace_are_read_off_the_object() -> None:
    job = the_job(a_launch())
    assert (timeout_of(job), grace_of(job)) == (7200.0, 30.0)
    assert (timeout_of({"metadata": {}}), grace_of({"metadata": {}})) == (None, 30.0)


def test_names_that_make_a_host_name_too_long_are_refused() -> None:
    longest = "n" * 40
    assert name_problem(a_launch(name=longest)) == ""
    assert name_problem(a_launch(name=longest, distributed={"workers": 1000})) == ""
    job_set = {
        "kind": "JobSet",
        "spec": {"replicatedJobs": [{"name": "workers", "replicas": 4, "template": {}}]},
    }
    assert name_problem(a_launch(name=longest, template=job_set)) == ""
    # plain data
    job_set["spec"]["replicatedJobs"][0]["name"] = "the-workers"  # type: ignore[index]
    name = f"{longest}-x7k2q-12-the-workers-3-0"
    assert name_problem(a_launch(name=longest, template=job_set)) == (
        f"{name} has 65 characters, and a host name at most 63; shorten metadata.name by 2"
    )


# A whole object of the person's own


def a_job(**spec: object) -> dict[str, Any]:
    container = {"name": "main", "image": "x:1", "command": ["train", "--lr=${lr}"]}
    template = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [container]}}
    metadata = {"generateName": "x-", "labels": {"team": "vision"}, "annotations": {"note": "mine"}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {"template": template, **spec},
    }


def test_a_template_is_unchanged_except_for_its_name_and_labels() -> None:
    job = the_job(a_launch(template=a_job()), owner=ANCHOR)
    about, pod = job["metadata"], job["spec"]["template"]
    assert (about["name"], about["namespace"], "generateName" in about) == (
        "digits-x7k2q-12",
        "default",
        False,
    )
    assert about["labels"] == {"team": "vision", **LABELS}
    assert (about["annotations"]["note"], about["ownerReferences"][0]["uid"]) == ("mine", "4711")
    assert pod["metadata"]["labels"] == {"app": "x", **LABELS}
    assert pod["spec"]["containers"][0]["command"] == ["train", "--lr=0.1"]
    env = env_of(pod["spec"]["containers"][0])
    assert env["TUNER_TRIAL_NAME"] == env["KATIB_TRIAL_NAME"] == "digits-x7k2q-12"
    assert "TUNER_OUTPUT_DIR" not in env


def test_a_template_without_retries_gets_none() -> None:
    nothing = a_job(backoffLimit=None)
    nothing["spec"]["template"]["spec"]["restartPolicy"] = None
    for template in (a_job(), nothing):
        quiet = the_job(a_launch(template=template))["spec"]
        assert (quiet["backoffLimit"], quiet["ttlSecondsAfterFinished"]) == (0, 604800)
        assert quiet["template"]["spec"]["restartPolicy"] == "Never"
    assert the_job(a_launch(template=a_job(backoffLimit=4)))["spec"]["backoffLimit"] == 4


def test_a_template_keeps_the_variables_that_it_sets() -> None:
    job = a_job()
    job["spec"]["template"]["spec"]["containers"][0]["env"] = [
        {"name": "TUNER_ATTEMPT", "value": "mine"}
    ]
    found = the_job(a_launch(template=job))["spec"]["template"]["spec"]["containers"][0]
    assert env_of(found)["TUNER_ATTEMPT"] == "mine"


def test_the_pods_of_any_kind_are_found_by_our_labels() -> None:
    def replica() -> dict[str, Any]:
        return {
            "replicas": 1,
            "template": {"spec": {"containers": [{"name": "pytorch", "image": "x"}]}},
        }

    spec = {"pytorchReplicaSpecs": {"Master": replica(), "Worker": replica()}}
    manifest = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": spec}
    found = the_job(a_launch(template=manifest))["spec"]["pytorchReplicaSpecs"]
    for name in ("Master", "Worker"):
        assert found[name]["template"]["metadata"]["labels"] == LABELS
        assert (
            env_of(found[name]["template"]["spec"]["containers"][0])["TUNER_TRIAL_NUMBER"] == "12"
        )


def test_the_jobs_of_a_job_set_retry_nothing_and_are_not_taken_for_attempts() -> None:
    groups = [{"name": "workers", "replicas": 2, "template": {"spec": a_job()["spec"]}}]
    manifest = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "spec": {"replicatedJobs": groups},
    }
    inner = the_job(a_launch(template=manifest, queue="q"))
    group = inner["spec"]["replicatedJobs"][0]["template"]
    assert (group["spec"]["backoffLimit"], "metadata" in group) == (0, False)
    assert group["spec"]["template"]["metadata"]["labels"] == {"app": "x", **LABELS}
    assert inner["spec"]["suspend"] is True


def test_the_way_a_template_is_read_is_stored_with_the_object() -> None:
    manifest = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": {}}
    made = the_job(
        a_launch(
            template=manifest,
            success={"type": "Succeeded", "status": "True"},
            failure={"type": "Failed", "status": "True"},
            primary={"labels": {"role": "master"}, "container": "pytorch"},
        )
    )
    reading = status_rules_of(json.loads(json.dumps(made)))
    assert (reading.success, reading.failure) == ((ByType("Succeeded"),), (ByType("Failed"),))
    assert (reading.labels, reading.container) == ({"role": "master"}, "pytorch")


def test_a_kind_whose_end_is_not_known_needs_its_conditions_in_the_file() -> None:
    widget = {"apiVersion": "example.org/v1", "kind": "Widget"}
    assert missing_conditions(widget) == (
        "tuner does not know how a Widget ends; add success: {type: …} and failure: {type: …} "
        "with the conditions that "
        "its status.conditions shows then, or {path: status.…, equals: …} with another field"
    )
    assert "add failure: {type: …} with" in missing_conditions(widget, ["success"])
    assert missing_conditions(widget, ["success", "failure"]) == ""
    assert missing_conditions({"apiVersion": "batch/v1", "kind": "Job"}) == ""
    assert missing_conditions({"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"}) == ""
    assert "write a Job with that pod" in missing_conditions({"apiVersion": "v1", "kind": "Pod"})


def test_common_kinds_are_known_without_asking_the_server() -> None:
    (service, job) = build_objects(a_launch(distributed={"workers": 2}))
    # unused
    found = [asyncio.run(kind_of(None, each)).plural for each in (service, job)]  # type: ignore[arg-type]
    assert found == ["services", "jobs"]


def test_labels_are_those_of_the_attempt() -> None:
    part = a_launch().cluster
    assert part is not None
    assert labels_of(part) == LABELS


def test_a_working_directory_is_the_containers() -> None:
    launch = a_launch()
    assert launch.cluster is not None
    template = replace(launch.cluster.template, working_dir="/app")
    pod = the_pod(replace(launch, cluster=replace(launch.cluster, template=template)))
    assert pod["containers"][0]["workingDir"] == "/app"
