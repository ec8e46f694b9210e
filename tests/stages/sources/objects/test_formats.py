"""The table of formats: what a name tells, and that each format has a source and a row in the guide."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.stages.library import read
from headrace.stages.runtime.build import load_target
from headrace.stages.sources.objects.formats import FORMATS, JSONL, PARQUET, TEXT, WARC, Format, codec_of, format_of

ROOT = Path(__file__).parents[4]

each_format = pytest.mark.parametrize("found", FORMATS, ids=lambda found: found.name)


def test_the_suffix_tells_the_format_and_the_codec() -> None:
    names = {
        "a.jsonl": (JSONL, ""),
        "a.json.gz": (JSONL, "gzip"),
        "a.warc.wet.gz": (WARC, "gzip"),
        "a.warc.zst": (WARC, "zstd"),
        "a.parquet": (PARQUET, ""),
        "a.txt": (TEXT, ""),
        "a.txt.gz": (TEXT, "gzip"),
        "a.parquet.gz": (None, "gzip"),
        "gz": (None, ""),
    }
    assert {name: (format_of(name), codec_of(name)) for name in names} == names


def test_no_suffix_tells_two_formats() -> None:
    assert {format_of(f"a{suffix}"): each for each in FORMATS for suffix in each.suffixes} == {e: e for e in FORMATS}


@each_format
def test_a_format_has_a_source_and_a_row_in_the_guide(found: Format) -> None:
    assert load_target(found.source, "read").FORMAT is found
    guide = (ROOT / "docs/guide/inputs.md").read_text()
    rows = [row for row in guide.splitlines() if row.startswith("| `read_") and " ".join(found.suffixes) in row]
    assert len(rows) == 1
    assert re.search(rf"\b{found.name}\b", str(read.__doc__))
