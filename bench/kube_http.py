"""Cost of requests to an API server: memory of a followed log, CPU of first and later requests, speed of a log.

    PYTHONPATH=. python bench/kube_http.py [--turns 3] [--against OTHER_CHECKOUT]

The server is a separate process with TLS and minimal HTTP. Each figure comes from a new process; with --against, the
two checkouts take turns, each with its own .venv. The best of all turns is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import resource
import ssl
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FIGURES = (
    "first request, CPU ms",
    "1,000 GETs, CPU µs each",
    "1,000 GETs, requests/s",
    "1,000 POSTs, CPU µs each",
    "1,000 POSTs, requests/s",
    "200 logs, KiB each",
    "200 logs that have brought 1 MB each, KiB each",
    "1000 logs, KiB each",
    "log in 32 KiB chunks, MB/s",
    "log in 32 KiB chunks, MB per CPU second",
    "log in lines of 100 bytes, MB/s",
    "log in lines of 100 bytes, MB per CPU second",
)
MORE_IS_BETTER = ("/s", "second")
_BODY = json.dumps({"kind": "Job", "metadata": {"name": "a", "labels": {"x": "y" * 900}}}).encode()
_FLOOD_BYTES = 200_000_000
_LINE = b"2026-11-23T10:00:00.000000000Z " + b"x" * 68 + b"\n"


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
    with suppress(OSError, asyncio.IncompleteReadError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            for line in head.lower().splitlines():
                if line.startswith(b"content-length:"):
                    await reader.readexactly(int(line[15:]))
            if b"/log" not in head.split(b"\r\n", 1)[0]:
                writer.write(answer)
                continue
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            if b"/log-quiet" in head:
                for _ in range(10_000 if b"/log-quiet-later" in head else 1):
                    writer.write(b"%x\r\n%b\r\n" % (len(_LINE), _LINE))
                await reader.read()
                return
            piece = _LINE if b"/log-lines" in head else _LINE * 327
            pieces = b"%x\r\n%b\r\n" % (len(piece), piece) * (65536 // len(piece))
            for _ in range(_FLOOD_BYTES // 65536 // (4 if b"/log-lines" in head else 1)):
                writer.write(pieces)
                await writer.drain()
            writer.write(b"0\r\n\r\n")


async def serve(certificate: str, key: str) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    server = await asyncio.start_server(_answer, "127.0.0.1", 0, ssl=context, backlog=4096, limit=1 << 22)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    os._exit(0)


def _resident_kib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1024


async def _requests(method: str) -> dict[str, float]:
    from controller.kube.client import Connection

    connection = await Connection.open(None)
    body = json.loads(_BODY) if method == "POST" else None

    async def some(count: int) -> None:
        for _ in range(count):
            await connection.call(method, "/api/v1/things", {"limit": "500"}, body)

    await asyncio.gather(*(some(5) for _ in range(8)))
    began, used = time.perf_counter(), time.process_time()
    await asyncio.gather(*(some(125) for _ in range(8)))
    took, used = time.perf_counter() - began, time.process_time() - used
    await connection.close()
    return {f"1,000 {method}s, CPU µs each": used * 1e3, f"1,000 {method}s, requests/s": 1000 / took}


async def _memory(count: int, path: str = "/log-quiet", lines: int = 1) -> dict[str, float]:
    from controller.kube.client import KubernetesClient

    client = await KubernetesClient.connect()
    connection = client._connection
    async with AsyncExitStack() as open_streams:
        pieces = []

        async def follow() -> None:
            response = await open_streams.enter_async_context(connection.answer("GET", path, {}, silence_s=120))
            pieces.append(connection.chunks(response))
            left = lines * len(_LINE)
            while left:
                left -= len(await anext(pieces[-1]))

        await follow()
        before = _resident_kib()
        for _ in range(count):
            await follow()
        after = _resident_kib()
        for each in pieces:
            await each.aclose()  # type: ignore[attr-defined]
    await client.close()
    what = "logs" if lines == 1 else "logs that have brought 1 MB each"
    return {f"{count} {what}, KiB each": (after - before) / count}


async def _flood(path: str, name: str) -> dict[str, float]:
    from controller.kube.client import Connection

    connection = await Connection.open(None)
    count = 0
    began, used = time.perf_counter(), time.process_time()
    async with connection.answer("GET", path, {}, silence_s=120) as response:
        async for piece in connection.chunks(response):
            count += len(piece)
    took, used = time.perf_counter() - began, time.process_time() - used
    await connection.close()
    return {f"{name}, MB/s": count / took / 1e6, f"{name}, MB per CPU second": count / used / 1e6}


async def _first() -> dict[str, float]:
    import controller.runtime.kubernetes.runtime  # noqa: F401
    from controller.kube.client import KubernetesClient

    client = await KubernetesClient.connect()
    await client.version_and_clock()
    used = time.process_time()
    await client.close()
    return {"first request, CPU ms": used * 1e3}


def measure(what: str) -> None:
    doing = {
        "first": _first,
        "GET": lambda: _requests("GET"),
        "POST": lambda: _requests("POST"),
        "200": lambda: _memory(200),
        "busy": lambda: _memory(200, "/log-quiet-later", 10_000),
        "1000": lambda: _memory(1000),
        "chunks": lambda: _flood("/log-chunks", "log in 32 KiB chunks"),
        "lines": lambda: _flood("/log-lines", "log in lines of 100 bytes"),
    }[what]
    print(json.dumps(asyncio.run(doing())))


def _compare(checkouts: list[Path], turns: int, only: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        key, certificate, config = (Path(folder, name) for name in ("key", "certificate", "config"))
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
             "-keyout", key, "-out", certificate, "-subj", "/CN=x", "-addext", "subjectAltName=IP:127.0.0.1"],
            check=True, capture_output=True)  # fmt: skip
        with subprocess.Popen(
            [sys.executable, __file__, "--serve", str(certificate), str(key)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:  # fmt: skip
            assert server.stdout is not None
            port = int(server.stdout.readline())
            cluster = {
                "server": f"https://127.0.0.1:{port}",
                "certificate-authority-data": base64.b64encode(certificate.read_bytes()).decode(),
            }
            config.write_text(json.dumps({
                "current-context": "bench",
                "clusters": [{"name": "bench", "cluster": cluster}],
                "users": [{"name": "bench", "user": {"token": "secret"}}],
                "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
            }))  # fmt: skip
            best: dict[Path, dict[str, float]] = {checkout: {} for checkout in checkouts}
            for _ in range(turns):
                for what in only:
                    for checkout in checkouts:
                        environ = os.environ | {"KUBECONFIG": str(config), "PYTHONDONTWRITEBYTECODE": "1"}
                        environ["PYTHONPATH"] = f"{checkout}{os.pathsep}{os.environ.get('BENCH_PATH', '')}"
                        run = [checkout / ".venv/bin/python", __file__, "--measure", what]
                        done = subprocess.run(run, env=environ, cwd=checkout, capture_output=True, check=False)
                        if done.returncode:
                            sys.exit(done.stderr.decode())
                        for name, value in json.loads(done.stdout).items():
                            better = max if name.endswith(MORE_IS_BETTER) else min
                            best[checkout][name] = better(value, best[checkout].get(name, value))
            server.terminate()
    print("| figure |", " | ".join(checkout.name for checkout in checkouts), "|")
    for name in FIGURES:
        if name in best[checkouts[0]]:
            print(f"| {name} |", " | ".join(f"{best[checkout][name]:.0f}" for checkout in checkouts), "|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--against", type=Path, help="another checkout, measured by turns with this one")
    parser.add_argument(
        "--only", default="first,GET,POST,200,busy,1000,chunks,lines", help="which, with commas between"
    )
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(*options.serve))
    elif options.measure:
        measure(options.measure)
    else:
        _compare([ROOT] if options.against is None else [options.against, ROOT], options.turns, options.only.split(","))


if __name__ == "__main__":
    main()
