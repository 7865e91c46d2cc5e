"""A search is packed into one file, unpacked in another state directory, and continues there."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import re
import resource
import shlex
import signal
import sqlite3
import tarfile
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing
from pathlib import Path, PosixPath
from typing import NoReturn, Self

import pytest

from controller.app import pack
from controller.app.local_experiments import ControllerLock, LocalExperiments
from controller.app.state_directory import StateDirectory
from suggest.distribution import VERSION
from suggest.errors import AlreadyExists, Unavailable
from tests.e2e.cli import UNTIL_GO, Cli, cli_in, experiment
from tests.service.running import a_server

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    """A search that was stopped after its first trial; its trials wait for `go`."""
    with cli_in(tmp_path) as cli:
        cli.file.write_text(experiment(trials=3))
        assert cli.tuner("run", cli.file, "--set", "spec.budget.trials=1")[0] == 0
        assert cli.tuner("pack", "tiny")[0] == 0
        yield cli


def elsewhere(cli: Cli) -> tuple[str, ...]:
    return ("--state-dir", str(cli.folder / "elsewhere"))


def rewritten(
    cli: Cli, change: Callable[[tarfile.TarInfo, bytes], list[tuple[tarfile.TarInfo, bytes]]]
) -> Path:
    """Return another pack, whose members are those of the first one after `change`."""
    made = cli.folder / "changed.tar.gz"
    with tarfile.open(cli.folder / "tiny.tar.gz") as old, tarfile.open(made, "w:gz") as new:
        for member in old:
            content = old.extractfile(member)
            for info, data in change(member, b"" if content is None else content.read()):
                info.size = len(data)
                new.addfile(info, io.BytesIO(data))
    return made


def described(cli: Cli) -> list[str]:
    """Return the events of the first trial."""
    return cli.tuner("describe", "tiny/0")[1].partition("Last events")[2].splitlines()


def refused(cli: Cli, source: Path) -> str:
    code, _, err = cli.tuner("unpack", source, *elsewhere(cli))
    assert code == 2, err
    assert list((cli.folder / "elsewhere" / "experiments").glob("*")) == []
    return err


def test_it_continues_elsewhere_with_its_trials_logs_and_provenance(cli: Cli) -> None:
    before = cli.trials()
    events = described(cli)
    (cli.folder / "there").mkdir()
    there = Cli(cli.folder / "there")
    code, out, err = there.tuner("unpack", cli.folder / "tiny.tar.gz")
    assert (code, out) == (0, "tiny is unpacked: succeeded\n"), err
    assert f"its trials run in {there.folder} from now on; it was {cli.folder}" in err
    assert there.trials() == before
    assert described(there)[: len(events)] == events
    assert there.tuner("logs", "tiny/0")[1] == cli.tuner("logs", "tiny/0")[1]
    (provenance,) = (there.folder / "state").glob("experiments/*/trials/0/1/provenance.json")
    assert json.loads(provenance.read_text())["workingDirectory"] == str(cli.folder)
    assert there.tuner("extend", "tiny", "--trials", "3")[0] == 0
    assert [line.split()[:2] for line in there.starts()] == [["1", "1"], ["2", "1"]]


def test_its_other_points_are_those_of_the_search_that_was_packed(cli: Cli) -> None:
    assert cli.tuner("unpack", "tiny.tar.gz", *elsewhere(cli))[0] == 0
    for place in ((), elsewhere(cli)):
        assert cli.tuner("extend", "tiny", "--trials", "3", *place)[0] == 0
    here, there = (
        cli.json("get", "trials", "tiny", "-o", "json", *place) for place in ((), elsewhere(cli))
    )
    assert [one["parameters"] for one in here] == [one["parameters"] for one in there]


@pytest.mark.parametrize(
    "call",
    [
        "store.copy_study",
        "controller.experiment_store.copy_experiment",
        "controller.pack.cleared",
    ],
)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_killed_unpack_is_repeated(cli: Cli, call: str, moment: str) -> None:
    cli.env["TUNER_FAILPOINT"] = f"{call}.{moment}"
    process = cli.start("unpack", "tiny.tar.gz", *elsewhere(cli))
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    del cli.env["TUNER_FAILPOINT"]
    code, _, err = cli.tuner("unpack", "tiny.tar.gz", *elsewhere(cli))
    if code != 0:
        assert "this search is here already; continue it with tuner resume tiny" in err
    assert cli.tuner("extend", "tiny", "--trials", "2", *elsewhere(cli))[0] == 0
    assert len(cli.json("get", "trials", "tiny", "-o", "json", *elsewhere(cli))) == 2


def test_a_killed_pack_leaves_no_file_of_its_name(cli: Cli) -> None:
    cli.env["TUNER_FAILPOINT"] = "controller.pack.named.before"
    process = cli.start("pack", "tiny", "--to", "again.tar.gz")
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    del cli.env["TUNER_FAILPOINT"]
    assert not (cli.folder / "again.tar.gz").exists()
    assert cli.tuner("pack", "tiny", "--to", "again.tar.gz")[0] == 0
    assert list(cli.folder.glob(".again*")) == []


def test_two_packs_never_write_one_file(cli: Cli) -> None:
    # As the folder of another command that writes the same file now.
    other = cli.folder / ".both.tar.gz.partial-x"
    other.mkdir()
    descriptor = os.open(other, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    code, _, err = cli.tuner("pack", "tiny", "--to", "both.tar.gz")
    assert (code, "another command is writing it; name another file" in err) == (6, True), err
    assert other.exists()
    os.close(descriptor)
    assert cli.tuner("pack", "tiny", "--to", "both.tar.gz")[0] == 0
    assert list(cli.folder.glob(".both*")) == []


def test_at_most_one_of_two_packs_that_begin_at_once_writes(tmp_path: Path) -> None:
    target = tmp_path / "both.tar.gz"

    class Folder(PosixPath):
        """Another command begins when this one has looked for others."""

        def glob(self, pattern: str) -> Generator[Self, None, None]:
            found = list(super().glob(pattern))
            others.enter_context(pack._partial_folder(target))
            yield from found

    with ExitStack() as others, pytest.raises(AlreadyExists, match="another command is writing it"):
        others.enter_context(pack._partial_folder(Folder(target)))
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_another_pack_has_just_written_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "both.tar.gz"
    target.touch()
    with pytest.raises(AlreadyExists, match="already exists"), pack._partial_folder(target):
        pass


def test_a_full_disk_is_named_and_leaves_nothing(cli: Cli) -> None:
    (checkpoint,) = (cli.folder / "state").glob("experiments/*/trials/0/checkpoint")
    (checkpoint / "weights").write_bytes(os.urandom(4 << 20))
    assert cli.tuner("pack", "tiny", "--to", "large.tar.gz")[0] == 0
    _, hard = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, hard))
    try:
        unpacked = cli.tuner("unpack", "large.tar.gz", *elsewhere(cli))
        packed = cli.tuner("pack", "tiny", "--to", "again.tar.gz")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    for code, _, err in (unpacked, packed):
        assert (code, "; free some space and repeat the command" in err) == (7, True), err
    assert "checkpoint/weights: " in unpacked[2]
    assert not list(cli.folder.glob("*again*"))
    assert not list((cli.folder / "elsewhere" / "experiments").iterdir())
    assert cli.tuner("unpack", "large.tar.gz", *elsewhere(cli))[0] == 0


def test_a_file_that_another_command_unpacks_is_left_to_it(cli: Cli) -> None:
    with tarfile.open(cli.folder / "tiny.tar.gz") as packed:
        manifest = packed.extractfile("pack.json")
        assert manifest is not None
        uid = json.loads(manifest.read())["uid"]
    folder = cli.folder / "elsewhere" / "experiments" / uid
    folder.mkdir(parents=True)
    lock = ControllerLock(folder)
    lock.take("tiny")
    code, _, err = cli.tuner("unpack", "tiny.tar.gz", *elsewhere(cli))
    assert (code, "another command unpacks it into" in err) == (6, True), err
    lock.release()


def test_a_pack_needs_a_folder(cli: Cli) -> None:
    code, _, err = cli.tuner("pack", "tiny", "--to", "nowhere/tiny.tar.gz")
    assert code == 5, err
    assert "nowhere: is not a folder; create it, or name another with --to" in err


def test_what_is_not_a_regular_file_is_not_unpacked(cli: Cli) -> None:
    pipe = cli.folder / "pipe"
    os.mkfifo(pipe)
    for path in (cli.folder, pipe, Path("/dev/zero")):
        assert f"{path}: is not a regular file; name the file that pack wrote" in refused(cli, path)


def test_an_existing_file_and_a_known_search_are_kept(cli: Cli) -> None:
    code, _, err = cli.tuner("pack", "tiny")
    assert (code, "already exists; name another file with --to" in err) == (6, True), err
    code, _, err = cli.tuner("unpack", "tiny.tar.gz")
    assert (code, "this search is here already" in err) == (6, True), err
    assert cli.tuner("delete", "tiny", "--yes")[0] == 0
    assert cli.tuner("run", cli.file)[0] == 0
    code, _, err = cli.tuner("unpack", "tiny.tar.gz")
    assert (code, "there is another experiment tiny in default" in err) == (6, True), err
    assert len(cli.trials()) == 3


@pytest.mark.parametrize("killed", [False, True])
def test_trials_that_run_when_a_search_is_packed_run_again_in_the_copy(
    cli: Cli, *, killed: bool
) -> None:
    cli.file.write_text(experiment(name="waits", waits=True, trials=2))
    running = cli.start("run", "-v", cli.file)
    assert running.stderr is not None
    while "created->running" not in running.stderr.readline():
        pass
    if killed:
        running.kill()
        running.wait()
    code, _, err = cli.tuner("pack", "waits")
    assert (code, "waits continues here; trials that run now run again" in err) == (0, not killed)
    (cli.folder / "go").touch()
    ended = running.communicate(timeout=60)[1]
    assert killed or running.returncode == 0, ended
    code, out, err = cli.tuner("unpack", "waits.tar.gz", *elsewhere(cli))
    assert (code, out) == (0, "waits is unpacked: running (no controller)\n"), err
    assert cli.tuner("resume", "waits", *elsewhere(cli))[0] == 0
    trials = cli.json("get", "trials", "waits", "-o", "json", *elsewhere(cli))
    assert [(trial["state"], len(trial["attempts"])) for trial in trials] == [
        ("succeeded", 2),
        ("succeeded", 1),
    ]
    if not killed:
        here = cli.json("get", "trials", "waits", "-o", "json")
        assert [len(trial["attempts"]) for trial in here] == [1, 1]


def test_a_search_whose_trials_another_controller_could_adopt_is_not_packed_while_it_runs(
    cli: Cli,
) -> None:
    database = cli.folder / "state" / "controller.db"
    with closing(sqlite3.connect(database)) as raw, raw:
        uid, text = raw.execute("SELECT uid, document FROM revisions").fetchone()
        document = json.loads(text)
        document["spec"]["runtime"] = "kubernetes"
        document["spec"]["trial"]["image"] = "trial:1"
        raw.execute("UPDATE revisions SET document = ?", (json.dumps(document),))
    lock = ControllerLock(cli.folder / "state" / "experiments" / uid)
    lock.take("tiny")
    words = ("pack", "tiny", "--to", "again.tar.gz")
    code, _, err = cli.tuner(*words)
    assert (code, "tiny cannot be packed while it runs" in err) == (6, True), err
    lock.release()
    assert cli.tuner(*words)[0] == 0


def test_a_file_that_goes_away_while_it_is_packed_is_left_out(cli: Cli) -> None:
    state = StateDirectory(cli.folder / "state")
    target = cli.folder / "without.tar.gz"
    with closing(LocalExperiments(state)) as experiments:
        (stored,) = experiments.experiments()
        gone = {"gone.py": cli.folder / "gone.py"}
        pack.write(experiments, stored, state.storage_url, target, files=gone)
    assert cli.tuner("unpack", target, *elsewhere(cli))[0] == 0
    with tarfile.open(target) as archive:
        assert "files/gone.py" not in archive.getnames()


def test_a_file_that_cannot_be_read_is_named_with_the_cure(cli: Cli) -> None:
    class Unreadable(PosixPath):
        def open(self, *_: object, **__: object) -> NoReturn:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))

    state = StateDirectory(cli.folder / "state")
    file, target = Unreadable(cli.folder / "secret.py"), cli.folder / "without.tar.gz"
    file.touch()
    told = f"{file}: this user cannot read it; make it readable or remove it, and pack again"
    with closing(LocalExperiments(state)) as experiments:
        (stored,) = experiments.experiments()
        with pytest.raises(Unavailable, match=re.escape(told)):
            pack.write(experiments, stored, state.storage_url, target, files={"secret.py": file})
    assert not list(cli.folder.glob("*without*")) + list(cli.folder.glob(".*partial*"))


@pytest.mark.parametrize("words", ["pack tiny/0", "resume tiny/0", "extend tiny/0 --trials 9"])
def test_a_trial_is_told_from_a_file_where_an_experiment_is_named(cli: Cli, words: str) -> None:
    code, _, err = cli.tuner(*words.split())
    assert (code, "it is a trial; name the experiment, tiny, or see the trial" in err) == (5, True)


def test_a_pack_that_is_cut_short_is_refused(cli: Cli) -> None:
    whole = (cli.folder / "tiny.tar.gz").read_bytes()
    short = cli.folder / "short.tar.gz"
    for length in (len(whole) // 3, len(whole) // 2, len(whole) - 9):
        short.write_bytes(whole[:length])
        assert "cut short" in refused(cli, short)
    changed = bytearray(whole)
    changed[-5] ^= 1  # in the length at the end
    short.write_bytes(changed)
    assert "short.tar.gz: it was changed (" in refused(cli, short)
    for content in (b"", b"no archive"):
        short.write_bytes(content)
        assert "is not a file of tuner pack" in refused(cli, short)


def test_a_pack_without_some_of_its_files_is_refused(cli: Cli) -> None:
    made = rewritten(cli, lambda info, data: [] if "log.txt" in info.name else [(info, data)])
    assert re.search(r"it has \d+ of \d+ files", refused(cli, made))


def test_a_pack_of_a_newer_version_is_refused(cli: Cli) -> None:
    def newer(info: tarfile.TarInfo, data: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
        if info.name == "pack.json":
            data = json.dumps({**json.loads(data), "format": 2, "tuner": "9.0"}).encode()
        return [(info, data)]

    err = refused(cli, rewritten(cli, newer))
    assert "tuner 9.0 wrote it in format 2, and this version reads format 1; update tuner" in err


# What a database of the first release lacks.
OF_0001 = (
    *(f"DROP TABLE {table}" for table in ("controller_leader", "attempt_objects", "usage")),
    "DROP INDEX attempts_unended",
    *(
        f"ALTER TABLE attempts DROP COLUMN {name}"
        for name in ("gpus", "price_per_hour", "earlier_s")
    ),
    *(f"ALTER TABLE experiments DROP COLUMN {name}" for name in ("gpu_hours", "cost", "ended_by")),
    "UPDATE controller_schema_version SET version_num = '0001'",
)


def of_changed_store(cli: Cli, name: str, *statements: str) -> Path:
    """Return another pack, after statements in one of its stores."""

    def changed(info: tarfile.TarInfo, data: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
        if info.name == f"stores/{name}":
            path = cli.folder / name
            path.write_bytes(data)
            with closing(sqlite3.connect(path, isolation_level=None)) as connection:
                connection.execute("PRAGMA foreign_keys = OFF")
                connection.execute("PRAGMA journal_mode = DELETE").fetchone()
                for statement in statements:
                    connection.execute(statement)
            data = path.read_bytes()
        return [(info, data)]

    return rewritten(cli, changed)


@pytest.mark.parametrize(
    ("name", "statement", "why"),
    [
        ("controller.db", "DROP TABLE experiments", "no such table: experiments"),
        ("controller.db", "DROP TABLE attempts", "no such table: attempts"),
        ("controller.db", "DROP TABLE attempt_objects", "no such table: attempt_objects"),
        ("controller.db", "DROP TABLE controller_leader", "no such table: controller_leader"),
        ("controller.db", "ALTER TABLE attempts DROP COLUMN node", "no such column: attempts.node"),
        ("controller.db", "UPDATE attempts SET state = 'odd'", "'odd' is not a valid AttemptState"),
        ("studies.db", "DROP TABLE trials", "no such table: trials"),
        ("studies.db", "DROP TABLE measurements", "no such table: measurements"),
        ("studies.db", "UPDATE trials SET parameters = 'odd'", "'odd' is not JSON"),
        ("studies.db", "UPDATE measurements SET value = 'odd'", "measurement of trial default/"),
        ("studies.db", "DELETE FROM studies", "lacks the study of its trials"),
    ],
)
def test_a_pack_with_a_store_that_cannot_be_read_leaves_nothing(
    cli: Cli, name: str, statement: str, why: str
) -> None:
    err = refused(cli, of_changed_store(cli, name, statement))
    assert f"changed.tar.gz: stores/{name}" in err
    assert why in err
    assert err.endswith("; pack the search again, or copy the file again\n")
    assert cli.tuner("unpack", "tiny.tar.gz", *elsewhere(cli))[0] == 0


@pytest.mark.parametrize(
    ("name", "table"),
    [("controller.db", "controller_schema_version"), ("studies.db", "study_schema_version")],
)
def test_a_pack_with_a_newer_schema_is_refused(cli: Cli, name: str, table: str) -> None:
    err = refused(cli, of_changed_store(cli, name, f"UPDATE {table} SET version_num = '9999'"))
    assert err.endswith(f"does not know; unpack it with tuner {VERSION}\n")


def test_a_pack_with_a_schema_of_before_is_upgraded_or_refused(cli: Cli) -> None:
    def with_version(name: str, table: str, version: str) -> Path:
        return of_changed_store(cli, name, f"UPDATE {table} SET version_num = '{version}'")

    for place in (
        ("controller.db", "controller_schema_version"),
        ("studies.db", "study_schema_version"),
    ):
        err = refused(cli, with_version(*place, "0000"))
        assert "does not know; unpack it with tuner" in err
        assert f"stores/{place[0]}: the version of its schema" in refused(
            cli, with_version(*place, "")
        )
    err = refused(cli, with_version("controller.db", "controller_schema_version", "0001"))
    assert "stores/controller.db is damaged" in err
    made = of_changed_store(cli, "controller.db", *OF_0001)
    assert cli.tuner("unpack", made, *elsewhere(cli))[0] == 0
    assert cli.tuner("extend", "tiny", "--trials", "2", *elsewhere(cli))[0] == 0


def test_a_search_with_what_only_a_newer_version_has_is_refused(cli: Cli) -> None:
    newer = """UPDATE revisions SET document = json_set(document, '$.spec.newKey', 1,
        '$.spec.trial.sandbox', 'strict')"""
    err = refused(cli, of_changed_store(cli, "controller.db", newer))
    keys = "spec.trial.sandbox, spec.newKey"
    assert f"wrote it with {keys}, which this version, " in err
    assert err.endswith(f"does not know; unpack it with tuner {VERSION}\n")

    with closing(sqlite3.connect(cli.folder / "state" / "controller.db")) as connection:
        connection.execute("UPDATE experiments SET state = 'stopped'")
        connection.execute(newer)
        connection.commit()
    code, _, err = cli.tuner("resume", "tiny")
    assert (code, f"tiny has {keys}, which this version of tuner does not know" in err) == (6, True)
    assert err.endswith(
        "; update tuner, or continue with a file that lacks it: tuner resume FILE\n"
    )
    newer = """UPDATE revisions SET document = json_set(json_remove(document, '$.spec.newKey',
        '$.spec.trial.sandbox'), '$.spec.metrics.push', json('true'))"""
    with closing(sqlite3.connect(cli.folder / "state" / "controller.db")) as connection:
        connection.execute(newer)
        connection.commit()
    assert "tiny has spec.metrics.push, which" in cli.tuner("resume", "tiny")[2]
    code, out, err = cli.tuner("resume", cli.file)
    assert (code, "spec.metrics.push: true -> nothing" in err) == (0, True), out + err


def test_a_search_with_a_pruning_rule_that_was_dropped_goes_on_with_another(cli: Cli) -> None:
    program = f"echo step=1 score=1; {UNTIL_GO}"
    cli.file.write_text(
        f"{experiment(['sh', '-c', program], name='old')}  pruning: {{name: median}}\n"
    )
    cli.let_go()
    assert cli.tuner("run", cli.file)[0] == 0
    (cli.folder / "go").unlink()
    document = "json_set(document, '$.spec.pruning.name', 'zeus', '$.spec.budget.trials', 3)"
    for name, statements in {
        "controller.db": [
            f"UPDATE revisions SET document = {document}",
            "UPDATE experiments SET state = 'stopped' WHERE name = 'old'",
        ],
        "studies.db": ["UPDATE studies SET spec = json_set(spec, '$.pruning.name', 'zeus')"],
    }.items():
        with closing(sqlite3.connect(cli.folder / "state" / name)) as connection, connection:
            for statement in statements:
                connection.execute(statement)
    code, _, err = cli.tuner("resume", "old")
    assert code == 6, err
    assert "'zeus' is not a pruning rule in this version of tuner" in err
    assert err.endswith(
        "; update tuner, or continue with a file that lacks it: tuner resume FILE\n"
    )
    cli.let_go()
    code, _, err = cli.tuner("resume", cli.file, "--set", "spec.budget.trials=3")
    assert (code, "all 3 trials are done" in err) == (0, True), err


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("'$.algorithm.name', 'zeus'", "'zeus' is not an algorithm"),
        ("'$.algorithm.settings.zeta', 1", "there is no setting 'zeta'"),
        ("'$.algorithm.settings.duplicates', 'shun'", "duplicates cannot be 'shun'"),
    ],
)
def test_a_study_of_an_algorithm_that_only_a_newer_version_has_is_left_as_it_is(
    cli: Cli, statement: str, said: str
) -> None:
    store = f"UPDATE studies SET spec = json_set(spec, {statement})"
    made = of_changed_store(cli, "studies.db", store)
    assert cli.tuner("unpack", made, *elsewhere(cli))[0] == 0
    before = cli.json("get", "trials", "tiny", "-o", "json", *elsewhere(cli))
    code, _, err = cli.tuner("extend", "tiny", "--trials", "2", *elsewhere(cli))
    assert code == 6, err
    told = rf"tuner: \S*tiny-\w+: {said} in this version of tuner, and another version"
    assert re.search(told, err), err
    assert cli.json("get", "trials", "tiny", "-o", "json", *elsewhere(cli)) == before


def test_a_pack_of_an_earlier_version_is_unpacked(cli: Cli) -> None:
    def earlier(info: tarfile.TarInfo, data: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
        if info.name == "pack.json":
            document = json.loads(data)
            del document["attempts"], document["filesDigest"]
            data = json.dumps(document).encode()
        return [(info, data)]

    assert cli.tuner("unpack", rewritten(cli, earlier), *elsewhere(cli))[0] == 0
    assert cli.tuner("extend", "tiny", "--trials", "2", *elsewhere(cli))[0] == 0


@pytest.mark.parametrize(
    "name", ["../../outside", "/tmp/outside", "trials/../../outside", "controller.lock", "stores/x"]
)
def test_no_file_is_written_outside_of_the_folder(cli: Cli, name: str) -> None:
    def moved(info: tarfile.TarInfo, data: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
        if info.name.endswith("log.txt"):
            info.name = name
        return [(info, data)]

    assert f"'{name}' is not a path that a pack may have" in refused(cli, rewritten(cli, moved))
    assert not list(cli.folder.rglob("outside"))


def test_no_file_is_written_through_a_link(cli: Cli) -> None:
    def linked(info: tarfile.TarInfo, data: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
        if not info.name.endswith("log.txt"):
            return [(info, data)]
        link = tarfile.TarInfo("trials/out")
        link.type, link.linkname = tarfile.SYMTYPE, str(cli.folder)
        info.name = "trials/out/outside"
        return [(link, b""), (info, data)]

    assert "outside of the pack" in refused(cli, rewritten(cli, linked))
    assert not list(cli.folder.rglob("outside"))


@pytest.mark.parametrize(
    ("links", "said"),
    [
        ({"trials/b": ".", "trials/a": "b/b/b/../../../.."}, "outside of the pack"),
        ({"trials/b": ".", "trials/b/b/b/a": "../../../../x"}, "is below a link"),
        ({"trials/a": ""}, "outside of the pack"),
        ({"trials/0": "1"}, "File exists"),
        ({"trials/" + "x" * 300: "0"}, "File name too long"),
    ],
)
def test_no_link_leads_outside_by_way_of_another_or_replaces_a_file(
    cli: Cli, links: dict[str, str], said: str
) -> None:
    def linked(info: tarfile.TarInfo, data: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
        if info.name == "pack.json":
            document = json.loads(data)
            document["files"] += len(links)
            data = json.dumps(document).encode()
        if info.name != "experiment.yaml":
            return [(info, data)]
        added = []
        for name, target in links.items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            added.append((link, b""))
        return [(info, data), *added]

    assert said in refused(cli, rewritten(cli, linked))


@pytest.mark.parametrize("manifest", [b'{"format": Infinity}', b"[" * 60_000])
def test_an_odd_manifest_is_refused(cli: Cli, manifest: bytes) -> None:
    def odd(info: tarfile.TarInfo, data: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
        return [(info, manifest if info.name == "pack.json" else data)]

    assert "is not a file of tuner pack" in refused(cli, rewritten(cli, odd))


def test_a_member_whose_header_makes_no_sense_is_refused(cli: Cli) -> None:
    def sparse(info: tarfile.TarInfo, data: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
        if info.name.endswith("log.txt"):
            info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}
            data = b"no map of holes"
        return [(info, data)]

    assert "it is cut short or was changed" in refused(cli, rewritten(cli, sparse))


def test_the_folder_of_a_pack_is_the_id_of_an_experiment(cli: Cli) -> None:
    def moved(info: tarfile.TarInfo, data: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
        if info.name == "pack.json":
            data = json.dumps({**json.loads(data), "uid": "../../outside"}).encode()
        return [(info, data)]

    assert "'../../outside' is not one of an experiment" in refused(cli, rewritten(cli, moved))


def test_links_and_programs_among_checkpoints_are_kept(cli: Cli) -> None:
    (checkpoint,) = (cli.folder / "state").glob("experiments/*/trials/0/checkpoint")
    (checkpoint / "epoch-1").write_text("weights")
    (checkpoint / "epoch-1").chmod(0o755)
    (checkpoint / "last").symlink_to("epoch-1")
    (checkpoint / "same").hardlink_to(checkpoint / "epoch-1")
    assert cli.tuner("pack", "tiny", "--to", "more.tar.gz")[0] == 0
    assert cli.tuner("unpack", "more.tar.gz", *elsewhere(cli))[0] == 0
    (found,) = (cli.folder / "elsewhere").glob("experiments/*/trials/0/checkpoint")
    assert (found / "last").is_symlink()
    assert {path.name: path.read_text() for path in found.iterdir()} == dict.fromkeys(
        ("epoch-1", "last", "same"), "weights"
    )
    assert (found / "epoch-1").stat().st_mode & 0o777 == 0o755


def test_links_with_whole_paths_lead_to_the_files_of_the_copy(cli: Cli) -> None:
    (checkpoint,) = (cli.folder / "state").glob("experiments/*/trials/0/checkpoint")
    (checkpoint / "epoch-1").write_text("weights")
    (checkpoint / "last").symlink_to(checkpoint / "epoch-1")
    (checkpoint / "best").symlink_to("last")
    (checkpoint / "log").symlink_to("../1/../1/log.txt")
    (checkpoint / "loop").symlink_to("loop")
    (checkpoint / "data").symlink_to(cli.folder)
    code, _, err = cli.tuner("pack", "tiny", "--to", "more.tar.gz")
    assert code == 0
    place = "trials/0/checkpoint/data"
    assert f"not in the pack: links to files outside of the experiment's folder: {place}\n" in err
    code, _, err = cli.tuner("unpack", "more.tar.gz", *elsewhere(cli))
    assert code == 0, err
    (found,) = (cli.folder / "elsewhere").glob("experiments/*/trials/0/checkpoint")
    assert {path.name: path.readlink() for path in found.iterdir() if path.is_symlink()} == {
        "best": Path("epoch-1"),
        "last": Path("epoch-1"),
        "log": Path("../1/log.txt"),
        "loop": Path("loop"),
    }


def test_a_search_moves_between_databases(cli: Cli, postgres_url: str) -> None:
    assert cli.tuner("unpack", "tiny.tar.gz", *elsewhere(cli), "--storage", postgres_url)[0] == 0
    assert cli.tuner("extend", "tiny", "--trials", "2", *elsewhere(cli))[0] == 0
    assert cli.tuner("pack", "tiny", "--to", "back.tar.gz", *elsewhere(cli))[0] == 0
    other = ("--state-dir", str(cli.folder / "other"))
    code, _, err = cli.tuner("unpack", "back.tar.gz", *other, "--storage", postgres_url)
    assert (code, "has the study of this search already" in err) == (6, True), err
    assert cli.tuner("unpack", "back.tar.gz", *other)[0] == 0
    assert cli.tuner("extend", "tiny", "--trials", "3", *other)[0] == 0
    assert len(cli.json("get", "trials", "tiny", "-o", "json", *other)) == 3


def test_a_study_of_a_server_is_packed_from_its_store(cli: Cli) -> None:
    store = f"sqlite:///{cli.folder / 'server.db'}"
    cli.file.write_text(experiment(name="served", trials=2))
    with a_server(cli.folder / "server.db") as server:
        assert cli.tuner("run", cli.file, "--server", server.address)[0] == 0
        code, _, err = cli.tuner("pack", "served")
        assert (code, "name the store of that server with --storage" in err) == (6, True), err
        other = f"sqlite:///{cli.folder / 'other.db'}"
        code, _, err = cli.tuner("pack", "served", "--storage", other)
        assert (code, "does not have the study of served" in err) == (5, True), err
        assert cli.tuner("pack", "served", "--storage", store)[0] == 0
    assert cli.tuner("unpack", "served.tar.gz", *elsewhere(cli))[0] == 0
    assert cli.tuner("extend", "served", "--trials", "3", *elsewhere(cli))[0] == 0
    assert len(cli.json("get", "trials", "served", "-o", "json", *elsewhere(cli))) == 3


def test_the_commands_of_the_page_work(cli: Cli) -> None:
    page = (DOCS / "backup.md").read_text(encoding="utf-8")
    section = page.partition("## Continue a search elsewhere")[2].partition("\n## ")[0]
    shown = re.findall(r"^\$ tuner (.*)$", section, re.MULTILINE)
    assert len(shown) == 3
    (cli.folder / "tiny.tar.gz").unlink()
    for line in shown:
        place = () if line.startswith("pack") else elsewhere(cli)
        code, _, err = cli.tuner(*shlex.split(line.replace("digits", "tiny")), *place)
        assert code == 0, err
