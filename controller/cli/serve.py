"""`tuner serve`: run the suggestion service as a server for many clients."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from controller.cli.exits import ExitCode, of_server_check
from controller.cli.options import state_of, storage_of
from suggest import server as serving
from suggest.address import parse_address
from suggest.errors import InvalidArgument
from suggest.url_redaction import redacted_url

if TYPE_CHECKING:
    from suggest.server import Companion, Server
    from suggest.server.start_check import StartFinding


def serve(arguments: argparse.Namespace) -> int:
    logging.getLogger("suggest").setLevel(logging.DEBUG if arguments.verbose else logging.WARNING)
    for name in ("suggest.audit", "suggest.events"):
        logging.getLogger(name).setLevel(logging.WARNING if arguments.quiet else logging.INFO)
    storage = storage_of(arguments)
    if not arguments.storage and not arguments.check:
        state_of(arguments).make()
    protection = serving.Protection(
        insecure=arguments.insecure,
        tokens=arguments.tokens,
        tls_cert=arguments.tls_cert,
        tls_key=arguments.tls_key,
        tls_client_ca=arguments.tls_client_ca,
    )
    checkpoints = Path(arguments.katib_checkpoints) if arguments.katib_checkpoints else None
    katib = katib_ports(arguments.katib)
    options = serving.ServerOptions(arguments.metrics_address, arguments.limits, katib, checkpoints)
    companion = _page(arguments, storage) if arguments.ui else None
    if arguments.check:
        return _check(
            serving.start_check.look(
                arguments.address,
                storage,
                advertise=arguments.advertise,
                protection=protection,
                options=options,
            )
        )
    server = serving.Server(
        storage,
        arguments.address,
        sync=arguments.sync,
        advertise=arguments.advertise,
        protection=protection,
        options=options,
    )
    announce = arguments.log_format == "text"  # in JSON, a log event announces it
    return serving.serve(server, announce=announce, companion=companion)


def _page(arguments: argparse.Namespace, storage: str) -> Companion:
    """Return what serves the page beside the server. Raises InvalidArgument, FailedPrecondition."""
    from controller.ui import study_server  # an extra: Starlette and uvicorn

    address = parse_address(arguments.ui)
    study_server.check(address, tokens=bool(arguments.tokens), tls=bool(arguments.tls_cert))
    sqlite = Path(storage.removeprefix("sqlite:///")) if storage.startswith("sqlite:///") else None

    def print_link(link: str) -> None:
        with suppress(OSError):  # a log on a full disk must not stop the server
            print(f"page at {link}", file=sys.stderr, flush=True)

    def serve_page(server: Server) -> AbstractAsyncContextManager[None]:
        return study_server.serve_page(
            server,
            address,
            tokens=bool(arguments.tokens),
            sqlite=sqlite,
            source=redacted_url(storage),
            print_link=print_link,
        )

    return serve_page


def katib_ports(text: str) -> tuple[int, ...]:
    """Of `--katib`: "" for none. Raises InvalidArgument."""
    words = [word.strip() for word in text.split(",")] if text else []
    if wrong := [
        word for word in words if not (word.isascii() and word.isdigit() and int(word) <= 65535)
    ]:
        message = f"{wrong[0]!r} is not a port; separate them with commas, such as 6789,6788"
        raise InvalidArgument.at("katib", message)
    return tuple(map(int, words))


def _check(findings: Iterable[StartFinding]) -> ExitCode:
    """Print a line for each finding."""
    problems = []
    for finding in findings:
        print(
            f"{'ok' if finding.problem is None else 'FAIL':<4}  {finding.subject:<12}  "
            f"{finding.detail}",
            flush=True,
        )
        problems.append(finding)
    return of_server_check(problems)
