"""Requests to `tuner ui`: access, reading, actions, start and end."""

from __future__ import annotations

import json
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.cli import Cli, cli_in, ended, eventually, experiment
from tests.ui.page import NO_TLS, ServedPage, served, signed_in

TINY = "/api/experiments/default/tiny"


@pytest.fixture
def page(cli: Cli) -> Iterator[ServedPage]:
    with served(cli) as page:
        yield page


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished experiment and its page, for tests that do not change it."""

    cli: Cli
    page: ServedPage

    @property
    def client(self) -> httpx.Client:
        return signed_in(self.page)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    with cli_in(tmp_path_factory.mktemp("finished")) as cli, served(cli) as page:
        assert cli.tuner("run", cli.write(trials=3))[0] == 0
        yield Finished(cli, page)


def first_event(client: httpx.Client, path: str, *, name: str = "") -> dict[str, Any]:
    """Return the data of the first event, or of the first event with this name."""
    with client.stream("GET", path) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        found = ""
        for line in answer.iter_lines():
            if line.startswith("event: "):
                found = line.removeprefix("event: ")
            if line.startswith("data: ") and name in ("", found):
                data: dict[str, Any] = json.loads(line.removeprefix("data: "))
                return data
    raise AssertionError("the stream ended")


def shown(client: httpx.Client, path: str = f"{TINY}/stream") -> dict[str, Any]:
    """Follow the stream until all of the experiment is there,
    and return it in the form of a `reset`.
    """
    known: dict[str, Any] = {"rows": {}}
    with client.stream("GET", path) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if not line.startswith("data: "):
                continue
            data = json.loads(line.removeprefix("data: "))
            rows = known["rows"] | {row[0]: row for row in data.get("rows", ())}
            known = known | data | {"rows": rows}
            if "id" in data and known["summary"]["loaded"]:
                return known | {"rows": list(rows.values())}
    raise AssertionError("the stream ended")


def listed(client: httpx.Client) -> list[dict[str, Any]]:
    """Follow the list until all experiments are read, and return them."""
    with client.stream("GET", "/api/stream") as answer:
        for line in answer.iter_lines():
            if line.startswith("data: "):
                found: list[dict[str, Any]] = json.loads(line.removeprefix("data: "))["searches"]
                if all(each["loaded"] for each in found):
                    return found
    raise AssertionError("the stream ended")


def refused(answer: httpx.Response, *, status: int = 403) -> str:
    assert answer.status_code == status, answer.text
    return answer.text


# Access


def test_without_the_link_every_request_is_refused(finished: Finished) -> None:
    for path in ("/", "/static/page.js", "/api/stream", f"{TINY}/stream", "/?token=wrong"):
        assert "link" in refused(httpx.get(finished.page.base + path, verify=NO_TLS))


def test_the_link_is_valid_once(page: ServedPage) -> None:
    client = signed_in(page)
    assert "used before" in refused(httpx.get(page.link, verify=NO_TLS))
    assert client.get("/", params={"token": page.token}).status_code == 303, (
        "the browser that has used it comes in"
    )


def test_the_cookie_is_kept_from_scripts_and_other_sites(page: ServedPage) -> None:
    cookie = httpx.get(page.link, verify=NO_TLS).headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "127.0.0.1.evil.example", "", "[", "192.168.0.7"],
)
def test_another_host_is_refused(finished: Finished, host: str) -> None:
    client = finished.client
    answer = client.get("/", headers={"host": host.format(port=finished.page.port)})
    assert answer.status_code in (400, 403), "h11 refuses an empty one itself"


@pytest.mark.parametrize("host", ["localhost:{port}", "localhost:9000", "127.0.0.1"])
def test_requests_with_a_name_of_this_machine_are_served_through_a_tunnel_too(
    finished: Finished, host: str
) -> None:
    answer = finished.client.get("/", headers={"host": host.format(port=finished.page.port)})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"x-tuner-token": ""},
        {"x-tuner-token": "0" * 64},
        {"x-tuner-token": "é".encode("latin-1")},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site"},
    ],
    ids=str,
)
def test_another_page_cannot_act(finished: Finished, headers: dict[str, str | bytes]) -> None:
    client = finished.client
    # bytes are sent as they are
    refused(client.post(f"{TINY}/delete", json={}, headers=headers))  # type: ignore[arg-type]
    assert finished.cli.json("get", "experiments", "-o", "json")[0]["name"] == "tiny"


def test_another_page_cannot_read(finished: Finished) -> None:
    client = finished.client
    refused(
        client.get("/api/stream", headers={"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"})
    )
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.get("/", headers=link).status_code == 200, "a link to the page itself"


def test_a_form_cannot_act(finished: Finished) -> None:
    refused(finished.client.post(f"{TINY}/delete", data={"a": "b"}), status=415)


def test_a_long_body_is_refused(finished: Finished) -> None:
    refused(finished.client.post(f"{TINY}/extend", json={"trials": "9" * 100_000}), status=413)


def test_every_reply_forbids_foreign_content(finished: Finished) -> None:
    client = finished.client
    for path in ("/", "/static/page.js", f"{TINY}/file", "/no-such-page"):
        policy = client.get(path).headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "*" not in policy


def test_the_page_names_no_other_host_and_has_no_inline_script(finished: Finished) -> None:
    client = finished.client
    index = client.get("/").text
    assert "<script>" not in index
    for file in Path("controller/ui/static").iterdir():
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text, file
        assert "innerHTML" not in text, file
        assert "style=" not in text, file


@pytest.mark.parametrize(
    "name", ["..%2fguard.py", "%2e%2e", "..%2f..%2f__init__.py", "index.html", "%00", "/etc/passwd"]
)
def test_only_files_of_the_page_are_served(finished: Finished, name: str) -> None:
    assert finished.client.get(f"/static/{name}").status_code in (400, 404)


def test_the_key_is_readable_by_its_owner_only(finished: Finished) -> None:
    file = finished.cli.folder / "state" / "ui.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


# Reading


def test_a_state_directory_without_experiments_has_an_empty_list(page: ServedPage) -> None:
    assert listed(signed_in(page)) == []


def test_an_experiment_that_ran_is_shown_with_its_trials(finished: Finished) -> None:
    client = finished.client
    (one,) = listed(client)
    whole = shown(client)
    best = max(trial["value"] for trial in finished.cli.trials())
    assert (one["name"], one["state"], one["best"]["value"], one["done"]) == (
        "tiny",
        "succeeded",
        best,
        3,
    )
    columns = [column["key"] for column in whole["columns"]]
    values = {row[columns.index("number")]: row[columns.index("value")] for row in whole["rows"]}
    assert values == {trial["number"]: trial["value"] for trial in finished.cli.trials()}


def test_a_trial_is_shown_with_its_measurements_attempts_and_provenance(finished: Finished) -> None:
    trial = finished.client.get(f"{TINY}/trials/0").json()
    assert [(each["metric"], each["step"]) for each in trial["measurements"]] == [("score", 1)]
    assert [each["state"] for each in trial["attempts"]] == ["succeeded"]
    assert trial["provenance"]["1"]["command"][0] == "sh"
    assert "it ended with score" in trial["why"]


def test_new_trials_are_pushed_to_the_page(cli: Cli, page: ServedPage) -> None:
    cli.file.write_text(experiment(trials=2, waits=True))
    running = cli.start("run", cli.file)
    client = signed_in(page)
    eventually(lambda: client.get(f"{TINY}/file").status_code == 200)
    with client.stream("GET", f"{TINY}/stream") as answer:
        states: set[str] = set()
        summary: dict[str, Any] = {}
        for line in answer.iter_lines():
            if line.startswith("data: "):
                data = json.loads(line.removeprefix("data: "))
                states |= {row[1] for row in data["rows"]}
                summary = data.get("summary", summary)
                if "running" in states:
                    cli.let_go()
                if summary["state"] == "succeeded" and {"running", "succeeded"} <= states:
                    break
    assert {"running", "succeeded"} <= states
    assert ended(running)[0] == 0


def test_parameters_that_trials_name_are_columns_from_when_one_has_named_them(
    cli: Cli, page: ServedPage
) -> None:
    (cli.folder / "train.py").write_text(
        "import pathlib, time, tuner\n"
        "trial = tuner.current_trial()\n"
        "score = trial.float('first', 0, 1)\n"
        "while trial.number and not pathlib.Path('go').exists():\n    time.sleep(0.01)\n"
        "score += trial.int('second', 1, 9) if trial.number else 0\n"
        "trial.report(score=score)\n"
    )
    text = experiment(["python", "train.py"], parameters="")
    cli.file.write_text(text.replace("parameters: {}", "defineByRun: true"))
    running = cli.start("run", cli.file)
    client = signed_in(page)
    eventually(lambda: client.get(f"{TINY}/file").status_code == 200)

    def named(columns: list[dict[str, Any]]) -> list[str]:
        return [each["title"] for each in columns if each["key"].startswith("parameters.")]

    seen: list[list[str]] = []
    with client.stream("GET", f"{TINY}/stream") as answer:
        for line in answer.iter_lines():
            if line.startswith("data: "):
                data = json.loads(line.removeprefix("data: "))
                if "columns" in data:
                    seen.append(named(data["columns"]))
                if seen[-1] == ["first"]:
                    cli.let_go()
                if seen[-1] == ["first", "second"]:
                    break
    assert ended(running)[0] == 0
    whole = shown(client)
    assert named(whole["columns"]) == ["first", "second"]
    assert [each["title"] for each in whole["summary"]["parameters"]] == ["first", "second"]


def test_a_page_that_comes_back_is_sent_what_has_changed_only(cli: Cli, page: ServedPage) -> None:
    assert cli.tuner("run", cli.write(trials=3))[0] == 0
    client = signed_in(page)
    before = shown(client)
    client.post(f"{TINY}/trials/1/labels", json={"labels": {"keep": "yes"}})
    with client.stream("GET", f"{TINY}/stream", headers={"last-event-id": before["id"]}) as answer:
        data = next(
            json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: ")
        )
    assert [row[0] for row in data["rows"]] == [1], "only this trial"
    assert "columns" not in data
    with client.stream("GET", f"{TINY}/stream?after=00000000.7") as answer:
        data = next(
            json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: ")
        )
    assert len(data["rows"]) == 3, "the position of another server is worth nothing"


def test_some_trials_are_followed_alone(finished: Finished) -> None:
    assert [row[0] for row in shown(finished.client, f"{TINY}/stream?only=0,2")["rows"]] == [0, 2]


def test_artifacts_of_a_trial_are_listed_and_sent_as_downloads(finished: Finished) -> None:
    (folder,) = (finished.cli.folder / "state").glob("experiments/*/trials/0/1/output")
    (folder / "model").mkdir()
    (folder / "model" / "a b.html").write_text("<script>alert(1)</script>")
    (folder / "secret").symlink_to("/etc/passwd")
    client = finished.client
    paths = [each["path"] for each in client.get(f"{TINY}/trials/0").json()["artifacts"]]
    assert "model/a b.html" in paths
    answer = client.get(f"{TINY}/trials/0/artifacts/1/model/a%20b.html")
    assert answer.text == "<script>alert(1)</script>"
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")
    for outside in (
        "secret",
        "../log.txt",
        "..%2f..%2f..%2f..%2fui.json",
        "%2fetc%2fpasswd",
        "none",
        "model",
    ):
        assert client.get(f"{TINY}/trials/0/artifacts/1/{outside}").status_code == 404, outside


@pytest.mark.parametrize(
    "figure", ["history", "curves", "parallel", "slice", "contour", "importance", "timeline"]
)
def test_figures_are_specifications_with_data(finished: Finished, figure: str) -> None:
    client = finished.client
    spec = client.get(f"{TINY}/figures/{figure}.json").json()
    assert isinstance(spec["data"]["values"], list)
    assert client.get(f"{TINY}/figures/none.json").status_code == 404


def test_the_queue_shows_what_runs(cli: Cli, page: ServedPage) -> None:
    cli.file.write_text(experiment(trials=2, waits=True))
    running = cli.start("run", cli.file)
    client = signed_in(page)
    eventually(lambda: len(cli.starts()) == 1)
    (namespace,) = first_event(client, "/api/queue")["namespaces"]
    assert namespace["namespace"] == "default"
    assert (namespace["trials"][0]["experiment"], namespace["trials"][0]["state"]) == (
        "tiny",
        "running",
    )
    cli.let_go()
    ended(running)
    assert first_event(client, "/api/queue")["namespaces"] == []


def test_a_log_is_followed_from_where_the_reader_was(finished: Finished) -> None:
    client = finished.client
    whole = first_event(client, f"{TINY}/trials/0/log")
    assert whole["text"].startswith("step=1 score=")
    client.headers["last-event-id"] = "7"
    assert first_event(client, f"{TINY}/trials/0/log")["text"] == whole["text"][7:]


def test_the_end_of_a_long_log_is_shown(finished: Finished) -> None:
    (log,) = (finished.cli.folder / "state").glob("experiments/*/trials/2/1/log.txt")
    log.write_bytes(b"x" * 5_000_000 + "é\nend\n".encode())
    shown = first_event(finished.client, f"{TINY}/trials/2/log")
    assert shown["skipped"] > 4_000_000
    assert shown["id"] == shown["skipped"] + len(shown["text"])


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"{TINY}/trials/99", 404),
        ("/api/experiments/default/nobody/file", 404),
        (f"{TINY}/trials/x", 404),
        (f"{TINY}/trials/0/log?attempt=0", 400),
        (f"{TINY}/trials/0/log?attempt=../../..", 400),
        ("/api/experiments/..%2f..%2fetc/passwd/file", 404),
        ("/api/experiments/default/%F0%9F%92%A9/file", 404),
    ],
)
def test_a_missing_resource_is_reported(finished: Finished, path: str, status: int) -> None:
    assert finished.client.get(path).status_code == status


def test_hostile_values_are_sent_as_data(cli: Cli, page: ServedPage) -> None:
    evil = "</script><img src=x onerror=alert(1)>\\n\\nevent: gone"
    cli.file.write_text(experiment(trials=1, parameters=f'x: {{type: choice, values: ["{evil}"]}}'))
    cli.tuner("run", cli.file)
    (row,) = shown(signed_in(page))["rows"]
    assert evil.replace("\\n", "\n") in row


# Acting


def test_a_search_is_stopped_resumed_and_extended(cli: Cli, page: ServedPage) -> None:
    cli.file.write_text(experiment(trials=2, waits=True))
    running = cli.start("run", cli.file)
    client = signed_in(page)
    eventually(lambda: len(cli.starts()) > 0)
    assert client.post(f"{TINY}/stop", json={}).json() == {"message": "tiny is stopping"}
    ended(running)
    assert shown(client)["summary"]["state"] == "stopped"
    answer = client.post(f"{TINY}/resume", json={})
    assert answer.status_code == 200, answer.text
    eventually(lambda: shown(client)["summary"]["state"] == "running")
    now = shown(client)["summary"]
    assert (now["actions"]["stop"], now["actions"]["resume"]) == (True, False)
    assert "is being run" in refused(client.post(f"{TINY}/resume", json={}), status=409)
    assert "runs" in refused(client.post(f"{TINY}/extend", json={"trials": 2}), status=409)
    assert "cannot be deleted now" in refused(client.post(f"{TINY}/delete", json={}), status=409)
    cli.let_go()
    eventually(lambda: shown(client)["summary"]["state"] == "succeeded")
    eventually(lambda: shown(client)["summary"]["actions"]["extend"])
    answer = client.post(f"{TINY}/extend", json={"trials": "2"})
    assert answer.status_code == 200, answer.text
    eventually(lambda: len([trial for trial in cli.trials() if trial["state"] == "succeeded"]) == 4)


def test_one_failed_trial_or_all_are_run_again(cli: Cli, page: ServedPage) -> None:
    waits = (
        "test -e go || exit 1; until test -e end-$TUNER_TRIAL_NUMBER; do sleep 0.02; done; "
        "echo score=$0"
    )
    cli.file.write_text(experiment(["sh", "-c", waits, "${x}"], trials=2))
    cli.tuner("run", cli.file)
    client = signed_in(page)
    assert client.get(f"{TINY}/trials/0").json()["actions"]["retry"]
    cli.let_go()
    for number, path, then in (
        (0, "trials/0/retry", ["succeeded", "failed"]),
        (1, "retry", ["succeeded"] * 2),
    ):
        eventually(lambda: shown(client)["summary"]["actions"].get("retry"))
        answer = client.post(f"{TINY}/{path}", json={})
        assert answer.status_code == 200, answer.text
        # The page reads trials that had ended every 20 s, and others constantly.
        eventually(lambda: any(row[1] == "running" for row in shown(client)["rows"]))
        (cli.folder / f"end-{number}").touch()
        eventually(lambda then=then: [trial["state"] for trial in cli.trials()] == then)
    eventually(lambda: not shown(client)["summary"]["actions"].get("retry"))
    assert "only failed trials can run again" in refused(
        client.post(f"{TINY}/trials/0/retry", json={}), status=409
    )


def test_an_imported_trial_that_failed_is_not_offered_for_a_retry(
    cli: Cli, page: ServedPage
) -> None:
    (cli.folder / "earlier.csv").write_text("x,score,state\n0.5,,failed\n")
    cli.file.write_text(experiment(trials=1))
    cli.tuner("import", cli.file, "--from", "earlier.csv")
    trial = signed_in(page).get(f"{TINY}/trials/0").json()
    assert (trial["state"], trial["actions"]["retry"]) == ("failed", False)


def test_a_resumed_search_goes_on_after_the_page_is_closed(cli: Cli) -> None:
    cli.file.write_text(experiment(trials=1, waits=True))
    running = cli.start("run", cli.file)
    eventually(lambda: len(cli.starts()) == 1)
    cli.tuner("stop", "tiny")
    ended(running)
    with served(cli) as page:
        assert signed_in(page).post(f"{TINY}/resume", json={}).status_code == 200
        eventually(lambda: len(cli.starts()) == 2)
    (shown,) = cli.json("get", "experiments", "-o", "json")
    assert shown["state"] == "running"
    (log,) = (cli.folder / "state").glob("experiments/*/controller.log")
    cli.let_go()
    eventually(lambda: "succeeded" in log.read_text())


@pytest.mark.parametrize("trials", [0, -1, 1.5, "all", True, None, 10**9, "１"])
def test_an_extension_needs_a_number_of_trials(finished: Finished, trials: object) -> None:
    assert "whole number" in refused(
        finished.client.post(f"{TINY}/extend", json={"trials": trials}), status=400
    )


def test_a_running_search_is_changed_without_stopping_a_trial(cli: Cli, page: ServedPage) -> None:
    cli.file.write_text(experiment(trials=2, waits=True))
    running = cli.start("run", cli.file)
    client = signed_in(page)
    eventually(lambda: len(cli.starts()) > 0)
    answer = client.post(f"{TINY}/set", json={"changes": ["spec.budget.trials=3"]})
    assert "revision 2 of tiny takes effect now" in answer.json()["message"]
    assert client.get(f"{TINY}/file").json()["spec"]["budget"]["trials"] == 3
    cli.let_go()
    assert ended(running)[0] == 0
    assert [len(trial["attempts"]) for trial in cli.trials()] == [1, 1, 1]
    assert "tuner extend" in refused(
        client.post(f"{TINY}/set", json={"changes": ["spec.budget.trials=4"]}), status=409
    )


@pytest.mark.parametrize("changes", [None, "spec.parallelism=2", [1], {}, []])
def test_a_change_needs_a_list_of_paths_with_values(finished: Finished, changes: object) -> None:
    refused(finished.client.post(f"{TINY}/set", json={"changes": changes}), status=400)


def test_labels_of_a_trial_are_stored(cli: Cli, page: ServedPage) -> None:
    assert cli.tuner("run", cli.write(trials=1))[0] == 0
    client = signed_in(page)
    assert (
        client.post(f"{TINY}/trials/0/labels", json={"labels": {"keep": "yes"}}).status_code == 200
    )
    assert cli.trials()[0]["labels"] == {"keep": "yes"}
    assert client.post(f"{TINY}/trials/0/labels", json={"labels": ["keep"]}).status_code == 400


def test_an_experiment_is_deleted(cli: Cli, page: ServedPage) -> None:
    assert cli.tuner("run", cli.write(trials=1))[0] == 0
    client = signed_in(page)
    assert client.post(f"{TINY}/delete", json={}).json() == {"message": "tiny is deleted"}
    assert cli.json("get", "experiments", "-o", "json") == []
    assert listed(client) == []
    assert first_event(client, f"{TINY}/stream", name="gone")["message"].startswith(
        "there is no experiment tiny"
    )


def test_a_point_is_enqueued_and_tried_next(cli: Cli, page: ServedPage) -> None:
    cli.file.write_text(experiment(trials=2, waits=True))
    running = cli.start("run", cli.file)
    client = signed_in(page)
    eventually(lambda: len(cli.starts()) == 1)
    answer = client.post(f"{TINY}/enqueue", json={"x": "0.125"})
    assert answer.status_code == 200, answer.text
    cli.let_go()
    assert ended(running)[0] == 0
    assert 0.125 in [trial["parameters"]["x"] for trial in cli.trials()]


def test_a_point_outside_the_space_is_refused(cli: Cli, page: ServedPage) -> None:
    cli.file.write_text(experiment(trials=2, waits=True))
    running = cli.start("run", cli.file)
    eventually(lambda: len(cli.starts()) == 1)
    client = signed_in(page)
    for point, why in (
        ({}, "at least one parameter"),
        ({"x": " "}, "at least one parameter"),
        ({"x": "7"}, "x"),
        ({"x": "a"}, "is not a number"),
        ({"x": 0.5}, "strings"),
        ({"y": "1"}, "unknown parameter"),
    ):
        assert why in refused(client.post(f"{TINY}/enqueue", json=point), status=400)
    cli.tuner("stop", "tiny")
    ended(running)


def test_a_finished_experiment_takes_no_point(finished: Finished) -> None:
    why = refused(finished.client.post(f"{TINY}/enqueue", json={"x": "0.5"}), status=409)
    assert "tuner extend tiny" in why


# Start and end


def test_ctrl_c_ends_the_server_while_pages_are_open(cli: Cli) -> None:
    with served(cli) as page:
        client = signed_in(page)
        with client.stream("GET", "/api/stream") as answer:
            next(answer.iter_lines())
            assert page.end() == 0
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", page.port), timeout=5)


def test_a_page_stays_signed_in_after_a_restart(cli: Cli) -> None:
    with served(cli) as first:
        before = signed_in(first)
    with (
        served(cli) as second,
        httpx.Client(base_url=second.base, cookies=before.cookies, verify=NO_TLS) as client,
    ):
        client.headers["x-tuner-token"] = before.headers["x-tuner-token"]
        assert second.port == first.port
        assert listed(client) == []
        assert client.post(f"{TINY}/stop", json={}).status_code == 404, "its token is valid"


def test_a_port_in_use_is_reported(cli: Cli, page: ServedPage) -> None:
    code, _, err = cli.tuner("ui", "--port", str(page.port))
    assert code == 6
    assert f"port {page.port} of 127.0.0.1" in err
    assert "--port" in err
    assert cli.tuner("ui", "--port", "70000")[0] == 2
