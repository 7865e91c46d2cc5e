"""Open a stored search by its name: one of this machine, or of a cluster's controller."""

from __future__ import annotations

from pathlib import Path

from tuner.study import Study, workspace_of


def open(
    name: str,
    *,
    namespace: str | None = None,
    context: str | None = None,
    state_dir: str | Path | None = None,
) -> Study:
    """Open a stored search, however it was started.

    Args:
        context: A context of the kubeconfig, for a search of the cluster's controller; `namespace`
            is that of the context by default.

    Raises NotFound (a TunerError) if there is none of this name.
    """
    if context is None:
        study = Study(workspace_of(state_dir), name, namespace)
    elif state_dir is not None:
        raise TypeError("open: state_dir is for searches of this machine; omit it or context")
    else:
        # Here, because it loads the client of Kubernetes.
        from tuner.cluster import ClusterStudy

        study = ClusterStudy.of(context, name, namespace)
    _ = study.state  # raises NotFound
    return study
