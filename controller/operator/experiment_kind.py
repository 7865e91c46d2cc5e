"""What the kinds of custom resources that describe experiments differ in: Tuner's and Katib's.

Everything else about a resource is the same for all, in the form of `ExperimentResource`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from controller.kube.client import Kind, KubernetesClient
from controller.kube.objects import KubernetesObject, Raw
from controller.operator.hosting import HostedWorkspace
from controller.operator.resource import EXPERIMENTS, ExperimentResource, kind_of
from controller.operator.status import Observation, Status


class ExperimentKind:
    """Tuner's own kind, whose resource is what the controller works with. Katib's derives from it.

    suffix: of the names that its experiments have in the store.
    """

    kind: Kind = EXPERIMENTS
    suffix = ""

    def seen(self, found: KubernetesObject) -> ExperimentResource | None:
        """Return the object as the controller sees it; None if another controller runs it."""
        return cast(ExperimentResource, found)

    def defaults(self, resource: ExperimentResource) -> Raw:
        """Return the keys of spec that have to be written back; {} if it is complete.

        The definition of Tuner's kind has the defaults.
        """
        return {}

    def whole(self, resource: ExperimentResource, status: Status) -> Raw:
        """Return the status of the object with this one of Tuner's, and the rest as it is."""
        return dict(status)

    async def shown(
        self,
        client: KubernetesClient,
        workspace: HostedWorkspace,
        resource: ExperimentResource,
        seen: Observation,
        status: Status,
    ) -> Raw:
        """Return the status that the object should have, and bring what goes with it up to date.

        client: sends on behalf of the experiment.
        Raises what the client, the store and the service raise; then it is called again.
        """
        return dict(status)

    def is_behind(self, resource: ExperimentResource) -> bool:
        """Return whether `shown` has to be called again, though nothing changes.

        The cluster has refused an object that goes with the resource.
        """
        return False

    async def hide(self, client: KubernetesClient, resource: ExperimentResource) -> None:
        """Delete what `shown` has created, before the experiment's own objects go. Idempotent."""


class ExperimentKinds:
    """The kinds that a controller serves."""

    def __init__(self, kinds: Sequence[ExperimentKind]) -> None:
        self._kinds = {each.kind: each for each in kinds}

    def __iter__(self) -> Iterator[ExperimentKind]:
        return iter(self._kinds.values())

    def named(self, found: Raw) -> ExperimentKind | None:
        """Return the kind of an object; None: the controller does not serve it."""
        names = found.get("apiVersion"), found.get("kind")
        return next((each for each in self if _names(each.kind) == names), None)

    def of(self, resource: ExperimentResource) -> ExperimentKind:
        return self._kinds[kind_of(resource)]


def _names(kind: Kind) -> tuple[str, str]:
    return kind.api_version, kind.kind
