"""The transcript in docs/api.md is the server's output, word for word."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

from tests.clients.serving import Served
from tests.clients.toolchain import ROOT

PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
BLOCKS = [
    block for _, block in re.findall(r"^```(console)\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)
]
(SERVE,) = re.findall(r"^```sh\ntuner (serve .*)\n```", PAGE, re.MULTILINE)
END = "-- end of a command --"


def steps(blocks: list[str]) -> list[tuple[str, str]]:
    """Return (command, output) pairs: `$` begins a command, `>` continues it,
    all other lines are output.
    """
    found: list[tuple[list[str], list[str]]] = []
    for line in "".join(blocks).splitlines():
        if line.startswith("$ "):
            found.append(([line[2:]], []))
        elif line.startswith("> "):
            found[-1][0].append(line[2:])
        else:
            found[-1][1].append(line)
    return [("\n".join(command), "\n".join(printed)) for command, printed in found]


def same(shown: str, printed: str) -> bool:
    """Compare without white space, and with any text in place of `…`."""
    pattern = re.escape("".join(shown.split())).replace("…", ".*?")
    return re.fullmatch(pattern, "".join(printed.split()), re.DOTALL) is not None


def play(blocks: list[str], folder: Path, *, address: str = "") -> int:
    """Run the commands in the folder, check their output, and return their number."""
    script = "".join(f"{command}\necho '{END}'\n" for command, _ in steps(blocks))
    done = subprocess.run(
        [
            "bash",
            "-c",
            f"export PATH={folder}/bin:$PATH; exec "
            f"2>&1\n{script.replace('localhost:8765', address)}",
        ],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    *printed, rest = done.stdout.split(f"{END}\n")
    assert rest == ""
    for (command, shown), said in zip(steps(blocks), printed, strict=True):
        assert same(shown, said), f"{command}\n{said}"
    return len(printed)


def test_the_transcript_matches_the_server(grpcurl: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "grpcurl").symlink_to(grpcurl)
    before = [block for block in BLOCKS if "localhost:8765" not in block and "call " not in block]
    assert play(before, tmp_path) == 4
    words = shlex.split(SERVE)
    at = words.index("--address")
    assert words[at + 1] == "localhost:8765"
    served = Served(tmp_path, words[:at] + words[at + 2 :])
    try:
        assert (
            play(
                [block for block in BLOCKS if block not in before], tmp_path, address=served.address
            )
            >= 10
        )
    finally:
        served.kill()
