"""Files of a web server: listed by its pages, read by ranges, recognised by their versions, and nothing believed."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from headrace.store.contract.errors import InvalidUri, ObjectMissing, StoreError, StoreRefused, StoreUnavailable
from headrace.store.open import open_input
from headrace.store.remote import folders, http_store
from headrace.store.remote.http_store import HttpStore, links_below
from headrace.store.s3.retry import RetryPolicy
from tests.kits.inputs.web_server import Reply, WebServer, serving

HASTY = RetryPolicy(delay_first_s=0.001, delay_s_max=0.01, retry_s_max=2.0, first_contact_s=2.0)
FILES = {"data/b.jsonl": b"0123456789", "data/a/c.jsonl": b"c", "data/a.jsonl": b"a", "data/empty": b"", "x/y": b"z"}


@pytest.fixture
def web() -> Iterator[WebServer]:
    with serving(WebServer(dict(FILES))) as server:
        yield server


def store_of(web: WebServer, policy: RetryPolicy = HASTY) -> HttpStore:
    return HttpStore(web.url, policy)


def test_folders_are_listed_in_the_order_of_keys(web: WebServer) -> None:
    store = store_of(web)
    assert [info.key for info in store.list("data/")] == [
        "data/a.jsonl",
        "data/a/c.jsonl",
        "data/b.jsonl",
        "data/empty",
    ]
    assert [info.key for info in store.list("data/a", after="data/a.jsonl")] == ["data/a/c.jsonl"]
    assert list(store.list("nothing/")) == []
    assert {info.key: info.size for info in store.list("data/")}["data/b.jsonl"] == 10


def test_a_walk_asks_only_for_folders_and_files_that_are_wanted(web: WebServer) -> None:
    found = store_of(web).walk("", lambda folder: folder == "data", lambda path: path.endswith("b.jsonl"))
    assert [info.key for info in found] == ["data/b.jsonl"]
    assert [asked.path for asked in web.asked] == ["/", "/data/", "/data/b.jsonl"]


@pytest.mark.parametrize("has_ranges", [True, False])
def test_a_part_comes_with_size_and_version(web: WebServer, has_ranges: bool) -> None:
    web.has_ranges = has_ranges
    store = store_of(web)
    info = store.head("data/b.jsonl")
    assert info is not None
    for offset, length, data in ((0, 4, b"0123"), (7, 99, b"789"), (10, 5, b""), (3, 0, b"")):
        assert store.get_with_info("data/b.jsonl", offset, length) == (data, info)
    assert store.get("data/b.jsonl") == b"0123456789"
    web.files["data/b.jsonl"] = b"other bytes"
    assert store.get_with_info("data/b.jsonl", 0, 5)[1].version != info.version


def test_folders_missing_and_empty_files_are_told_apart(web: WebServer) -> None:
    store = store_of(web)
    assert store.head("data") is None
    assert store.head("data/none") is None
    empty = store.head("data/empty")
    assert empty is not None
    assert empty.size == 0
    with pytest.raises(ObjectMissing):
        store.get_with_info("data/none", 0, 1)


def test_the_version_without_an_etag_is_size_and_time(web: WebServer) -> None:
    web.has_tags = False
    web.fault = lambda asked: Reply(
        206, b"a", {"Content-Range": "bytes 0-0/1", "Last-Modified": "Mon, 23 Nov 2026 10:00:00 GMT"}
    )
    info = store_of(web).head("data/a.jsonl")
    assert info is not None
    assert info.version == "1-Mon, 23 Nov 2026 10:00:00 GMT"


def test_the_query_goes_with_every_request(web: WebServer) -> None:
    HttpStore(f"{web.url}?download=true&v=2", HASTY).head("data/b.jsonl")
    assert web.asked[0].query == "download=true&v=2"


def test_what_fails_for_a_while_is_asked_again(web: WebServer) -> None:
    left = [
        Reply(503), Reply(429, headers={"Retry-After": "0"}), Reply(206, b"x", {"Content-Range": "bytes 5-5/10"}),
        Reply(206, b"01", {"Content-Range": "bytes 0-3/10"}, announced=4), Reply(206, b"0123", {}),
    ]  # fmt: skip
    web.fault = lambda asked: left.pop() if left else None
    assert store_of(web).get_with_info("data/b.jsonl", 0, 4)[0] == b"0123"
    assert len(web.asked) == 6


def test_patience_has_an_end(web: WebServer) -> None:
    web.fault = lambda asked: Reply(503)
    hasty = RetryPolicy(delay_first_s=0.001, delay_s_max=0.001, retry_s_max=0.05, first_contact_s=0.05)
    with pytest.raises(StoreUnavailable, match="it answered 503; asked"):
        store_of(web, hasty).head("data/b.jsonl")


def test_a_trickle_ends_with_the_attempt(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(web)
    clock = iter(range(0, 10**6, 200))
    store._wire._clock = lambda: next(clock)
    with pytest.raises(StoreUnavailable, match="not complete within 120 s"):
        store.get_with_info("data/b.jsonl", 0, 4)


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (Reply(403), "it answered 403"),
        (Reply(200, b"x" * 9, announced=-1), "does not say how many bytes"),
        (Reply(302, headers={"Location": "file:///etc/passwd"}), "is no web address"),
        (Reply(302, headers={"Location": "http://169.254.169.254/latest/meta-data"}), "this host's own network"),
        (Reply(302), "is no address"),
        (Reply(301, headers={"Location": "/data/b.jsonl"}), "5 redirects lead nowhere"),
    ],
)
def test_what_is_no_answer_is_refused(web: WebServer, reply: Reply, why: str) -> None:
    web.fault = lambda asked: reply
    with pytest.raises(StoreRefused, match=why):
        store_of(web).head("data/b.jsonl")


def test_a_page_without_links_is_no_index(web: WebServer) -> None:
    web.fault = lambda asked: Reply(200, b"{}", {"Content-Type": "application/json"})
    with pytest.raises(StoreRefused, match="shows no index of 'data/'; name each file"):
        list(store_of(web).list("data/"))


def test_no_tls_is_given_up_on_the_way() -> None:
    wire = http_store.HttpWire("https://host")
    with pytest.raises(StoreRefused, match="has no TLS"):
        wire._next("https://host/a", "http://host/a")


def test_no_more_than_was_asked_for_is_held(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    web.fault = lambda asked: Reply(206, b"x" * 10, {"Content-Range": "bytes 0-9/10"})
    hasty = RetryPolicy(delay_first_s=0.001, delay_s_max=0.001, retry_s_max=0.05, first_contact_s=0.05)
    with pytest.raises(StoreUnavailable, match="another range than was asked for"):
        store_of(web, hasty).get_with_info("data/b.jsonl", 0, 4)
    monkeypatch.setattr(http_store, "PAGE_BYTES_MAX", 8)
    web.fault = lambda asked: Reply(200, b"<a>" * 10, {"Content-Type": "text/html"}, announced=-1)
    with pytest.raises(StoreRefused, match="a page has more than"):
        list(store_of(web).list("data/"))
    monkeypatch.setattr(http_store, "UNRANGED_BYTES_MAX", 4)
    web.fault, web.has_ranges = lambda asked: None, False
    assert store_of(web).get_with_info("data/b.jsonl", 4, 2)[0] == b"45"
    with pytest.raises(StoreRefused, match="gives no ranges"):
        store_of(web).get_with_info("data/b.jsonl", 5, 2)


def test_links_lead_nowhere_but_below() -> None:
    links = ("../up", "a", "/d/b/", "b/c", "//other/d/x", "javascript:x", "c#d", "http://[x", "%2e%2e")
    page = "".join(f'<a href="{link}">' for link in links).encode()
    assert list(links_below(page, "http://host/d/")) == ["a", "b/", "%2e%2e"]
    assert list(links_below(b"<a href=/d//>", "http://host/d/")) == [], "no name at all"


def test_a_name_that_no_key_may_have_is_passed_over(web: WebServer) -> None:
    page = b'<a href="..%2f"></a><a href="' + b"n" * 300 + b'"></a><a href="a.jsonl"></a>'
    web.fault = lambda asked: Reply(200, page, {"Content-Type": "text/html"}) if asked.path == "/data/" else None
    found = store_of(web).walk("data/", lambda folder: False, lambda path: path == "a.jsonl")
    assert [info.key for info in found] == ["data/a.jsonl"]


def test_endless_folders_end(web: WebServer) -> None:
    web.fault = lambda asked: Reply(200, b'<a href="d/">', {"Content-Type": "text/html"})
    with pytest.raises(StoreError, match="lies below 64 others"):
        list(store_of(web).list("data/"))


def test_folders_that_each_name_two_more_end(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """No chain of them is deep, and a walk of them all would have no end."""
    monkeypatch.setattr(folders, "BARREN_MAX", 60)
    two = b'<a href="d/"><a href="e/">'
    web.fault = lambda asked: Reply(200, two * (asked.path.count("/") < 32), {"Content-Type": "text/html"})
    with pytest.raises(StoreError, match=r"60 folders below 'data/' in a row hold no file that is wanted"):
        list(store_of(web).list("data/"))
    assert len(web.asked) < 100


def test_a_walk_goes_on_where_it_finds_files(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "BARREN_MAX", 2)
    web.files |= {f"many/{number}/deep/a.jsonl": b"a" for number in range(9)}
    assert len(list(store_of(web).list("many/"))) == 9


def test_a_strange_version_is_a_hash(web: WebServer) -> None:
    web.fault = lambda asked: Reply(206, b"a", {"Content-Range": "bytes 0-0/1", "ETag": '"' + "e" * 5000 + '"'})
    info = store_of(web).head("data/a.jsonl")
    assert info is not None
    assert len(info.version) == 32


def test_a_child_has_connections_of_its_own(web: WebServer) -> None:
    store = store_of(web)
    assert store.get("data/b.jsonl") == b"0123456789"
    child = os.fork()
    if not child:
        os._exit(0 if store.get("data/b.jsonl") == b"0123456789" else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert store.get("data/b.jsonl") == b"0123456789"


@pytest.mark.parametrize("uri", ["https://host:port/x", "https://:80", "cached://x", "file2://x", "hf://datasets?a=b"])
def test_what_names_no_place_is_refused_at_once(uri: str) -> None:
    with pytest.raises(InvalidUri):
        open_input(uri)
