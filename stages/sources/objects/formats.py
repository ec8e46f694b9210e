"""The formats of files that can be read. One table tells them by their names, in folders and by their first bytes.

A new format is a line here, a source (`stages/sources/base.py`), and a row in docs/guide/inputs.md. Light: a pipeline
file imports this through the library.

What a file holds whose name promises another format: told by its first bytes. Of JSON Lines before its lines are
quarantined, of the others when they cannot be read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.stages.runtime import InputError

#: What may follow the suffix of a format, and the codec that it stands for.
CODECS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bzip2"}


@dataclass(frozen=True, slots=True)
class Format:
    """A format: its name in messages, the import path of its source, and how its files are known."""

    name: str
    source: str
    suffixes: tuple[str, ...]
    #: Suffixes that others use too: a folder does not stand for such files.
    ambiguous: tuple[str, ...] = ()
    #: Whether a folder stands for such files only where no other format is read.
    by_name: bool = False
    #: Whether a file may be compressed as a whole.
    packs: bool = False
    #: Whether the source reads files of any name.
    any_name: bool = False
    #: How each file begins; empty: nothing tells.
    magic: bytes = b""


JSONL = Format(
    "JSON Lines", "headrace.stages.sources.jsonl:JsonlSource", (".jsonl", ".ndjson", ".json"), (".json",), packs=True
)
PARQUET = Format("Parquet", "headrace.stages.sources.tables.columns:ParquetSource", (".parquet", ".pq"), magic=b"PAR1")
ORC = Format("ORC", "headrace.stages.sources.tables.columns:OrcSource", (".orc",), magic=b"ORC")
ARROW = Format(
    "Arrow IPC",
    "headrace.stages.sources.tables.columns:ArrowSource",
    (".arrow", ".feather", ".ipc", ".arrows"),
    magic=b"ARROW1",
)
WARC = Format("WARC", "headrace.stages.sources.warc:WarcSource", (".warc", ".wet"), packs=True, magic=b"WARC/")
TEXT = Format(
    "text", "headrace.stages.sources.documents:FilesSource", (".txt", ".md", ".rst"), packs=True, any_name=True
)
CSV = Format("CSV", "headrace.stages.sources.csv_rows:CsvSource", (".csv", ".tsv"), by_name=True, packs=True)
TAR = Format("tar", "headrace.stages.sources.tar:TarSource", (".tar",), by_name=True, packs=True)
FORMATS = (JSONL, PARQUET, WARC, TEXT, CSV, TAR, ORC, ARROW)

#: The import path of the source of all formats, told apart by suffix.
MIXED_SOURCE = "headrace.stages.sources.mixed:MixedSource"
#: The sources of files by import path, and the formats that each reads.
SOURCES: dict[str, Sequence[Format]] = {**{each.source: (each,) for each in FORMATS}, MIXED_SOURCE: FORMATS}


def codec_of(name: str) -> str:
    """The codec of a file's compression, by its name; "" for none."""
    return next((codec for suffix, codec in CODECS.items() if name.endswith(suffix)), "")


def format_of(name: str) -> Format | None:
    """The format that a file's name tells; None for any other name."""
    codec = codec_of(name)
    bare = name.rpartition(".")[0] if codec else name
    return next((each for each in FORMATS if bare.endswith(each.suffixes) and (each.packs or not codec)), None)


def globs_of(formats: Sequence[Format]) -> tuple[str, ...]:
    """What a folder stands for: the files of these formats at any depth."""
    return tuple(
        f"**/*{suffix}{codec}"
        for each in formats
        for suffix in each.suffixes
        if suffix not in each.ambiguous and not (each.by_name and len(formats) > 1)
        for codec in ("", *(CODECS if each.packs else ()))
    )


def check_format(name: str, formats: Sequence[Format]) -> None:
    """Raise InputError unless a file of this name can be read as one of these formats."""
    if format_of(name) in formats or (len(formats) == 1 and formats[0].any_name):
        return
    known = ", ".join(suffix for each in formats for suffix in each.suffixes)
    remedy = "read other formats with read(...)" if len(formats) == 1 else "decompress or convert other files"
    raise InputError(f"{name!r} is not one of {known}: narrow the glob, or {remedy}")


#: Bytes of a file's beginning that are looked at.
HEAD_BYTES = 512
#: How other things begin that are found under the names of what can be read, and what to do with them.
_MAGIC = (
    *((each.magic, f"{each.name}; let its name end in {each.suffixes[0]}") for each in FORMATS if each.magic),
    (b"\x1f\x8b", "a gzip stream; let its name end in .gz"),
    (b"\x28\xb5\x2f\xfd", "a zstd stream; let its name end in .zst"),
    (b"BZh", "a bzip2 stream; let its name end in .bz2"),
    (b"\xfd7zXZ", "an xz stream; decompress it"),
    (b"\x04\x22\x4d\x18", "an lz4 stream; decompress it"),
    (b"PK\x03\x04", "a zip archive; unpack it"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive; unpack it"),
    (b"\xff\xff\xff\xff", "an Arrow stream; let its name end in .arrow"),
    (b"FEA1", "Feather of version 1; write it again as version 2"),
    (b"Obj\x01", "Avro; write it as Parquet"),
    (b"SQLite format 3\0", "an SQLite database; write its table as Parquet"),
    (b"version https://git-lfs", "a pointer of Git LFS; fetch what it stands for with git lfs pull"),
    (b"\xff\xfe\0\0", "UTF-32; convert it with iconv -f UTF-32 -t UTF-8"),
    (b"\0\0\xfe\xff", "UTF-32; convert it with iconv -f UTF-32 -t UTF-8"),
    (b'{\0"\0', "UTF-16; convert it with iconv -f UTF-16LE -t UTF-8"),
    (b'\0{\0"', "UTF-16; convert it with iconv -f UTF-16BE -t UTF-8"),
    (b"\xff\xfe", "UTF-16; convert it with iconv -f UTF-16 -t UTF-8"),
    (b"\xfe\xff", "UTF-16; convert it with iconv -f UTF-16 -t UTF-8"),
)
#: How what a name promises begins, and the suffix that promises it.
_OWN = {
    "gzip": (b"\x1f\x8b",),
    "zstd": (b"\x28\xb5\x2f\xfd", *(bytes([low]) + b"\x2a\x4d\x18" for low in range(0x50, 0x60))),
    "bzip2": (b"BZh",),
    **{each.name: (each.magic,) for each in FORMATS if each.magic},
    ARROW.name: (ARROW.magic, b"\xff\xff\xff\xff", b"FEA1"),
}
_SUFFIXES = {"gzip": ".gz", "zstd": ".zst", "bzip2": ".bz2", **{each.name: each.suffixes[0] for each in FORMATS}}
#: A tar archive says so behind its first name, which zeros fill up: text may say so as well.
_TAR, _TAR_AT = b"ustar", 257
_PAGE = re.compile(rb"\s*<(?:!doctype|html|head|body|\?xml|!--)", re.IGNORECASE)
#: No line of JSON Lines begins so, but a document over all lines does: an array of objects, or an object.
_ARRAY = re.compile(rb"\s*\[\s*\{")
_OBJECT = re.compile(rb'\s*\{[^\S\n]*\n\s*"[^"\n]*"\s*:')
_LINE = re.compile(rb'\s*\{\s*"[^"\n]*"\s*:')


def data_format(head: bytes) -> str:
    """What the file that begins so is, with what to do; empty where it may be JSON Lines."""
    if found := _packed(head):
        return found
    if _ARRAY.match(head):
        return "one JSON array; make each of its items a line, as with jq -c '.[]'"
    if _OBJECT.match(head):
        return "JSON over several lines; make each record a line, as with jq -c ."
    return ""


def misnamed(head: bytes, promised: str) -> str:
    """What the file that begins so is instead of `promised`, a key of _OWN; empty where that cannot be told."""
    if head.startswith(_OWN[promised]):
        return ""
    return _packed(head) or (f"plain JSON; take {_SUFFIXES[promised]} off its name" if _LINE.match(head) else "")


def _packed(head: bytes) -> str:
    for magic, what in _MAGIC:
        if head.startswith(magic):
            return what
    if head[_TAR_AT : _TAR_AT + len(_TAR)] == _TAR and b"\0" in head[:_TAR_AT]:
        return "a tar archive; unpack it"
    if _PAGE.match(head):
        return "HTML or XML, such as the error page of a download; fetch it again"
    return ""
