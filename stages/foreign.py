"""What a file holds whose name promises JSON Lines: told by its first bytes, before its lines are quarantined."""

from __future__ import annotations

import re

#: Bytes of a file's beginning that are looked at.
HEAD_BYTES = 512
#: How other things begin that are found under the names of JSON Lines, and what to do with them.
_MAGIC = (
    (b"\x1f\x8b", "a gzip stream; let its name end in .gz"),
    (b"\x28\xb5\x2f\xfd", "a zstd stream; let its name end in .zst"),
    (b"BZh", "a bzip2 stream; decompress it"),
    (b"\xfd7zXZ", "an xz stream; decompress it"),
    (b"PK\x03\x04", "a zip archive; unpack it"),
    (b"PAR1", "Parquet; let its name end in .parquet"),
    (b"WARC/", "a WARC; let its name end in .warc"),
    (b"\xff\xfe", "UTF-16; convert it with iconv -f UTF-16 -t UTF-8"),
    (b"\xfe\xff", "UTF-16; convert it with iconv -f UTF-16 -t UTF-8"),
)
#: No line of JSON Lines begins so, but a document over all lines does: an array of objects, or an object.
_ARRAY = re.compile(rb"\s*\[\s*\{")
_OBJECT = re.compile(rb'\s*\{\s*\n\s*"[^"\n]*"\s*:')


def foreign(head: bytes) -> str:
    """What the file that begins so is, with what to do; empty where it may be JSON Lines."""
    for magic, what in _MAGIC:
        if head.startswith(magic):
            return what
    if _ARRAY.match(head):
        return "one JSON array; make each of its items a line, as with jq -c '.[]'"
    if _OBJECT.match(head):
        return "JSON over several lines; make each record a line, as with jq -c ."
    return ""
