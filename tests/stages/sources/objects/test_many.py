"""A listing of very many objects streams: memory does not grow with their number."""

from __future__ import annotations

import http.server
import pathlib
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator

import pytest

PAGE_KEYS = 1000
NUMBERS = [50_000, pytest.param(1_000_000, marks=pytest.mark.slow)]
#: What a page and the names of a folder may take; 50,000 listed objects held at once were seen to take 14 and 26 MiB.
GROWN_BYTES_MAX = 8 << 20
#: Lists its input, and prints how many fragments there are and by how many bytes the process grew.
LISTING = """
import resource, sys
import headrace.store.s3.store
from headrace.stages.sources.jsonl import JsonlSource
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for count, fragment in enumerate(JsonlSource("read", [sys.argv[1]]).list(), 1):
    pass
print(count, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def check_listing(given: str, number: int) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", LISTING, given],
        capture_output=True,
        text=True,
        timeout=300,
        env={"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"},
    )
    assert done.returncode == 0, done.stderr
    count, grown = map(int, done.stdout.split())
    assert count == number
    assert grown < GROWN_BYTES_MAX


class _Bucket(http.server.BaseHTTPRequestHandler):
    """Answers list requests with pages made as they are asked for."""

    protocol_version = "HTTP/1.1"
    keys = 0

    def do_HEAD(self) -> None:
        self._answer(404, b"")

    def do_GET(self) -> None:
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
        first = int(query.get("continuation-token", "0"))
        last = min(first + PAGE_KEYS, self.keys)
        lines = "".join(
            f"<Contents><Key>in/{number:08d}.jsonl</Key><Size>10</Size><ETag>x</ETag>"
            "<LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents>"
            for number in range(first, last)
        )
        more = last < self.keys
        token = f"<NextContinuationToken>{last}</NextContinuationToken>" if more else ""
        body = (
            f"<ListBucketResult><Name>bucket</Name><EncodingType>url</EncodingType><KeyCount>{last - first}</KeyCount>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{lines}</ListBucketResult>"
        )
        self._answer(200, body.encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Nothing."""


@pytest.fixture(params=NUMBERS)
def bucket(request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    """The endpoint of a bucket of so many keys."""
    handler = type("Bucket", (_Bucket,), {"keys": request.param})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", request.param
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.slow
def test_a_bucket_of_very_many_objects_is_listed_in_bounded_memory(bucket: tuple[str, int]) -> None:
    endpoint, number = bucket
    check_listing(f"s3://bucket/in/*.jsonl?endpoint={endpoint}", number)


@pytest.mark.slow
@pytest.mark.parametrize("number", NUMBERS)
def test_folders_of_very_many_files_are_listed_in_bounded_memory(tmp_path: pathlib.Path, number: int) -> None:
    for folder in range(number // PAGE_KEYS):
        below = tmp_path / f"{folder:05d}"
        below.mkdir()
        for name in range(PAGE_KEYS):
            (below / f"{name:05d}.jsonl").touch()
    check_listing(str(tmp_path), number)
