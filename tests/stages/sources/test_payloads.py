"""Pages in a WARC as they came over the wire: in chunks, compressed, decoded by the crawler, or broken."""

from __future__ import annotations

import gzip
import pathlib
import time
import zlib
from typing import Any

import pyarrow as pa
import pytest

from headrace.stages.sources.warc import NESTING_MAX, WarcSource, nesting
from tests.kits.inputs import files, reading

TEXT = " ".join(f"naïve café {number}" for number in range(500))
PAGE = files.page(TEXT)


def raw_deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return stream.compress(data) + stream.flush()


def arrow(codec: str, data: bytes) -> bytes:
    packed: bytes = pa.Codec(codec).compress(data, asbytes=True)
    return packed


PACKED = {
    "gzip": gzip.compress(PAGE),
    "deflate": zlib.compress(PAGE),
    "deflate, without its header": raw_deflate(PAGE),
    "br": arrow("brotli", PAGE),
    "zstd": arrow("zstd", PAGE),
}


def chunked(body: bytes, step: int = 50) -> bytes:
    parts = [body[at : at + step] for at in range(0, len(body), step)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def fate_of(
    tmp_path: pathlib.Path, body: bytes, *headers: str, truncated: bool = False, **parameters: Any
) -> tuple[Any, ...]:
    """What becomes of a response with this payload."""
    lines = ["HTTP/1.1 200 OK", "Content-Type: text/html; charset=utf-8", *headers, "", ""]
    warc = {"WARC_Truncated": "length"} if truncated else {}
    record = files.warc_record("response", "p", "\r\n".join(lines).encode() + body, "application/http", **warc)
    files.write(tmp_path / "a.warc", record + files.response("after", files.page("after")))
    found, after = reading.read_all(WarcSource("read", [str(tmp_path / "a.warc")], **parameters))
    assert after[:3] == ("kept", "urn:uuid:after", "after")
    return found


@pytest.mark.parametrize("coding", PACKED)
@pytest.mark.parametrize("transfer", ["", "Transfer-Encoding: chunked"])
def test_a_page_is_read_behind_the_codings_that_its_headers_name(
    tmp_path: pathlib.Path, coding: str, transfer: str
) -> None:
    headers = [f"Content-Encoding: {coding.partition(',')[0]}", *([transfer] if transfer else [])]
    body = chunked(PACKED[coding]) if transfer else PACKED[coding]
    assert fate_of(tmp_path, body, *headers)[:3] == ("kept", "urn:uuid:p", TEXT)


@pytest.mark.parametrize("header", ["Transfer-Encoding: chunked", *(f"Content-Encoding: {name}" for name in PACKED)])
def test_a_page_decoded_by_its_crawler_is_read_as_is(tmp_path: pathlib.Path, header: str) -> None:
    assert fate_of(tmp_path, PAGE, header)[2] == TEXT


def test_codings_one_over_the_other_are_undone_from_the_last(tmp_path: pathlib.Path) -> None:
    body = gzip.compress(arrow("brotli", PAGE))
    assert fate_of(tmp_path, body, "Content-Encoding: br, gzip")[2] == TEXT


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd"])
def test_a_payload_that_breaks_off_is_quarantined_with_its_bytes(tmp_path: pathlib.Path, coding: str) -> None:
    body = b"\0" + PACKED[coding] if coding == "br" else PACKED[coding][:-9]
    verdict, _, reason, raw = fate_of(tmp_path, body, f"Content-Encoding: {coding}")
    assert verdict == "quarantined"
    assert reason.startswith(f"broken payload: its {coding} is not sound after ")
    assert raw == body


def test_of_a_cut_payload_what_is_there_is_read(tmp_path: pathlib.Path) -> None:
    whole = chunked(PACKED["gzip"])
    headers = ("Transfer-Encoding: chunked", "Content-Encoding: gzip")
    verdict, _, text, _ = fate_of(tmp_path, whole[: len(whole) // 2], *headers, truncated=True)
    assert verdict == "kept"
    assert TEXT.startswith(text[:1000])


def test_a_payload_that_grows_above_the_limit_is_quarantined(tmp_path: pathlib.Path) -> None:
    bomb = gzip.compress(bytes(64 << 20))
    verdict, _, reason, _ = fate_of(tmp_path, bomb, "Content-Encoding: gzip", max_record_bytes=1 << 20)
    assert (verdict, reason) == (
        "quarantined",
        "record too long: above the limit of 1048576 bytes when it is decompressed",
    )


def response(tmp_path: pathlib.Path, payload: bytes, content: str = "application/http", **headers: str) -> Any:
    """What becomes of a record of an answer, whatever that is."""
    files.write(tmp_path / "a.warc", files.warc_record("response", "p", payload, content, **headers))
    (found,) = reading.read_all(WarcSource("read", [str(tmp_path / "a.warc")]))
    return found


@pytest.mark.parametrize(
    ("begin", "headers"),
    [
        (b"", {"WARC_Identified_Payload_Type": "text/html"}),
        (b"", {"WARC_Identified_Payload_Type": "application/xhtml+xml; charset=utf-8"}),
        (b"\n <!-- a word before --> <!DOCTYPE HTML>", {}),
        (b"<HTML lang=en>", {}),
    ],
    ids=["the crawler", "the crawler, at length", "its type", "its first word"],
)
def test_a_silent_servers_page_is_told_by_other_signs(
    tmp_path: pathlib.Path, begin: bytes, headers: dict[str, str]
) -> None:
    body = begin + b"<body><p>a text without a type</p></body>"
    assert response(tmp_path, b"HTTP/1.1 200 OK\r\n\r\n" + body, **headers)[:3] == (
        "kept",
        "urn:uuid:p",
        "a text without a type",
    )


def test_what_nobody_says_to_be_text_is_none(tmp_path: pathlib.Path) -> None:
    found = response(tmp_path, b"HTTP/1.1 200 OK\r\n\r\n\x89PNG <html>")
    assert found[:3] == ("filtered", "urn:uuid:p", "not text: no content type")


def test_an_answer_without_http_is_quarantined_another_kind_filtered(tmp_path: pathlib.Path) -> None:
    for payload in (b"no answer of a web server", b""):
        verdict, _, reason, raw = response(tmp_path, payload)
        assert (verdict, reason, raw) == ("quarantined", "malformed HTTP response", payload)
    names = b"20240101000000\nexample.org. 60 IN A 192.0.2.1\n"
    assert response(tmp_path, names, "text/dns")[:3] == ("filtered", "urn:uuid:p", "not text: text/dns")


@pytest.mark.parametrize(
    "head", [b"<!--" * 70, b"<!-- -->" * 40, b" \n" * 150, b"<!-- x --> " * 20 + b"<!--"], ids=range(4)
)
def test_what_a_page_of_no_type_begins_with_is_looked_at_once(tmp_path: pathlib.Path, head: bytes) -> None:
    begun = time.thread_time()
    found = response(tmp_path, b"HTTP/1.1 200 OK\r\n\r\n" + head)
    assert found[:3] == ("filtered", "urn:uuid:p", "not text: no content type")
    assert time.thread_time() - begun < 5  # of what backtracks it is for ever


def nested(depth: int, tag: bytes = b"div") -> bytes:
    return b"<html><body>" + (b"<%b class=x>" % tag) * depth + b"<p>a text within</p>" + (b"</%b>" % tag) * depth


@pytest.mark.parametrize("tag", [b"div", b"ARTICLE"])
def test_a_page_nested_too_deeply_for_its_main_content_is_quarantined(tmp_path: pathlib.Path, tag: bytes) -> None:
    assert fate_of(tmp_path, nested(NESTING_MAX, tag))[0] == "kept"
    found = fate_of(tmp_path, nested(20_000, tag))
    assert found[0] == "quarantined"
    assert "nested too deeply: more than 256 elements" in str(found)
    assert fate_of(tmp_path, nested(20_000, tag), main_content=False)[:3] == ("kept", "urn:uuid:p", "a text within")


def test_containers_beside_each_other_are_not_within_each_other() -> None:
    assert nesting(b"<div>x</div>" * 5000) == 1
    assert nesting(b"</div>" * 300 + b"<div>" * 300) == 300
    assert nesting(b"<divide>" * 5000) == 0
