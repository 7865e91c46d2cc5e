"""JobSet without its controller: the original definition, and a fake controller.

The fake controller creates the pods itself, without Jobs: the tuner reads only the conditions of a
JobSet and the labels of its pods.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import yaml

from tests.cluster.api import Api, Object, RequestRefused
from tests.cluster.binaries import program
from tests.cluster.objects import pods, terminated
from tests.cluster.waiting import eventually

GROUP = "jobset.x-k8s.io"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def jobsets(namespace: str, name: str = "") -> str:
    return f"/apis/{GROUP}/v1alpha2/namespaces/{namespace}/jobsets" + (f"/{name}" if name else "")


def definition() -> Object:
    text = program("jobsets.yaml").read_text(encoding="utf-8")
    return dict(yaml.load(text, yaml.CSafeLoader))


def define(api: Api, what: Object) -> None:
    """Install a definition, or accept an existing one; return when the server serves it."""
    name = what["metadata"]["name"]
    if api.find(f"{DEFINITIONS}/{name}") is None:
        api.post(DEFINITIONS, what)
    api.until(f"{DEFINITIONS}/{name}", _established)
    spec = what["spec"]
    # Established is set shortly before discovery shows the kind,
    # and that before objects can be stored.
    group, plural = f"/apis/{spec['group']}/{spec['versions'][0]['name']}", spec["names"]["plural"]
    api.until(group, lambda found: plural in {each["name"] for each in found["resources"]})
    eventually(lambda: _serves(api, f"{group}/{plural}"))


def _serves(api: Api, path: str) -> bool:
    try:
        return "items" in api.get(path)
    except RequestRefused:
        return False


def _established(found: Object) -> bool:
    given = found.get("status", {}).get("conditions") or ()
    return any(each["type"] == "Established" and each["status"] == "True" for each in given)


class Operator:
    """Until closed, create the pods of each object of one kind in a namespace
    and set its condition when they end.

    path: of the kind in the namespace. templates: the pod templates of an object. ways: conditions
    of success, failure.
    """

    def __init__(
        self,
        api: Api,
        namespace: str,
        *,
        path: str,
        templates: Callable[[Object], list[Object]],
        ways: tuple[str, str],
    ) -> None:
        self._api, self._namespace, self._path = api, namespace, path
        self._templates, self._ways = templates, ways
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._play)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _play(self) -> None:
        while not self._over.wait(0.1):
            for each in self._seen():
                with suppress(
                    RequestRefused
                ):  # it was deleted meanwhile; any other cause shows as a test that times out
                    self._look_after(each)

    def _seen(self) -> list[Object]:
        try:
            return self._api.items(self._path)
        except (RequestRefused, OSError):
            return []

    def _look_after(self, each: Object) -> None:
        if "deletionTimestamp" in each["metadata"] or each.get("status", {}).get("conditions"):
            return
        name = each["metadata"]["name"]
        named = [
            (f"{name}-{index}", template) for index, template in enumerate(self._templates(each))
        ]
        shown = [self._api.find(pods(self._namespace, pod)) for pod, _ in named]
        for (pod, template), there in zip(named, shown, strict=True):
            if there is None:
                self._api.post(pods(self._namespace), _pod(pod, template, each))
        ends = [terminated(there) for there in shown if there is not None]
        if len(ends) < len(named) or not all(ends):
            return
        success, failure = self._ways
        said = success if all(end["exitCode"] == 0 for end in ends) else failure
        now = max(end["finishedAt"] for end in ends)
        condition = {
            "type": said,
            "status": "True",
            "reason": "Played",
            "message": "",
            "lastTransitionTime": now,
        }
        status = {"status": {"conditions": [condition]}}
        self._api.patch(f"{self._path}/{name}/status", status)


def _pod(name: str, template: Object, owner: Object) -> Object:
    about = owner["metadata"]
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": about["name"],
        "uid": about["uid"],
    }
    labels = template.get("metadata", {}).get("labels", {})
    metadata = {
        "name": name,
        "labels": labels,
        "ownerReferences": [{**reference, "controller": True}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
