"""The bytes of an HTTP payload behind the codings that its headers name.

Some crawlers store what came over the wire, others what they had decoded, under the same headers. So a coding is undone
where the bytes show it, and else taken as undone already.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

#: Codings that are undone, one after the other: no server has more than two.
CODINGS_MAX = 8
#: Of a payload that was compressed, so many bytes hold one that no text does: all but one in a thousand.
PLAIN_BYTES = 64

_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?\r\n")
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f]")
_ZSTD = b"\x28\xb5\x2f\xfd"


class UndecodablePayload(Exception):  # noqa: N818 (named after what is so)
    """A payload begins in the coding that its headers name, and is not sound in it, or too long without it."""


def decode_payload(headers: Mapping[str, str], body: bytes, bytes_max: int, *, is_truncated: bool) -> bytes:
    """The payload without its transfer and content codings, at most `bytes_max` bytes. Raises UndecodablePayload.

    Of one that the crawler cut off (`is_truncated`) what can be decoded is given. A coding that is not known is left.
    """
    if "chunked" in (headers.get("Transfer-Encoding") or "").lower():
        body = _unchunk(body)
    codings = (headers.get("Content-Encoding") or "").lower().split(",")
    if len(codings) > CODINGS_MAX:
        raise UndecodablePayload(f"broken payload: {len(codings)} codings upon one another, the limit is {CODINGS_MAX}")
    for coding in reversed(codings):
        work = _DECODERS.get(coding.strip())
        if work is None or not body:
            continue
        found, is_whole = work(body, bytes_max)
        if len(found) > bytes_max:
            raise UndecodablePayload(f"record too long: above the limit of {bytes_max} bytes when it is decompressed")
        if not is_whole and _is_plain(body):
            continue
        if not is_whole and not is_truncated:
            raise UndecodablePayload(f"broken payload: its {coding.strip()} is not sound after {len(found)} bytes")
        body = found
    return body


def _is_plain(body: bytes) -> bool:
    """Whether it begins as text does, and so is decoded already."""
    return not body.startswith(_ZSTD) and _CONTROL.search(body, 0, PLAIN_BYTES) is None


def _unchunk(body: bytes) -> bytes:
    """The chunks end to end; the body itself where it does not begin with one that is whole."""
    parts: list[bytes] = []
    at = 0
    while (head := _CHUNK.match(body, at)) is not None:
        size = int(head[1], 16)
        at = head.end() + size
        if not size:
            break
        is_cut_off = at >= len(body)
        if body[at : at + 2] != b"\r\n" and not (is_cut_off and parts):
            return body
        parts.append(body[head.end() : at])
        at += 2
    return b"".join(parts) if parts else body


def _inflate(body: bytes, bytes_max: int, wbits: int) -> tuple[bytes, bool]:
    """At most one byte more than `bytes_max`, and whether that is all."""
    stream = zlib.decompressobj(wbits)
    try:
        return stream.decompress(body, bytes_max + 1), stream.eof
    except zlib.error:
        return b"", False


def _gzip(body: bytes, bytes_max: int) -> tuple[bytes, bool]:
    return _inflate(body, bytes_max, zlib.MAX_WBITS | 16)


def _deflate(body: bytes, bytes_max: int) -> tuple[bytes, bool]:
    """With the header of zlib, as the standard says, or without, as many servers do."""
    found = _inflate(body, bytes_max, zlib.MAX_WBITS)
    return found if found[0] else _inflate(body, bytes_max, -zlib.MAX_WBITS)


def _arrow(codec: Any, body: bytes, bytes_max: int) -> tuple[bytes, bool]:
    parts: list[bytes] = []
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
            while (left := bytes_max + 1 - sum(map(len, parts))) > 0:
                # Arrow's `read` keeps what it set aside for ever where the stream is damaged.
                part = stream.read_buffer(min(left, 1 << 16)).to_pybytes()
                if not part:
                    break
                parts.append(part)
    except OSError:
        return b"".join(parts), False
    return b"".join(parts), True


def _brotli(body: bytes, bytes_max: int) -> tuple[bytes, bool]:
    return _arrow("brotli", body, bytes_max)


def _zstd(body: bytes, bytes_max: int) -> tuple[bytes, bool]:
    return _arrow("zstd", body, bytes_max)


_DECODERS: dict[str, Callable[[bytes, int], tuple[bytes, bool]]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
    "br": _brotli,
    "zstd": _zstd,
}
