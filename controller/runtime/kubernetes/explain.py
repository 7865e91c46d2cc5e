"""Why a trial cannot start, for the person who wrote its file, from what kubelets, schedulers, admission say. Pure.

Their sentences are kept, less what only their authors need; before them stands what is meant, after them the cure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from controller.runtime.kubernetes.pods import Shown, node_of

_PREFIX = re.compile(r"(rpc error: code = \w+ desc = |Error: |Error response from daemon: )")
_EXEC = re.compile(
    r'exec: \\?"(?P<command>[^"\\]+)\\?": '
    r"(?P<why>executable file not found|stat |no such file|permission denied|is a directory)"
)
_MOUNT_AT = re.compile(r'to rootfs at \\?"(?P<path>[^"\\]+)')
_VOLUME = re.compile(r'(?:for volume |volumes=\[|volumeMount )"?(?P<name>[a-z0-9-]+)')
_CLAIM = re.compile(r'persistentvolumeclaim "(?P<name>[^"]+)" (?P<why>not found|is being deleted)')
_SECRET = re.compile(r'secret "?(?P<name>[a-z0-9.-]+)"? not found|in Secret [^/]+/(?P<in>[a-z0-9.-]+)')
_ADMISSION = re.compile(
    r'^Error creating: |^job "[^"]+" creation failed with error: |^Failed to create (head|worker) Pod \S+, '
    r'|^(pods?|jobs\.batch) "[^"]+" is forbidden: '
)


def cleaned(message: object) -> str:
    """One line, without the prefixes that gRPC and the runtimes pile up."""
    return _PREFIX.sub("", " ".join(str(message or "").split()))


def image(pod: Shown, container: str, reason: str, message: str) -> str:
    name, said = _spec(pod, container).get("image", ""), cleaned(message)
    if reason == "ErrImageNeverPull":
        return f"image {name} is not on node {node_of(pod)}, and imagePullPolicy: Never does not let it be pulled"
    if reason == "InvalidImageName":
        return f"image {name} is no name of an image: {said}"
    return f"image {name} cannot be pulled: {said or reason}; check its name, and imagePullSecrets if it is private"


def container_config(pod: Shown, container: str, message: str) -> str:
    """A container that the kubelet cannot set up."""
    spec, said = _spec(pod, container), cleaned(message)
    if "image will run as root" in said:
        return f"image {spec.get('image', '')} runs as root, which is not allowed here; build it with USER 1000"
    if "has non-numeric user" in said:
        return f"image {spec.get('image', '')} names its user, and only a number can be checked here; write USER 1000"
    if found := _SECRET.search(said):
        wanted = found["name"] or found["in"]
        users = [env["name"] for env in spec.get("env") or () if _secret_of(env) == wanted]
        return f"env {', '.join(users)}: {said}" if users else f"its container cannot be made: {said}"
    if found := _VOLUME.search(said):
        return _mount(pod, container, found["name"], said)
    return f"its container cannot be made: {said}"


def start(pod: Shown, container: str, message: str) -> str:
    """A container that was made and could not be started; "" where the message does not blame what the file says."""
    said = cleaned(message)
    name = _spec(pod, container).get("image", "")
    if "mount" in said and (at := _MOUNT_AT.search(said)):
        return f"mount {at['path']} failed: {said}"
    if found := _EXEC.search(said):
        command = found["command"]
        if found["why"] == "permission denied":
            return f"command {command} in image {name} may not be executed (permission denied)"
        if found["why"] == "is a directory":
            return f"command {command} in image {name} is a directory"
        return f"command {command} was not found in image {name}"
    if "no such file or directory" in said or "chdir to cwd" in said:
        return f"the command could not be started in image {name}: {said}"
    return ""


def mount(pod: Shown, container: str, message: str) -> str:
    """A volume that the node cannot mount."""
    said = cleaned(message)
    found = _VOLUME.search(said)
    return _mount(pod, container, found["name"], said) if found else f"a volume cannot be mounted: {said}"


def missing_claim(pod: Shown, container: str, message: str) -> str:
    """Of a pod without a node; "" unless it waits for a claim that is not there."""
    found = _CLAIM.search(message)
    if found is None:
        return ""
    for volume in pod.get("spec", {}).get("volumes") or ():
        if (volume.get("persistentVolumeClaim") or {}).get("claimName") == found["name"]:
            return _mount(pod, container, volume["name"], f"the claim {found['name']} is not in the namespace")
    return f"the claim {found['name']} is not in the namespace"


def admission(message: str) -> str:
    """A pod that may not be created."""
    said = cleaned(message)
    while (shorter := _ADMISSION.sub("", said)) != said:
        said = shorter
    if "violates PodSecurity" in said:
        return f"the namespace's pod security does not let it run: {said}"
    if "must specify" in said:
        return f"a quota of the namespace asks for trial.resources that are not given: {said}"
    return f"the cluster does not let its pod be created: {said}"


def _mount(pod: Shown, container: str, name: str, said: str) -> str:
    for mounted in _spec(pod, container).get("volumeMounts") or ():
        if mounted.get("name") == name:
            return f"volume {name} (at {mounted.get('mountPath')}) cannot be mounted: {said}"
    return f"volume {name} cannot be mounted: {said}"


def _spec(pod: Shown, container: str) -> Shown:
    return next((each for each in _containers(pod) if each.get("name") == container), {})


def _containers(pod: Shown) -> Iterator[Shown]:
    spec = pod.get("spec", {})
    yield from spec.get("containers") or ()
    yield from spec.get("initContainers") or ()


def _secret_of(env: Mapping[str, Any]) -> str:
    return str(((env.get("valueFrom") or {}).get("secretKeyRef") or {}).get("name", ""))
