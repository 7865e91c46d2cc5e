"""A small S3 server with one bucket, which a test can let refuse."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

NAME = "logs"


class SmallBucket(ThreadingHTTPServer):
    """content: what is stored, by key. refuses: answer 503. refused_key: and so for this one."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.refuses = False
        self.refused_key = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: SmallBucket
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, body: str | bytes = "", status: int = 200) -> None:
        data = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.end_headers()
        self.wfile.write(data)

    def _do(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        refused = self.server.refused_key
        if self.server.refuses or (refused and refused in self.path):
            self._answer("<Error><Code>SlowDown</Code></Error>", 503)
            return
        address = urlsplit(self.path)
        query = parse_qs(address.query, keep_blank_values=True)
        key = address.path.removeprefix(f"/{NAME}").removeprefix("/")
        content, parts = self.server.content, self.server.parts
        match self.command:
            case "PUT":
                number = int(query["partNumber"][0])
                parts.setdefault(key, {})[number] = body
                self._answer()
            case "POST" if "uploads" in query:
                self._answer(
                    f"<InitiateMultipartUploadResult><UploadId>{key}</UploadId>"
                    "</InitiateMultipartUploadResult>"
                )
            case "POST" if "uploadId" in query:
                of_key = parts.pop(key)
                content[key] = b"".join(of_key[number] for number in sorted(of_key))
                self._answer(
                    "<CompleteMultipartUploadResult><ETag>1</ETag></CompleteMultipartUploadResult>"
                )
            case "POST":
                deleted = re.findall(r"<Key>(.*?)</Key>", body.decode())
                for each in deleted:
                    content.pop(each, None)
                found = "".join(f"<Deleted><Key>{each}</Key></Deleted>" for each in deleted)
                self._answer(f"<DeleteResult>{found}</DeleteResult>")
            case "GET" if key:
                found_bytes = content.get(key)
                self._answer(found_bytes or b"", 200 if found_bytes is not None else 404)
            case _:
                now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
                listed = "".join(
                    f"<Contents><Key>{each}</Key><Size>{len(data)}</Size>"
                    f"<LastModified>{now}</LastModified></Contents>"
                    for each, data in sorted(content.items())
                    if each.startswith(query.get("prefix", [""])[0])
                )
                self._answer(
                    f"<ListBucketResult><IsTruncated>false</IsTruncated>{listed}</ListBucketResult>"
                )

    do_GET = do_PUT = do_POST = do_DELETE = _do  # noqa: N815 - names of the library


@contextmanager
def small_bucket() -> Iterator[SmallBucket]:
    with SmallBucket() as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield server
        finally:
            server.shutdown()
            serving.join()
