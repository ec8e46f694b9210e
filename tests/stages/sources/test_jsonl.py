from __future__ import annotations

import itertools
import os
import pathlib
import tempfile
import tracemalloc
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings, strategies as st

from headrace.stages.runtime.batch import RAW_BYTES_MAX, ROW, Batch
from headrace.stages.runtime.contract import FragmentChanged, FragmentEnd, InputError
from headrace.stages.sources.jsonl import FIRST_BYTES, JsonlSource
from headrace.store.ledger.core.fragments import Fragment
from headrace.store.ledger.core.intervals import UNBOUNDED, UNKNOWN, Gap

WHOLE = [Gap(0, UNBOUNDED, 0)]
Write = Callable[..., pathlib.Path]


def source(path: pathlib.Path, **parameters: Any) -> JsonlSource:
    return JsonlSource("read", [str(path)], **parameters)


def batches(reader: JsonlSource, fragment: Fragment, gaps: list[Gap] = WHOLE) -> list[Batch]:
    return [item for item in reader.read(fragment, gaps) if isinstance(item, Batch)]


def fates(found: list[Batch]) -> dict[int, tuple[Any, ...]]:
    """What became of each ordinal."""
    fate: dict[int, tuple[Any, ...]] = {}
    for batch in found:
        for row in batch.rows.to_pylist():
            assert row[ROW] not in fate
            fate[row[ROW]] = ("kept", row["id"], row["text"], row["metadata"])
        for row in batch.verdicts.to_pylist():
            assert row["row"] not in fate
            fate[row["row"]] = (row["verdict"], row["id"], row["reason"], row["raw"])
    return fate


def only(path: pathlib.Path, **parameters: Any) -> dict[int, tuple[Any, ...]]:
    reader = source(path, **parameters)
    (fragment,) = reader.list()
    return fates(batches(reader, fragment))


def test_a_record_keeps_its_id_its_text_and_its_other_fields(write_jsonl: Write) -> None:
    path = write_jsonl({"id": "a", "text": "one", "url": "u", "metadata": {"x": 1}}, {"id": 7, "text": ""})
    assert only(path) == {0: ("kept", "a", "one", '{"url":"u","metadata":{"x":1}}'), 1: ("kept", "7", "", None)}


@pytest.mark.parametrize(
    ("record", "metadata"),
    [
        ({"metadata": {"url": "u", "n": {"x": 1}}}, {"url": "u", "n": {"x": 1}}),
        ({"source": "s", "metadata": {"url": "u"}}, {"source": "s", "url": "u"}),
        ({"metadata": {"metadata": {"x": 1}}}, {"metadata": {"x": 1}}),
        ({"metadata": {"text": "inner", "id": 3}}, {"text": "inner", "id": 3}),
        ({"url": "outer", "metadata": {"url": "u"}}, {"url": "outer", "metadata": {"url": "u"}}),
        ({"metadata": "a word"}, {"metadata": "a word"}),
        ({"metadata": {}}, None),
    ],
)
def test_the_fields_of_the_object_that_is_named_are_the_records_own(
    write_jsonl: Write, record: dict[str, Any], metadata: dict[str, Any] | None
) -> None:
    path = write_jsonl({"id": "a", "text": "one", **record})
    (fate,) = only(path, metadata_key="metadata").values()
    assert fate[:3] == ("kept", "a", "one")
    assert (orjson.loads(fate[3]) if fate[3] else None) == metadata


def test_a_record_without_an_id_is_named_by_its_uri_and_ordinal(write_jsonl: Write) -> None:
    path = write_jsonl({"text": "one"}, b"\n", {"id": None, "text": "two"}, {"id": [1], "text": "three"})
    assert [fate[1] for fate in only(path).values()] == [f"{path.as_uri()}#{ordinal}" for ordinal in range(3)]


def test_the_keys_of_text_and_id_can_be_named(write_jsonl: Write) -> None:
    path = write_jsonl({"key": "k", "body": "b", "text": "other", "id": 3})
    assert only(path, text_key="body", id_key="key") == {0: ("kept", "k", "b", '{"text":"other","id":3}')}


def test_blank_lines_are_no_records(write_jsonl: Write) -> None:
    path = write_jsonl(b"\n \t\r\n", {"text": "one"}, b"\n\n", {"text": "two"}, b"   ")
    assert [fate[2] for fate in only(path).values()] == ["one", "two"]


def test_byte_order_marks_carriage_returns_and_missing_newlines_do_no_harm(write_jsonl: Write) -> None:
    path = write_jsonl(b'\xef\xbb\xbf{"text":"one"}\r\n{"text":"two"}\r\n{"text":"three"}')
    assert [fate[2] for fate in only(path).values()] == ["one", "two", "three"]


@pytest.mark.parametrize(
    ("line", "reason", "identity"),
    [
        (b'{"id":"x","text":', "malformed JSON", None),
        (b"[1,2]", "not a JSON object: the line holds an array", None),
        (b'{"id":"x"}', 'no text: the record has no field "text"', "x"),
        (b'{"id":"x","text":null}', 'text is not a string: field "text" holds null', "x"),
        (b'{"id":5,"text":["a"]}', 'text is not a string: field "text" holds an array', "5"),
        (b'{"id":"x","text":"a\xff"}', "invalid UTF-8: byte 0xff at byte 19 of the line", None),
        (b'{"id":"x","text":"\\ud800"}', "malformed JSON", None),
    ],
)
def test_what_is_no_record_of_text_is_quarantined_alone(
    write_jsonl: Write, line: bytes, reason: str, identity: str | None
) -> None:
    path = write_jsonl({"id": "before", "text": "b"}, line + b"\n", {"id": "after", "text": "a"})
    fate = only(path)
    assert (fate[0][0], fate[2][0]) == ("kept", "kept")
    verdict, name, why, raw = fate[1]
    assert (verdict, name, raw) == ("quarantined", identity or f"{path.as_uri()}#1", line)
    assert why.startswith(reason)


@pytest.mark.parametrize("batch_bytes", [100, 1 << 20])
def test_a_line_over_the_limit_is_quarantined_with_its_size_and_place(write_jsonl: Write, batch_bytes: int) -> None:
    long = b'{"text":"' + b"x" * 5000 + b'"}'
    path = write_jsonl({"text": "a"}, long + b"\n", {"text": "b"})
    fate = only(path, max_record_bytes=1000, batch_bytes=batch_bytes)
    assert fate[1] == (
        "quarantined",
        f"{path.as_uri()}#1",
        f"line too long: {len(long)} bytes at byte 13 of the file, the limit is 1000",
        long[: RAW_BYTES_MAX if batch_bytes > 1000 else len(fate[1][3])],
    )
    assert fate[2][2] == "b"


def test_of_a_huge_line_only_the_first_mebibyte_is_kept(write_jsonl: Write) -> None:
    path = write_jsonl(b"x" * (3 << 20) + b"\n", {"text": "b"})
    fate = only(path, max_record_bytes=2 << 20)
    assert len(fate[0][3]) == RAW_BYTES_MAX
    assert fate[0][2].endswith(f"(the first {RAW_BYTES_MAX} of {3 << 20} bytes are kept)")
    assert fate[1][2] == "b"


def test_metadata_too_deep_to_write_quarantines_its_record(write_jsonl: Write) -> None:
    path = write_jsonl(b'{"text":"t","deep":' + b"[" * 300 + b"]" * 300 + b"}\n", {"text": "b"})
    fate = only(path)
    assert (fate[0][0], fate[1][0]) == ("quarantined", "kept")


def test_a_file_that_changed_since_it_was_listed_is_refused(write_jsonl: Write) -> None:
    path = write_jsonl({"text": "a"})
    reader = source(path)
    (fragment,) = reader.list()
    write_jsonl({"text": "changed"})
    with pytest.raises(FragmentChanged, match="the same command compares first what was read of it"):
        batches(reader, fragment)


def test_a_file_that_changes_while_it_is_read_is_refused(write_jsonl: Write) -> None:
    path = write_jsonl(*({"text": "a" * 100} for _ in range(100)))
    reader = source(path, batch_bytes=1000)
    (fragment,) = reader.list()
    items = reader.read(fragment, WHOLE)
    next(items)
    os.truncate(path, 5000)
    with pytest.raises(FragmentChanged):
        list(items)


def test_a_file_that_is_gone_is_refused(write_jsonl: Write) -> None:
    path = write_jsonl({"text": "a"})
    reader = source(path)
    (fragment,) = reader.list()
    path.unlink()
    with pytest.raises(FragmentChanged, match="gone"):
        batches(reader, fragment)


def test_a_glob_that_matches_nothing_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match=r'no file matches ".*\*\.jsonl": check the path'):
        list(source(tmp_path / "*.jsonl").list())


def test_a_file_of_another_format_is_refused_by_name(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.jsonl.xz").write_bytes(b"")
    with pytest.raises(InputError, match=r"a\.jsonl\.xz"):
        list(source(tmp_path / "*").list())


def test_an_empty_file_is_a_fragment_of_no_records(write_jsonl: Write) -> None:
    reader = source(write_jsonl())
    (fragment,) = reader.list()
    assert list(reader.read(fragment, WHOLE)) == [FragmentEnd(0)]


def test_a_hostile_file_name_is_read(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a b,[x]%20#\u00e9.jsonl"
    path.write_bytes(b'{"text":"t"}')
    assert only(path)[0][2] == "t"


LINE = st.one_of(
    st.builds(lambda text: orjson.dumps({"text": text}), st.text(max_size=30)),
    st.sampled_from(
        [b"", b"  ", b"\r", b"{", b"[1]", b'{"id":"x","text":"y"}\r', b'{"text":"' + b"z" * 90 + b'"}', b" " * 99]
    ),
)


def expected_of(lines: list[bytes]) -> list[bytes]:
    return [line for line in lines if line.strip()]


@settings(max_examples=150, deadline=None)
@given(
    lines=st.lists(LINE, max_size=30),
    ending=st.booleans(),
    bom=st.booleans(),
    fragment_bytes=st.integers(1, 400),
    batch_bytes=st.integers(1, 200),
    batch_records=st.integers(1, 9),
    data=st.data(),
)
def test_any_gaps_of_any_lines_give_equally_named_records(
    lines: list[bytes],
    ending: bool,
    bom: bool,
    fragment_bytes: int,
    batch_bytes: int,
    batch_records: int,
    data: st.DataObject,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "in.jsonl"
        content = (b"\xef\xbb\xbf" if bom else b"") + b"\n".join(lines) + (b"\n" if ending and lines else b"")
        path.write_bytes(content)
        # The reference reads each range whole, in one piece.
        big = source(path, fragment_bytes=fragment_bytes, max_record_bytes=80)
        small = source(
            path,
            fragment_bytes=fragment_bytes,
            max_record_bytes=80,
            batch_bytes=batch_bytes,
            batch_records=batch_records,
        )
        total = 0
        for fragment in big.list():
            reference = fates(batches(big, fragment))
            count = len(reference)
            total += count
            whole = batches(small, fragment)
            assert sorted(reference) == list(range(count))
            assert names(fates(whole)) == names(reference)
            assert all(batch.count <= batch_records for batch in whole)
            assert all(left.offset + left.length == right.offset for left, right in itertools.pairwise(whole))
            assert list(small.read(fragment, WHOLE))[-1] == FragmentEnd(count)
            gaps = draw_gaps(data, whole, count)
            inside = {row for gap in gaps for row in range(gap.first, min(gap.end, count))}
            again = list(small.read(fragment, gaps))
            found = [item for item in again if isinstance(item, Batch)]
            assert names(fates(found)) == {row: fate for row, fate in names(reference).items() if row in inside}
            ends = byte_ends(whole)
            for batch in found:
                stop = batch.offset + batch.length
                assert ends.get(batch.first + batch.count, stop) == stop
            if gaps and gaps[-1].end == UNBOUNDED:
                assert again[-1] == FragmentEnd(count)
        assert total == len(expected_of(lines))


def names(found: dict[int, tuple[Any, ...]]) -> dict[int, tuple[Any, ...]]:
    """The fates without the raw bytes: of an overlong line, how much is kept depends on how it was read."""
    return {row: fate if fate[0] == "kept" else fate[:3] for row, fate in found.items()}


def byte_ends(found: list[Batch]) -> dict[int, int]:
    return {batch.first + batch.count: batch.offset + batch.length for batch in found}


def draw_gaps(data: st.DataObject, whole: list[Batch], count: int) -> list[Gap]:
    edges = sorted(data.draw(st.sets(st.integers(0, count), max_size=6)))
    starts = {0: 0, **byte_ends(whole)}
    gaps = [
        Gap(low, high, starts.get(low, UNKNOWN) if data.draw(st.booleans()) else UNKNOWN)
        for low, high in zip(edges[::2], edges[1::2], strict=False)
    ]
    if len(edges) % 2:
        gaps.append(Gap(edges[-1], UNBOUNDED, starts.get(edges[-1], UNKNOWN)))
    return gaps


def test_bytes_read_and_passed_over_are_counted_apart(write_jsonl: Write) -> None:
    path = write_jsonl(*({"text": "a" * 10} for _ in range(10)))
    line = path.stat().st_size // 10
    reader = source(path)
    (fragment,) = reader.list()
    batches(reader, fragment, [Gap(4, 6, UNKNOWN)])
    assert (reader.bytes_read, reader.bytes_skipped) == (2 * line, 4 * line)
    batches(reader, fragment, [Gap(8, UNBOUNDED, 8 * line)])
    assert (reader.bytes_read, reader.bytes_skipped) == (4 * line, 4 * line)


def test_lines_are_gone_from_memory_while_their_text_is_worked_on(write_jsonl: Write) -> None:
    size = 4 << 20
    path = write_jsonl({"id": "large", "text": "x" * size}, b"\n", {"id": "small", "text": "y"})
    reader = source(path)
    (fragment,) = reader.list()
    tracemalloc.start()
    try:
        items = reader.read(fragment, WHOLE)
        batch = next(item for item in items if isinstance(item, Batch))
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    column = batch.rows.column("text").nbytes
    assert column > size
    assert peak > 2 * size  # the line and its text
    assert held - column < size // 8


def test_a_record_that_no_block_holds_is_a_batch_of_its_own(write_jsonl: Write) -> None:
    path = write_jsonl({"text": "a"}, {"text": "x" * 2500}, {"text": "b"}, {"text": "y" * 2500}, {"text": "c"})
    reader = source(path, batch_bytes=1000)
    (fragment,) = reader.list()
    found = batches(reader, fragment)
    assert [(batch.first, batch.count) for batch in found] == [(0, 1), (1, 1), (2, 1), (3, 1), (4, 1)]
    assert [len(batch.rows.column("text")[0].as_py()) for batch in found] == [1, 2500, 1, 2500, 1]
    assert all(left.offset + left.length == right.offset for left, right in itertools.pairwise(found))


def test_the_first_batches_of_a_reader_are_small(write_jsonl: Write) -> None:
    line = {"text": "a" * (FIRST_BYTES // 8 - 12)}
    reader = source(write_jsonl(*(line for _ in range(200))), batch_bytes=8 * FIRST_BYTES)
    (fragment,) = reader.list()
    found = batches(reader, fragment)
    assert [batch.count for batch in found[:4]] == [8, 16, 32, 8]  # the first block holds 64 lines
    assert {batch.count for batch in found[4:-1]} == {64}
    assert all(left.offset + left.length == right.offset for left, right in itertools.pairwise(found))
    again = batches(reader, fragment)
    assert [batch.count for batch in again] == [64, 64, 64, 8]


def test_a_first_record_above_the_small_batch_is_one_of_its_own(write_jsonl: Write) -> None:
    reader = source(write_jsonl({"text": "a" * 2 * FIRST_BYTES}, {"text": "b"}))
    (fragment,) = reader.list()
    assert [batch.count for batch in batches(reader, fragment)] == [1, 1]


@pytest.mark.parametrize("batch_bytes", [7, 50, 1 << 20])
def test_a_line_too_long_is_kept_whole_to_look_at(write_jsonl: Write, batch_bytes: int) -> None:
    line = b'{"text": "' + b"x" * 200 + b'"}'
    ((verdict, _, _, raw),) = only(write_jsonl(line + b"\n"), max_record_bytes=80, batch_bytes=batch_bytes).values()
    assert (verdict, raw) == ("quarantined", line)
