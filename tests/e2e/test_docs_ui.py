"""Each command in docs/ui.md, as it is written there; only ports are replaced by free ones."""

from __future__ import annotations

import re
import shlex
import signal
import ssl
import tomllib
from pathlib import Path

import httpx
import pytest

from tests.certificates import Authority
from tests.e2e.cli import Cli
from tests.service.granted import tokens_file

ROOT = Path(__file__).parents[2]
COMMANDS = [
    line
    for block in re.findall(
        r"^```sh\n(.*?)```", (ROOT / "docs" / "ui.md").read_text(encoding="utf-8"), re.DOTALL | re.M
    )
    for line in block.splitlines()
]


def test_the_extras_to_install_exist() -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    wanted = [
        extra
        for line in COMMANDS
        for extra in re.findall(r"^pip install 'tuner-hpo\[(.*)\]'$", line)
    ]
    assert wanted
    assert {extra for extras in wanted for extra in extras.split(",")} <= known.keys()


@pytest.mark.parametrize("line", [line for line in COMMANDS if line.startswith("tuner ")])
def test_a_command_serves_a_page_until_it_is_terminated(cli: Cli, line: str) -> None:
    authority = Authority(cli.folder)
    pair = authority.issue("server", "/CN=tuner", ("localhost", "127.0.0.1"))
    pair.certificate.rename(cli.folder / "server.crt")
    pair.key.rename(cli.folder / "server.key")
    tokens_file(cli.folder / "tokens.yaml", me=("all", "all"))
    words = shlex.split(re.sub(r":\d+", ":0", line))
    process = cli.start(*words[1:])
    # `tuner ui` prints the link as its result, a server among what it reports.
    output = process.stdout if words[1] == "ui" else process.stderr
    assert output is not None
    link = ""
    while not link:
        printed = output.readline()
        assert printed, process.communicate(timeout=30)
        link = "".join(re.findall(r"https?://\S+", printed))
    trusted = ssl.create_default_context(cafile=str(authority.own.certificate))
    with httpx.Client(verify=trusted, timeout=30, follow_redirects=True) as browser:
        answer = browser.get(link.replace("0.0.0.0", "localhost"))
    assert (answer.status_code, "<title>" in answer.text) == (
        401 if "--tokens" in words else 200,
        True,
    )
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == (0 if words[1] == "ui" else 128 + signal.SIGTERM)
