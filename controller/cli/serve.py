"""`tuner serve`: the suggestion service by itself, for many clients."""

from __future__ import annotations

import argparse
import logging

from controller.cli import terminal
from controller.cli.embedded import asked_for
from controller.cli.home import Home


def serve(arguments: argparse.Namespace) -> int:
    from suggest.server import Oversight, Protection
    from suggest.server import serve as run

    terminal.set_up_logging(arguments)
    logging.getLogger("suggest").setLevel(logging.DEBUG if arguments.verbose else logging.WARNING)
    for told in ("suggest.audit", "suggest.events"):
        logging.getLogger(told).setLevel(logging.WARNING if arguments.quiet else logging.INFO)
    arguments.server = None
    storage = asked_for(arguments)
    if not storage:
        home = Home.find(arguments.state_dir)
        home.make()
        storage = home.storage_url
    protection = Protection(
        insecure=arguments.insecure, tokens=arguments.tokens, tls_cert=arguments.tls_cert, tls_key=arguments.tls_key
    )
    return run(
        arguments.address,
        storage,
        sync=arguments.sync,
        advertise=arguments.advertise,
        protection=protection,
        oversight=Oversight(arguments.metrics_address, arguments.limits),
    )
