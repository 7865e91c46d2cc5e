"""The tests of a cluster run where they are named (`make test-cluster`), and not among all others: they need programs
that take ten minutes to build, and one of their levels needs root."""

from pathlib import Path

import pytest

from tests.postgres import postgres, postgres_url

__all__ = ["postgres", "postgres_url"]

CLUSTER = Path(__file__).with_name("cluster")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path != CLUSTER:
        return None
    named = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
    return None if any(path == CLUSTER or CLUSTER in path.parents for path in named) else True
