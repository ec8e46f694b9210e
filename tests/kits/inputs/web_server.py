"""A web server on loopback for the tests: files with ranges and ETags, index pages, a hub, and ways to misbehave."""

from __future__ import annotations

import contextlib
import hashlib
import html
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


@dataclass
class Reply:
    """An answer as it is sent; `announced` is the Content-Length that it claims, -1 for none."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    announced: int | None = None


@dataclass
class Asked:
    """A request."""

    path: str
    query: str
    headers: Any


@dataclass
class WebServer:
    """The files, by path without a leading slash. `fault` may answer in the place of what would be."""

    files: dict[str, bytes] = field(default_factory=dict)
    fault: Callable[[Asked], Reply | None] = lambda asked: None
    has_ranges: bool = True
    has_tags: bool = True
    asked: list[Asked] = field(default_factory=list)
    url: str = ""

    def reply(self, asked: Asked) -> Reply:
        """What is answered."""
        path = asked.path.removeprefix("/")
        if path in self.files:
            return self.ranged(asked, self.files[path])
        folder = path if path.endswith("/") or not path else path + "/"
        names = sorted(
            {
                name.removeprefix(folder).partition("/")[0] + "/" * ("/" in name.removeprefix(folder))
                for name in self.files
                if name.startswith(folder)
            }
        )
        if not names:
            return Reply(404, b"nothing here")
        if folder != path:
            return Reply(301, headers={"Location": "/" + folder})
        links = "".join(f'<a href="{html.escape(name)}">{html.escape(name)}</a>' for name in names)
        page = f'<html><a href="?C=N">Name</a><a href="/">up</a><a href="https://elsewhere/x">x</a>{links}</html>'
        return Reply(200, page.encode(), {"Content-Type": "text/html; charset=utf-8"})

    def ranged(self, asked: Asked, data: bytes) -> Reply:
        """An object, or the part of it that is asked for."""
        tags = {"ETag": f'"{hashlib.md5(data).hexdigest()}"'} if self.has_tags else {}
        match = _RANGE.fullmatch(asked.headers.get("Range", "")) if self.has_ranges else None
        if match is None:
            return Reply(200, data, tags)
        first, last = int(match[1]), min(int(match[2]), len(data) - 1)
        if first >= len(data):
            return Reply(416, b"", tags | {"Content-Range": f"bytes */{len(data)}"})
        return Reply(206, data[first : last + 1], tags | {"Content-Range": f"bytes {first}-{last}/{len(data)}"})


class HubServer(WebServer):
    """A hub of one data set, o/n: its files lie at another server, as large ones do."""

    token = ""
    page_size = 2

    def reply(self, asked: Asked) -> Reply:
        if asked.path.startswith("/cdn/"):
            assert "Authorization" not in asked.headers or asked.headers["Host"] in self.url
            return super().ranged(asked, self.files[asked.path.removeprefix("/cdn/")])
        if self.token and asked.headers.get("Authorization") != f"Bearer {self.token}":
            return Reply(401, b"", {"X-Error-Code": "GatedRepo"})
        if (listed := re.fullmatch(r"/api/datasets/o/n/tree/(main|v1)/?(.*)", asked.path)) is not None:
            return self._tree(asked, f"{listed[2].rstrip('/')}/" if listed[2] else "")
        found = re.fullmatch(r"/datasets/o/n/resolve/(main|v1)/(.*)", asked.path)
        if found is None:
            return Reply(404, b"", {"X-Error-Code": "RepoNotFound"})
        if found[2] not in self.files:
            return Reply(404, b"", {"X-Error-Code": "EntryNotFound"})
        oid = hashlib.sha256(self.files[found[2]]).hexdigest()
        place = self.url.replace("127.0.0.1", "localhost")
        return Reply(
            302,
            b"",
            {
                "Location": f"{place}/cdn/{found[2]}",
                "X-Linked-ETag": f'"{oid}"',
                "ETag": '"git"',
                "X-Linked-Size": str(len(self.files[found[2]])),
                "X-Repo-Commit": "c" * 40,
            },
        )

    def _tree(self, asked: Asked, folder: str) -> Reply:
        names: dict[str, dict[str, Any]] = {}
        for path, data in self.files.items():
            below = path.removeprefix(folder)
            if path.startswith(folder) and "/" in below:
                name = folder + below.partition("/")[0]
                names[name] = {"type": "directory", "oid": "t", "size": 0, "path": name}
            elif path.startswith(folder):
                oid = hashlib.sha256(data).hexdigest()
                lfs = {"oid": oid, "size": len(data), "pointerSize": 134}
                names[path] = {"type": "file", "oid": "g", "size": len(data), "path": path, "lfs": lfs}
        items = [names[name] for name in sorted(names)]
        at = int(asked.query.removeprefix("cursor=") or 0) if asked.query.startswith("cursor=") else 0
        behind = at + self.page_size
        link = {"Link": f'<{self.url}{asked.path}?cursor={behind}>; rel="next"'} if behind < len(items) else {}
        return Reply(200, json.dumps(items[at:behind]).encode(), {"Content-Type": "application/json"} | link)


@contextlib.contextmanager
def serving(server: WebServer) -> Iterator[WebServer]:
    """The server while it answers at its `url`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            asked = Asked(path, query, self.headers)
            server.asked.append(asked)
            reply = server.fault(asked) or server.reply(asked)
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            announced = len(reply.body) if reply.announced is None else reply.announced
            if announced >= 0:
                self.send_header("Content-Length", str(announced))
            if announced != len(reply.body):
                self.send_header("Connection", "close")
                self.close_connection = True
            self.end_headers()
            with contextlib.suppress(OSError):
                if self.command == "GET":
                    self.wfile.write(reply.body)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Nothing: clients go as they please."""

    with Quiet(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        server.url = f"http://127.0.0.1:{http.server_address[1]}"
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()
