"""The files that people name are whole, or as they were."""

from __future__ import annotations

import os
import resource
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from controller.report import output_file

PAGE = "<html>" + "x" * 1000 + "</html>"


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Let no file of this process become larger, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_page_that_does_not_fit_leaves_the_earlier_one(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    output_file.write(page, "earlier")
    with room_for(100), pytest.raises(OSError, match=r"page\.html"):
        output_file.write(page, PAGE)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"page.html": "earlier"}


def test_a_command_that_is_killed_while_it_writes_leaves_the_earlier_page(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    output_file.write(page, "earlier")
    command = os.fork()
    if command == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # the kernel kills it in the middle
        with room_for(100):
            output_file.write(page, PAGE)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(command, 0)[1]) == -signal.SIGXFSZ
    assert page.read_text() == "earlier"


def test_a_folder_that_does_not_exist_is_named_by_the_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere/page\.html"):
        output_file.write(tmp_path / "nowhere" / "page.html", PAGE)


def test_a_reader_of_the_earlier_page_sees_it_to_its_end(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    output_file.write(page, "earlier")
    with page.open() as reading:
        output_file.write(page, PAGE)
        assert reading.read() == "earlier"


def test_a_file_keeps_its_mode_and_its_link(tmp_path: Path) -> None:
    page, link = tmp_path / "page.html", tmp_path / "link.html"
    output_file.write(page, "earlier")
    page.chmod(0o640)
    link.symlink_to(page)
    output_file.write(link, PAGE)
    assert link.is_symlink()
    assert page.read_text() == PAGE
    assert stat.S_IMODE(page.stat().st_mode) == 0o640


def test_a_device_is_written_to() -> None:
    output_file.write(Path("/dev/null"), PAGE)
    assert Path("/dev/null").is_char_device()
    with pytest.raises(OSError, match="/dev/full"):
        output_file.write(Path("/dev/full"), PAGE)
