"""The test cluster with a real node: its images, and that it leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.cluster import images, realnode
from tests.cluster.api import Object
from tests.cluster.conftest import lacks
from tests.cluster.images import BASE
from tests.cluster.objects import job, pod_of, pods
from tests.cluster.realnode import NAMESPACES, RealNode
from tests.cluster.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]


def test_a_machine_without_rules_for_bridges_is_told_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(realnode, "PACKAGES", {})
    monkeypatch.setattr(realnode, "_cni", lambda: tmp_path)
    monkeypatch.setattr(realnode, "SETTINGS", tmp_path)
    assert realnode.missing().endswith("modprobe br_netfilter")


def real(name: str, script: str, **more: object) -> Object:
    return job(name, image=BASE, command=["sh", "-c", script], **more)  # type: ignore[arg-type]


def running(cluster: RealNode, namespace: str, name: str) -> str:
    """Return the name of its pod once that runs."""
    api = cluster.api()
    pod = eventually(lambda: pod_of(api, namespace, name))["metadata"]["name"]
    api.until(pods(namespace, pod), lambda now: now["status"]["phase"] != "Pending", within_s=180)
    return str(pod)


def test_an_image_is_built_again_only_after_a_change_of_its_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tag, source = "localhost/tuner-test/changes:1", tmp_path / "program.py"
    images.folder().mkdir(parents=True)
    built = []

    def build() -> None:
        built.append(source.read_text())
        images.archive(tag).touch()

    for text in ("1", "1", "2", "2"):
        source.write_text(text)
        images.unless_kept(tag, [str(source)], build)
    images.archive(tag).unlink()
    images.unless_kept(tag, [str(source)], build)
    assert built == ["1", "2", "2"]


def test_images_that_are_kept_need_neither_root_nor_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    images.folder().mkdir(parents=True)
    for tag in (images.PAUSE, BASE):
        images.archive(tag).touch()
    for tag, sources in images.SOURCES.items():
        images.unless_kept(tag, sources, images.archive(tag).touch)
    assert images.main() == 0
    images.archive(images.DIGITS).unlink()
    assert images.main() == 1
    assert "buildah and debootstrap: apt-get install buildah debootstrap" in capsys.readouterr().err


def test_a_real_node_whose_tests_were_killed_leaves_nothing_behind() -> None:
    lacks(realnode.missing())
    program = (
        "from tests.cluster.realnode import *; from tests.cluster.test_harness_node import *\n"
        "from tests.cluster.objects import jobs; c = RealNode()\n"
    )
    program += (
        "c.api().post(jobs('default'), real('stays', 'sleep 600')); running(c, 'default', "
        "'stays')\n"
    )
    program += "print(c.folder, c.link, flush=True); input()"
    tests = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with tests:
        assert tests.stdout is not None
        watchdog = threading.Timer(180, tests.kill)
        watchdog.start()
        folder, link = tests.stdout.readline().split()
        watchdog.cancel()
        assert folder in command_lines()
        tests.send_signal(signal.SIGKILL)
    eventually(lambda: not Path(folder).exists(), within_s=180)
    eventually(lambda: folder not in command_lines())  # the guard ends last
    assert folder not in Path("/proc/self/mountinfo").read_text()
    assert not Path("/sys/class/net", link).exists()
    assert not Path(NAMESPACES, link).exists()


def command_lines() -> str:
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(place.read_text(errors="replace"))
        except OSError:
            continue
    return "\n".join(found)
