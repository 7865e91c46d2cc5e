"""Katib's `darts`: every trial gets the same three texts and searches by itself
(Liu et al. 2019, differentiable architecture search).

A quotation mark in the texts is an apostrophe, which programs turn back. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from suggest.network import Operation, as_text

# Where an operation without a size is meant by its type.
WITHOUT_SIZE = "skip_connection"
DEFAULTS: Mapping[str, float] = {
    "num_epochs": 50,
    "w_lr": 0.025,
    "w_lr_min": 0.001,
    "w_momentum": 0.9,
    "w_weight_decay": 3e-4,
    "w_grad_clip": 5.0,
    "alpha_lr": 3e-4,
    "alpha_weight_decay": 1e-3,
    "batch_size": 128,
    "num_workers": 4,
    "init_channels": 16,
    "print_step": 50,
    "num_nodes": 4,
    "stem_multiplier": 3,
}
# Settings that may be "None", which the program gets as null.
OPTIONAL = ("batch_size",)
MAX_OPERATIONS = 1000


def texts(
    settings: Mapping[str, str], operations: Sequence[Operation], layers: int
) -> dict[str, str]:
    """Return the parameters of every trial.

    Args:
        settings: Those of the experiment, as text; others have their defaults.
        operations: Each but a skip connection has a size for each value of its first parameter.
    """
    given = {name: None if text == "None" else text for name, text in settings.items()}
    names: list[str] = []
    for operation in operations:
        if operation.type == WITHOUT_SIZE:
            names.append(operation.type)
            continue
        domain = operation.parameters[0].domain
        values = [domain.at(index) for index in range(domain.count or 0)]
        names += [f"{operation.type}_{value}x{value}" for value in values]
    return {
        "algorithm-settings": as_text({**DEFAULTS, **given}),
        "search-space": as_text(names),
        "num-layers": str(layers),
    }
