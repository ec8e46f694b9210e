"""The formats of files that can be read. One table tells them by their names, in folders and by their first bytes.

A new format is a line here, a source (`stages/sources/base.py`), and a row in docs/guide/inputs.md. Light: a pipeline
file imports this through the library.
"""

from __future__ import annotations

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
PARQUET = Format("Parquet", "headrace.stages.sources.tables.parquet:ParquetSource", (".parquet", ".pq"), magic=b"PAR1")
ORC = Format("ORC", "headrace.stages.sources.tables.arrow_files:OrcSource", (".orc",), magic=b"ORC")
ARROW = Format(
    "Arrow IPC",
    "headrace.stages.sources.tables.arrow_files:ArrowSource",
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
