"""Lines of JSON made of columns are what orjson makes of the records, byte for byte."""

from __future__ import annotations

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from headrace.stages.sinks.texts import json_lines

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
ROW = st.tuples(TEXT, st.one_of(st.none(), TEXT), st.sampled_from([None, "", '{"n":1}', '{"a":"\\n","b":[]}']))


def by_orjson(rows: list[tuple[str, str | None, str | None]]) -> bytes:
    lines: list[bytes] = []
    for name, text, metadata in rows:
        extra = {"metadata": orjson.Fragment(metadata)} if metadata else {}
        lines.append(orjson.dumps({"id": name, "text": text, **extra}, option=orjson.OPT_APPEND_NEWLINE))
    return b"".join(lines)


def made(rows: list[tuple[str, str | None, str | None]]) -> bytes:
    texts, metadata = (pa.array([row[place] for row in rows], pa.string()) for place in (1, 2))
    return json_lines([row[0] for row in rows], texts, metadata)


@given(st.lists(ROW, max_size=5))
def test_lines_are_those_of_orjson(rows: list[tuple[str, str | None, str | None]]) -> None:
    assert made(rows) == by_orjson(rows)


@pytest.mark.parametrize("character", [*map(chr, range(0x30)), "\\", "\x7f", "\x80", "\u2028", "\U0001f600"])
def test_each_character_is_written_as_orjson_writes_it(character: str) -> None:
    rows: list[tuple[str, str | None, str | None]] = [(character, f"a{character}b\\{character}", None)]
    assert made(rows) == by_orjson(rows)
    assert orjson.loads(made(rows))["text"] == rows[0][1]


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_metadata_of_several_lines_are_written_on_one(ending: str) -> None:
    metadata = ending.join(["{", '"lang": "en"', "}"])
    lines = made([("0", "a", metadata), ("1", "b", metadata)]).splitlines()
    assert [orjson.loads(line)["metadata"] for line in lines] == [{"lang": "en"}] * 2
