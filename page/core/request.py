"""The head of an HTTP request to the page, and who is refused. Pure.

The page is served on loopback, to who has its key. A browser may be led there by any page that it shows, so besides:
the host that it names must be loopback (a name of others that is made to resolve to it is refused), and where the
request was begun by a page, by this one alone.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass

#: Bytes of a head and of a body.
HEAD_BYTES_MAX = 16 << 10
BODY_BYTES_MAX = 16 << 10
#: Headers of a request.
HEADERS_MAX = 64
_LINE = re.compile(r"(GET|HEAD|POST) (/[!-~]{0,1023}) HTTP/1\.[01]")
_HEADER = re.compile(r"([A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}):[ \t]*([ -~\t]*)")
_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?")
_LENGTH = re.compile(r"[0-9]{1,6}")
#: What a browser says of who began a request: the page itself, or the person at an address bar.
_OWN = ("same-origin", "none")
#: What begins the path of everything that needs the key.
_PRIVATE = "/api/"


class RequestRefused(Exception):  # noqa: N818 - named after what is so
    """A request that is not served; `status` is that of HTTP."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


@dataclass(frozen=True, slots=True)
class Request:
    """The head of a request; names of headers are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]

    @property
    def private(self) -> bool:
        """Whether it needs the key."""
        return self.path.startswith(_PRIVATE)


def parse_head(data: bytes) -> Request:
    """The head that ends with an empty line. Raises RequestRefused for anything else."""
    if len(data) > HEAD_BYTES_MAX or not data.endswith(b"\r\n\r\n"):
        raise RequestRefused(431, f"a head of at most {HEAD_BYTES_MAX} bytes is read")
    line, *lines = data[:-4].decode("latin-1").split("\r\n")
    begun = _LINE.fullmatch(line)
    if begun is None:
        raise RequestRefused(400, "GET, HEAD and POST of HTTP/1 are understood")
    if len(lines) > HEADERS_MAX:
        raise RequestRefused(431, f"at most {HEADERS_MAX} headers are read")
    headers: dict[str, str] = {}
    for item in lines:
        found = _HEADER.fullmatch(item)
        if found is None:
            raise RequestRefused(400, "a header is a name, a colon and printable text")
        name = found[1].lower()
        if name in headers and name in ("host", "origin", "authorization", "content-length", "content-type"):
            raise RequestRefused(400, f"{name} is given twice")
        headers[name] = found[2].strip()
    return Request(begun[1], begun[2].partition("?")[0], headers)


def check(request: Request, key: str) -> None:
    """Raise RequestRefused unless this request may be served to who shows what it shows."""
    headers = request.headers
    host = headers.get("host", "")
    if not _HOST.fullmatch(host):
        raise RequestRefused(421, "the page is asked for at 127.0.0.1, localhost or [::1]")
    if "origin" in headers and headers["origin"] != f"http://{host}":
        raise RequestRefused(403, "another page may not ask here")
    if not request.private:
        if request.method == "POST":
            raise RequestRefused(405, "nothing is posted there")
        return
    if headers.get("sec-fetch-site", "none") not in _OWN:
        raise RequestRefused(403, "another page may not ask here")
    if not hmac.compare_digest(headers.get("authorization", "").encode("latin-1"), f"Bearer {key}".encode()):
        raise RequestRefused(401, "open the page by its whole address: the key stands behind its #")


def body_length(request: Request) -> int:
    """Bytes of a question. Raises RequestRefused."""
    if "transfer-encoding" in request.headers or not _LENGTH.fullmatch(request.headers.get("content-length", "")):
        raise RequestRefused(411, "a question has a Content-Length")
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise RequestRefused(415, "a question is application/json")
    length = int(request.headers["content-length"])
    if length > BODY_BYTES_MAX:
        raise RequestRefused(413, f"a question has at most {BODY_BYTES_MAX} bytes")
    return length
