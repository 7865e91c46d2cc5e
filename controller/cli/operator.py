"""`tuner controller`: run the experiments of a cluster's custom resources."""

from __future__ import annotations

import argparse
import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_network
from pathlib import Path
from typing import TypeVar, cast

from controller.cli.exits import ExitCode
from controller.cli.options import state_of
from controller.kube.request_limit import MOST_PER_S, PER_S
from controller.operator.katib import KatibSelection
from controller.operator.page import PageProxy, ProxyCertificate
from controller.operator.policy import Policy
from controller.operator.process import ControllerOptions, run_controller
from controller.runtime.protocol import LOG_LIMIT_BYTES
from controller.spec.native import PRICES
from controller.spec.problems import ProblemCollector
from controller.spec.quantities import MIN_BYTES, parse_bytes, parse_duration
from suggest import server
from suggest.errors import InvalidArgument, Problem, raise_if
from suggest.url_redaction import redacted_url

T = TypeVar("T")
_PORTS = ("--health-port", "--metrics-port", "--http-port", "--grpc-port", "--db-manager-port")


def controller(arguments: argparse.Namespace) -> ExitCode:
    for flag in _PORTS:
        port = getattr(arguments, flag.strip("-").replace("-", "_"))
        if port is not None and not 0 < port < 65536:
            raise InvalidArgument.at(flag, f"{port} is not a port; write 1 to 65535")
    requests_per_s = PER_S if arguments.kube_api_qps is None else arguments.kube_api_qps
    if not 1 <= requests_per_s <= MOST_PER_S:
        raise InvalidArgument.at(
            "--kube-api-qps", f"{requests_per_s:g} is out of range; write 1 to {MOST_PER_S:g}"
        )
    running = arguments.running_experiments
    if running < 2:
        raise InvalidArgument.at(
            "--running-experiments",
            f"{running} is too few; one namespace has half; write 2 or more",
        )
    options = ControllerOptions(
        state_of(arguments),
        storage=_storage(arguments.storage),
        context=arguments.context,
        namespaces=tuple(dict.fromkeys(arguments.watch_namespace)),
        health_port=arguments.health_port,
        metrics_port=arguments.metrics_port,
        http_port=arguments.http_port,
        grpc_port=arguments.grpc_port,
        tls=_tls(arguments),
        page_proxy=page_proxy(arguments),
        webhook=arguments.webhook,
        katib=arguments.katib and KatibSelection(arguments.katib),
        db_manager_port=arguments.db_manager_port,
        archive=arguments.archive,
        keep_logs_s=_read("--keep-logs-for", arguments.keep_logs_for, parse_duration),
        keep_logs_bytes=_size("--keep-logs-size", arguments.keep_logs_size),
        policy=Policy(
            service_accounts=frozenset(arguments.allow_service_account),
            kinds=frozenset(arguments.allow_kind),
            log_limit_bytes=_size("--log-limit", arguments.log_limit) or LOG_LIMIT_BYTES,
            prices=prices_of(arguments.price),
            node_label=arguments.node_price_label,
            node_prices=node_prices_of(arguments),
        ),
        requests_per_s=requests_per_s,
        running_experiments=running,
    )
    asyncio.run(run_controller(options))
    return ExitCode.OK


def _read(flag: str, text: str, parse: Callable[[str], T]) -> T | None:
    """Return the value of a flag; None without the flag. Raises InvalidArgument."""
    try:
        return parse(text) if text else None
    except ValueError as error:
        raise InvalidArgument.at(flag, str(error)) from None


def _size(flag: str, text: str) -> int | None:
    amount = _read(flag, text, parse_bytes)
    if amount is not None and amount < MIN_BYTES:
        raise InvalidArgument.at(flag, f"{text} is too small; write 1Mi or more")
    return amount


def _refuse_half(flag: str, value: object, other: str, required: object) -> None:
    """Raise InvalidArgument if one of two flags that belong together is missing."""
    if bool(value) != bool(required):
        raise InvalidArgument.at(flag, f"belongs to {other}: give both, or neither")


def node_prices_of(arguments: argparse.Namespace) -> Mapping[str, Mapping[str, float]]:
    """Return the prices by value of the label, and resource. Raises InvalidArgument."""
    by_value: dict[str, list[str]] = {}
    for text in arguments.node_price:
        value, _, price = text.partition(":")
        by_value.setdefault(value, []).append(price)
    _refuse_half("--node-price", by_value, "--node-price-label", arguments.node_price_label)
    if by_value and not arguments.price:
        raise InvalidArgument.at(
            "--node-price", "requires --price, which holds for nodes without the label"
        )
    return {
        value: prices_of(texts, flag=f"--node-price {value}") for value, texts in by_value.items()
    }


def prices_of(texts: Sequence[str], *, flag: str = "--price") -> Mapping[str, float]:
    """Return the prices by resource. Raises InvalidArgument with all problems."""
    given: dict[str, object] = {}
    for text in texts:
        name, _, amount = text.partition("=")
        try:
            given[name] = float(amount)
        except ValueError:
            given[name] = amount
    problems = ProblemCollector()
    read = PRICES.take(given, flag, problems)
    raise_if([Problem(each.path, each.message) for each in problems.found])
    return cast("Mapping[str, float]", read)


def _storage(url: str) -> str:
    if url and not server.admin.is_postgres(url):
        raise InvalidArgument.at(
            "--storage",
            f"{redacted_url(url)}: is not a PostgreSQL database; write "
            "postgresql+psycopg://USER@HOST/DATABASE, or omit it: the state directory has SQLite",
        )
    return url


def _tls(arguments: argparse.Namespace) -> tuple[Path, Path] | None:
    certificate, key = arguments.tls_cert, arguments.tls_key
    _refuse_half("--tls-cert", certificate, "--tls-key", key)
    return (Path(certificate), Path(key)) if certificate else None


def page_proxy(arguments: argparse.Namespace) -> PageProxy | None:
    """Return the proxy that the flags name. Raises InvalidArgument."""
    certificate = _proxy_certificate(arguments)
    is_named = bool(arguments.page_proxy) or certificate is not None
    if is_named != bool(arguments.page_user_header):
        raise InvalidArgument.at(
            "--page-proxy",
            "and --page-proxy-client-ca belong to --page-user-header: give it with one of them",
        )
    if not is_named:
        return None
    try:
        networks = tuple(ip_network(text) for text in arguments.page_proxy)
    except ValueError as error:
        raise InvalidArgument.at("--page-proxy", f"{error}; write 10.0.0.7/32") from None
    headers = (arguments.page_user_header, arguments.page_groups_header)
    return PageProxy(networks, *headers, certificate)


def _proxy_certificate(arguments: argparse.Namespace) -> ProxyCertificate | None:
    file, names = arguments.page_proxy_client_ca, arguments.page_proxy_allowed_name
    _refuse_half("--page-proxy-client-ca", file, "--page-proxy-allowed-name", names)
    if not file:
        return None
    try:
        certificate = ProxyCertificate(Path(file).read_text(encoding="ascii"), frozenset(names))
        certificate.request(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    except (OSError, ValueError) as error:
        raise InvalidArgument.at(
            "--page-proxy-client-ca", f"{file} cannot be read as certificates in PEM: {error}"
        ) from None
    return certificate
