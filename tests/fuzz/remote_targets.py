"""Targets of `headrace.store.remote`: what web servers and the hub say of themselves and of their files."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any, cast

from headrace.store.contract.errors import InvalidUri, StoreError, StoreRefused
from headrace.store.contract.objects import validate_key
from headrace.store.remote import fsspec_store, http_store, hub
from headrace.store.remote.retrier import TryAgain
from tests.fuzz.harness import Target

URL = "https://host/data/"
HUB = hub.HubStore("hf://datasets?endpoint=https://host")


def run_web_page(data: bytes) -> object | None:
    """Each link is a name directly below the folder."""
    found = list(http_store.links_below(data, URL))
    for name in found:
        assert name.strip("/")
        assert "/" not in name.removesuffix("/")
    return found or None


def run_web_answer(data: bytes) -> object | None:
    said, _, tag = data.decode("latin-1").partition("\n")
    version = http_store.bounded_version(http_store.plain_tag(tag))
    assert len(version) <= 256
    assert version.isprintable()
    with contextlib.suppress(StoreRefused):
        found = http_store.HttpWire(URL)._next(URL, tag)
        assert found.startswith("https://")
    with contextlib.suppress(TryAgain):
        first, last, total = http_store._range_of({"Content-Range": said})
        assert -1 <= first < 10**18
        assert -1 <= last < 10**18
        return first, last, total, version
    return None


def run_hub_listing(data: bytes) -> object | None:
    """A page's files have sizes and versions that a ledger can hold, and a next page is the hub's own."""
    page, _, link = data.partition(b"\n\n")
    found: list[Any] = []
    with contextlib.suppress(StoreError):
        answer: Any = SimpleNamespace(headers={"Link": link.decode("latin-1")}, url="https://host/api/x")
        after = HUB._next_page(answer)
        assert not after or after.startswith("https://host/")
    with contextlib.suppress(StoreRefused):
        for entry in HUB._listed(page, "o/n/", ""):
            found.append((entry.name, entry.info))
            assert entry.info is None or (0 <= entry.info.size < 1 << 62 and len(entry.info.version) <= 256)
        return found or None
    return None


def run_hub_place(data: bytes) -> object | None:
    key = data.decode("utf-8", "replace")
    with contextlib.suppress(InvalidUri):
        validate = HUB._parts(key)
        assert "/" in validate[1]
        with contextlib.suppress(StoreError):
            validate_key(key)
            assert HUB._url(key).startswith("https://host/datasets/")
        return validate
    return None


def run_fsspec_facts(data: bytes) -> object | None:
    """What a file system says of a file makes a version, whatever it says."""
    text = data.decode("utf-8", "replace")
    options = fsspec_store.options_of("gs", text)
    version = fsspec_store.version_of(cast("dict[str, Any]", options), 5)
    assert len(version) <= 256
    return (options, version) if options else None


PAGE = b'<html><body><a href="a.jsonl">a</a><A HREF=\'b/\'>b</A><a href="/data/c%20d">c</a><a href="../x">x</a></body>'
LISTING = (
    b'[{"type":"file","oid":"g","size":5,"path":"a","lfs":{"oid":"s","size":5}},{"type":"directory","path":"d"}]'
    b'\n\n<https://host/api/x?cursor=2>; rel="next"'
)

TARGETS = [
    Target(
        "web_page",
        ("headrace.store.remote.http_store",),
        run_web_page,
        lambda: [PAGE],
        words=(b"<a href=", b"&#", b"//", b"%2e", b"<!--", b"<![CDATA["),
    ),
    Target(
        "web_answer",
        ("headrace.store.remote.http_store",),
        run_web_answer,
        lambda: [b'bytes 0-9/100\nW/"abc"', b"bytes */7\nhttps://other/x"],
    ),
    Target("hub_listing", ("headrace.store.remote.hub",), run_hub_listing, lambda: [LISTING]),
    Target(
        "hub_place",
        ("headrace.store.remote.hub",),
        run_hub_place,
        lambda: [b"o/n@refs/convert/parquet/a", b"o/n/a/b"],
    ),
    Target("fsspec_facts", ("headrace.store.remote.fsspec_store",), run_fsspec_facts, lambda: [b"etag=a&mtime=1"]),
]
