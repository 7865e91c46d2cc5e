"""The picture in the README, docs/run.svg: a recording of a real run in a terminal.

`tuner run` gets a pseudo-terminal of 100 by 30 characters. A terminal emulator (pyte) turns the
output into screens, which become an SVG animation at the original speed. Viewers without animation
show the last screen.
"""

from __future__ import annotations

import argparse
import fcntl
import html
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pyte
from processes import TUNER
from record import ROOT

PICTURE = ROOT / "docs" / "run.svg"
COLUMNS, LINES = 100, 30
BETWEEN_FRAMES_S, LAST_FRAME_S = 0.4, 6.0

COLUMN_PX, LINE_PX, FONT_PX, MARGIN_PX, TITLE_PX = 8.4, 19, 14, 18, 38
BACKGROUND, FOREGROUND, BAR = "#14171c", "#d6dae0", "#20252d"
COLOURS = {
    "black": "#3b4048",
    "red": "#ee6d77",
    "green": "#8fcb7a",
    "brown": "#e3bf73",
    "blue": "#6bb0f5",
    "magenta": "#cb86e0",
    "cyan": "#5fc0cb",
    "white": "#d6dae0",
    "brightblack": "#7d8593",
    "brightred": "#ff8a93",
    "brightgreen": "#a9e094",
    "brightbrown": "#f4d48d",
    "brightyellow": "#f4d48d",
    "brightblue": "#8cc5ff",
    "brightmagenta": "#dea2f0",
    "brightcyan": "#7fd8e2",
    "brightwhite": "#ffffff",
}
Screen = list[list[Any]]  # rows of pyte's characters; pyte has no types


@dataclass(frozen=True, slots=True)
class Frame:
    second: float
    screen: Screen


def faint_as_gray(output: bytes) -> bytes:
    """Replace faint text (SGR 2), which pyte does not support, by gray text."""

    def replaced(match: re.Match[bytes]) -> bytes:
        codes = match[1].split(b";")
        return (
            b"\x1b["
            + b";".join(
                b"90" if c == b"2" and b"8" not in codes[max(0, i - 1)] else c
                for i, c in enumerate(codes)
            )
            + b"m"
        )

    return re.sub(rb"\x1b\[([0-9;]*)m", replaced, output)


def record(command: list[str]) -> list[Frame]:
    """Run a command in a terminal and return its screens, including the final one."""
    terminal = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(terminal)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=ROOT,
        env=environment,
        start_new_session=True,
    )
    os.close(theirs)
    start = shown = time.monotonic()
    frames: list[Frame] = []

    def screen() -> Screen:
        return [[terminal.buffer[row][column] for column in range(COLUMNS)] for row in range(LINES)]

    while True:
        if select.select([ours], [], [], 0.05)[0]:
            try:
                output = os.read(ours, 65536)
            except OSError:  # raised on Linux when the other end is closed
                break
            if not output:
                break
            stream.feed(faint_as_gray(output))
        # between two writes, so that a screen is never incomplete
        elif time.monotonic() - shown >= BETWEEN_FRAMES_S:
            shown = time.monotonic()
            if not frames or frames[-1].screen != screen():
                frames.append(Frame(shown - start, screen()))
    os.close(ours)
    if process.wait() != 0:
        sys.exit(
            f"the run ended with {process.returncode}:\n"
            + "\n".join(filter(str.strip, terminal.display))
        )
    return [*frames, Frame(time.monotonic() - start, screen())]


def color(name: str, default: str) -> str:
    return default if name == "default" else COLOURS.get(name, f"#{name}")


def draw_row(row: list[Any], y: float) -> list[str]:
    """Draw a line of a screen: a rectangle and a text for each stretch with equal attributes."""
    drawn, column = [], 0
    for look, run in groupby(
        row, key=lambda c: (c.fg, c.bg, c.bold, c.italics, c.underscore, c.reverse)
    ):
        text = "".join(character.data for character in run)
        x, width = MARGIN_PX + column * COLUMN_PX, len(text) * COLUMN_PX
        column += len(text)
        fg, bg = color(look[0], FOREGROUND), color(look[1], BACKGROUND)
        if look[5]:
            fg, bg = bg, fg
        if bg != BACKGROUND:
            drawn.append(
                f'<rect x="{x:.1f}" y="{y - 14:.0f}" width="{width:.1f}" height="{LINE_PX}" '
                f'fill="{bg}"/>'
            )
        style = f' fill="{fg}"' if fg != FOREGROUND else ""
        style += ' font-weight="bold"' if look[2] else ""
        style += ' font-style="italic"' if look[3] else ""
        style += ' text-decoration="underline"' if look[4] else ""
        # Not every viewer keeps multiple spaces, so position each stretch without them separately.
        for words in re.finditer(r"\S+(?: \S+)*", text):
            place = (
                f'x="{x + words.start() * COLUMN_PX:.1f}" y="{y:.0f}" '
                f'textLength="{len(words[0]) * COLUMN_PX:.1f}"'
            )
            drawn.append(f"<text {place}{style}>{html.escape(words[0])}</text>")
    return drawn


def draw(frames: list[Frame], title: str) -> str:
    used = (
        max(
            i
            for frame in frames
            for i, row in enumerate(frame.screen)
            if any(c.data.strip() for c in row)
        )
        + 1
    )
    width, height = (
        COLUMNS * COLUMN_PX + 2 * MARGIN_PX,
        TITLE_PX + used * LINE_PX + 2 * MARGIN_PX - 10,
    )
    total_s = frames[-1].second + LAST_FRAME_S
    style, body = [], []
    for number, frame in enumerate(frames):
        begin = 0.0 if number == 0 else 100 * frame.second / total_s
        end = 100.0 if frame is frames[-1] else 100 * frames[number + 1].second / total_s
        hidden_first = (
            f"0% {{visibility:hidden}} {begin:.3f}% {{visibility:visible}}"
            if number
            else "0% {visibility:visible}"
        )
        hidden_last = (
            f" {end:.3f}% {{visibility:hidden}}" if end < 100 else " 100% {visibility:visible}"
        )
        style.append(f"@keyframes k{number} {{{hidden_first}{hidden_last}}}")
        still = "visible" if frame is frames[-1] else "hidden"
        style.append(
            f"#f{number} {{visibility:{still}; animation:k{number} {total_s:.2f}s step-end "
            f"infinite}}"
        )
        rows = [
            part
            for i, row in enumerate(frame.screen[:used])
            for part in draw_row(row, TITLE_PX + MARGIN_PX + 8 + i * LINE_PX)
        ]
        body.append(f'<g id="f{number}">\n' + "\n".join(rows) + "\n</g>")
    lights = "".join(
        f'<circle cx="{20 + 18 * i}" cy="{TITLE_PX / 2}" r="5.5" fill="{fill}"/>'
        for i, fill in enumerate(("#ee6d77", "#e3bf73", "#8fcb7a"))
    )
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" font-size="{FONT_PX}"
 font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace" fill="{FOREGROUND}">
<title>{html.escape(title)}</title>
<style>
{chr(10).join(style)}
</style>
<rect width="100%" height="100%" rx="9" fill="{BACKGROUND}"/>
<path d="M0 {TITLE_PX} V9 a9 9 0 0 1 9 -9 H{width - 9:.0f} a9 9 0 0 1 9 9 V{TITLE_PX} Z" fill="{BAR}"/>
{lights}
<text x="{width / 2:.0f}" y="{TITLE_PX / 2 + 5}" text-anchor="middle" fill="#9aa3b0">{html.escape(title)}</text>
{chr(10).join(body)}
</svg>
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=PICTURE, help="where to write the SVG")
    parser.add_argument(
        "file", nargs="?", default="examples/digits/experiment.yaml", help="what to run"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as state:
        frames = record([str(TUNER), "run", options.file, "--state-dir", state])
    options.to.write_text(draw(frames, f"tuner run {Path(options.file).name}"), encoding="utf-8")
    print(
        f"{options.to}: {len(frames)} screens of {frames[-1].second:.0f} seconds", file=sys.stderr
    )


if __name__ == "__main__":
    main()
