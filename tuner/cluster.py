"""Searches of the controller in a cluster, from Python: hand one over, follow it, and open it.

The search is a custom resource, created with the rights of the person's kubeconfig. Nothing of it
is in this process: a script that dies and runs again follows the same search.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from controller.app import cluster_changes
from controller.app.cluster_workspace import ClusterWorkspace
from controller.app.controller_api import ControllerApi
from controller.kube.client import KubernetesClient
from controller.kube.custom_resource import OBJECTIVE
from controller.kube.errors import ApiError, Unreachable
from controller.kube.kubeconfig import namespace_of
from controller.phrases import command, render
from controller.report.formatting import number
from suggest.client.search_space import level_of_caller
from suggest.errors import InvalidArgument, NotFound, Unavailable
from tuner.code_hash import differs
from tuner.session import CLUSTER
from tuner.study import Study, extension, raise_if_unfinished, settings

if TYPE_CHECKING:
    from controller.app.cluster_changes import Resource
    from controller.app.experiment_file import ExperimentFile
    from controller.runtime.trial_files import TrialFiles

_POLL_S = 1.0
_WITH_RESULTS = ("succeeded", "pruned", "infeasible")
Result = TypeVar("Result")


class ClusterStudy(Study):
    """A search of a cluster's controller. A change returns when the controller has made it."""

    def __init__(self, api: ControllerApi, name: str, namespace: str) -> None:
        super().__init__(ClusterWorkspace(api), name, namespace)
        self._api = api
        self._in = namespace

    @classmethod
    def of(cls, context: str | None, name: str, namespace: str | None) -> ClusterStudy:
        """Return the search of a context of the kubeconfig, which may not exist."""
        return cls(ControllerApi(context), name, namespace or namespace_of(context))

    def resume(self, *, progress: bool = True) -> Study:
        self._change(cluster_changes.resume)
        return self.follow(progress=progress)

    def extend(
        self, trials: int = 0, *, overrides: Sequence[str] = (), progress: bool = True
    ) -> Study:
        self._change(partial(cluster_changes.revise, extension=extension(trials, overrides)))
        return self.follow(progress=progress)

    def set(self, **values: object) -> None:
        self._change(partial(cluster_changes.revise, extension=extension(0, settings(values))))

    def stop(self) -> None:
        self._change(cluster_changes.stop)

    def delete(self) -> None:
        self._change(partial(cluster_changes.delete, keep_study=False))

    def follow(self, *, progress: bool) -> Study:
        """Wait until the search has ended, or waits for a person.

        Raises:
            SearchFailed: It failed, or it is paused until a person acts.
            NotFound: It was deleted.
            KeyboardInterrupt: Ctrl-C. The search goes on.
        """
        view = _Lines(self.name) if progress else _Quiet()
        try:
            self._wait(view)
        except KeyboardInterrupt:
            print(self._without_us(), file=sys.stderr, flush=True)
            raise
        raise_if_unfinished(self._record().experiment, self, in_place=self._in_place)
        return self

    def _wait(self, view: _Quiet) -> None:
        uid = ""
        while True:
            try:
                resource = self._change(cluster_changes.get)
            except Unavailable as error:
                view.trouble(str(error))
            else:
                about = resource["metadata"]
                if about["uid"] != (uid := uid or about["uid"]):
                    raise NotFound(f"{self.name} was deleted, and created again")
                view.status(resource.get("status") or {})
                if cluster_changes.is_over(resource):
                    return
            time.sleep(_POLL_S)

    def _change(
        self, change: Callable[[KubernetesClient, str, str], Coroutine[Any, Any, Result]]
    ) -> Result:
        return self.call(lambda client: change(client, self._in, self.name))

    def call(self, work: Callable[[KubernetesClient], Coroutine[Any, Any, Result]]) -> Result:
        """Return what `work` does with a client of the cluster. Raises TunerError."""
        try:
            return self._api.call(work)
        except (Unreachable, ApiError) as error:
            raise Unavailable(str(error)) from error

    def _without_us(self) -> str:
        text = (
            f"{self.name} goes on in the cluster. Follow it: run this again. See it: "
            f"{command('get', 'trials', self.name, '-w')}. Stop it: {command('stop', self.name)}"
        )
        return self._in_place(text)

    def _in_place(self, text: str) -> str:
        """Return a text whose commands name the cluster."""
        where = ("--namespace", self._in, "--context", self._api.context)
        return render(text, lambda words: ["tuner", *words, *where])


class _Quiet:
    """Says nothing."""

    def status(self, status: Mapping[str, Any]) -> None: ...
    def trouble(self, text: str) -> None: ...


class _Lines(_Quiet):
    """Prints a line when trials have ended, and when something else keeps the search waiting."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._told: object = None

    def status(self, status: Mapping[str, Any]) -> None:
        best = status.get("best") or {}
        reason = str(status.get("reason", ""))
        # Figures in a reason change all the time, and its first words do not.
        about = status.get("state"), status.get("done"), best.get("number"), reason.split(":")[0]
        words = [f"{self._name}: {status.get('state', 'pending')}"]
        if "done" in status:
            words.append(f"{status['done']} trials, {status.get('running', 0)} running")
        if status.get("queued"):
            words.append(f"{status['queued']} waiting")
        if "value" in best:
            words.append(f"best {number(best['value'])} (trial {best['number']})")
        self._tell(about, ", ".join(words) + (f": {reason}" if reason else ""))

    def trouble(self, text: str) -> None:
        self._tell("trouble", f"{self._name} goes on in the cluster, which cannot be read: {text}")

    def _tell(self, about: object, line: str) -> None:
        if about != self._told:
            self._told = about
            print(line, file=sys.stderr, flush=True)


def hand_over(
    file: ExperimentFile,
    files: TrialFiles | None,
    *,
    caller: str,
    context: str | None,
    progress: bool,
    overrides: Sequence[str] = (),
    code: str = "",
) -> Study:
    """Let the cluster's controller run the file's experiment, or go on with it, and follow it.

    files: are sent with it.
    code: the hash of the objective's code; "" if the trials call none.

    Raises as `tuner.minimize`.
    """
    spec = file.document.spec
    study = ClusterStudy.of(context, spec.name, spec.namespace)
    before = study._change(cluster_changes.found)
    if before is not None:
        _warn_of_other_code(caller, before, code)
    applied = study.call(
        lambda client: cluster_changes.apply(
            client,
            file.document,
            overrides,
            files,
            annotations={OBJECTIVE: code} if code else None,
            dry_run=False,
        )
    )
    accepted = study.call(lambda client: cluster_changes.accepted(client, applied.resource))
    state = (accepted.get("status") or {}).get("state")
    if before is not None and state in cluster_changes.RESTING:
        # A person has corrected something, and calls again.
        study._change(cluster_changes.resume)
    return study.follow(progress=progress)


def refuse(caller: str, given: Mapping[str, object]) -> None:
    """Raise InvalidArgument for arguments that a search of the cluster's controller cannot have."""
    for name, cure in _ELSEWHERE.items():
        if given.get(name):
            raise InvalidArgument.at(caller, f'{name}: not with runtime="{CLUSTER}", {cure}')


_ELSEWHERE = {
    "callbacks": "which goes on without this process; read study.results() instead",
    "import_from": "whose studies are in the cluster; pass the best points as initial",
    "state_dir": "which keeps nothing on this machine; omit it",
}


def _warn_of_other_code(caller: str, before: Resource, code: str) -> None:
    stored = (before["metadata"].get("annotations") or {}).get(OBJECTIVE, "")
    counts = (before.get("status") or {}).get("trials") or {}
    if differs(stored, code) and any(counts.get(state) for state in _WITH_RESULTS):
        name = before["metadata"]["name"]
        warnings.warn(
            f"{caller}: the code of the objective has changed since {name} ran its trials, "
            "and the results so far are kept; if they no longer apply, use another name",
            stacklevel=level_of_caller(),
        )
