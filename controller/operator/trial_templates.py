"""The ConfigMaps with the templates of trials that Katib's Experiments name.

The controller reads them with its own rights, and a template shows in the objects of its trials.
Who may run pods in a namespace may read all of its ConfigMaps, so those of the experiment's own
namespace are read. One of another namespace is read only if it has the label by which Katib's page
offers it to everybody.
"""

from __future__ import annotations

from collections.abc import Mapping

from controller.kube.client import CONFIG_MAPS, KubernetesClient
from controller.kube.errors import ApiForbidden, ApiNotFound
from controller.operator.resource import ExperimentResource
from controller.spec import ConfigMapOf, NoConfigMap

_SHARED, _TEMPLATES = "katib.kubeflow.org/component", "trial-templates"


async def config_map_of(
    client: KubernetesClient, resource: ExperimentResource
) -> ConfigMapOf | None:
    """Return what reads the ConfigMap that the resource names; None: it names none.

    The ConfigMap is read here, at once. Raises what the client raises, but for an object that is
    missing or may not be read: what is returned says so.
    """
    match resource["spec"].get("trialTemplate"):
        case {"configMap": {"configMapNamespace": str(namespace), "configMapName": str(name)}}:
            pass
        case _:
            return None
    trouble, data = "", dict[str, str]()
    try:
        found = await client.get(CONFIG_MAPS, namespace, name)
    except (ApiForbidden, ApiNotFound) as error:
        trouble = str(error)
    else:
        data = found.get("data") or {}
        labels = found["metadata"].get("labels") or {}
        is_own = namespace == resource["metadata"]["namespace"]
        if not is_own and labels.get(_SHARED) != _TEMPLATES:
            trouble = (
                f"the ConfigMap {namespace}/{name} is in another namespace, and lacks the label "
                f"{_SHARED}: {_TEMPLATES}; add it, or copy the ConfigMap"
            )

    def read(_namespace: str, _name: str) -> Mapping[str, str]:
        if trouble:
            raise NoConfigMap(trouble)
        return data

    return read
