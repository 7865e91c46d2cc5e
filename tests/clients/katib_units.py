"""Run Katib's own unit tests, unmodified, against this server:

    pip install grpcio-testing
    git clone https://github.com/kubeflow/katib
    python -m tests.clients.katib_units katib [arguments of pytest]

The tests create a service class and call it through `grpc_testing`. Here these classes
send each call to a server. Left out are the tests of Katib's internal classes, and those
of a search for a network's layers.
"""

from __future__ import annotations

import contextlib
import functools
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any
from unittest import mock

import grpc
import pytest

from suggest.katib.v1beta1 import api_pb2
from tests import katib_stubs
from tests.service.katib_caller import NUMBERS, a_request, an_experiment
from tests.service.running import a_server

SERVICES = {
    "pkg.suggestion.v1beta1.optuna.service": ("OptunaService", "Suggestion"),
    "pkg.suggestion.v1beta1.hyperopt.service": ("HyperoptService", "Suggestion"),
    "pkg.suggestion.v1beta1.skopt.service": ("SkoptService", "Suggestion"),
    "pkg.suggestion.v1beta1.hyperband.service": ("HyperbandService", "Suggestion"),
    "pkg.earlystopping.v1beta1.medianstop.service": ("MedianStopService", "EarlyStopping"),
}
TESTS = {
    "suggestion": ("optuna", "hyperopt", "skopt", "hyperband"),
    "earlystopping": ("medianstop",),
}
INTERNAL = "test_unsupported_distribution_raises"  # of Katib's class BaseOptunaService
_OPEN = contextlib.ExitStack()  # the server, until the tests have ended


@functools.cache
def _channel() -> grpc.Channel:
    """Return a channel to the server, which all tests share as the experiments of a cluster do."""
    folder = Path(_OPEN.enter_context(tempfile.TemporaryDirectory()))
    server = _OPEN.enter_context(a_server(folder / "studies.db"))
    return _OPEN.enter_context(grpc.insecure_channel(server.address))


class Forwarding:
    """A service of Katib's that sends each call to the server."""

    def __init__(self, service: str) -> None:
        self._stub = getattr(katib_stubs, f"{service}Stub")(_channel())

    def __getattr__(self, name: str) -> Any:  # a method of the service
        method, descriptor = getattr(self._stub, name), _method(name)

        def forward(request: Any, context: Any) -> Any:
            try:
                return method(request, timeout=10)
            except grpc.RpcError as e:
                context.set_code(e.code())  # type: ignore[attr-defined]
                context.set_details(e.details())  # type: ignore[attr-defined]
                return descriptor.output_type._concrete_class()

        return forward


def _method(name: str) -> Any:  # a descriptor, whose stubs do not know the class of a message
    services = api_pb2.DESCRIPTOR.services_by_name.values()
    return next(
        service.methods_by_name[name] for service in services if name in service.methods_by_name
    )


def stand_in() -> None:
    """Replace the modules that the tests import.

    Katib's constants and search space remain Katib's.
    """
    messages = types.ModuleType("pkg.apis.manager.v1beta1.python")
    messages.api_pb2, messages.api_pb2_grpc = api_pb2, katib_stubs  # type: ignore[attr-defined]
    sys.modules[messages.__name__] = messages
    for path, (name, service) in SERVICES.items():
        module = types.ModuleType(path)
        setattr(module, name, type(name, (Forwarding,), {"__init__": _init(service)}))
        # of the Kubernetes client, which a test replaces
        module.config = mock.MagicMock()  # type: ignore[attr-defined]
        sys.modules[path] = module
    internal = types.ModuleType("pkg.suggestion.v1beta1.optuna.base_service")
    internal.BaseOptunaService = None  # type: ignore[attr-defined]
    sys.modules[internal.__name__] = internal


def _init(service: str) -> Any:
    def init(self: Forwarding) -> None:
        Forwarding.__init__(self, service)

    return init


def _warm_up() -> None:
    """Start the processes that fit models.

    The tests wait a second for each reply, on any machine.
    """
    for turn in range(2):
        request = a_request(an_experiment("cmaes", NUMBERS, name=f"warm-up-{turn}"), count=2)
        Forwarding("Suggestion").GetSuggestions(request, mock.MagicMock())


def main(katib: str, *arguments: str) -> int:
    """Run the tests of each folder in a process of its own, because each has a module `utils`."""
    command = [sys.executable, "-m", "tests.clients.katib_units"]
    codes = [
        subprocess.run([*command, "--folder", each, katib, *arguments], check=False).returncode
        for each in TESTS
    ]
    return max(codes)


def run(folder: str, katib: str, *arguments: str) -> int:
    checkout = Path(katib).resolve()
    sys.path.insert(0, str(checkout))
    stand_in()
    unit = checkout / "test" / "unit" / "v1beta1" / folder
    files = [str(unit / f"test_{name}_service.py") for name in TESTS[folder]]
    options = ["-q", "-p", "no:cacheprovider", "-c", "/dev/null", "-k", f"not {INTERNAL}"]
    with _OPEN:
        _warm_up()
        return int(pytest.main([*options, *files, *arguments]))


if __name__ == "__main__":
    sys.exit(run(*sys.argv[2:]) if sys.argv[1] == "--folder" else main(*sys.argv[1:]))
