"""`tuner ui --optuna`: optuna-dashboard reads experiments, changes nothing,
and is behind the page's guard.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.cli import Cli, cli_in, experiment
from tests.ui.page import NO_TLS, ServedPage, served, signed_in

# Looked for, not imported: that takes seconds in each process of the tests.
if importlib.util.find_spec("optuna_dashboard") is None:
    pytest.skip("the extra `dashboard` is not installed", allow_module_level=True)

PARAMETERS = "x: {type: float, min: 0, max: 1}, k: {type: choice, values: [1, true, [2]]}"


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    with cli_in(tmp_path_factory.mktemp("dashboard")) as cli:
        yield cli


@pytest.fixture(scope="module")
def page(cli: Cli) -> Iterator[ServedPage]:
    cli.file.write_text(experiment(trials=3, parameters=PARAMETERS))
    assert cli.tuner("run", cli.file)[0] == 0
    with served(cli, "--optuna") as page:
        yield page


def test_experiments_are_studies_of_the_dashboard(cli: Cli, page: ServedPage) -> None:
    client = signed_in(page)
    assert client.get("/", follow_redirects=True).headers["content-type"].startswith("text/html")
    assert "javascript" in client.get("/static/bundle.js").headers["content-type"]
    (study,) = client.get("/api/studies").json()["study_summaries"]
    assert (study["study_name"], study["directions"]) == ("default/tiny", ["maximize"])
    shown = client.get(f"/api/studies/{study['study_id']}").json()
    expected = {trial["number"]: trial["value"] for trial in cli.trials()}
    assert {trial["number"]: trial["values"][0] for trial in shown["trials"]} == expected
    assert shown["trials"][0]["state"] == "Complete"
    assert {one["name"] for one in shown["trials"][0]["params"]} == {"x", "k"}
    best = max(expected, key=lambda number: expected[number])
    assert [trial["number"] for trial in shown["best_trials"]] == [best]


def test_the_dashboard_changes_nothing(cli: Cli, page: ServedPage) -> None:
    client = signed_in(page)
    study = client.get("/api/studies").json()["study_summaries"][0]["study_id"]
    for method, path in (
        ("DELETE", f"/api/studies/{study}"),
        ("POST", f"/api/studies/{study}/rename"),
        ("PUT", f"/api/studies/{study}/note"),
        ("POST", "/api/studies"),
    ):
        answer = client.request(method, path, json={"study_name": "a", "body": "a", "version": 1})
        assert answer.status_code == 403, (method, path)
    assert len(cli.trials()) == 3


def test_the_dashboard_needs_the_link_and_its_own_host(page: ServedPage) -> None:
    with httpx.Client(base_url=page.base, timeout=60, verify=NO_TLS) as stranger:
        assert stranger.get("/api/studies").status_code == 403
        assert stranger.get("/dashboard").status_code == 403
    assert signed_in(page).get("/api/studies", headers={"host": "evil.example"}).status_code == 403
