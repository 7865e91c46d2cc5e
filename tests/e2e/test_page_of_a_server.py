"""Requests to the page of `tuner serve --ui`: the rights are those of the token,
and the page shows studies.
"""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from controller.ui.visitor import MOST_STREAMS
from suggest.client import Choice, Client, Float, Outcome, StudyName, TrialState, maximize, minimize
from tests import called
from tests.certificates import Authority
from tests.e2e.cli import Cli, eventually
from tests.service.granted import secret, tokens_file
from tests.ui.page import NO_TLS, PageOfServer, page_of_server

STUDY = "/api/studies/default/parabola"
NAME = StudyName("default", "parabola")


@contextmanager
def signed_in(page: PageOfServer, token: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=page.base, timeout=30, verify=NO_TLS) as client:
        answer = client.post("/api/sign-in", json={"token": token})
        assert answer.status_code == 200, answer.text
        index = client.get("/").text
        client.headers["x-tuner-token"] = index.partition('name="page-token" content="')[
            2
        ].partition('"')[0]
        assert 'content="studies"' in index
        yield client


def first(client: httpx.Client, path: str, event: str = "") -> dict[str, Any]:
    with client.stream("GET", path) as answer:
        assert answer.status_code == 200, answer.read()
        name = ""
        for line in answer.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            if line.startswith("data: ") and event in ("", name):
                data: dict[str, Any] = json.loads(line.removeprefix("data: "))
                return data
    raise AssertionError("the stream ended")


def at(page: PageOfServer) -> str:
    """Return the host and port of the page."""
    return urlsplit(page.base).netloc


def a_study(address: str, token: str | None = None) -> None:
    """Create the study, with one trial that succeeded and one that runs."""
    with Client(address, token=token) as client:
        study = client.study("parabola", {"x": Float(-10, 10)}, maximize("value"), seed=1)
        one = client.suggest(NAME, 2, client_id="me", request_id="1").trials[0]
        client.complete(NAME, one.number, Outcome(TrialState.SUCCEEDED, 0.5))
        assert study


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return tokens_file(
        tmp_path / "tokens.yaml",
        me=("all", "all"),
        reader=(["read"], ["default"]),
        other=("all", ["other"]),
    )


def test_a_study_is_shown_labeled_given_a_point_and_deleted(cli: Cli, tokens: Path) -> None:
    with page_of_server(cli, "--tokens", str(tokens)) as page:
        a_study(page.address, secret("me"))
        with signed_in(page, secret("me")) as client:
            (listed,) = first(client, "/api/stream")["searches"]
            assert (listed["name"], listed["best"]["value"], listed["trials"]) == (
                "parabola",
                0.5,
                {"running": 1, "succeeded": 1},
            )
            shown = first(client, f"{STUDY}/stream")
            assert sorted(row[1] for row in shown["rows"]) == ["running", "succeeded"]
            assert shown["summary"]["actions"] == {"enqueue": True, "delete": True}, (
                "nothing that needs a controller"
            )
            assert client.get(f"{STUDY}/trials/0").json()["state"] == "succeeded"
            for figure in ("history", "curves", "slice", "importance"):
                assert client.get(f"{STUDY}/figures/{figure}.json").status_code == 200
            assert (
                client.post(f"{STUDY}/trials/0/labels", json={"labels": {"a": "b"}}).status_code
                == 200
            )
            assert client.post(f"{STUDY}/enqueue", json={"x": "3"}).json() == {
                "message": "trial 2 is enqueued"
            }
            assert client.post(f"{STUDY}/enqueue", json={"x": "11"}).status_code == 400
            with Client(page.address, token=secret("me")) as other:
                assert other.get_trial(NAME, 0).labels == {"a": "b"}
                assert other.suggest(NAME, 1, client_id="me", request_id="2").trials[
                    0
                ].parameters == {"x": 3.0}
            for verb in ("stop", "resume", "extend"):
                assert client.post(f"{STUDY}/{verb}", json={}).status_code in (404, 405)
            assert client.post(f"{STUDY}/delete", json={}).status_code == 200
            eventually(lambda: first(client, "/api/stream")["searches"] == [])


def test_the_pareto_front_of_a_study_is_shown(cli: Cli) -> None:
    with (
        page_of_server(cli, "--insecure") as page,
        httpx.Client(base_url=page.base.partition("/?")[0]) as client,
    ):
        with Client(page.address) as service:
            goals = [minimize("loss"), minimize("size")]
            service.study(
                "parabola",
                {"x": Float(-10, 10), "kind": Choice(["a", "b"])},
                goals,
                algorithm="random",
            )
            for number, (loss, size) in enumerate([(1.0, 5.0), (3.0, 6.0), (4.0, 2.0)]):
                service.suggest(NAME, 1, client_id="me", request_id=str(number))
                service.complete(NAME, number, Outcome(TrialState.SUCCEEDED, loss, further=(size,)))
        client.get(page.base, follow_redirects=True)
        shown = first(client, f"{STUDY}/stream")
        assert [(each["number"], each["values"]) for each in shown["summary"]["front"]] == [
            (0, {"loss": 1.0, "size": 5.0}),
            (2, {"loss": 4.0, "size": 2.0}),
        ]
        heads = {column["key"]: column.get("number", False) for column in shown["columns"]}
        assert (heads["value"], heads["parameters.x"], heads["parameters.kind"]) == (
            True,
            True,
            False,
        )


def test_new_trials_are_pushed(cli: Cli, tokens: Path) -> None:
    with page_of_server(cli, "--tokens", str(tokens)) as page:
        a_study(page.address, secret("me"))
        with (
            signed_in(page, secret("reader")) as client,
            client.stream("GET", f"{STUDY}/stream") as answer,
        ):
            lines = answer.iter_lines()
            assert any(line.startswith("event: reset") for line in lines)
            with Client(page.address, token=secret("me")) as other:
                other.complete(NAME, 1, Outcome(TrialState.SUCCEEDED, 0.25))
            rows = (json.loads(line[6:])["rows"] for line in lines if line.startswith("data: "))
            assert (
                next(row for found in rows for row in found if row[0] == 1 and row[2] == 0.25)[1]
                == "succeeded"
            )


def test_a_token_that_may_only_read_changes_nothing(cli: Cli, tokens: Path) -> None:
    with page_of_server(cli, "--tokens", str(tokens)) as page:
        a_study(page.address, secret("me"))
        with signed_in(page, secret("reader")) as client:
            shown = first(client, f"{STUDY}/stream")
            assert shown["summary"]["actions"] == {"enqueue": False, "delete": False}
            assert client.get(f"{STUDY}/trials/0").json()["actions"] == {"labels": False}
            for path, body in (
                ("enqueue", {"x": "3"}),
                ("delete", {}),
                ("trials/0/labels", {"labels": {}}),
            ):
                answer = client.post(f"{STUDY}/{path}", json=body)
                assert answer.status_code == 403
                assert "the token reader lacks the verb" in answer.json()["error"]


def test_a_token_of_another_namespace_sees_nothing(cli: Cli, tokens: Path) -> None:
    with page_of_server(cli, "--tokens", str(tokens)) as page:
        a_study(page.address, secret("me"))
        with signed_in(page, secret("other")) as client:
            assert first(client, "/api/stream")["searches"] == []
            assert (
                "is not valid in the namespace default"
                in first(client, f"{STUDY}/stream")["message"]
            )
            assert client.get(f"{STUDY}/trials/0").status_code == 403
            assert client.get(f"{STUDY}/figures/history.json").status_code == 403


def test_one_token_has_a_limited_number_of_streams_and_leaves_others_theirs(
    cli: Cli, tokens: Path
) -> None:
    with page_of_server(cli, "--tokens", str(tokens)) as page, ExitStack() as streams:
        a_study(page.address, secret("me"))
        with signed_in(page, secret("me")) as client:
            cookie = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
            host, port = at(page).split(":")
            for _ in range(MOST_STREAMS):
                connection = streams.enter_context(
                    socket.create_connection((host, int(port)), timeout=30)
                )
                request = f"GET {STUDY}/stream HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}\r\n\r\n"
                connection.sendall(request.encode())
                assert connection.recv(1 << 10).startswith(b"HTTP/1.1 200 ")
            with signed_in(page, secret("me")) as same:
                refused = same.get("/api/stream")
                assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
                assert "this token has 100 streams open" in refused.json()["error"]
                assert same.get(f"{STUDY}/trials/0").status_code == 200, "only streams are limited"
            with signed_in(page, secret("reader")) as other:
                assert first(other, "/api/stream")["searches"]
            streams.close()
            eventually(lambda: status_of_stream(client) == 200)


def status_of_stream(client: httpx.Client) -> int:
    with client.stream("GET", "/api/stream") as answer:
        return answer.status_code


def test_a_token_is_required_to_sign_in(cli: Cli, tokens: Path) -> None:
    with (
        page_of_server(cli, "--tokens", str(tokens)) as page,
        httpx.Client(base_url=page.base, timeout=30, verify=NO_TLS) as client,
    ):
        index = client.get("/")
        assert (index.status_code, "Sign in" in index.text, "page-token" in index.text) == (
            401,
            True,
            False,
        )
        for path in ("/api/stream", f"{STUDY}/stream", f"{STUDY}/trials/0"):
            assert client.get(path).status_code == 401
        assert client.post(f"{STUDY}/delete", json={}).status_code == 401
        for wrong in ("", "a-token-of-somebody-else", secret("me")[:-1], "\u00e9", None, 7):
            answer = client.post("/api/sign-in", json={"token": wrong})
            assert answer.status_code in (400, 403), wrong
        assert not client.cookies


def test_a_session_ends_with_its_token_and_by_signing_out(cli: Cli, tokens: Path) -> None:
    with page_of_server(cli, "--tokens", str(tokens)) as page:
        a_study(page.address, secret("me"))
        with signed_in(page, secret("reader")) as client, signed_in(page, secret("me")) as another:
            assert another.post("/api/sign-out", json={}).status_code == 200
            assert another.get("/").status_code == 401
            assert client.get("/").status_code == 200
            tokens_file(tokens, me=("all", "all"))
            eventually(lambda: client.get("/").status_code == 401)
            assert client.get(f"{STUDY}/figures/history.json").status_code == 401


def test_a_session_and_an_open_page_survive_a_killed_server(cli: Cli, tokens: Path) -> None:
    with page_of_server(cli, "--tokens", str(tokens)) as page:
        a_study(page.address, secret("me"))
        with signed_in(page, secret("me")) as client:
            page.process.kill()
            page.process.communicate()
            label = {"labels": {"a": "b"}}
            with page_of_server(cli, "--tokens", str(tokens)) as again:
                assert again.base == page.base, "the port of the last time"
                assert client.post(f"{STUDY}/trials/0/labels", json=label).status_code == 200
                assert client.post("/api/sign-out", json={}).status_code == 200
            with page_of_server(cli, "--tokens", str(tokens)):
                assert client.get("/").status_code == 401


def test_a_session_ends_with_a_token_that_is_revoked_while_the_server_is_down(
    cli: Cli, tokens: Path
) -> None:
    with (
        page_of_server(cli, "--tokens", str(tokens)) as page,
        signed_in(page, secret("reader")) as client,
    ):
        page.end()
        tokens_file(tokens, me=("all", "all"))
        with page_of_server(cli, "--tokens", str(tokens)):
            assert client.get("/").status_code == 401


def test_neither_the_stored_session_nor_the_cookie_has_the_token(cli: Cli, tokens: Path) -> None:
    with (
        page_of_server(cli, "--tokens", str(tokens)) as page,
        signed_in(page, secret("me")) as client,
    ):
        (cookie,) = client.cookies.values()
        with closing(sqlite3.connect(cli.folder / "state" / "studies.db")) as database:
            ((key, sealed),) = database.execute("SELECT key, sealed FROM page_sessions")
        for stored in (key.encode(), sealed):
            assert secret("me").encode() not in stored
            assert cookie.encode() not in stored
        assert secret("me") not in cookie


def with_cookie(cookie: str, page: PageOfServer) -> httpx.Client:
    """A browser with the cookie of another server, to which a load balancer sends it."""
    cookies = {f"tuner-serve-{urlsplit(page.base).port}": cookie}
    return httpx.Client(base_url=page.base, timeout=30, cookies=cookies, verify=NO_TLS)


def test_a_session_is_valid_at_each_server_of_a_postgresql_database_and_survives_them(
    cli: Cli, tokens: Path, postgres_url: str
) -> None:
    flags = ("--tokens", str(tokens), "--storage", postgres_url)
    with page_of_server(cli, *flags) as page, signed_in(page, secret("me")) as client:
        (cookie,) = client.cookies.values()
        with page_of_server(cli, *flags) as other, with_cookie(cookie, other) as same:
            assert same.get("/").status_code == 200
        page.process.kill()
        page.process.communicate()
        with page_of_server(cli, *flags, "--ui", at(page)) as again:
            assert client.get("/").status_code == 200, "the page that is open goes on"
            assert client.post("/api/sign-out", json={}).status_code == 200
            with page_of_server(cli, *flags) as other, with_cookie(cookie, other) as same:
                assert same.get("/").status_code == 401
            assert again.base == page.base


def test_two_servers_of_one_sqlite_database_share_sessions_while_both_run(
    cli: Cli, tokens: Path
) -> None:
    flags = ("--tokens", str(tokens))
    with page_of_server(cli, *flags) as page, signed_in(page, secret("me")) as client:
        (cookie,) = client.cookies.values()
        with page_of_server(cli, *flags) as other, signed_in(other, secret("me")) as another:
            with with_cookie(cookie, other) as same:
                assert same.get("/").status_code == 200
            assert another.post("/api/sign-out", json={}).status_code == 200
        page.end()
        with page_of_server(cli, *flags, "--ui", at(page)):
            assert client.get("/").status_code == 200


def test_a_server_whose_page_has_a_port_leaves_the_port_of_the_last_time(
    cli: Cli, tokens: Path
) -> None:
    flags = ("--tokens", str(tokens))
    with page_of_server(cli, *flags) as page, page_of_server(cli, *flags) as newest:
        pass
    with page_of_server(cli, *flags, "--ui", at(page)):
        pass
    with page_of_server(cli, *flags) as again:
        assert at(again) == at(newest)


def test_a_damaged_session_ends(cli: Cli, tokens: Path) -> None:
    with (
        page_of_server(cli, "--tokens", str(tokens)) as page,
        signed_in(page, secret("me")) as client,
    ):
        page.end()
        with closing(sqlite3.connect(cli.folder / "state" / "studies.db")) as database, database:
            database.execute("UPDATE page_sessions SET sealed = x'00ff'")
        with page_of_server(cli, "--tokens", str(tokens)) as again:
            assert client.get("/").status_code == 401
            with signed_in(again, secret("me")):
                pass


def test_requests_of_other_pages_are_refused(cli: Cli, tokens: Path) -> None:
    with page_of_server(cli, "--tokens", str(tokens)) as page:
        a_study(page.address, secret("me"))
        with signed_in(page, secret("me")) as client:
            assert (
                client.post(f"{STUDY}/delete", json={}, headers={"x-tuner-token": "x"}).status_code
                == 403
            )
            assert (
                client.post(
                    f"{STUDY}/delete", json={}, headers={"origin": "http://evil.example"}
                ).status_code
                == 403
            )
            assert client.post(f"{STUDY}/delete", data={"a": "b"}).status_code == 415
            assert client.get("/", headers={"host": "evil.example"}).status_code == 403
            sign_in = {"token": secret("me")}
            evil = client.post(
                "/api/sign-in", json=sign_in, headers={"origin": "http://evil.example"}
            )
            assert evil.status_code == 403, "nobody is signed in by another page"


def test_over_tls_the_cookie_is_sent_over_tls_only(cli: Cli, tokens: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("server", "/CN=tuner", ("localhost", "127.0.0.1"))
    flags = (
        "--tokens",
        str(tokens),
        "--tls-cert",
        str(pair.certificate),
        "--tls-key",
        str(pair.key),
    )
    with page_of_server(cli, *flags) as page:
        assert page.base.startswith("https://")
        trusted = ssl.create_default_context(cafile=str(authority.own.certificate))
        base = page.base.replace("127.0.0.1", "localhost")
        with httpx.Client(base_url=base, verify=trusted, timeout=30) as client:
            cookie = client.post("/api/sign-in", json={"token": secret("me")}).headers["set-cookie"]
            assert cookie.startswith("__Host-tuner=")
            for attribute in ("HttpOnly", "Secure", "SameSite=strict", "Path=/"):
                assert attribute in cookie
            assert client.get("/").status_code == 200


def test_without_tokens_the_page_has_a_link(cli: Cli) -> None:
    with page_of_server(cli, "--insecure") as page:
        a_study(page.address)
        with httpx.Client(
            base_url=page.base.partition("/?")[0], timeout=30, verify=NO_TLS
        ) as client:
            assert client.get("/").status_code == 403
            assert client.get(page.base, follow_redirects=True).status_code == 200
            assert first(client, "/api/stream")["searches"][0]["name"] == "parabola"
            page.end()
            with page_of_server(cli, "--insecure"):
                assert client.get("/").status_code == 200, "the browser stays signed in"


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--ui", "0.0.0.0:0", "--insecure"), "add --tokens, --tls-cert and --tls-key"),
        (("--ui", "unix:/tmp/x", "--insecure"), "browsers need HOST:PORT"),
        (("--ui", "here", "--insecure"), "is not an address"),
    ],
)
def test_a_page_open_to_the_network_by_mistake_is_refused(
    cli: Cli, flags: tuple[str, ...], why: str
) -> None:
    done = called.run_tuner(
        ("serve", "--address", "127.0.0.1:0", *flags),
        folder=cli.folder,
        env={**os.environ, "TUNER_STATE_DIR": str(cli.folder / "state")},
    )
    assert done.returncode == 2
    assert why in done.stderr
