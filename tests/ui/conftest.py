"""The fixtures of tests of the page in a browser. `make test-ui` runs them; `make test` does not.

Without chromium or Playwright they are skipped with one line;
with TUNER_TEST_UI_REQUIRED=1 they fail.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cli import Cli, cli_in

BROWSERS = ("chromium", "google-chrome", "chromium-browser")
AXE = Path(__file__).parents[2] / "build" / "axe" / "package" / "axe.min.js"  # make ui-packages


def lacks(what: str) -> None:
    """Skip the test with this line, or fail it where it must run."""
    if os.environ.get("TUNER_TEST_UI_REQUIRED") == "1":
        pytest.fail(what, pytrace=False)
    pytest.skip(what)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:  # Any: Playwright is not among the development packages
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        lacks("there is no Playwright here; make ui-packages installs it")
        raise
    program = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if program is None:
        lacks("there is no chromium here; make ui-packages installs it")
    with sync_playwright() as playwright:
        # Root has no sandbox, and shared memory is small in containers.
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


@pytest.fixture
def tab(chromium: Any) -> Iterator[Any]:
    """A page of the browser.

    An error that it reports fails the test, except for a lost connection to the server.
    """
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    tab = context.new_page()
    tab.set_default_timeout(60_000)  # building this takes long on a busy machine
    errors: list[str] = []
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.on(
        "console", lambda message: errors.append(message.text) if message.type == "error" else None
    )
    yield tab
    context.close()
    assert [
        error
        for error in errors
        if "net::ERR" not in error and "Failed to load resource" not in error
    ] == []


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache for the session, so that the JavaScript of figures is built once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    with cli_in(tmp_path) as cli:
        yield cli


@pytest.fixture(scope="session")
def axe() -> str:
    """Return the source of the accessibility checker."""
    if not AXE.exists():
        lacks("there is no axe-core here; make ui-packages downloads it")
    return AXE.read_text(encoding="utf-8")
