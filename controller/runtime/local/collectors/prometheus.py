"""Scrape a trial's Prometheus endpoint, and write a line whenever a value has changed.

An endpoint has no history: what the trial changes between two scrapes, or after the last one, is
not seen. The module reads the text format and speaks just enough HTTP to ask for it. No answer,
however slow or long, delays anything else.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from controller.runtime.local.collectors.collected import CollectedLines, Collector, json_line

SCRAPE_S = 0.5  # between two scrapes
FIRST_SCRAPE_S = 0.1  # until the endpoint has answered
PATIENCE_S = 2.0  # for one answer
MAX_ANSWER = 4 << 20  # bytes
_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(\{[^\n]*\})?\s+(\S+)(?:\s+-?\d+)?\s*")


class NoAnswer(Exception):
    """The endpoint has no metrics now. The text says why."""


async def scrape(port: int, path: str) -> str:
    """Return the body of the endpoint's answer. Raises NoAnswer."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(
                    f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nAccept: "
                    f"text/plain\r\n\r\n".encode()
                )
                answer = b""
                while data := await reader.read(1 << 16):
                    answer += data
                    if len(answer) > MAX_ANSWER:
                        raise NoAnswer(f"its answer is longer than {MAX_ANSWER >> 20} MiB")
            finally:
                writer.close()
    except TimeoutError:
        raise NoAnswer(f"it did not answer within {PATIENCE_S:g} s") from None
    except OSError as error:
        raise NoAnswer(f"it cannot be reached: {error.strerror or error}") from None
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split(b"\r\n", 1)[0].decode("latin-1")
    if status.split(" ")[1:2] != ["200"]:
        raise NoAnswer(f"it answered {status[:100]!r}")
    return body.decode("utf-8", "replace")


def samples(body: str, names: Sequence[str]) -> dict[str, float]:
    """Return the samples with these names.

    A metric with labels counts if one sample has its name. With several,
    none does, unless one has no labels.
    """
    plain: dict[str, float] = {}
    labeled: dict[str, list[float]] = {}
    for line in body.splitlines():
        match = _SAMPLE.fullmatch(line)
        if match is None or match[1] not in names:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        if match[2] in (None, "{}"):
            plain[match[1]] = value
        else:
            labeled.setdefault(match[1], []).append(value)
    single = {name: values[0] for name, values in labeled.items() if len(values) == 1}
    both = {**single, **plain}
    return {name: both[name] for name in names if name in both}


class PrometheusScraper(Collector):
    def __init__(self, port: int, path: str, names: Sequence[str], lines: CollectedLines) -> None:
        self._port = port
        self._path = path
        self._names = names
        self._lines = lines
        self._last = lines.last_line()  # what an earlier controller wrote last is not written twice
        self._task: asyncio.Task[None] | None = None
        self._trouble = ""
        self._seen = 0

    def begin(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._scrape_on())

    def finish(self) -> None:
        self.close()
        if self._trouble and not self._lines.size:
            self._lines.note(self._trouble)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def collect(self, until: int) -> None:
        self._seen = self._lines.size
        if self._task is not None and self._task.done() and not self._task.cancelled():
            self._task.result()  # raises why the lines could not be written

    def grew(self) -> bool:
        return self._lines.size > self._seen

    async def _scrape_on(self) -> None:
        while True:
            try:
                values = samples(await scrape(self._port, self._path), self._names)
                none = f"port {self._port}{self._path} has none of {', '.join(self._names)}"
                self._trouble = "" if values else none
            except NoAnswer as error:
                self._trouble = f"port {self._port}{self._path}: {error}"
                values = {}
            line = json_line(values)
            if values and line != self._last + b"\n":
                self._lines.append(line)
                self._last = line[:-1]
            await asyncio.sleep(SCRAPE_S if self._last else FIRST_SCRAPE_S)
