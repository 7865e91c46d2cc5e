"""Wrong credentials, addresses, names and rights: one clear sentence,
the documented exit code, and nothing created.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from tests.cluster.api import CORE
from tests.cluster.controlplane import LOOPBACK, ControlPlane
from tests.cluster.objects import jobs
from tests.cluster.searcher import Searcher
from tests.cluster.tenant import role_without, tenant
from tests.cluster.waiting import eventually
from tests.ports import free_port

USAGE, NOT_ALLOWED, NOT_FOUND, CONFLICT, UNAVAILABLE, PAUSED = 2, 4, 5, 6, 7, 8


def with_kubeconfig(me: Searcher, path: Path | str) -> None:
    me.env["KUBECONFIG"] = str(path)


def changed(level_b: ControlPlane, me: Searcher, part: str, **fields: Any) -> Path:
    """Write a kubeconfig with changes to its cluster, user or context."""
    content = json.loads(level_b.kubeconfig(namespace=me.namespace).read_text())
    content[f"{part}s"][0][part].update(fields)
    path = me.folder / "kubeconfig.json"
    path.write_text(json.dumps(content))
    return path


def made(level_b: ControlPlane, me: Searcher) -> list[str]:
    """Return what exists of any experiment, on the cluster and locally."""
    anchors = level_b.api().items(
        f"{CORE}/namespaces/{me.namespace}/configmaps", labelSelector="tuner.dev/uid"
    )
    names = [
        each["metadata"]["name"] for each in (*anchors, *level_b.api().items(jobs(me.namespace)))
    ]
    return [*names, *(each["name"] for each in me.json("get", "experiments"))]


def refused(
    level_b: ControlPlane,
    me: Searcher,
    code: int,
    *sentences: str,
    words: tuple[str | Path, ...] = (),
) -> str:
    """Check that a run is refused with this exit code and these sentences and creates nothing;
    return its stderr.
    """
    got, out, err = me.tuner("run", *(words or (me.file(),)))
    assert (got, out) == (code, ""), err
    for sentence in sentences:
        assert sentence in err
    assert "Traceback" not in err
    assert "bug" not in err
    assert made(level_b, me) == []
    return err


def test_unknown_credentials_are_refused(level_b: ControlPlane, me: Searcher) -> None:
    with_kubeconfig(me, changed(level_b, me, "user", token="expired-long-ago"))
    err = refused(
        level_b,
        me,
        NOT_ALLOWED,
        "does not accept the credentials of context 'test'",
        "log in again",
    )
    assert len(err.splitlines()) == 1


def test_an_unreachable_server_is_reported(level_b: ControlPlane, me: Searcher) -> None:
    with_kubeconfig(me, changed(level_b, me, "cluster", server=f"https://{LOOPBACK}:{free_port()}"))
    err = refused(
        level_b, me, UNAVAILABLE, "cannot be reached: Connection refused", "nothing was started"
    )
    assert len(err.splitlines()) == 1


def test_an_unknown_host_name_is_reported(level_b: ControlPlane, me: Searcher) -> None:
    with_kubeconfig(
        me, changed(level_b, me, "cluster", server=level_b.server.replace(LOOPBACK, "no.such.host"))
    )
    refused(level_b, me, UNAVAILABLE, "nothing was started")


def test_an_unknown_context_is_refused_with_the_known_ones(
    level_b: ControlPlane, me: Searcher
) -> None:
    message = "has no context 'production'; choose one with --context: test"
    refused(level_b, me, USAGE, message, words=(me.file(), "--context", "production"))


def test_a_missing_namespace_is_refused(level_b: ControlPlane, me: Searcher) -> None:
    message = 'namespaces "nowhere" not found; create it, or name another one with --namespace'
    refused(level_b, me, NOT_FOUND, message, words=(me.file(), "--namespace", "nowhere"))


def test_a_user_without_rights_is_told_every_missing_rule(
    level_b: ControlPlane, me: Searcher
) -> None:
    with_kubeconfig(me, level_b.kubeconfig("user2", namespace=me.namespace))
    refused(
        level_b,
        me,
        NOT_ALLOWED,
        f"may not run trials in namespace {me.namespace}",
        '- {apiGroups: [""], resources: [configmaps], verbs: [create, get, delete]}',
        "- {apiGroups: [batch], resources: [jobs], verbs: [create, get, list, watch, delete]}",
        '- {apiGroups: [""], resources: [pods], verbs: [list, watch, delete]}',
        '- {apiGroups: [""], resources: [pods/log], verbs: [get]}',
    )


def test_one_missing_verb_is_named(level_b: ControlPlane, me: Searcher) -> None:
    with_kubeconfig(me, tenant(level_b, me.namespace, role_without(me.namespace, "jobs", "delete")))
    err = refused(
        level_b, me, NOT_ALLOWED, "- {apiGroups: [batch], resources: [jobs], verbs: [delete]}"
    )
    assert err.count("apiGroups") == 1


def test_the_right_to_create_services_is_required_for_distributed_trials_only(
    level_b: ControlPlane, me: Searcher
) -> None:
    with_kubeconfig(
        me, tenant(level_b, me.namespace, role_without(me.namespace, "services", "create"))
    )
    path = me.file(trial="    distributed: {workers: 2}\n")
    rule = '- {apiGroups: [""], resources: [services], verbs: [create]}'
    refused(level_b, me, NOT_ALLOWED, rule, words=(path,))
    code, _, err = me.tuner("run", me.file(name="alone", trials=1))
    assert code == 0, err


def test_an_invalid_quantity_is_refused(level_b: ControlPlane, me: Searcher) -> None:
    words = (me.file(), "--set", "spec.trial.resources.memory=lots")
    refused(level_b, me, USAGE, "lots", words=words)


def test_an_object_that_the_api_server_refuses_is_reported(
    level_b: ControlPlane, me: Searcher
) -> None:
    words = (me.file(trial="    affinity: {nodeAffinity: {requiredSometimes: {}}}\n"),)
    refused(
        level_b,
        me,
        USAGE,
        "spec.trial",
        "requiredSometimes",
        "correct it in spec.trial.affinity",
        words=words,
    )


def test_an_image_that_does_not_exist_pauses_the_experiment_and_leaves_nothing_running(
    level_b: ControlPlane, me: Searcher
) -> None:
    code, _, err = me.tuner("run", me.file(trials=4, env={"KWOK_WAITING": "ErrImagePull"}))
    assert code == PAUSED, err
    assert "image" in err
    assert eventually(lambda: not level_b.api().items(jobs(me.namespace)))


def test_an_experiment_that_another_controller_runs_is_refused(
    level_b: ControlPlane, me: Searcher
) -> None:
    path = me.file(trials=4, spec="  parallelism: 2\n", env={"KWOK_RUN": "90s"})
    running = me.start("run", path)
    eventually(lambda: len(level_b.api().items(jobs(me.namespace))) == 2)
    code, _, err = me.tuner("run", path)
    assert code == CONFLICT, err
    assert "tiny is being run by process" in err
    other = Searcher(me.folder / "other", level_b.kubeconfig(namespace=me.namespace), me.namespace)
    other.folder.mkdir()
    code, _, err = other.tuner("run", path)
    assert code == CONFLICT, err
    assert f"an experiment tiny of another state directory runs in {me.namespace}" in err
    assert "tuner resume tiny --from-cluster" in err
    assert other.json("get", "experiments") == []
    assert len(level_b.api().items(jobs(me.namespace))) == 2
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=30)


def test_a_context_other_than_the_experiments_is_refused(
    level_b: ControlPlane, me: Searcher
) -> None:
    path = me.file(trials=1)
    code, _, err = me.tuner("run", path)
    assert code == 0, err
    again = level_b.kubeconfig(namespace=me.namespace)
    content = json.loads(again.read_text())
    content["contexts"].append({**content["contexts"][0], "name": "elsewhere"})
    again.write_text(json.dumps(content))
    with_kubeconfig(me, again)
    code, _, err = me.tuner("run", path, "--context", "elsewhere")
    assert code == CONFLICT
    assert "are on the cluster of context test, not of elsewhere" in err
