"""A hub on loopback that takes pushes: repositories, uploads of large files, and commits that follow one another."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: From so many bytes on a file is a large one.
LARGE_BYTES = 1000


@dataclass
class PushHub:
    """One data set, o/n, once it was made: its files at the newest commit, and the large objects that came."""

    files: dict[str, bytes] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    exists: bool = False
    private: bool = False
    commits: int = 0
    #: Uploads that end with an error before one comes through.
    fails: int = 0
    #: Whether another writer commits between a push's look and its commit.
    has_rival: bool = False
    #: What it says instead where it is asked for the repository: a status, headers, and pieces of a body.
    hostile: tuple[int, dict[str, str], Iterable[bytes]] | None = None
    #: Where it wants large files sent to, instead of to itself.
    elsewhere: str = ""
    #: Where it wants to be told that a large file came.
    verifies: str = ""
    #: The headers of a 429 that it gives once where it is asked how large files come.
    throttles: dict[str, str] = field(default_factory=dict)
    #: What each request showed.
    shown: list[str] = field(default_factory=list)
    url: str = ""

    @property
    def head(self) -> str:
        """The newest commit."""
        return f"{self.commits:040x}"

    def get(self, path: str) -> tuple[int, Any, dict[str, str]]:
        """Of a repository, or of a file."""
        if not self.exists:
            return 404, {}, {"X-Error-Code": "RepoNotFound"}
        if re.fullmatch(r"/api/datasets/o/n(/revision/main)?", path):
            siblings = [{"rfilename": name} for name in sorted(self.files)]
            return 200, {"id": "o/n", "sha": self.head, "siblings": siblings, "private": self.private, "tags": []}, {}
        found = re.fullmatch(r"/datasets/o/n/resolve/([^/]+)/(.+)", path)
        if found is None or found[2] not in self.files:
            return 404, {}, {"X-Error-Code": "EntryNotFound"}
        return 200, self.files[found[2]], {"ETag": f'"{hashlib.sha256(self.files[found[2]]).hexdigest()}"'}

    def post(self, path: str, body: bytes) -> tuple[int, Any]:
        """Make a repository, say how files come, take them, and commit."""
        if path == "/api/repos/create":
            asked = json.loads(body)
            self.exists, self.private = True, asked.get("private") or asked.get("visibility") == "private"
            return 200, {"url": f"{self.url}/datasets/o/n"}
        if path == "/api/validate-yaml":
            card = json.loads(body)
            assert card["content"].startswith("---\n")
            return 200, {"errors": [], "warnings": []}
        if path == "/api/datasets/o/n/preupload/main":
            files = json.loads(body)["files"]
            modes = ["lfs" if file["size"] >= LARGE_BYTES else "regular" for file in files]
            return 200, {
                "files": [
                    {"path": file["path"], "uploadMode": mode, "shouldIgnore": False}
                    for file, mode in zip(files, modes, strict=True)
                ]
            }
        if path == "/datasets/o/n.git/info/lfs/objects/batch":
            return 200, {"transfer": "basic", "objects": [self._told(item) for item in json.loads(body)["objects"]]}
        if path == "/api/datasets/o/n/commit/main":
            return self._commit([json.loads(line) for line in body.splitlines()])
        return 404, {}

    def _told(self, item: dict[str, Any]) -> dict[str, Any]:
        said = {"oid": item["oid"], "size": item["size"]}
        upload = {"href": f"{self.elsewhere or self.url}/upload/{item['oid']}", "header": {}}
        verify = {"verify": {"href": self.verifies}} if self.verifies else {}
        return said if item["oid"] in self.objects else {**said, "actions": {"upload": upload, **verify}}

    def put(self, path: str, body: bytes) -> int:
        """Take a large object."""
        oid = path.removeprefix("/upload/")
        if self.fails:
            self.fails -= 1
            return 403
        assert hashlib.sha256(body).hexdigest() == oid
        self.objects[oid] = body
        return 200

    def _commit(self, lines: list[dict[str, Any]]) -> tuple[int, Any]:
        if self.has_rival:
            self.commits += 1
        if lines[0]["value"].get("parentCommit") != self.head:
            return 412, {"error": "A commit has happened since."}
        for line in lines[1:]:
            value = line["value"]
            match line["key"]:
                case "file":
                    self.files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    self.files[value["path"]] = self.objects[value["oid"]]
                case "deletedFile":
                    del self.files[value["path"]]
        self.commits += 1
        return 200, {
            "success": True,
            "commitOid": self.head,
            "commitUrl": f"{self.url}/datasets/o/n/commit/{self.head}",
        }


@contextlib.contextmanager
def serving_pushes(hub: PushHub) -> Iterator[PushHub]:
    """The hub while it answers at its `url`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding", "") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", "0")))
            parts: list[bytes] = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def _say(self, status: int, body: Any, headers: dict[str, str]) -> None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            hub.shown.append(self.headers.get("Authorization", ""))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            if hub.hostile is not None and self.path.startswith("/api/datasets/o/n"):
                status, headers, parts = hub.hostile
                self.send_response(status)
                for name, value in {**headers, "Connection": "close"}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.close_connection = True
                with contextlib.suppress(OSError):
                    for part in parts:
                        self.wfile.write(part)
                return
            self._say(*hub.get(self.path.partition("?")[0]))

        def do_POST(self) -> None:
            data = self._body()
            if hub.throttles and self.path.endswith("/objects/batch"):
                headers, hub.throttles = hub.throttles, {}
                self._say(429, {}, headers)
                return
            status, body = hub.post(self.path.partition("?")[0], data)
            self._say(status, body, {})

        def do_PUT(self) -> None:
            self._say(hub.put(self.path, self._body()), {}, {})

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
