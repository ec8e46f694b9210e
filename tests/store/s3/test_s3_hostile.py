"""An endpoint that means ill costs bounded memory and time: its XML, its tokens, its bodies."""

from __future__ import annotations

import itertools
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from headrace.store.contract.errors import StoreRefused, StoreUnavailable
from headrace.store.s3 import listing
from headrace.store.s3.connection.config import resolve
from headrace.store.s3.connection.wire import TEXT_BYTES_MAX, WHOLE_BYTES_MAX, Answer, NoAnswer, Wire
from headrace.store.s3.connection.xml import XML_DEPTH_MAX, XML_ELEMENTS_MAX, BadXml, check_xml, read_xml
from headrace.store.s3.listing import FOLDERS_DEPTH_MAX, PAGE_LINES_MAX, TOKEN_CHARACTERS_MAX, list_flat, list_folders
from headrace.store.s3.retry import code_of
from headrace.store.s3.store import S3Store

#: What comes without end comes so often, in the tests: more than is ever read.
TIMES = 1000
DEADLINE_S = 5.0
LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
BOMB = f'<!DOCTYPE x [<!ENTITY l0 "ha">{LAUGHS}]><Error><Code>&l9;</Code></Error>'.encode()
OUTSIDE = b'<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/passwd">]><Error><Code>&f;</Code></Error>'
DEEP = b"<a>" * (XML_DEPTH_MAX + 1) + b"</a>" * (XML_DEPTH_MAX + 1)
#: As deep as may be, behind and within a few that have ended.
DEEP_ENOUGH = b"<a>" + b"<b/>" * 9 + DEEP[3 + 3 : -4 - 4] + b"</a>"
DEEP_BEHIND = b"<a>" + b"<b/>" * 9 + DEEP[3:]
MANY = b"<a>" + b"<b/>" * XML_ELEMENTS_MAX + b"</a>"
MANY_ENOUGH = b"<a>" + b"<b/>" * (XML_ELEMENTS_MAX - 1) + b"</a>"


@pytest.mark.parametrize("body", [BOMB, OUTSIDE, DEEP, DEEP_BEHIND, MANY, BOMB.decode().encode("utf-16"), b"<a>", b""])
def test_xml_beyond_what_s3_answers_is_refused(body: bytes) -> None:
    for read in (check_xml, read_xml):
        with pytest.raises(BadXml):
            read(body)


@pytest.mark.parametrize("body", [DEEP_ENOUGH, MANY_ENOUGH])
def test_xml_at_its_limits_is_taken(body: bytes) -> None:
    check_xml(body)


def test_an_error_with_entities_of_its_own_has_no_code() -> None:
    assert code_of(Answer(400, {}, b"<Error><!-- --><Code>NoSuchKey</Code></Error>")) == "NoSuchKey"
    assert code_of(Answer(400, {}, BOMB)) == ""


def page(token: str, keys: list[str], *, truncated: bool = True) -> Answer:
    lines = "".join(f"<Contents><Key>{key}</Key><Size>1</Size></Contents>" for key in keys)
    more = f"<IsTruncated>{str(truncated).lower()}</IsTruncated>"
    said = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    return Answer(200, {}, f"<ListBucketResult><Name>b</Name>{more}{said}{lines}</ListBucketResult>".encode())


def endless() -> Iterator[Answer]:
    return (page(f"t{number}", []) for number in itertools.count())


def again() -> Iterator[Answer]:
    return (page(f"t{number}", ["a"]) for number in itertools.count())


HOSTILE: dict[str, tuple[Callable[[], Iterator[Answer]], str]] = {
    "a token again": (lambda: (page("t", [f"k{number:09d}"]) for number in itertools.count()), "repeats its token"),
    "no token": (lambda: iter([page("", [])]), "no token"),
    "a long token": (lambda: iter([page("t" * (TOKEN_CHARACTERS_MAX + 1), ["a"])]), "characters, the limit"),
    "empty pages for ever": (endless, "pages in a row are empty"),
    "too many lines": (lambda: iter([page("", [f"{n:06d}" for n in range(PAGE_LINES_MAX + 1)])]), "lines, the limit"),
    "a bomb": (lambda: iter([Answer(200, {}, BOMB)]), "DTD"),
    "half a page": (lambda: iter([Answer(200, {}, b"<ListBucketResult>")]), "no XML"),
    "no number": (lambda: iter([Answer(200, {}, page("", ["a"]).body.replace(b">1<", b">x<"))]), "cannot be followed"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_listing_that_cannot_be_followed_ends_with_the_reason(what: str) -> None:
    make, words = HOSTILE[what]
    pages = make()
    with pytest.raises(StoreUnavailable, match=words):
        list(list_flat(lambda _query: next(pages), "", ""))


def test_a_walk_by_folders_that_repeats_its_page_ends_too() -> None:
    pages = again()
    with pytest.raises(StoreUnavailable, match="repeats its page"):
        list(list_folders(lambda _query: next(pages), "", "", ""))


def prefixes(*names: str) -> Answer:
    lines = "".join(f"<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>" for name in names)
    return Answer(200, {}, f"<ListBucketResult><Name>b</Name>{lines}</ListBucketResult>".encode())


def test_a_folder_within_every_folder_ends_at_the_depth() -> None:
    asked: list[str] = []

    def within(query: dict[str, str]) -> Answer:
        asked.append(query["prefix"])
        return prefixes(f"{asked[-1]}a/")

    with pytest.raises(StoreUnavailable, match=f"cannot be followed: folder .* lies below {FOLDERS_DEPTH_MAX} others"):
        list(list_folders(within, "", "", ""))
    assert len(asked) == FOLDERS_DEPTH_MAX + 1


def test_a_walk_of_many_folders_without_an_object_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "BARREN_PAGES_MAX", 100)

    def two(query: dict[str, str]) -> Answer:
        folder = query["prefix"]
        return prefixes(*(f"{folder}{name}/" for name in "ab" if len(folder) < FOLDERS_DEPTH_MAX))

    with pytest.raises(StoreUnavailable, match="100 pages in a row hold no object that is wanted"):
        list(list_folders(two, "", "", ""))


@pytest.mark.parametrize("line", ["other/", "a", "a/"])
def test_what_does_not_lie_below_the_prefix_is_refused(line: str) -> None:
    with pytest.raises(StoreUnavailable, match="which does not lie there"):
        list(list_folders(lambda _query: prefixes(line), "a/b/", "a/b/", ""))
    with pytest.raises(StoreUnavailable, match="which does not lie there"):
        list(list_flat(lambda _query: page("", [line], truncated=False), "a/b", ""))


class Endpoint:
    """Answers one request with these bytes, and then with more for as long as somebody reads."""

    def __init__(self, head: bytes, more: bytes = b"") -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._head, self._more = head, more
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection, self._listener, suppress(OSError):
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 " + self._head + b"\r\n\r\n")
            connection.settimeout(DEADLINE_S)
            for _ in range(TIMES if self._more else 0):
                connection.sendall(self._more)

    @property
    def uri(self) -> str:
        return f"s3://bucket/x?endpoint=http://127.0.0.1:{self.port}&anonymous=true"

    def wire(self) -> Wire:
        return Wire(resolve(self.uri, {}))


TOTALS = [
    (b"bytes 0-9/30000000000", "'k' has more than 1,073,741,824 bytes, and no object of ours that is read whole"),
    (b"bytes 0-9/" + b"9" * 5000, "cannot get 'k': the endpoint does not say which part of how many bytes it gave"),
    ("bytes 0-9/٣".encode(), "cannot get 'k': the endpoint does not say which part"),
    (b"bytes 0-9/*", "cannot get 'k': the endpoint does not say which part"),
]


@pytest.mark.parametrize(("total", "words"), TOTALS)
def test_a_size_that_an_endpoint_claims_is_not_believed(total: bytes, words: str) -> None:
    endpoint = Endpoint(b"206 Part\r\nContent-Length: 10\r\nContent-Range: " + total + b"\r\n\r\n0123456789")
    with pytest.raises(StoreRefused, match=re.escape(words)) as caught:
        S3Store(endpoint.uri).get("k")
    assert str(caught.value).startswith(f"{S3Store(endpoint.uri).uri}: ")


def test_a_listing_that_cannot_be_followed_names_its_store() -> None:
    body = prefixes("other/").body
    endpoint = Endpoint(b"200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    with pytest.raises(StoreUnavailable, match="which does not lie there") as caught:
        list(S3Store(endpoint.uri).list(""))
    assert str(caught.value).startswith(f"{S3Store(endpoint.uri).uri}: the listing of 'x/' cannot")


CHUNK = b"10000\r\n" + b"x" * 65536 + b"\r\n"
ANNOUNCED = [
    (b"206 Part\r\nContent-Length: 101", "101 bytes where 100 may come"),
    (b"200 OK\r\nContent-Length: %d" % (WHOLE_BYTES_MAX + 1), "may come"),
]


@pytest.mark.parametrize(("head", "words"), ANNOUNCED)
def test_more_than_was_asked_for_is_refused_before_it_is_read(head: bytes, words: str) -> None:
    with pytest.raises(NoAnswer, match=words):
        Endpoint(head).wire().send("GET", "k", headers={"Range": "bytes=0-99"})


def test_a_body_of_endless_chunks_is_read_as_far_as_asked() -> None:
    with pytest.raises(NoAnswer, match="more than the 100 bytes"):
        Endpoint(b"206 Part\r\nTransfer-Encoding: chunked", CHUNK).wire().send(
            "GET", "k", headers={"Range": "bytes=0-99"}
        )


def test_a_listing_without_end_is_read_to_its_limit() -> None:
    with pytest.raises(NoAnswer, match=f"more than the {TEXT_BYTES_MAX:,} bytes"):
        Endpoint(b"200 OK\r\nTransfer-Encoding: chunked", CHUNK).wire().send("GET")


def test_headers_without_end_are_no_answer() -> None:
    with pytest.raises(NoAnswer):
        Endpoint(b"200 OK\r\n" + b"X: x\r\n" * 1000).wire().send("GET", "k")
    with pytest.raises(NoAnswer):
        Endpoint(b"200 OK\r\nX: " + b"x" * 70_000).wire().send("GET", "k")
