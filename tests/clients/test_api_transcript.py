"""docs/api.md: its transcript is what the server says, word for word where it says words."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.clients.serving import Served
from tests.clients.toolchain import ROOT

PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
END = "-- end of a command --"


def steps() -> list[tuple[str, str]]:
    """(command, what it prints): `$` begins a command, `>` goes on with it, all else is printed."""
    found: list[tuple[list[str], list[str]]] = []
    for line in "".join(BLOCKS).splitlines():
        if line.startswith("$ "):
            found.append(([line[2:]], []))
        elif line.startswith("> "):
            found[-1][0].append(line[2:])
        else:
            found[-1][1].append(line)
    return [("\n".join(command), "\n".join(printed)) for command, printed in found]


def same(shown: str, printed: str) -> bool:
    """But for white space, and for what `…` stands for."""
    pattern = re.escape("".join(shown.split())).replace("…", ".*?")
    return re.fullmatch(pattern, "".join(printed.split()), re.DOTALL) is not None


def test_the_transcript_is_what_happens(grpcurl: Path, served: Served, tmp_path: Path) -> None:
    (tmp_path / "grpcurl").symlink_to(grpcurl)
    script = "".join(f"{command}\necho '{END}'\n" for command, _ in steps())
    done = subprocess.run(
        ["bash", "-c", f"export PATH={tmp_path}:$PATH; exec 2>&1\n{script.replace('localhost:8765', served.address)}"],
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    *printed, rest = done.stdout.split(f"{END}\n")
    assert rest == ""
    assert len(printed) == len(steps()) >= 10
    for (command, shown), said in zip(steps(), printed, strict=True):
        assert same(shown, said), f"{command}\n{said}"
