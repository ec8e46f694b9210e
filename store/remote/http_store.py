"""Files of a web server, `https://host/path`: read by ranges, listed by the index pages that it shows of folders.

The stored bytes are wanted: no Content-Encoding is asked for, and none is undone.
"""

from __future__ import annotations

import contextlib
import functools
import html
import os
import re
import ssl
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import certifi
import urllib3
import xxhash
from urllib3.exceptions import HTTPError, LocationParseError, NameResolutionError, NewConnectionError, SSLError

from headrace.store import InvalidUri, ObjectInfo, ObjectMissing, StoreRefused, validate_key
from headrace.store.remote.folders import VERSION_CHARACTERS_MAX, FolderEntry, FolderStore
from headrace.store.remote.retrier import RemoteRetrier, TryAgain
from headrace.store.s3 import RetryPolicy
from headrace.store.s3.connection import allow, kind_of, pools_of

#: Until a connection stands, and between two pieces of an answer.
CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 10.0, 30.0
#: One attempt, however its bytes trickle.
ATTEMPT_S_MAX = 120.0
#: Connections kept open, to each server.
CONNECTIONS_KEPT = 8
#: From one address to the next.
REDIRECTS_MAX = 5
#: Bytes of a page: an index, or an answer of the hub.
PAGE_BYTES_MAX = 16 << 20
#: Bytes of an object that are passed over where a server gives no ranges.
UNRANGED_BYTES_MAX = 64 << 20
_PIECE_BYTES = 256 << 10
#: Bytes of a body that nobody wants, such as that of a redirect, which are read to keep the connection.
_LEFT_BYTES_MAX = 4 << 10
_STATUS_AGAIN = (408, 425, 429, 500, 502, 503, 504)
_RANGE = re.compile(r"bytes (?:(\d{1,18})-(\d{1,18})|\*)/(\d{1,18})", re.ASCII)
_DIGITS = re.compile(r"\d{1,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What was said at the end of the redirects."""

    status: int
    url: str
    headers: Mapping[str, str]
    body: bytes
    #: The headers of each answer, the redirects' too.
    said: tuple[Mapping[str, str], ...]
    #: Bytes of the whole object; -1 where the server does not say.
    total: int = -1


class HttpWire:
    """Connections to a web server and to those that it redirects to. May be used by any thread, and after a fork."""

    def __init__(self, uri: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._uri, self._clock = uri, clock
        self._pid = -1
        #: By proxy, and by whose network the first server is of where it redirected.
        self._pools: dict[tuple[str, str | None], Any] = {}
        #: Whose network a first server is of.
        self._kinds: dict[str, str] = {}

    def page(self, url: str, headers: Mapping[str, str]) -> HttpAnswer:
        """A whole page of at most PAGE_BYTES_MAX. Raises TryAgain, StoreRefused."""
        return self._ask(url, headers, -1, PAGE_BYTES_MAX)

    def part(self, url: str, headers: Mapping[str, str], offset: int, length: int) -> HttpAnswer:
        """Bytes of an object, and its size. Raises TryAgain, StoreRefused."""
        return self._ask(url, headers, offset, length)

    def _ask(self, url: str, headers: Mapping[str, str], offset: int, length: int) -> HttpAnswer:
        until, said, home = self._clock() + ATTEMPT_S_MAX, list[Mapping[str, str]](), _origin(url)
        sent = {"User-Agent": "headrace", "Accept-Encoding": "identity"}
        if offset >= 0:
            sent["Range"] = f"bytes={offset}-{offset + max(length, 1) - 1}"
        host = urllib.parse.urlsplit(url).hostname or ""
        for hop in range(REDIRECTS_MAX + 1):
            self._check(until)
            # what identifies us is for the first server alone
            own, guard = dict(headers) if _origin(url) == home else {}, self._kinds.get(host, "") if hop else None
            with self._open(url, sent | own, guard) as response:
                said.append(response.headers)
                allow(response, until - self._clock())
                if response.status not in (301, 302, 303, 307, 308):
                    return self._answer(response, url, tuple(said), offset, length, until)
                url = self._next(url, response.headers.get("Location", ""))
        raise StoreRefused(f"{self._uri}: {REDIRECTS_MAX} redirects lead nowhere; name the last address")

    def _next(self, url: str, location: str) -> str:
        found = joined(url, location)
        old, new = urllib.parse.urlsplit(url), urllib.parse.urlsplit(found)
        why = ""
        if not found:
            why = "is no address"
        elif new.scheme not in ("http", "https") or not new.hostname:
            why = "is no web address"
        elif old.scheme == "https" and new.scheme != "https":
            why = "has no TLS"
        if why:
            raise StoreRefused(f"{self._uri}: it redirects to {location[:200]!r}, which {why}")
        return found

    def _answer(
        self, response: Any, url: str, said: tuple[Mapping[str, str], ...], offset: int, length: int, until: float
    ) -> HttpAnswer:
        status, headers, body, total = int(response.status), response.headers, b"", -1
        if status in _STATUS_AGAIN:
            wait = headers.get("Retry-After", "")
            raise TryAgain(f"it answered {status}", float(wait) if _DIGITS.fullmatch(wait) else 0.0)
        if status == 206 and offset >= 0:
            first, last, total = _range_of(headers)
            if first != offset or last < first or last >= total or last - first >= max(length, 1):
                raise TryAgain("it gave another range than was asked for")
            body = self._take(response, last - first + 1, until)
            if len(body) != last - first + 1:
                raise TryAgain(f"the answer ended after {len(body):,} of {last - first + 1:,} bytes")
            body = body[:length]
        elif status == 416:
            total = _range_of(headers)[2]
        elif status == 200:
            total = _announced(headers)
            body = self._whole(response, offset, length, total, until)
        return HttpAnswer(status, url, headers, body, said, total)

    def _whole(self, response: Any, offset: int, length: int, total: int, until: float) -> bytes:
        """What was asked for of an answer that holds all: a page, or an object of a server without ranges."""
        if offset < 0:
            body = self._take(response, length + 1, until)
            if len(body) > length:
                raise StoreRefused(f"{self._uri}: a page has more than {length >> 20} MiB; narrow the input")
            return body
        if offset > UNRANGED_BYTES_MAX:
            raise StoreRefused(
                f"{self._uri}: this server gives no ranges of an object, and this one is above "
                f"{UNRANGED_BYTES_MAX >> 20} MiB: download it, and read the file"
            )
        passed = 0
        while passed < offset:
            part = self._take(response, min(_PIECE_BYTES, offset - passed), until)
            if not part:
                break
            passed += len(part)
        body = self._take(response, length, until)
        if total >= 0 and passed + len(body) < min(total, offset + length):
            raise TryAgain(f"the answer ended after {passed + len(body):,} of {total:,} bytes")
        return body

    def _take(self, response: Any, size: int, until: float) -> bytes:
        parts: list[bytes] = []
        while size > 0:
            self._check(until)
            part = response.read1(min(size, _PIECE_BYTES))
            if not part:
                break
            parts.append(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _check(self, until: float) -> None:
        if self._clock() > until:
            raise TryAgain(f"the answer was not complete within {ATTEMPT_S_MAX:.0f} s")

    @contextlib.contextmanager
    def _open(self, url: str, headers: Mapping[str, str], guard: str | None) -> Iterator[Any]:
        with self._as_errors():
            response = self._pool(url, guard).urlopen(
                "GET", url, headers=headers, preload_content=False, redirect=False, decode_content=False, retries=False
            )
            try:
                yield response
            finally:
                # a long body that was left is not worth its connection
                left = response.length_remaining
                if left is not None and left <= _LEFT_BYTES_MAX:
                    response.read()
                    response.release_conn()
                else:
                    response.close()

    def _pool(self, url: str, guard: str | None) -> Any:
        if os.getpid() != self._pid:
            self._pools, self._pid = {}, os.getpid()
        proxy = proxy_of(url)
        if (proxy, guard) not in self._pools:
            options: dict[str, Any] = {
                "maxsize": CONNECTIONS_KEPT,
                "timeout": urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=READ_TIMEOUT_S),
            }
            made: Any = urllib3.ProxyManager(proxy, **options) if proxy else urllib3.PoolManager(**options)
            authorities = os.environ.get("SSL_CERT_FILE") or certifi.where()
            met = None if proxy else functools.partial(self._met, guard)
            self._pools[proxy, guard] = pools_of(made, authorities, met)
        return self._pools[proxy, guard]

    def _met(self, guard: str | None, host: str, address: str) -> None:
        """Raise StoreRefused where a redirect has led into this host's own network: names and digits tell it late."""
        kind = kind_of(address)
        if guard is None:
            self._kinds[host] = kind
        elif kind not in ("", guard):
            raise StoreRefused(f"{self._uri}: it redirects to {host}, which is {address}: of this host's own network")

    @contextlib.contextmanager
    def _as_errors(self) -> Iterator[None]:
        try:
            yield
        except (LocationParseError, UnicodeError) as error:
            raise InvalidUri(f"{self._uri}: this address cannot be parsed") from error
        except NameResolutionError as error:
            raise TryAgain("the host's name is not known") from error
        except NewConnectionError as error:
            raise TryAgain("there is no connection") from error
        except (SSLError, ssl.SSLError) as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise StoreRefused(
                    f"{self._uri}: its certificate is not accepted; name the file of its authority in SSL_CERT_FILE"
                ) from error
            raise TryAgain("there is no TLS connection") from error
        except (HTTPError, OSError) as error:
            raise TryAgain("the connection broke, or no answer came in time") from error


def proxy_of(url: str) -> str:
    """The proxy by which the environment wants an address to be reached; "" for none."""
    parts = urllib.parse.urlsplit(url)
    said = urllib.request.getproxies_environment().get(parts.scheme, "")
    host = parts.hostname or ""
    if not said or host in ("localhost", "127.0.0.1", "::1") or urllib.request.proxy_bypass(parts.netloc):
        return ""
    return said if "://" in said else f"http://{said}"


def joined(url: str, link: str) -> str:
    """The address to which a link on a page leads; "" where it leads nowhere."""
    try:
        found = urllib.parse.urljoin(url, link.strip())
        urllib.parse.urlsplit(found)
    except ValueError:
        return ""
    return found if link else ""


def _origin(url: str) -> tuple[str, str]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.netloc


def _range_of(headers: Mapping[str, str]) -> tuple[int, int, int]:
    """First and last byte of a part (-1 for none), and the bytes of the whole. Raises TryAgain."""
    match = _RANGE.fullmatch(headers.get("Content-Range", "").strip())
    if match is None:
        raise TryAgain("it does not say which part of how many bytes it gave")
    return int(match[1] or -1), int(match[2] or -1), int(match[3])


def _announced(headers: Mapping[str, str]) -> int:
    said = headers.get("Content-Length", "").strip()
    return int(said) if _DIGITS.fullmatch(said) else -1


#: A link of an index page, and where it leads. Python's parser of HTML raises at some pages, and takes long for others.
_LINK = re.compile(r"<a\s[^<>]{1,8192}>", re.IGNORECASE)
_HREF = re.compile(r"""\shref\s{0,9}=\s{0,9}(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""", re.IGNORECASE)
#: What stays as it is in an address: a key is written as in one, escapes included.
_SAFE = "/%:@!$&'()*+,;=~-._"


class HttpStore(FolderStore):
    """The files of one server. What follows `?` in the URI goes with every request.

    The version is the ETag, or else size and time of the last change, or else the size alone.
    """

    def __init__(self, uri: str, retry_policy: RetryPolicy | None = None) -> None:
        super().__init__(uri)
        plain, mark, query = uri.partition("?")
        try:
            parts = urllib.parse.urlsplit(plain)
            _ = parts.port
        except ValueError as error:
            raise InvalidUri(f"{uri}: {error}") from error
        if not parts.hostname:
            raise InvalidUri(f"{uri}: it names no host; write https://host/path")
        self._base, self._query = plain.rstrip("/") + "/", mark + query
        self._wire = HttpWire(uri)
        self._retrier = RemoteRetrier(uri, retry_policy)

    def head(self, key: str) -> ObjectInfo | None:
        """See `InputStore.head`. One byte is asked for: not every server answers HEAD as it answers GET."""
        answer = self._part(key, 0, 1)
        if answer is None or self._is_folder(key, answer):
            return None
        return self._info(key, answer)

    def get_with_info(self, key: str, offset: int, length: int) -> tuple[bytes, ObjectInfo]:
        """See `headrace.store.contract.objects.get_with_info`."""
        answer = self._part(key, offset, length)
        if answer is None:
            raise ObjectMissing(key, self.uri)
        return answer.body, self._info(key, answer)

    def entries(self, folder: str) -> Iterable[FolderEntry]:
        """See `FolderStore.entries`: the links of the folder's index page that lead to what lies directly below it."""
        answer = self._page(folder, self._url(folder))
        if self._is_missing(answer, folder):
            return []
        if "html" not in answer.headers.get("Content-Type", "").lower():
            raise StoreRefused(f"{self.uri}: the server shows no index of {folder!r}; name each file")
        return [FolderEntry(name) for name in links_below(answer.body, answer.url.partition("?")[0])]

    def _page(self, folder: str, url: str) -> HttpAnswer:
        return self._retrier.ask(f"list {folder!r}", lambda: self._wire.page(url, self._headers()))

    def _url(self, key: str) -> str:
        return self._base + urllib.parse.quote(key, safe=_SAFE) + self._query

    def _headers(self) -> Mapping[str, str]:
        return {}

    def _version(self, answer: HttpAnswer) -> str:
        tag = plain_tag(answer.headers.get("ETag", ""))
        changed = answer.headers.get("Last-Modified", "").strip()
        return tag or (f"{answer.total}-{changed}" if changed else str(answer.total))

    def _missing(self, answer: HttpAnswer) -> bool:
        return answer.status in (404, 410)

    def _remedy(self, answer: HttpAnswer) -> str:
        del answer
        return "correct the address; what only those who are known may read, download first"

    def _part(self, key: str, offset: int, length: int) -> HttpAnswer | None:
        """Bytes of an object; None where it is missing. Raises StoreRefused."""
        validate_key(key)
        url = self._url(key)
        answer = self._retrier.ask(f"get {key!r}", lambda: self._wire.part(url, self._headers(), offset, length))
        return None if self._is_missing(answer, key) else answer

    def _is_missing(self, answer: HttpAnswer, key: str) -> bool:
        if self._missing(answer):
            return True
        if answer.status not in (200, 206, 416):
            raise StoreRefused(f"{self.uri}: cannot get {key!r}: it answered {answer.status}; {self._remedy(answer)}")
        return False

    def _is_folder(self, key: str, answer: HttpAnswer) -> bool:
        """Servers of files redirect from the name of a folder to the same with a slash."""
        asked, given = self._url(key).partition("?")[0], answer.url.partition("?")[0]
        return urllib.parse.urlsplit(given).path == urllib.parse.urlsplit(asked).path + "/"

    def _info(self, key: str, answer: HttpAnswer) -> ObjectInfo:
        if answer.total < 0:
            raise StoreRefused(
                f"{self.uri}: the server does not say how many bytes {key!r} has: download it, and read the file"
            )
        return ObjectInfo(key, answer.total, bounded_version(self._version(answer)))


def plain_tag(said: str) -> str:
    """An ETag without quotes, whether it is a weak one or not."""
    return said.strip().removeprefix("W/").strip('"')


def bounded_version(version: str) -> str:
    """A version that a ledger may hold: what is too long, or does not print, becomes its hash."""
    if len(version) <= VERSION_CHARACTERS_MAX and version.isprintable():
        return version
    return str(xxhash.xxh3_128_hexdigest(version.encode("utf-8", "surrogatepass")))


def links_below(page: bytes, url: str) -> Iterator[str]:
    """The names that a page's links give to what lies directly below it; folders end in a slash."""
    base = url.rpartition("/")[0] + "/"
    for tag in _LINK.finditer(page.decode("utf-8", "replace")):
        found = _HREF.search(tag[0])
        target = joined(url, html.unescape(found[1] or found[2] or found[3] or "")) if found else ""
        if "?" in target or "#" in target or not target.startswith(base):
            continue
        name = target.removeprefix(base)
        if name.strip("/") and "/" not in name.removesuffix("/"):
            yield name
