"""Servers that answer a range in other ways than S3 does: with 200 above the range, or with the whole object."""

from __future__ import annotations

import http.server
import re
import threading
from collections.abc import Iterator

import pytest

from headrace.store.s3.store import S3Store
from headrace.store.s3.upload import Sizes

DATA = bytes(range(256)) * 20
READ_BYTES = 1000


class Odd(http.server.BaseHTTPRequestHandler):
    """An object at every key. `rclone serve s3` 1.75 answers a range with 200; a plain web server knows no ranges."""

    protocol_version = "HTTP/1.1"
    knows_ranges = True

    def do_GET(self) -> None:
        first, last = map(int, re.findall(r"\d+", self.headers["Range"]))
        body = DATA[first : last + 1] if self.knows_ranges else DATA
        self.send_response(200)
        if self.knows_ranges:
            self.send_header("Content-Range", f"bytes {first}-{first + len(body) - 1}/{len(DATA)}")
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture(params=[True, False], ids=["200 above the range", "the whole object"])
def store(request: pytest.FixtureRequest) -> Iterator[S3Store]:
    handler = type("Handler", (Odd,), {"knows_ranges": request.param})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        uri = f"s3://bucket?endpoint=http://127.0.0.1:{server.server_address[1]}&anonymous=true"
        yield S3Store(uri, sizes=Sizes(read_bytes=READ_BYTES))
        server.shutdown()
        thread.join(10.0)


@pytest.mark.parametrize(("offset", "length"), [(0, 10), (7, 500), (100, 3000), (5000, 900), (0, None)])
def test_a_range_is_the_bytes_that_were_asked_for(store: S3Store, offset: int, length: int | None) -> None:
    end = None if length is None else offset + length
    assert store.get("k", offset, length) == DATA[offset:end]


def test_a_stream_is_the_bytes_that_were_asked_for(store: S3Store) -> None:
    assert b"".join(store.stream("k", 100, 3000, 512)) == DATA[100:3100]
