"""Files of a web server, `https://host/path`: read by ranges, listed by the index pages that it shows of folders."""

from __future__ import annotations

import html
import re
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping

import xxhash

from headrace.store.contract import InvalidUri, ObjectInfo, ObjectMissing, StoreRefused, validate_key
from headrace.store.remote.folders import VERSION_CHARACTERS_MAX, FolderEntry, FolderStore
from headrace.store.remote.http_wire import HttpAnswer, HttpWire, joined
from headrace.store.remote.retrier import RemoteRetrier
from headrace.store.s3 import RetryPolicy

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
