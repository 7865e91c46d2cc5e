"""Trials as Kubernetes Jobs: the runtime contract over an API server, through `controller.kube`."""
