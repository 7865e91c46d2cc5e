"""`tuner ui` and `tuner serve --ui` as processes of a test, and their links."""

from __future__ import annotations

import signal
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qs, urlsplit

import httpx

from tests.e2e.cli import Cli

# Of clients of plain HTTP. Their default reads all certificate authorities,
# which takes as long as twenty requests.
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class Starts(Protocol):
    """What `tuner` is started by, here or beside a cluster."""

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]: ...


class ServedPage:
    def __init__(self, cli: Starts, *flags: str) -> None:
        self.process: subprocess.Popen[str] = cli.start("ui", *flags)
        assert self.process.stdout is not None
        self.link = self.process.stdout.readline().strip()
        assert self.link.startswith("http://127.0.0.1:"), self.process.communicate(timeout=30)[1]
        self.base = self.link.partition("/?")[0]
        self.port = int(urlsplit(self.base).port or 0)
        self.clients: list[httpx.Client] = []
        self.cookies = httpx.Cookies()  # of whoever is signed in
        self.token = parse_qs(urlsplit(self.link).query)["token"][0]

    def end(self) -> int:
        """Send SIGINT, as Ctrl-C does, and return the exit code."""
        for client in self.clients:
            client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=30)
        return self.process.returncode


@contextmanager
def served(cli: Starts, *flags: str) -> Iterator[ServedPage]:
    page = ServedPage(cli, *flags)
    try:
        yield page
    finally:
        page.end()


def signed_in(page: ServedPage) -> httpx.Client:
    """A client that has followed the link, and sends what the page sends;
    several are one browser.
    """
    client = httpx.Client(base_url=page.base, timeout=60, cookies=page.cookies, verify=NO_TLS)
    page.clients.append(client)
    answer = client.get("/", params={"token": page.token}, follow_redirects=True)
    assert answer.status_code == 200, answer.text
    page.cookies.update(client.cookies)
    token = answer.text.partition('name="page-token" content="')[2].partition('"')[0]
    client.headers["x-tuner-token"] = token
    return client


class PageOfServer:
    """`tuner serve --ui` as a process of the test: the addresses of the page and of the service."""

    def __init__(self, cli: Cli, *flags: str) -> None:
        self.process: subprocess.Popen[str] = cli.start(
            "serve", "--address", "127.0.0.1:0", "--ui", *flags
        )
        assert self.process.stderr is not None
        self.base, self.address = "", ""
        while not self.address:
            line = self.process.stderr.readline()
            assert line, "it ended"
            if line.startswith("page at "):
                self.base = line.removeprefix("page at ").strip()
            if line.startswith("listening on "):
                self.address = line.removeprefix("listening on ").partition(",")[0]

    def end(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=30)


@contextmanager
def page_of_server(cli: Cli, *flags: str) -> Iterator[PageOfServer]:
    page = PageOfServer(cli, *flags)
    try:
        yield page
    finally:
        page.end()
