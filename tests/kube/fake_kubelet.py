"""A fake Job controller and kubelet on a FakeApi: pods for Jobs, and containers that print, end,
and stop on request.

run_pod() simulates one Job from its pod to its condition; play() does so for every Job from now on.
Step by step:
    pod = kubelet.make_pod("user1", "a")             # Pending, bound to no node
    kubelet.start(pod)                               # Running, on node1
    kubelet.print(pod, "accuracy=0.5")               # a line of its log
    kubelet.end(pod, exit_code=1, reason="OOMKilled")
    kubelet.finish_job("user1", "a")                 # what the Job controller then says
Deleting (through the API) a pod with a running container stops it: it ends with 143 at once, or, if
its script ignores SIGTERM, with 137 after its grace period; then the pod is gone. Deleting a Job
deletes its pods in this way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.kube.fake_api import FakeApi

Raw = dict[str, Any]
Key = tuple[str, str, str]


@dataclass(frozen=True)
class Script:
    """The behavior of a Job's containers.

    Lines are printed evenly over the seconds; `forever`: until stopped.
    """

    lines: tuple[str, ...] = ()
    seconds: float = 0.0
    exit_code: int = 0
    reason: str = ""  # OOMKilled, …
    ignores_sigterm: bool = False
    forever: bool = False
    waits_s: float = 0.0  # Pending for so long


@dataclass
class Log:
    lines: list[tuple[str, bytes]] = field(default_factory=list)
    rotated: int = 0  # lines dropped from the front
    ended: bool = False


class FakeKubelet:
    def __init__(self, api: FakeApi) -> None:
        self.node = "node1"
        self._api = api
        self._logs: dict[tuple[str, str, str], Log] = {}
        self._scripts: dict[Key, Script] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._plan: Callable[[Raw], Script | None] | None = None
        self._last_stamp = datetime.now(UTC)
        self.ahead_s = 0.0  # the clocks of its nodes

    def play(self, plan: Callable[[Raw], Script | None]) -> None:
        """Set the script of every Job that is created or resumed from now on;
        None leaves a Job alone.
        """
        self._plan = plan

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def run_pod(
        self,
        namespace: str,
        job: str,
        *,
        lines: tuple[str, ...] | list[str] = (),
        seconds: float = 0.0,
        exit_code: int = 0,
    ) -> str:
        """Simulate a Job from its pod's creation to its condition, and return the pod's name."""
        return await self.run(namespace, job, Script(tuple(lines), seconds, exit_code))

    async def run(self, namespace: str, job: str, script: Script) -> str:
        pod = self.make_pod(namespace, job)
        self._scripts["pods", namespace, pod] = script
        await asyncio.sleep(script.waits_s)
        self.start((namespace, pod))
        for line in script.lines:
            await asyncio.sleep(script.seconds / len(script.lines))
            self.print((namespace, pod), line)
        if not script.lines:
            await asyncio.sleep(script.seconds)
        if script.forever:
            await asyncio.Event().wait()
        if self._runs(namespace, pod):
            self.end((namespace, pod), exit_code=script.exit_code, reason=script.reason)
            await asyncio.sleep(0)
            self.finish_job(namespace, job)
        return pod

    def make_pod(self, namespace: str, job: str, *, index: int | None = None) -> str:
        owner = self._api.get("jobs", namespace, job)
        about = owner["metadata"]
        template = owner["spec"].get("template") or {}
        labels = {
            **(template.get("metadata") or {}).get("labels", {}),
            "batch.kubernetes.io/job-name": job,
            "job-name": job,
            "batch.kubernetes.io/controller-uid": about["uid"],
        }
        named = f"{job}-{index}-" if index is not None else f"{job}-"
        if index is not None:
            labels["batch.kubernetes.io/job-completion-index"] = str(index)
        pod = self._api.put(
            "pods",
            {
                "metadata": {
                    "generateName": named,
                    "namespace": namespace,
                    "labels": labels,
                    "annotations": dict((template.get("metadata") or {}).get("annotations", {})),
                    "ownerReferences": [
                        {
                            "apiVersion": "batch/v1",
                            "kind": "Job",
                            "name": job,
                            "uid": about["uid"],
                            "controller": True,
                            "blockOwnerDeletion": True,
                        }
                    ],
                },
                "spec": {"containers": [{"name": "trial"}], "terminationGracePeriodSeconds": 30}
                | template.get("spec", {}),
                "status": {"phase": "Pending"},
            },
        )
        self._api.change(
            "jobs",
            namespace,
            job,
            lambda obj: obj["status"].update(active=1, ready=0, startTime=stamp()),
        )
        return str(pod["metadata"]["name"])

    def start(self, pod: tuple[str, str] | str, *, node: str = "") -> None:
        namespace, name = _named(pod)

        def running(obj: Raw) -> None:
            obj["spec"]["nodeName"] = node or self.node
            obj["status"] = {
                "phase": "Running",
                "startTime": self._stamp(),
                "podIP": "10.0.0.1",
                "containerStatuses": [
                    {
                        "name": container["name"],
                        "ready": True,
                        "started": True,
                        "restartCount": 0,
                        "image": container.get("image", "image"),
                        "imageID": f"{container.get('image', 'image')}@sha256:0",
                        "state": {"running": {"startedAt": self._stamp()}},
                    }
                    for container in obj["spec"]["containers"]
                ],
            }
            if sidecars := _sidecars(obj):
                obj["status"]["initContainerStatuses"] = [
                    {
                        "name": each,
                        "restartCount": 0,
                        "state": {"running": {"startedAt": self._stamp()}},
                    }
                    for each in sidecars
                ]
            for container in [each["name"] for each in obj["spec"]["containers"]] + sidecars:
                self._logs[namespace, name, container] = Log()

        if self._api.find("pods", namespace, name) is not None:
            self._api.change("pods", namespace, name, running)

    def wait(self, pod: tuple[str, str] | str, *, reason: str, message: str = "") -> None:
        """Keep its containers waiting: ContainerCreating, ImagePullBackOff, …"""
        namespace, name = _named(pod)

        def waiting(obj: Raw) -> None:
            obj["spec"]["nodeName"] = self.node
            obj["status"] = {
                "phase": "Pending",
                "containerStatuses": [
                    {
                        "name": container["name"],
                        "ready": False,
                        "restartCount": 0,
                        "image": container.get("image", "image"),
                        "imageID": "",
                        "state": {"waiting": {"reason": reason, "message": message}},
                    }
                    for container in obj["spec"]["containers"]
                ],
            }

        self._api.change("pods", namespace, name, waiting)

    def _stamp(self) -> str:
        return stamp(self.ahead_s)

    def print(
        self, pod: tuple[str, str] | str, line: str | bytes, *, container: str = "", at: str = ""
    ) -> None:
        """Print a line. `at` is its timestamp; otherwise the present time
        with increasing nanoseconds.
        """
        namespace, name = _named(pod)
        log = self.log_of(namespace, name, container)
        if log is None or log.ended:
            return
        self._last_stamp = max(datetime.now(UTC), self._last_stamp + timedelta(microseconds=1))
        time = at or self._last_stamp.strftime("%Y-%m-%dT%H:%M:%S.%f") + "000Z"
        log.lines.append((time, line if isinstance(line, bytes) else line.encode()))
        self._api._wake()

    def rotate(self, pod: tuple[str, str] | str, *, keep: int = 0) -> None:
        """Drop early lines, like the kubelet."""
        log = self.log_of(*_named(pod), "")
        assert log is not None
        dropped = len(log.lines) - keep
        log.rotated += dropped
        del log.lines[:dropped]

    def end(
        self,
        pod: tuple[str, str] | str,
        *,
        exit_code: int = 0,
        reason: str = "",
        signal: int = 0,
        sidecars_too: bool = True,
    ) -> None:
        """End all containers of a pod.

        Without `sidecars_too` its sidecars run on until end_sidecars().
        """
        namespace, name = _named(pod)

        def ended(obj: Raw) -> None:
            obj["status"]["phase"] = "Succeeded" if exit_code == 0 else "Failed"
            for status in obj["status"].get("containerStatuses", []):
                started = status["state"].get("running", {}).get("startedAt", self._stamp())
                how = reason or ("Completed" if exit_code == 0 else "Error")
                end = {
                    "exitCode": exit_code,
                    "reason": how,
                    "startedAt": started,
                    "finishedAt": self._stamp(),
                }
                status["state"] = {"terminated": end | ({"signal": signal} if signal else {})}
                status["ready"] = status["started"] = False
            if not sidecars_too:
                obj["status"]["phase"] = "Running"

        found = self._api.find("pods", namespace, name)
        running = [] if sidecars_too or found is None else _sidecars(found)
        for (of, pod_name, container), log in self._logs.items():
            if (of, pod_name) == (namespace, name) and container not in running:
                log.ended = True
        if self._api.find("pods", namespace, name) is not None:
            self._api.change("pods", namespace, name, ended)
        self._api._wake()

    def end_sidecars(self, pod: tuple[str, str] | str, *, exit_code: int = 0) -> None:
        """They end after the others, and the pod with them."""
        namespace, name = _named(pod)

        def ended(obj: Raw) -> None:
            for status in obj["status"].get("initContainerStatuses", []):
                status["state"] = {
                    "terminated": {"exitCode": exit_code, "finishedAt": self._stamp()}
                }
            codes = [
                each["state"]["terminated"]["exitCode"]
                for each in obj["status"]["containerStatuses"]
            ]
            obj["status"]["phase"] = "Failed" if any(codes) else "Succeeded"

        for (of, pod_name, _), log in self._logs.items():
            if (of, pod_name) == (namespace, name):
                log.ended = True
        self._api.change("pods", namespace, name, ended)
        self._api._wake()

    def finish_job(self, namespace: str, job: str, *, lost: int = 0) -> None:
        """Set the status of a Job whose pods have ended.

        `lost` is the number of pods that no longer exist.
        """
        if self._api.find("jobs", namespace, job) is None:
            return
        pods = self._api.labelled("pods", namespace, "job-name", job)
        failed = max(lost, sum(pod["status"]["phase"] == "Failed" for pod in pods))
        kind, first = ("Failed", "FailureTarget") if failed else ("Complete", "SuccessCriteriaMet")
        why = (
            {
                "reason": "BackoffLimitExceeded",
                "message": "Job has reached the specified backoff limit",
            }
            if failed
            else {
                "reason": "CompletionsReached",
                "message": "Reached expected number of succeeded pods",
            }
        )
        conditions = [
            {"type": name, "status": "True", "lastTransitionTime": stamp(), **why}
            for name in (first, kind)
        ]

        def finished(obj: Raw) -> None:
            obj["status"].update(
                active=0, conditions=conditions, failed=failed, succeeded=max(0, len(pods) - failed)
            )
            if not failed:
                obj["status"]["completionTime"] = stamp()

        self._api.change("jobs", namespace, job, finished)

    def log_of(self, namespace: str, pod: str, container: str) -> Log | None:
        """Return a container's log; None before it has started. "" means the first container."""
        return next(
            (
                log
                for key, log in self._logs.items()
                if key[:2] == (namespace, pod) and container in ("", key[2])
            ),
            None,
        )

    # What the API tells.

    def saw(self, plural: str, before: Raw | None, after: Raw | None) -> None:
        if plural == "pods" and after is None and before is not None:
            about = before["metadata"]
            for key in [
                key for key in self._logs if key[:2] == (about["namespace"], about["name"])
            ]:
                self._logs.pop(key).ended = True
        if plural != "jobs" or after is None or self._plan is None or after["spec"].get("suspend"):
            return
        if before is None or before["spec"].get("suspend"):
            script = self._plan(after)
            if script is not None:
                self._begin(
                    self._played(after["metadata"]["namespace"], after["metadata"]["name"], script)
                )

    async def _played(self, namespace: str, job: str, script: Script) -> None:
        if self._api.find("jobs", namespace, job) is not None:
            await self.run(namespace, job, script)

    def delete(self, key: Key, *, grace_s: float | None, policy: str) -> None:
        plural, namespace, name = key
        if plural == "pods" and self._runs(namespace, name) and grace_s != 0:
            self._begin(self._terminate(namespace, name, grace_s))
        elif policy == "Foreground" and self._api.owned_by(key):
            self._begin(self._delete_last(key, grace_s))
        else:
            for owned in self._api.end(key, orphans=policy == "Orphan"):
                self.delete(owned, grace_s=None, policy="Background")

    async def _delete_last(self, key: Key, grace_s: float | None) -> None:
        self._api.change(
            *key,
            lambda obj: obj["metadata"].update(
                deletionTimestamp=stamp(), finalizers=["foregroundDeletion"]
            ),
        )
        for owned in self._api.owned_by(key):
            self.delete(owned, grace_s=grace_s, policy="Background")
        while self._api.owned_by(key):  # noqa: ASYNC110 - they are ended elsewhere
            await asyncio.sleep(0.005)
        self._api.end(key, orphans=False)

    async def _terminate(self, namespace: str, name: str, grace_s: float | None) -> None:
        """SIGTERM, grace, SIGKILL; the pod goes when its containers have."""
        pod = self._api.get("pods", namespace, name)
        grace = pod["spec"].get("terminationGracePeriodSeconds", 30) if grace_s is None else grace_s
        self._api.change(
            "pods",
            namespace,
            name,
            lambda obj: obj["metadata"].update(
                deletionTimestamp=stamp(), deletionGracePeriodSeconds=grace
            ),
        )
        if self._scripts.get(("pods", namespace, name), Script()).ignores_sigterm:
            for _ in range(int(grace / 0.01)):
                await asyncio.sleep(0.01)
                if not self._runs(namespace, name):
                    break
            code, signal = 137, 9
        else:
            await asyncio.sleep(0)
            code, signal = 143, 15
        if self._runs(namespace, name):
            self.end((namespace, name), exit_code=code, signal=0 if code == 143 else signal)
        await asyncio.sleep(0.01)  # the kubelet's status comes before the end of the object
        self._api.end(("pods", namespace, name), orphans=False)
        for owner in pod["metadata"].get("ownerReferences", []):
            self.finish_job(namespace, owner["name"], lost=1)

    def _runs(self, namespace: str, name: str) -> bool:
        pod = self._api.find("pods", namespace, name)
        return pod is not None and pod["status"].get("phase") == "Running"

    def _begin(self, doing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _sidecars(pod: Raw) -> list[str]:
    return [
        each["name"]
        for each in pod["spec"].get("initContainers") or ()
        if each.get("restartPolicy") == "Always"
    ]


def stamp(ahead_s: float = 0.0) -> str:
    return (datetime.now(UTC) + timedelta(seconds=ahead_s)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _named(pod: tuple[str, str] | str) -> tuple[str, str]:
    """("user1", "a-x7k2q") or "a-x7k2q", which is in user1."""
    return pod if isinstance(pod, tuple) else ("user1", pod)
