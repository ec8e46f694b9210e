"""Lines that are JSON but for what other writers put there are records, and all else is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from headrace.stages.runtime.batch import Batch
from headrace.stages.runtime.contract import FragmentEnd
from headrace.stages.sources.jsonl import JsonlSource, reread
from headrace.store.ledger.core.intervals import UNBOUNDED, Gap

HUGE = "1" + "0" * 400
DIGITS = "123456789012345678901234567890"


def read(path: Path, line: bytes) -> Batch:
    path.write_bytes(b'{"text":"before"}\n' + line + b'\n{"text":"behind"}\n')
    source = JsonlSource("read", [str(path)])
    (fragment,) = source.list()
    assert fragment is not None
    batch, end = source.read(fragment, [Gap(0, UNBOUNDED, 0)])
    assert isinstance(batch, Batch)
    assert end == FragmentEnd(3)
    return batch


@pytest.mark.parametrize(
    ("line", "identity", "metadata"),
    [
        (b'{"text":"a","id":"i","x":NaN,"y":[-Infinity,{"z":Infinity}]}', "i", {"x": None, "y": [None, {"z": None}]}),
        (f'{{"text":"a","id":7,"x":{HUGE},"y":1e400,"z":1.5}}'.encode(), "7", {"x": HUGE, "y": "1e400", "z": 1.5}),
        (f'{{"text":"a","id":"i","x":NaN,"y":{DIGITS}}}'.encode(), "i", {"x": None, "y": float(DIGITS)}),
        (b'\xef\xbb\xbf{"text":"a","id":"i","x":1}', "i", {"x": 1}),
        (b'\xef\xbb\xbf{"text":"a","id":"i","x":NaN}', "i", {"x": None}),
        (f'{{"text":"a","id":{DIGITS},"x":1}}'.encode(), DIGITS, {"x": 1}),
        (f'{{"text":"a","id":{HUGE},"x":1}}'.encode(), HUGE, {"x": 1}),
        (b'{"text":"a","id":1.5,"x":1}', None, {"id": 1.5, "x": 1}),
        (b'{"text":"a","id":NaN,"x":1}', None, {"id": None, "x": 1}),
    ],
    ids=["words", "numbers", "both", "a mark", "a mark and a word", "digits", "many digits", "a fraction", "no number"],
)
def test_a_line_that_another_reader_takes_is_a_record(
    tmp_path: Path, line: bytes, identity: str | None, metadata: dict[str, Any]
) -> None:
    row = read(tmp_path / "a.jsonl", line).rows.to_pylist()[1]
    assert (row["text"], json.loads(row["metadata"])) == ("a", metadata)
    assert row["id"] == (identity or f"file://{tmp_path}/a.jsonl#1")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text":"NaN",}', "malformed JSON: "),
        (b'{"text":"\\ud800","x":NaN}', "malformed JSON: "),
        (b'{"text":"\xff","x":NaN}', "invalid UTF-8: byte 0xff at byte 9 of the line"),
        (b'{"text":"a","x":NaN}}', "malformed JSON: "),
        (b'{"text":"a\tb","x":NaN}', "malformed JSON: "),
        (b'\xef\xbb\xbf\xef\xbb\xbf{"text":"a"}', "malformed JSON: "),
        (b'{"x":NaN}', 'no text: the record has no field "text"'),
        (b'{"text":NaN}', 'text is not a string: field "text" holds null'),
        (b'{"text":"a","x":' + b"[" * 300 + b"]" * 300 + b"}", "metadata is no JSON: "),
        (b'{"text":"a","x":NaN,"y":' + b"[" * 5000 + b"]" * 5000 + b"}", "malformed JSON: "),
    ],
    ids=str,
)
def test_a_line_that_nobody_takes_is_quarantined_with_its_bytes(tmp_path: Path, line: bytes, reason: str) -> None:
    batch = read(tmp_path / "a.jsonl", line)
    (lost,) = batch.verdicts.to_pylist()
    assert lost["reason"].startswith(reason)
    assert lost["raw"] == (b"a" if reason.startswith("metadata") else line)


VALUES: Callable[..., Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)  # type: ignore[assignment]


def finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, list):
        return [finite(item) for item in value]
    return {key: finite(item) for key, item in value.items()} if isinstance(value, dict) else value


@given(VALUES)
def test_what_python_writes_is_read_with_null_for_what_is_no_number(value: Any) -> None:
    assert reread(json.dumps(value).encode(), "") == finite(value)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_value_or_none(line: bytes) -> None:
    reread(line + b"NaN", "number is infinity")
