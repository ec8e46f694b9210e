"""Repeated lines and paragraphs: how they are found and counted, the index, and the stage that removes them."""

from __future__ import annotations

import itertools
import json
import os
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from headrace.pipeline.errors import PipelineError
from headrace.stages.dedup.spans import spans
from headrace.stages.dedup.spans.span_file import HEADER_BYTES, facts_of, read_facts
from headrace.stages.dedup.spans.spans import SpanCounter, SpanIndex, find_spans
from headrace.stages.library import dedup_lines, dedup_paragraphs, dedup_passages, map_records
from headrace.stages.runtime.batch import Batch, no_verdicts
from headrace.stages.runtime.build import build_stage
from headrace.store.contract.errors import FormatError

FRAGMENT = b"f" * 16
BANNER = "Sign up for the newsletter today"


def texts(*given: str) -> Any:
    return pa.array(given, pa.string())


def cut(text: str, unit: str, words_min: int = 0) -> list[str]:
    found = find_spans(texts(text), unit, words_min)
    data = text.encode()
    return [data[a:b].decode() for a, b in zip(found.begins.tolist(), found.ends.tolist(), strict=True)]


def batch(given: Sequence[str]) -> Batch:
    rows = pa.record_batch(
        {
            "__row": pa.array(range(len(given)), pa.int64()),
            "id": pa.array([f"id-{place}" for place in range(len(given))], pa.string()),
            "text": pa.array(given, pa.string()),
            "metadata": pa.nulls(len(given), pa.string()),
        }
    )
    return Batch(FRAGMENT, "file:///a.jsonl", 0, len(given), -1, -1, rows, no_verdicts())


def index_of(
    folder: Path,
    given: Sequence[str],
    *,
    unit: str = "line",
    records_min: int = 2,
    words_min: int = 3,
    one: bool = False,
) -> str:
    counter = SpanCounter(unit, words_min)
    counter.add(texts(*(f"id-{place}" for place in range(len(given)))), texts(*given))
    counter.write(folder / f"{unit}.idx", records_min, keeps_one=one)
    return str(folder / f"{unit}.idx")


def removed(given: Sequence[str], index: str, *, paragraphs: bool = False) -> Batch:
    stage = build_stage((dedup_paragraphs if paragraphs else dedup_lines)(index), {})
    answer: Batch = stage.process(batch(given))
    return answer


# ---- spans ----


def test_lines_and_paragraphs_together_are_the_text() -> None:
    text = "one\n two\r\n\n\nthree\n  \nfour\nfive"
    assert cut(text, "line") == ["one\n", " two\r\n", "\n", "\n", "three\n", "  \n", "four\n", "five"]
    assert cut(text, "paragraph") == ["one\n two\r\n\n\n", "three\n  \n", "four\nfive"]
    assert cut("\n\nfirst\n", "paragraph") == ["\n\n", "first\n"]


@given(st.text(alphabet=st.sampled_from("ab \n\r\t\u3000é"), max_size=60), st.sampled_from(["line", "paragraph"]))
@settings(max_examples=300, deadline=None)
def test_spans_cover_any_text_and_its_words_are_theirs(text: str, unit: str) -> None:
    found = cut(text, unit)
    assert "".join(found) == text
    assert cut(text, unit, 1) == [span for span in found if span.strip()]
    if unit == "line":
        assert [span.removesuffix("\n") for span in found] == (text.removesuffix("\n").split("\n") if text else [])


def test_spans_that_differ_in_white_space_alone_are_one() -> None:
    found = find_spans(texts("a  b c\n\ta b c \na B c"), "line", 3).hashes
    assert found[0] == found[1] != found[2]


def test_a_span_of_too_few_words_counts_as_none() -> None:
    assert cut("a b c\na b\n---\n\na b c d", "line", 3) == ["a b c\n", "a b c d"]


def passages(text: str, size: int) -> list[str]:
    found = find_spans(texts("before", text, "behind"), "passage", size)
    data = text.encode()
    assert set(found.texts.tolist()) <= ({0, 1, 2} if size == 1 else {1})
    mine = found.texts == 1
    bounds = zip(found.begins[mine].tolist(), found.ends[mine].tolist(), strict=True)
    return [data[a - len("before") : b - len("before")].decode() for a, b in bounds]


def test_each_word_begins_a_passage_that_has_words_enough() -> None:
    assert passages(" one two\n three, é\u3000four ", 3) == ["one two\n three,", "two\n three, é", "three, é\u3000four"]
    assert passages("one two", 3) == []
    assert passages("one two", 1) == ["one", "two"]


@pytest.mark.parametrize("text", ["a", "a b", "", " a"])
def test_many_texts_of_one_letter_have_room_for_all_passages(text: str) -> None:
    found = find_spans(texts(*[text] * 1000), "passage", 1)
    assert found.texts.tolist() == [place for place in range(1000) for _ in text.split()]
    assert len(found.hashes) == 1000 * len(text.split())


@given(st.lists(st.sampled_from(["a", "b", "cé", "d."]), max_size=40), st.integers(1, 5))
@settings(max_examples=200, deadline=None)
def test_passages_have_one_hash_where_their_words_are_the_same(words: list[str], size: int) -> None:
    hashes = find_spans(texts("\n ".join(words)), "passage", size).hashes.tolist()
    expected = [tuple(words[at : at + size]) for at in range(len(words) - size + 1)]
    assert len(hashes) == len(expected)
    assert len(set(zip(hashes, expected, strict=True))) == len(set(hashes)) == len(set(expected))


# ---- counting ----


def counted(given: Sequence[str], parts: Sequence[int], records_min: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(spans, "GATHERED_MAX", 7)
    monkeypatch.setattr(spans, "MERGED_MAX", 5)
    counter = SpanCounter("line", 1)
    bounds = [0, *sorted(parts), len(given)]
    for begin, end in itertools.pairwise(bounds):
        if begin < end:
            counter.add(texts(*(f"id-{place}" for place in range(begin, end))), texts(*given[begin:end]))
    found = list(counter.frequent(records_min))
    rows = np.concatenate(found) if found else np.empty(0, spans._RUN)
    return {int(row["hash"]): (int(row["records"]), int(row["owner"])) for row in rows}, rows


@pytest.mark.parametrize("seed", range(20))
def test_counts_are_those_of_a_dict_however_records_come(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    given = ["\n".join(chance.choices("abcdefgh", k=chance.randrange(6))) for _ in range(40)]
    expected: dict[int, tuple[int, int]] = {}
    for place, text in enumerate(given):
        for hashed in set(find_spans(texts(text), "line", 1).hashes.tolist()):
            records, owner = expected.get(hashed, (0, 1 << 64))
            expected[hashed] = records + 1, min(owner, spans.owner_of(f"id-{place}"))
    for records_min in (1, 2, 12):
        found, rows = counted(given, chance.sample(range(40), 5), records_min, monkeypatch)
        assert found == {name: value for name, value in expected.items() if value[0] >= records_min}
        assert (np.diff(rows["hash"].astype(object)) > 0).all()


@pytest.mark.parametrize("one", [False, True])
def test_the_bytes_of_an_index_do_not_depend_on_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one: bool
) -> None:
    chance = random.Random(1)
    given = [(f"id-{place}", "\n".join(chance.choices("abcdefgh", k=4))) for place in range(60)]
    written = []
    for number, gathered in enumerate((1 << 20, 9)):
        monkeypatch.setattr(spans, "GATHERED_MAX", gathered)
        counter = SpanCounter("line", 1)
        chance.shuffle(given)
        for begin in range(0, 60, 7):
            part = given[begin : begin + 7]
            counter.add(texts(*(name for name, _ in part)), texts(*(text for _, text in part)))
        counter.write(tmp_path / str(number), 2, keeps_one=one)
        written.append((tmp_path / str(number)).read_bytes())
    assert written[0] == written[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_an_index_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match=r"\S"):
        SpanCounter("line", 1).write(tmp_path / "taken", 2, keeps_one=False)
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


# ---- the file ----


@pytest.mark.parametrize("count", [0, 1, 5000])
def test_an_index_holds_what_was_written_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(spans, "CHECKED_AT_ONCE", 1000)
    lines = [f"line number {number}" for number in range(count)]
    index = SpanIndex(index_of(tmp_path, ["\n".join(lines)] * 2, one=True))
    hashes = find_spans(texts("\n".join(lines)), "line", 3).hashes
    others = np.array([0, 1, 2**64 - 1, *(hashes + np.uint64(1)), *(hashes - np.uint64(1))], np.uint64)
    assert index.facts.spans == count
    assert index.holds(hashes).all()
    assert not index.holds(np.setdiff1d(others, hashes)).any()
    assert set(index.owners(hashes).tolist()) <= {min(spans.owner_of("id-0"), spans.owner_of("id-1"))}


@pytest.mark.parametrize("at", [0, 40, HEADER_BYTES, -1])
def test_a_damaged_index_is_refused(tmp_path: Path, at: int) -> None:
    path = Path(index_of(tmp_path, ["a b c\nd e f"] * 2))
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"line\.idx"):
        SpanIndex(path)


@pytest.mark.parametrize(
    "change",
    [
        {"spans": 1}, {"spans": 1 << 60}, {"spans": -1}, {"spans": True}, {"words_min": 4}, {"unit": "word"},
        {"format": 2}, {"rule": 3}, {"keeps_one": True}, {"records_min": 3}, {"checksum": 5}, {"more": 1},
        {"name": "x"}, {"words_min": 1 << 60}, {"words_min": 0},
    ],
)  # fmt: skip
def test_a_header_that_says_otherwise_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = Path(index_of(tmp_path, ["a b c\nd e f"] * 2))
    data = path.read_bytes()
    head = json.dumps({**json.loads(data[:HEADER_BYTES]), **change}).encode().ljust(HEADER_BYTES)
    path.write_bytes(head + data[HEADER_BYTES:])
    with pytest.raises(FormatError, match=r"line\.idx"):
        SpanIndex(path)


def test_a_file_that_is_shorter_than_a_header_is_refused(tmp_path: Path) -> None:
    path = Path(index_of(tmp_path, ["a b c\nd e f"] * 2))
    head = json.dumps({**json.loads(path.read_bytes()[:HEADER_BYTES]), "spans": -1}).encode()
    with pytest.raises(FormatError, match="-1 spans"):
        facts_of(head.ljust(HEADER_BYTES - 8), HEADER_BYTES - 8, "x.idx")


@given(st.binary(max_size=200), st.integers(0, 1 << 40))
@settings(max_examples=200, deadline=None)
def test_bytes_that_are_no_header_are_refused(data: bytes, size: int) -> None:
    with pytest.raises(FormatError):
        facts_of(data, size, "x.idx")


def test_an_index_cut_off_or_of_hashes_out_of_order_is_refused(tmp_path: Path) -> None:
    path = Path(index_of(tmp_path, ["a b c\nd e f"] * 2))
    data = path.read_bytes()
    facts = read_facts(path)
    swapped = data[HEADER_BYTES + 8 :] + data[HEADER_BYTES : HEADER_BYTES + 8]
    digest = spans.begin_checksum("line", 3, 2, keeps_one=False)
    digest.update(swapped)
    other = replace(facts, checksum=digest.hexdigest())
    for content in (data[:-1], data[: HEADER_BYTES - 1], b"", spans.write_header(other) + swapped):
        path.write_bytes(content)
        with pytest.raises(FormatError):
            SpanIndex(path)


# ---- the stage ----


def test_lines_of_many_records_are_removed_and_their_places_told(tmp_path: Path) -> None:
    given = [f"own é line {number}\n{BANNER}\n  {BANNER}\nthe end {number}" for number in range(4)]
    answer = removed(given, index_of(tmp_path, given, records_min=4))
    assert answer.rows.column("text").to_pylist() == [f"own é line {n}\nthe end {n}" for n in range(4)]
    assert answer.edits == {"dedup-lines": 4}
    assert answer.counters == {"dedup-lines/lines removed": 8}
    for text, lineage in zip(given, answer.rows.column("__lineage").to_pylist(), strict=True):
        story = orjson.loads(lineage)
        begin, end = story["removed"]["dedup-lines"]
        assert text.encode()[begin:end].decode() == f"{BANNER}\n  {BANNER}\n"
        assert story["edited_by"] == ["dedup-lines"]


def test_a_text_of_which_nothing_is_left_is_filtered(tmp_path: Path) -> None:
    given = [f"{BANNER}\n \n{BANNER}", f"{BANNER}\nown words", " \n", "own words alone"]
    answer = removed(given, index_of(tmp_path, given))
    assert answer.rows.column("text").to_pylist() == ["own words", " \n", "own words alone"]
    assert answer.verdicts.column("reason").to_pylist() == ["only repeated lines"]
    assert answer.edits == {"dedup-lines": 1}
    assert answer.rows.column("__lineage").to_pylist()[1:] == [None, None]


def test_paragraphs_of_many_records_are_removed_whole(tmp_path: Path) -> None:
    notice = "All rights reserved by\nthe owners of this site"
    given = [f"own text {number}\n\n{notice}\n\nthe owners of this site\n" for number in range(3)]
    answer = removed(given, index_of(tmp_path, [*given, notice], unit="paragraph", records_min=4), paragraphs=True)
    assert answer.rows.column("text").to_pylist() == [f"own text {n}\n\nthe owners of this site\n" for n in range(3)]
    assert answer.counters == {"dedup-paragraphs/paragraphs removed": 3}


def test_passages_are_removed_wherever_they_stand(tmp_path: Path) -> None:
    shared = " ".join(f"shared{number}" for number in range(9))
    given = [f"own words{n}\n{shared} and{n} more\n" for n in range(3)] + [f"short {shared[:40]}"]
    index = index_of(tmp_path, given, unit="passage", words_min=7)
    answer = build_stage(dedup_passages(index), {}).process(batch(given))
    assert answer.rows.column("text").to_pylist() == [*(f"own words{n}\n and{n} more\n" for n in range(3)), given[3]]
    begin, end = orjson.loads(answer.rows.column("__lineage")[0].as_py())["removed"]["dedup-passages"]
    assert given[0][begin:end] == shared


def test_one_record_keeps_a_span_whatever_order_they_come_in(tmp_path: Path) -> None:
    given = [f"{BANNER}\nown words {number}\n{BANNER}\n" for number in range(8)]
    answer = removed(given, index_of(tmp_path, given, one=True))
    kept = [text for text in answer.rows.column("text").to_pylist() if BANNER in text]
    assert len(kept) == 1
    assert kept[0].count(BANNER) == 2
    stage = build_stage(dedup_lines(str(tmp_path / "line.idx")), {})
    alone = [stage.process(batch(given).with_rows(batch(given).rows.slice(row, 1))) for row in range(8)]
    assert [one.rows.column("text")[0].as_py() for one in alone] == answer.rows.column("text").to_pylist()


def test_a_later_stage_of_functions_keeps_what_was_removed(tmp_path: Path) -> None:
    given = [f"own line {number}\n{BANNER}\n" for number in range(3)]
    answer = removed(given, index_of(tmp_path, given))
    later = build_stage(map_records("tests.stages.dedup.spans.test_spans:shout"), {}).process(answer)
    for lineage in later.rows.column("__lineage").to_pylist():
        story = orjson.loads(lineage)
        assert story["edited_by"] == ["dedup-lines", "shout"]
        assert len(story["removed"]["dedup-lines"]) == 2


def shout(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "text": record["text"].upper()}


def test_an_index_is_part_of_the_version_and_its_place_is_not(tmp_path: Path) -> None:
    given = [f"own line {number}\n{BANNER}\n" for number in range(3)]
    one = dedup_lines(index_of(tmp_path, given))
    (tmp_path / "there").mkdir()
    moved = dedup_lines(index_of(tmp_path / "there", given[::-1]))
    assert one.identity == moved.identity
    more = dedup_lines(index_of(tmp_path / "there", given, words_min=2))
    assert more.identity != one.identity
    with pytest.raises(PipelineError, match="is another index"):
        build_stage(one.__class__.from_dict({**one.to_dict(), "parameters": more.parameters | {"checksum": "x"}}), {})


def test_what_is_no_index_is_refused_where_it_is_declared(tmp_path: Path) -> None:
    path = index_of(tmp_path, ["a b c"] * 2)
    with pytest.raises(PipelineError, match="an index of lines, and not of paragraphs"):
        dedup_paragraphs(path)
    (tmp_path / "text").write_text("no index")
    for name in ("text", "missing", "."):
        with pytest.raises(PipelineError, match='stage "dedup-lines"'):
            dedup_lines(str(tmp_path / name))
    os.truncate(path, HEADER_BYTES)
    with pytest.raises(PipelineError, match="bytes for 1 spans"):
        dedup_lines(path)
