"""Trials as Kubernetes Jobs: the runtime contract over an API server. Only `client` talks with it."""
