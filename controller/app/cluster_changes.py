"""Change experiments of a cluster's controller: their custom resources, with the rights of the
person.

The resources of Katib are seen here as the command line lists them: with the name that they have in
the controller's store, and with Tuner's own status.

Every change names the version of the resource that it was made from, so that it never overwrites
another person's. The controller then accepts it or refuses it, in the condition Accepted.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from controller.app.cluster_workspace import ClusterWorkspace
from controller.app.experiments import Changed, find
from controller.app.extend import Extension, edited, total_of
from controller.app.retry import RetrySelection, choose
from controller.core.model import KATIB_SUFFIX, Experiment, Uid, by_trial, uid_of_resource
from controller.kube.client import CONFIG_MAPS, MANAGER, Kind, KubernetesClient
from controller.kube.custom_resource import (
    ALL_FAILED,
    EXPERIMENTS,
    KATIB_EXPERIMENTS,
    KEEP_STUDY,
    OWN_STATUS,
    RESUME,
    RETRY,
)
from controller.kube.errors import ApiError, line_of_role
from controller.kube.objects import Raw
from controller.phrases import command
from controller.runtime.kubernetes.job_builder import files_in, files_object, name_of_files
from controller.runtime.kubernetes.labels import MANAGED_BY, owned
from controller.runtime.trial_files import TrialFiles, sent
from controller.search import study_name
from controller.spec import SUSPEND, Change, Document, diff, file_text, read, written
from suggest.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Unavailable,
)

_POLL_S = 0.25
_ANSWER_S = 30.0  # a controller that starts again takes as long
_TRIES = 10
_IN_CONFLICT = re.compile(r'conflict with "([^"]*)"')
_SEEN_S = 3.0
_ENDED = ("succeeded", "failed")
RESTING = ("suspended", "paused", "stopped")
_PARALLEL = "parallelTrialCount"
Resource = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Applied:
    """what: created, configured or unchanged."""

    what: str
    resource: Resource


async def apply(
    client: KubernetesClient,
    document: Document,
    overrides: Sequence[str],
    files: TrialFiles | None,
    *,
    annotations: Mapping[str, str] | None = None,
    is_suspended: bool | None = None,
    dry_run: bool,
) -> Applied:
    """Create the experiment of a valid file, or change it to what the file says.

    Sends what the person wrote, so that keys that are later left out have their defaults again.
    Raises InvalidArgument, PermissionDenied and NotFound of the API server.

    files: are sent with it, in a ConfigMap that the experiment owns.
    is_suspended: whether it waits for another call; None leaves that as it is.
    """
    spec = document.spec
    text = file_text(spec.document) if document.is_katib else document.text
    data: Any = written(text, document.source, [] if document.is_katib else overrides)
    about = {
        "name": spec.name,
        "namespace": spec.namespace,
        "labels": data["metadata"].get("labels"),
        "annotations": annotations,
    }
    if files is not None:
        data["spec"]["trial"] |= {"files": [*files.paths], "filesDigest": files.digest}
    if is_suspended is not None:
        data["spec"][SUSPEND] = is_suspended
    body: Raw = {
        "apiVersion": EXPERIMENTS.api_version,
        "kind": EXPERIMENTS.kind,
        "metadata": {key: value for key, value in about.items() if value},
        "spec": data["spec"],
    }
    before = await found(client, spec.namespace, spec.name)
    if files is not None:
        # The files of a new experiment can only follow it, because it owns them, and a kubelet
        # waits for them. A dry run finds out first whether they can be created.
        await _send(client, files, before or body, dry_run=dry_run or before is None)
    after = await _applied(client, spec.namespace, spec.name, body, dry_run=dry_run)
    is_new = before is None or before["metadata"]["uid"] != after["metadata"]["uid"]
    if files is not None and is_new and not dry_run:
        await _send(client, files, after, dry_run=False)
    if before is None:
        return Applied("created", after)
    is_same = before["spec"] == after["spec"] and _labels(before) == _labels(after)
    return Applied("unchanged" if is_same else "configured", after)


async def files_of(client: KubernetesClient, experiment: Experiment) -> TrialFiles | None:
    """Return the files that were sent with an experiment; None: there are none."""
    trial, namespace = experiment.spec.trial, experiment.namespace
    if not trial.files:
        return None
    resource = await get(client, namespace, experiment.name)
    files = sent(trial.files, trial.files_digest, search_with_files(resource))
    assert files is not None
    name = name_of_files(experiment.name, experiment.uid, files)
    try:
        return files_in(await client.get(CONFIG_MAPS, namespace, name), files)
    except ApiError as error:
        raise FailedPrecondition(
            f"the ConfigMap {name} with the files of {experiment.name} cannot be read: {error}; "
            f"apply the file of {experiment.name} again, which sends them"
        ) from error


def search_with_files(resource: Resource) -> tuple[str, Uid] | None:
    """Return the search that owns an experiment of reruns, as name and uid; None: none does.

    The files of both were sent with it, since the controller, which has created the reruns, cannot
    send any.
    """
    search = (resource["spec"].get("rerun") or {}).get("experiment")
    for owner in resource["metadata"].get("ownerReferences") or ():
        about = owner["apiVersion"], owner["kind"], owner["name"]
        if about == (EXPERIMENTS.api_version, EXPERIMENTS.kind, search):
            return owner["name"], uid_of_resource(owner["uid"])
    return None


async def ended(client: KubernetesClient, resource: Resource) -> Resource:
    """Return the experiment when it has ended, or waits for a person."""
    return await _until(client, resource, is_over)


async def _applied(
    client: KubernetesClient, namespace: str, name: str, body: Raw, *, dry_run: bool
) -> Raw:
    """Return the resource as the body says.

    What this program has changed since, by `tuner set`, is as in the file again. Raises
    FailedPrecondition for what other programs have changed.
    """
    try:
        return await client.apply(EXPERIMENTS, namespace, name, body, dry_run=dry_run)
    except ApiError as error:
        if set(_conflicts(error)) != {MANAGER}:
            raise _refused(error, namespace, name) from error
    try:
        return await client.apply(EXPERIMENTS, namespace, name, body, dry_run=dry_run, force=True)
    except ApiError as error:
        raise _refused(error, namespace, name) from error


def _conflicts(error: ApiError) -> Mapping[str, list[str]]:
    """Return the fields that programs have set otherwise, by the program."""
    fields: dict[str, list[str]] = {}
    for cause in error.details.get("causes") or ():
        if cause.get("reason") == "FieldManagerConflict":
            for manager in _IN_CONFLICT.findall(cause.get("message", "")):
                fields.setdefault(manager, []).append(str(cause.get("field", "")).lstrip("."))
    return fields


async def _send(
    client: KubernetesClient, files: TrialFiles, resource: Resource, *, dry_run: bool
) -> None:
    """Create the ConfigMap with files of an experiment, unless it is there."""
    about = resource["metadata"]
    namespace, name = about["namespace"], about["name"]
    uid = about.get("uid", "")
    manifest = files_object(files, namespace, name, uid_of_resource(uid))
    if uid:
        manifest = owned(manifest, resource)
    try:
        await client.create(CONFIG_MAPS, namespace, manifest, dry_run=dry_run)
    except ApiError as error:
        # Its name is that of its content, and it is immutable.
        if error.status == 409:
            return
        if error.status == 403 and error.refusal is not None:
            line = line_of_role("", "configmaps", ["create"])
            raise PermissionDenied(
                f"{error}; spec.trial.files are sent in a ConfigMap: a Role in {namespace} must "
                f"have: {line}; or build the files into the image"
            ) from error
        raise _refused(error, namespace, name) from error


async def stop(client: KubernetesClient, namespace: str, name: str) -> Resource:
    """Suspend an experiment, and return it when it has stopped, or has ended before."""

    def change(resource: Resource) -> Raw | None:
        is_over = _state(resource) in _ENDED or _is_suspended(resource)
        return None if is_over else {"spec": {SUSPEND: True}}

    changed = await _edit(client, namespace, name, change)
    if _state(changed) in _ENDED:
        return changed
    observed = await _until(client, changed, _is_observed, within_s=_ANSWER_S)
    return await _until(client, observed, lambda each: _state(each) not in ("running", "stopping"))


async def resume(client: KubernetesClient, namespace: str, name: str) -> Resource:
    """Let a suspended, stopped or paused experiment go on, and return it when it does."""

    def change(resource: Resource) -> Raw | None:
        if _is_suspended(resource):
            return {"spec": _without_suspension(resource)}
        if _state(resource) == "running" or _state(resource) == "succeeded":
            return None
        return {"metadata": {"annotations": {RESUME: "true"}}}

    def is_seen(resource: Resource) -> bool:
        return _is_observed(resource) and RESUME not in _annotations(resource)

    def goes_on(resource: Resource) -> bool:
        return _state(resource) not in RESTING

    before = await _edit(client, namespace, name, change)
    begun = await _until(client, before, is_seen, within_s=_ANSWER_S)
    # The status follows. What pauses again at once may never be seen to run.
    with suppress(Unavailable):
        return await _until(client, begun, goes_on, within_s=_SEEN_S)
    return begun


async def revise(
    client: KubernetesClient, namespace: str, name: str, extension: Extension
) -> tuple[Resource, Sequence[Change]]:
    """Change keys of the spec, and return the resource when that is in force, with the changes.

    Raises SpecErrors for values that the file could not have, and Changed if the controller
    refuses the change, which is undone then.
    """
    changes: list[Change] = []
    before: Raw = {}

    def change(resource: Resource) -> Raw | None:
        patch, changes[:] = _revision(resource, extension)
        before.update(resource["spec"])
        return {"spec": patch} if patch else None

    def undo(resource: Resource) -> Raw | None:
        is_ours = resource["metadata"]["generation"] == changed["metadata"]["generation"]
        return {"spec": merge_patch(resource["spec"], before)} if is_ours else None

    changed = await _edit(client, namespace, name, change)
    try:
        return await accepted(client, changed), changes
    except (Changed, InvalidArgument):
        if changes:
            await _edit(client, namespace, name, undo)
        raise


async def accepted(client: KubernetesClient, resource: Resource) -> Resource:
    """Return the resource when the controller has accepted its spec.

    Raises:
        InvalidArgument: It cannot run.
        Changed: The accepted revision runs on, without this change.
        Unavailable: No controller has looked at it.
    """
    judged = await _until(client, resource, _is_judged, within_s=_ANSWER_S)
    condition = _acceptance(judged)
    if condition["status"] == "True":
        return judged
    if condition["reason"] == "Invalid":
        raise InvalidArgument.at("", condition["message"])
    raise Changed(condition["message"])


async def chosen_to_retry(
    workspace: ClusterWorkspace, namespace: str, name: str, selection: RetrySelection
) -> Sequence[int]:
    """Return the failed trials that the selection means. Raises as `retry.choose` does."""
    with workspace.opened() as experiments:
        experiment = find(experiments, name, namespace)
        attempts = experiments.attempts(experiment.uid)
        async with workspace.reading("") as studies:
            trials = await studies.list_trials(study_name(experiment), client_id=experiment.uid)
    chosen = choose(name, selection, trials, by_trial((each.trial, each) for each in attempts))
    return sorted(chosen.failures)


async def retry(
    client: KubernetesClient, namespace: str, name: str, numbers: Sequence[int]
) -> Resource:
    """Ask the controller to run failed trials again; none: all. Return when it has begun."""
    value = ",".join(map(str, numbers)) or ALL_FAILED

    def change(resource: Resource) -> Raw:
        patch: Raw = {"metadata": {"annotations": {RETRY: value}}}
        if _is_suspended(resource):
            patch["spec"] = _without_suspension(resource)
        return patch

    def has_begun(resource: Resource) -> bool:
        return RETRY not in _annotations(resource)

    changed = await _edit(client, namespace, name, change)
    return await _until(client, changed, has_begun, within_s=_ANSWER_S)


async def delete(client: KubernetesClient, namespace: str, name: str, *, keep_study: bool) -> None:
    """Delete an experiment, and return when it is gone."""
    resource = await get(client, namespace, name)
    if keep_study:
        patch = {"metadata": {"annotations": {KEEP_STUDY: "true"}}}
        resource = await _edit(client, namespace, name, lambda _: patch)
    uid = resource["metadata"]["uid"]
    kind, object_name = _addressed(name)
    try:
        await client.delete(kind, namespace, object_name, uid=uid)
    except ApiError as error:
        raise _refused(error, namespace, name) from error
    while True:
        left = await found(client, namespace, name)
        if left is None or left["metadata"]["uid"] != uid:
            return
        await asyncio.sleep(_POLL_S)


def _revision(resource: Resource, extension: Extension) -> tuple[Raw, list[Change]]:
    """Return the merge patch of the spec that an extension means, and its changes."""
    about = resource["metadata"]
    if _is_katib(resource):
        return _katib_revision(resource["spec"], about["name"], extension)
    spec = {key: value for key, value in resource["spec"].items() if key != SUSPEND}
    file = file_of(EXPERIMENTS, about["name"], about, spec)
    text, source = json.dumps(file), about["name"]
    before = read(text, source=source, is_file=False).spec
    after = edited(before, extension).spec
    overrides = extension.overriding(source, before.budget)
    data: Any = written(text, source, overrides)
    if after.document["spec"]["initial"] != before.document["spec"]["initial"]:  # type: ignore[index]
        # New choices are tried first.
        data["spec"]["initial"] = after.document["spec"]["initial"]  # type: ignore[index]
    return merge_patch(file["spec"], data["spec"]), diff(before.document, after.document)


def _katib_revision(
    spec: Mapping[str, Any], name: str, extension: Extension
) -> tuple[Raw, list[Change]]:
    """As `_revision`, by the keys of Katib's file. The controller says what is wrong with them."""
    overrides = [*extension.overrides]
    if extension.trials:
        total = total_of(extension.trials, name, spec.get("maxTrialCount"))
        overrides.insert(0, f"spec.maxTrialCount={total}")
    before = {"spec": spec}
    after: Any = written(json.dumps(before), name, overrides)
    return merge_patch(spec, after["spec"]), diff(before, after)


def file_of(kind: Kind, name: str, about: Mapping[str, Any], spec: Mapping[str, Any]) -> Raw:
    """Return the file of a resource with this metadata, with the runtime that it runs on."""
    labels = dict(about.get("labels") or {})
    labels.pop(MANAGED_BY, None)  # Helm and others set it; its Jobs have the controller's
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": name, "namespace": about["namespace"], "labels": labels},
        "spec": {**spec, "runtime": "kubernetes"},
    }


def merge_patch(before: Any, after: Any) -> Raw:  # Any: JSON mappings
    """Return the patch that makes one mapping the other (RFC 7396)."""
    patch: Raw = {key: None for key in before if key not in after}
    for key, value in after.items():
        old = before.get(key)
        if old == value:
            continue
        is_nested = isinstance(old, dict) and isinstance(value, dict)
        patch[key] = merge_patch(old, value) if is_nested else value
    return patch


async def _edit(
    client: KubernetesClient, namespace: str, name: str, change: Callable[[Resource], Raw | None]
) -> Resource:
    """Apply the merge patch that `change` makes of the present resource; None: there is none.

    If the resource has changed meanwhile, `change` sees that version.
    """
    kind, object_name = _addressed(name)
    for _ in range(_TRIES):
        resource = await get(client, namespace, name)
        patch = change(resource)
        if patch is None:
            return resource
        version = {"resourceVersion": resource["metadata"]["resourceVersion"]}
        patch["metadata"] = {**patch.get("metadata", {}), **version}
        try:
            return _as_listed(await client.patch(kind, namespace, object_name, patch))
        except ApiError as error:
            if error.status != 409:
                raise _refused(error, namespace, name) from error
    raise FailedPrecondition(f"{name} changes all the time; try again")


async def _until(
    client: KubernetesClient,
    resource: Resource,
    is_done: Callable[[Resource], bool],
    *,
    within_s: float | None = None,
) -> Resource:
    """Return the resource when it is done. Raises Unavailable after within_s; None: never."""
    about = resource["metadata"]
    deadline_s = None if within_s is None else time.monotonic() + within_s
    while not is_done(resource):
        if deadline_s is not None and time.monotonic() > deadline_s:
            why = (resource.get("status") or {}).get("reason") or "is a controller running?"
            raise Unavailable(
                f"the change of {about['name']} is stored, but no controller has acted on it "
                f"within {within_s:g} s: {why}"
            )
        await asyncio.sleep(_POLL_S)
        resource = await get(client, about["namespace"], about["name"])
        if resource["metadata"]["uid"] != about["uid"]:
            raise NotFound(f"{about['name']} was deleted meanwhile, and created again")
    return resource


async def get(client: KubernetesClient, namespace: str, name: str) -> Resource:
    """Return the experiment of that name. Raises NotFound and PermissionDenied."""
    resource = await found(client, namespace, name)
    if resource is None:
        raise NotFound(
            f"there is no experiment {name} in {namespace}; see {command('get', 'experiments')}"
        )
    return resource


async def found(client: KubernetesClient, namespace: str, name: str) -> Resource | None:
    """As `get`; None: there is none."""
    kind, object_name = _addressed(name)
    try:
        return _as_listed(await client.get(kind, namespace, object_name))
    except ApiError as error:
        if error.status == 404 and error.details.get("name") == object_name:
            return None
        raise _refused(error, namespace, name) from error


def _addressed(name: str) -> tuple[Kind, str]:
    """Return the kind and the name of the object of a listed experiment."""
    if name.endswith(KATIB_SUFFIX):
        return KATIB_EXPERIMENTS, name.removesuffix(KATIB_SUFFIX)
    return EXPERIMENTS, name


def _is_katib(resource: Resource) -> bool:
    return resource.get("apiVersion") == KATIB_EXPERIMENTS.api_version


def _as_listed(resource: Raw) -> Resource:
    """Return an object that the API server has sent as the command line lists it."""
    if not _is_katib(resource):
        return resource
    about = resource["metadata"]
    status = (resource.get("status") or {}).get(OWN_STATUS)
    return {
        **resource,
        "metadata": {**about, "name": f"{about['name']}{KATIB_SUFFIX}"},
        "status": status,
    }


def _is_suspended(resource: Resource) -> bool:
    spec = resource["spec"]
    return spec.get(SUSPEND) is True or (_is_katib(resource) and spec.get(_PARALLEL) == 0)


def _without_suspension(resource: Resource) -> Raw:
    """Return the patch of the spec that ends its suspension."""
    if _is_katib(resource) and resource["spec"].get(_PARALLEL) == 0:
        # The controller writes the number of before.
        return {SUSPEND: None, _PARALLEL: None}
    return {SUSPEND: False}


def _refused(error: ApiError, namespace: str, name: str) -> Exception:
    """Return what an error of the API server means to a person."""
    kind, object_name = _addressed(name)
    if error.status == 404 and error.details.get("name") == object_name:
        return NotFound(f"there is no experiment {name} in {namespace}")
    if error.status == 404 and "namespaces" in error.message:
        return NotFound(f"{error}; create it, or choose another one with -n")
    if error.status == 404:
        group = kind.api_version.partition("/")[0]
        return NotFound(f"the cluster has no {kind.plural}.{group}; install it: docs/cluster.md")
    if error.status == 403 and error.refusal is not None:
        return PermissionDenied(
            f"{error}; ask for the role tuner-experiments-edit in the namespace {namespace}"
        )
    if conflicts := _conflicts(error):
        others = "; ".join(f"{who}: {', '.join(what)}" for who, what in conflicts.items())
        return FailedPrecondition(
            f"another program has changed {name} since the file was applied ({others}); write its "
            "values into the file, or undo the changes with that program, and apply again"
        )
    if error.status in (400, 403, 422):
        return InvalidArgument.at("", str(error))
    return error


def _state(resource: Resource) -> str:
    return str((resource.get("status") or {}).get("state", "pending"))


def _annotations(resource: Resource) -> Mapping[str, str]:
    return resource["metadata"].get("annotations") or {}


def _labels(resource: Resource) -> Mapping[str, str]:
    return resource["metadata"].get("labels") or {}


def _acceptance(resource: Resource) -> Mapping[str, Any]:
    conditions = (resource.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each["type"] == "Accepted"), {})


def is_over(resource: Resource) -> bool:
    """Return whether the experiment has ended, or waits for a person, as its spec is now."""
    return _is_observed(resource) and _state(resource) in (*_ENDED, *RESTING)


def _is_observed(resource: Resource) -> bool:
    observed = (resource.get("status") or {}).get("observedGeneration", 0)
    return bool(observed >= resource["metadata"]["generation"])


def _is_judged(resource: Resource) -> bool:
    reason = _acceptance(resource).get("reason")
    return _is_observed(resource) and reason not in (None, "NotChecked")
