"""What one attempt requests, by the names that resources have in a pod. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from controller.core.model import ExperimentSpec, TrialTemplate
from controller.core.spending import NOTHING_SPENT, Spent, price_per_hour
from controller.core.substitute import fill_data
from suggest.space import Assignment

GPU = "nvidia.com/gpu"
# Of plugins that share GPUs: the memory and the cores of a share, in MiB, GiB or percent, which are
# requested beside it; its tiles and priority; monitors; and network devices of the makers of GPUs.
_BESIDE_A_GPU = re.compile(r"mem|cores?|tiles|priority|monitoring|rdma|hostdev|nic\b")


def requested(template: TrialTemplate) -> dict[str, float]:
    """Return the amounts that all workers of an attempt request; memory in bytes.

    For a template of a whole object, these are the requests of its pods.

    Raises:
        ValueError: a parameter determines a resource of the template.
    """
    manifest = template.cluster.get("template")
    if isinstance(manifest, dict):
        return _of_manifest(manifest)
    resources = template.resources
    amounts = {
        "cpu": resources.cpu,
        "memory": resources.memory_bytes,
        GPU: resources.gpu,
        **resources.extended,
    }
    return {name: float(amount) * template.workers for name, amount in amounts.items() if amount}


def _of_manifest(manifest: dict[str, object]) -> dict[str, float]:
    # Lazy: most templates are programs.
    from controller.runtime.kubernetes.resource_quota import demand_of

    requests = "requests."
    return {
        name.removeprefix(requests): float(amount)
        for name, amount in demand_of([manifest]).total().items()
        if name.startswith(requests) and amount
    }


def is_gpu(resource: str) -> bool:
    """Whether the resource is a GPU or a slice of one."""
    domain, has_domain, device = resource.partition("/")
    of_maker = domain in ("nvidia.com", "amd.com", "habana.ai")
    is_one = of_maker or "gpu" in resource
    return bool(has_domain) and is_one and _BESIDE_A_GPU.search(device) is None


def gpus_in(amounts: Mapping[str, float]) -> float:
    return sum(amount for name, amount in amounts.items() if is_gpu(name))


def attempt_rate(
    spec: ExperimentSpec, template: TrialTemplate, parameters: Assignment | None = None
) -> Spent:
    """Return what an hour of an attempt uses.

    parameters: those of its trial. Without them, nothing if one of them determines a resource.
    """
    manifest = template.cluster.get("template")
    if parameters is not None and manifest is not None:
        template = replace(template, cluster={"template": fill_data(manifest, parameters)})
    try:
        amounts = requested(template)
    except ValueError:
        return NOTHING_SPENT
    return Spent(gpus_in(amounts), price_per_hour(spec.prices, amounts))


def gpus_of(template: TrialTemplate) -> float:
    """Return the GPUs of one attempt; 0 if a parameter determines them."""
    try:
        return gpus_in(requested(template))
    except ValueError:
        return 0.0
