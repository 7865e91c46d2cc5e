"""Idle studies are closed and opened again by the next call, without any loss."""

from __future__ import annotations

import contextvars
import gc
import resource
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from suggest import deadline
from suggest.errors import NotOwner, Unavailable
from suggest.space import Float, Parameter, Space
from suggest.storage.postgres_store import PostgresStore
from suggest.storage.sql_store import StudyStore
from suggest.storage.sqlite_store import SqliteStore
from suggest.storage.store import Lease
from suggest.studies import StudyService
from suggest.study import Algorithm, StudyName
from suggest.trial import Outcome, Trial, TrialState
from tests.conditions import eventually
from tests.service.load import a_client
from tests.service.running import NAME, SPEC, a_process, score

SHORT_S = 0.2
NEVER_S = 3600.0


def close_all(studies: StudyService) -> int:
    """Close all idle studies as if much time had passed, and return how many were closed."""
    return studies.sessions._close_some(10**6)


def ask(studies: StudyService, name: StudyName, request: str) -> Trial:
    [trial] = studies.suggest(name, 1, client_id="c", request_id=request).trials
    return trial


@pytest.fixture(params=["sqlite", "postgres"])
def two_stores(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[StudyStore, StudyStore]]:
    """Two stores on one database, which look like two processes to it."""
    if request.param == "sqlite":
        path = tmp_path / "studies.db"
        with closing(SqliteStore(path)) as a, closing(SqliteStore(path)) as b:
            yield a, b
    else:
        url = request.getfixturevalue("postgres_url")
        with closing(PostgresStore(url)) as c, closing(PostgresStore(url)) as d:
            yield c, d


def test_an_idle_study_moves_to_the_server_that_gets_a_call(
    two_stores: tuple[StudyStore, StudyStore],
) -> None:
    one, other = two_stores
    with closing(StudyService(one, address="one", idle_s=SHORT_S)) as studies:
        studies.create_study(NAME, SPEC, request_id="create")
        ask(studies, NAME, "r0")
        eventually(lambda: studies.sessions.in_memory() == (0, 0))
        with closing(StudyService(other, address="other", idle_s=NEVER_S)) as others:

            def moved() -> bool:
                # A study leaves the memory of its owner a moment before the owner releases it.
                with suppress(NotOwner):
                    return ask(others, NAME, "r1").number == 1
                return False

            eventually(moved)
            with pytest.raises(NotOwner):
                ask(studies, NAME, "r2")
        assert ask(studies, NAME, "r2").number == 2, "the other has ended"


def test_a_study_in_use_stays_open(tmp_path: Path) -> None:
    with (
        closing(SqliteStore(tmp_path / "s.db")) as store,
        closing(StudyService(store, address="")) as studies,
    ):
        studies.create_study(NAME, SPEC, request_id="create")
        with studies.sessions.writing(NAME) as writer:
            assert close_all(studies) == 0
            assert writer.engine.size == 0
        assert close_all(studies) == 1
        assert close_all(studies) == 0


@pytest.mark.parametrize("algorithm", ["default", "grid", "optuna:tpe"])
def test_a_study_that_is_closed_repeatedly_proposes_the_same_points(
    tmp_path: Path, algorithm: str
) -> None:
    space = Space(
        (Parameter("x", Float(0.0, 1.0, points=50)), Parameter("y", Float(0.0, 1.0, points=50)))
    )
    spec = replace(SPEC, space=space, algorithm=Algorithm(algorithm, seed=7))
    closed, open_ = StudyName("default", "closed"), StudyName("default", "open")
    with (
        closing(SqliteStore(tmp_path / "s.db")) as store,
        closing(StudyService(store, address="")) as studies,
    ):
        for name in (closed, open_):
            studies.create_study(name, spec, request_id="create")
        points: dict[StudyName, list[object]] = {closed: [], open_: []}
        for number in range(25):
            for name in (open_, closed):
                trial = ask(studies, name, f"r{number}")
                points[name].append(trial.parameters)
                value = float(trial.parameters["x"])  # type: ignore[arg-type]
                studies.complete(
                    name, number, Outcome(TrialState.SUCCEEDED), measurements=[score(0, value)]
                )
                if name is closed:
                    with studies.sessions.writing(open_):  # this one stays open
                        # once the next proposal is prepared
                        eventually(lambda: close_all(studies) == 1)
        assert points[closed] == points[open_]


def test_calls_that_come_while_a_study_is_closed_open_it_again(
    two_stores: tuple[StudyStore, StudyStore],
) -> None:
    store, _ = two_stores
    names = [StudyName("default", f"s{n}") for n in range(3)]
    ended = threading.Event()
    with (
        closing(StudyService(store, address="", idle_s=NEVER_S)) as studies,
        ThreadPoolExecutor(8) as pool,
    ):
        for name in names:
            studies.create_study(name, SPEC, request_id="create")

        closed = 0

        def keep_closing() -> None:
            nonlocal closed
            # without a pause, calls would wait for the GIL within transactions
            while not ended.wait(0.001):
                closed += close_all(studies)

        closer = pool.submit(keep_closing)
        try:
            numbers = []
            for turn in range(10):
                asked = [
                    pool.submit(ask, studies, name, f"r{turn}-{n}")
                    for n in range(4)
                    for name in names
                ]
                numbers += [one.result().number for one in asked]
                eventually(lambda least=turn: closed > least)
        finally:
            ended.set()
        closer.result()
        assert sorted(numbers) == sorted(list(range(40)) * len(names))
        for name in names:
            assert [t.number for t in studies.list_trials(name, limit=99)] == list(range(40))


class SlowStore(SqliteStore):
    """A store whose database is busy when a study is released, until `may_release` is set."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.releases, self.may_release = threading.Event(), threading.Event()

    def release(self, lease: Lease) -> None:
        self.releases.set()
        assert self.may_release.wait(60)
        super().release(lease)


def test_a_call_that_gives_up_while_its_study_is_closed_leaves_one_session(tmp_path: Path) -> None:
    store, other_store = SlowStore(tmp_path / "s.db"), SqliteStore(tmp_path / "s.db")
    holds, may_end = threading.Event(), threading.Event()
    with (
        closing(store),
        closing(other_store),
        closing(StudyService(store, address="one")) as studies,
        closing(StudyService(other_store, address="other")) as others,
        ThreadPoolExecutor(3) as pool,
    ):
        studies.create_study(NAME, SPEC, request_id="create")
        ask(studies, NAME, "r0")

        def give_up() -> None:
            deadline.begin(0.05)
            with pytest.raises(Unavailable, match="busy with other calls"):
                ask(studies, NAME, "r1")

        def hold() -> None:
            with studies.sessions.writing(NAME):
                holds.set()
                assert may_end.wait(60)

        try:
            closer = pool.submit(close_all, studies)
            assert store.releases.wait(60)
            contextvars.copy_context().run(give_up)
            holder = pool.submit(hold)
            eventually(lambda: holds.is_set() or studies.sessions._sessions[NAME].pins == 2)
            store.may_release.set()
            assert closer.result(60) == 1
            assert holds.wait(60)
            with pytest.raises(NotOwner):
                ask(others, NAME, "r2")
            assert NAME in studies.sessions._sessions
        finally:
            store.may_release.set()
            may_end.set()
        holder.result(60)
        assert ask(studies, NAME, "r2").number == 1


def test_a_deleted_study_leaves_nothing_behind(tmp_path: Path) -> None:
    with (
        closing(SqliteStore(tmp_path / "s.db")) as store,
        closing(StudyService(store, address="")) as studies,
    ):
        for number in range(20):
            name = StudyName("default", f"s{number}")
            studies.create_study(name, SPEC, request_id="create")
            ask(studies, name, "r")
            studies.delete_study(name)
        assert studies.sessions._sessions == {}
        assert list((tmp_path / "locks").iterdir()) == []


def test_a_closed_study_frees_its_memory(tmp_path: Path) -> None:
    with (
        closing(SqliteStore(tmp_path / "s.db")) as store,
        closing(StudyService(store, address="")) as studies,
    ):
        studies.create_study(NAME, SPEC, request_id="create")
        for number in range(10):
            studies.suggest(NAME, 100, client_id="c", request_id=f"r{number}")
        close_all(studies)
        with studies.sessions.writing(NAME) as writer:
            engine = weakref.ref(writer.engine)
        del writer
        gc.disable()  # the memory of a closed study must be freed without garbage collection
        try:
            close_all(studies)
            assert engine() is None
        finally:
            gc.enable()


@pytest.mark.skipif(
    not hasattr(resource, "prlimit"), reason="the limit of another process: Linux only"
)
def test_a_server_has_more_studies_than_file_descriptors(folder: Path) -> None:
    """The server closes the least recently used studies."""
    limit = 128
    with a_process(folder / "s.db", f"unix:{folder}/s.sock") as server, a_client(server) as client:
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (limit, limit))
        for number in range(limit + 10):
            name = StudyName("default", f"s{number}")
            client.create_study(name, SPEC, request_id="create")
            assert [
                t.number for t in client.suggest(name, 1, client_id="c", request_id="r").trials
            ] == [0]
        assert len(list(Path(f"/proc/{server.pid}/fd").iterdir())) < limit
        first = StudyName("default", "s0")
        with a_client(server) as another:
            assert [
                t.number for t in another.suggest(first, 1, client_id="c", request_id="r2").trials
            ] == [1]


def test_a_lack_of_file_descriptors_is_reported_with_the_cure(tmp_path: Path) -> None:
    program = """
import contextlib, os, pathlib, resource, sys
from suggest.errors import Unavailable
from suggest.grpc_status import code_of
from suggest.storage.sqlite_store import SqliteStore
from suggest.studies import StudyService
from suggest.study import StudyName
from tests.service.running import SPEC
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
studies = StudyService(SqliteStore(pathlib.Path(sys.argv[1])), address="")
names = [StudyName("default", f"s{n}") for n in range(9)]
for name in names:
    studies.create_study(name, SPEC, request_id="create")
ask = lambda name: studies.suggest(name, 1, client_id="c", request_id="r").trials[0].number
assert ask(names[0]) == 0
taken = []
def exhaust():
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
exhaust()
assert ask(names[1]) == 0, "another one was closed for it"
refused = None
with contextlib.ExitStack() as in_use:
    for used, name in zip(names[1:], names[2:]):
        in_use.enter_context(studies.sessions.writing(used))  # none of them can be closed
        exhaust()  # again: a checkpoint may have had some files open
        try:
            ask(name)
        except Unavailable as e:
            print(code_of(e).name, e)
            refused = name
            break
os.close(taken.pop())
assert ask(refused) == 0
studies.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "s.db"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        "UNAVAILABLE this process has no file descriptor left; try again later"
    )
    assert str(tmp_path) not in done.stdout
