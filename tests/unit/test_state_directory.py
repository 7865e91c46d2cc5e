"""The state directory, and the lock that names the controller of an experiment."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from controller.app.experiments import ControlledElsewhere, Holder, new_uid
from controller.app.local_experiments import ControllerLock
from controller.app.service_names import service_name
from controller.app.state_directory import StateDirectory
from suggest.errors import InvalidArgument, Unavailable


@pytest.mark.parametrize(
    ("flag", "environ", "expected"),
    [
        ("/flag", {"TUNER_STATE_DIR": "/env", "XDG_STATE_HOME": "/xdg"}, "/flag"),
        (None, {"TUNER_STATE_DIR": "/env", "XDG_STATE_HOME": "/xdg"}, "/env"),
        (None, {"XDG_STATE_HOME": "/xdg"}, "/xdg/tuner"),
    ],
)
def test_flag_then_environment_then_xdg(
    flag: str | None, environ: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TUNER_STATE_DIR", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert StateDirectory.find(flag).root == Path(expected)


def test_a_uid_is_a_dns_label() -> None:
    assert all(re.fullmatch(r"[a-z][a-z2-7]{15}", new_uid()) for _ in range(100))


def test_the_state_directory_is_its_owners_alone(tmp_path: Path) -> None:
    home = StateDirectory(tmp_path / "a" / "b")
    home.make()
    assert home.root.stat().st_mode & 0o777 == 0o700


def test_a_lock_that_cannot_be_written_for_another_reason_than_a_full_disk_has_no_advice(
    tmp_path: Path,
) -> None:
    path = tmp_path / "controller.lock"
    os.mkfifo(path)
    with pytest.raises(Unavailable) as raised:
        ControllerLock(tmp_path).take("digits")
    assert str(raised.value) == f"{path}: Invalid argument; nothing was lost"


def test_the_lock_has_one_named_holder(tmp_path: Path) -> None:
    first, second = ControllerLock(tmp_path), ControllerLock(tmp_path)
    assert second.holder() is None
    first.take("digits")
    holder = second.holder()
    assert holder is not None
    assert holder.pid == os.getpid()
    with pytest.raises(
        ControlledElsewhere, match=f"digits is being run by process {os.getpid()} on"
    ):
        second.take("digits")
    first.release()
    assert second.holder() is None
    second.take("digits")
    second.release()


def test_a_holder_that_ctrl_z_has_suspended_is_shown_with_the_command_that_continues_it() -> None:
    with subprocess.Popen(
        [sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE
    ) as process:
        holder = Holder(process.pid, os.uname().nodename, "now")
        assert str(holder) == f"process {process.pid} on {holder.host} since now"
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert str(holder).endswith(
            f" since now, which is suspended (kill -CONT {process.pid} continues it)"
        )
        process.kill()


@pytest.mark.parametrize("storage", ["studies.db", "/tmp/studies.db", "localhost:7117"])
def test_a_storage_that_is_no_url_is_not_taken_for_a_server(storage: str) -> None:
    with pytest.raises(InvalidArgument, match="is not a storage URL; use sqlite:///PATH"):
        service_name(server=None, storage=storage)
