"""The keys that every store can hold."""

from __future__ import annotations

from headrace.store.contract.errors import InvalidKey

#: S3's own limit on a key.
KEY_BYTES_MAX = 1024
#: The limit of Linux file systems on one name; held by all stores, so that a dataset can move between them.
KEY_SEGMENT_BYTES_MAX = 255
#: The first segment that no key may have: the file store keeps its unfinished writes there.
RESERVED_SEGMENT = ".tmp"


def validate_key(key: str) -> None:
    """Raise `InvalidKey` unless `key` is one that every store can hold.

    A key is a relative path of segments joined by "/": none empty, "." or "..", no control
    characters, no backslash, at most 1024 bytes, 255 a segment.
    """
    problem = _key_problem(key)
    if problem is not None:
        raise InvalidKey(f"key {key!r} {problem}; keys look like 'shards/3/ab12.safetensors'")


def _key_problem(key: str) -> str | None:
    if not key:
        return "is empty"
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        return "is not valid Unicode"
    if size > KEY_BYTES_MAX:
        return f"has {size} bytes, the limit is {KEY_BYTES_MAX}"
    if any(ord(char) < 0x20 or ord(char) == 0x7F or char == "\\" for char in key):
        return "has a control character or a backslash"
    segments = key.split("/")
    for segment in segments:
        if segment in ("", ".", ".."):
            return f"has the segment {segment!r}"
        if len(segment.encode()) > KEY_SEGMENT_BYTES_MAX:
            return f"has a segment of {len(segment.encode())} bytes, the limit is {KEY_SEGMENT_BYTES_MAX}"
    if segments[0] == RESERVED_SEGMENT:
        return f"starts with {RESERVED_SEGMENT!r}, which is reserved"
    return None
