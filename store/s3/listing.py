"""Listing a bucket in the order of keys, also from servers that list folder by folder.

S3 promises the byte order of whole keys. SeaweedFS lists its directories instead: all of `a/` comes before `a-b`,
since it sorts `a` and `a-b`. There we walk the folders ourselves, by delimiter, and hold a folder back until no name
that sorts before `a/` can come. Names that do so start with `a`, so at most one folder per character of a name waits,
and memory stays at a page for each level of folders.
"""

from __future__ import annotations

import heapq
import itertools
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from minio.datatypes import parse_list_objects

from headrace.store import StoreUnavailable
from headrace.store.s3.connection import Answer, check_xml

#: Keys of one page; S3 gives no more.
PAGE_KEYS = 1000
#: Lines of one page, from an endpoint that gives more than it is asked for.
PAGE_LINES_MAX = 8 * PAGE_KEYS
#: Characters of the token by which a listing goes on; it may hold a key.
TOKEN_CHARACTERS_MAX = 8192
#: Pages in a row without a line: an endpoint may skip what was deleted, but not for ever.
EMPTY_PAGES_MAX = 1000
#: Folders that lie in one another, of a walk.
FOLDERS_DEPTH_MAX = 64
#: Pages in a row of a walk, in all of its folders, without an object that is wanted.
BARREN_PAGES_MAX = 10_000

#: How a page is fetched: the query's parameters in, the answer out.
Fetch = Callable[[dict[str, str]], Answer]


@dataclass(frozen=True, slots=True)
class Listed:
    """A line of a listing: an object, or a folder (whose key ends in "/" and has no size)."""

    key: str
    #: bytes
    size: int
    etag: str

    @property
    def name(self) -> str:
        """What directory-minded servers sort by."""
        return self.key.removesuffix("/")


@dataclass(slots=True)
class _Page:
    answer: Answer
    lines: list[Listed]
    token: str | None


class OutOfOrder(Exception):  # noqa: N818 - named after what is so
    """A flat listing was not in the order of keys, before anything of it was given away."""


class BadListing(StoreUnavailable):
    """A listing that cannot be followed; the message does not name the store."""


def list_flat(fetch: Fetch, prefix: str, after: str) -> Iterator[Listed]:
    """Yield the objects whose key starts with `prefix` and is greater than `after`, as the server sorts them.

    Raises `OutOfOrder` where the first page shows that the server sorts otherwise, `BadListing` where a later one
    does.
    """
    last = ""
    for number, page in enumerate(_pages(fetch, prefix, after, delimiter="")):
        keys = [last, *(line.key for line in page.lines)]
        # This server is known to list folder by folder.
        is_folder_minded = page.answer.headers.get("Server", "").startswith("SeaweedFS")
        if any(key <= before for before, key in itertools.pairwise(keys)) or is_folder_minded:
            if number == 0:
                raise OutOfOrder
            raise BadListing(
                f"the listing of {prefix!r} is not in the order of keys: {_first_fall(keys)}; "
                "ask again, the folders are walked one by one from now on"
            )
        last = keys[-1]
        yield from (line for line in page.lines if line.key > after)


def list_folders(fetch: Fetch, folder: str, prefix: str, after: str) -> Iterator[Listed]:
    """Yield the same by walking, from `folder` ("" or "a/") on. Raises `BadListing` for a walk without end."""
    barren = 0

    def counted(query: dict[str, str]) -> Answer:
        nonlocal barren
        barren += 1
        if barren > BARREN_PAGES_MAX:
            raise _hostile(prefix, f"{BARREN_PAGES_MAX:,} pages in a row hold no object that is wanted")
        return fetch(query)

    for line in _walk(counted, folder, prefix, after, 0):
        barren = 0
        yield line


def _walk(fetch: Fetch, folder: str, prefix: str, after: str, depth: int) -> Iterator[Listed]:
    """Yield what `folder` holds, which lies in so many others; `prefix` and `after` as given first."""
    if depth > FOLDERS_DEPTH_MAX:
        raise _hostile(prefix, f"folder {folder[:200]!r} lies below {FOLDERS_DEPTH_MAX} others")
    waiting: list[str] = []
    query = max(folder, prefix, key=len)
    for page in _pages(fetch, query, _start(folder, after), delimiter="/"):
        for line in sorted(page.lines, key=lambda line: (line.name, line.key)):
            while waiting and waiting[0] < line.name:
                yield from _walk(fetch, heapq.heappop(waiting), prefix, after, depth + 1)
            if not line.key.endswith("/"):
                if line.key > after:
                    yield line
            elif line.key != folder and (line.key > after or after.startswith(line.key)):
                heapq.heappush(waiting, line.key)
    while waiting:
        yield from _walk(fetch, heapq.heappop(waiting), prefix, after, depth + 1)


def _start(folder: str, after: str) -> str:
    """A place in a folder, in its server's order, before all that sorts behind `after` in the order of keys."""
    if not after.startswith(folder):
        return ""
    name = after[len(folder) :].partition("/")[0]
    # The folder `a/` sorts behind `a-b` though `a` sorts before it; so start before the shortest such `a`.
    stop = next((place for place in range(1, len(name)) if name[place] < "/"), len(name))
    return folder + name[: stop - 1] if stop > 1 else ""


def _pages(fetch: Fetch, prefix: str, start: str, delimiter: str) -> Iterator[_Page]:
    query = {
        "list-type": "2",
        "delimiter": delimiter,
        # Keys may hold characters that XML cannot.
        "encoding-type": "url",
        "max-keys": str(PAGE_KEYS),
        "prefix": prefix,
    }
    if start > prefix:
        query["start-after"] = start
    before: _Page | None = None
    empty = 0
    while True:
        page = _parse(fetch(query), prefix)
        empty = 0 if page.lines else empty + 1
        if page.token is not None and (why := _no_progress(page, before, empty)):
            raise _hostile(prefix, why)
        yield page
        if page.token is None:
            return
        query.pop("start-after", None)
        query["continuation-token"] = page.token
        before = page


def _no_progress(page: _Page, before: _Page | None, empty: int) -> str:
    """Why a listing that goes on should not be followed; empty where it should."""
    if not page.token:
        return "it goes on and has no token for that"
    if len(page.token) > TOKEN_CHARACTERS_MAX:
        return f"its token has {len(page.token):,} characters, the limit is {TOKEN_CHARACTERS_MAX:,}"
    if before is not None and page.token == before.token:
        return "it repeats its token"
    if before is not None and page.lines and page.lines == before.lines:
        return "it repeats its page"
    return f"{empty:,} pages in a row are empty" if empty >= EMPTY_PAGES_MAX else ""


def _hostile(prefix: str, why: str) -> BadListing:
    return BadListing(f"the listing of {prefix!r} cannot be followed: {why}; see to the endpoint, and ask again")


def _parse(answer: Answer, prefix: str) -> _Page:
    try:
        check_xml(answer.body)
        objects, is_truncated, token, _ = parse_list_objects(cast("Any", SimpleNamespace(data=answer.body)))
    except (ET.ParseError, ValueError, TypeError) as error:
        raise _hostile(prefix, str(error)) from error
    if len(objects) > PAGE_LINES_MAX:
        raise _hostile(prefix, f"a page has {len(objects):,} lines, the limit is {PAGE_LINES_MAX:,}")
    if any((found.size or 0) < 0 for found in objects):
        raise _hostile(prefix, "an object has less than no bytes")
    lines = [Listed(found.object_name or "", found.size or 0, found.etag or "") for found in objects]
    if beyond := next((line.key for line in lines if not line.key.startswith(prefix)), None):
        raise _hostile(prefix, f"it names {beyond[:200]!r}, which does not lie there")
    return _Page(answer, lines, (token or "") if is_truncated else None)


def _first_fall(keys: list[str]) -> str:
    return next((f"{key!r} after {before!r}" for before, key in itertools.pairwise(keys) if key <= before), "")
