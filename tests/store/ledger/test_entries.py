"""The codec of ledger entries: the same entry, the same bytes; and any bytes give an entry or a named error."""

from contextlib import suppress
from dataclasses import replace

import msgpack
import pytest
from hypothesis import given, strategies as st

from headrace.store.ledger.core.entries import (
    ENTRY_FORMAT,
    Beat,
    Closed,
    Entry,
    EntryError,
    EpochRaised,
    FragmentDropped,
    FragmentEnded,
    FragmentsListed,
    Led,
    PipelineApplied,
    PrefixRead,
    Removed,
    Resigned,
    Retracted,
    VersionHeld,
    VersionPublished,
    decode_entry,
    encode_entry,
)
from headrace.store.ledger.core.fragments import Counts, Fragment, Range, StoredObject
from headrace.store.shards.object_keys import is_key_of
from headrace.store.typed import MOMENT_MAX

numbers = st.integers(0, (1 << 63) - 1)
names = st.text(max_size=12)
ids = st.binary(min_size=16, max_size=16)
plain = st.dictionaries(names, st.one_of(names, numbers, st.booleans(), st.lists(numbers, max_size=3)), max_size=3)
moments = st.integers(0, MOMENT_MAX)
tallies = st.dictionaries(names, numbers, max_size=3)
fragments = st.builds(Fragment, ids, names, names, names, numbers, st.integers(-1, 1 << 60), names, numbers)
ranges = st.builds(Range, ids, numbers, numbers, st.integers(-1, 1 << 60), st.integers(-1, 1 << 60))
hashes = st.from_regex(r"[0-9a-f]{32}", fullmatch=True)
keys = st.from_regex(r"(shards|quarantine)/[0-9]{1,18}/[0-9a-f]{32}(\.[a-z]{1,9}){1,2}", fullmatch=True)
objects = st.builds(StoredObject, names, keys, hashes.map("xxh3-128:{}".format), numbers).filter(
    lambda stored: is_key_of(stored.role, stored.key)
)
stages = st.dictionaries(st.from_regex(r"[a-z][a-z0-9_-]{0,5}", fullmatch=True), numbers, max_size=3)
counts = st.builds(
    Counts, numbers, numbers, numbers, numbers, tallies, tallies, stages, numbers, numbers, numbers, counters=tallies
)
changes = st.one_of(
    st.builds(Led, numbers, plain),
    st.builds(Resigned, numbers),
    st.builds(Beat, numbers),
    st.builds(PipelineApplied, names, plain),
    st.builds(EpochRaised, names, numbers),
    st.builds(FragmentsListed, st.lists(fragments, max_size=3).map(tuple)),
    st.builds(FragmentEnded, ids, numbers),
    st.builds(PrefixRead, ids, numbers, numbers, ids),
    st.builds(FragmentDropped, ids, names, st.booleans()),
    st.builds(
        Closed, names, names, numbers, st.lists(ranges, max_size=3).map(tuple), st.lists(objects).map(tuple), counts
    ),
    st.builds(VersionHeld, numbers, st.lists(names).map(tuple), moments),
    st.builds(VersionPublished, numbers, names, st.integers(-1, 1 << 60), st.booleans(), moments, numbers),
    st.builds(Removed, names),
    st.builds(
        Retracted,
        numbers,
        st.lists(st.tuples(names, st.lists(numbers, max_size=3).map(tuple)), max_size=2).map(tuple),
        st.lists(st.tuples(names, objects), max_size=2).map(tuple),
    ),
)
entries = st.builds(Entry, numbers, st.lists(changes, max_size=4).map(tuple))

CLOSED = Closed(
    "write",
    "v",
    1,
    (Range(b"f" * 16, 0, 5, 0, 50),),
    (StoredObject("tokens", f"shards/1/{'a' * 32}.safetensors", "xxh3-128:" + "0" * 32, 9),),
    Counts(kept=5),
)


@given(entries)
def test_an_entry_comes_back_from_its_bytes(entry: Entry) -> None:
    data = encode_entry(entry)
    assert decode_entry(data) == entry
    assert encode_entry(decode_entry(data)) == data


@given(st.binary(max_size=200))
def test_any_bytes_are_an_entry_or_an_entry_error(data: bytes) -> None:
    with suppress(EntryError):
        entry = decode_entry(data)
        assert decode_entry(encode_entry(entry)) == entry


@given(entries, st.data())
def test_a_flipped_byte_never_crashes_the_decoder(entry: Entry, data: st.DataObject) -> None:
    raw = bytearray(encode_entry(entry))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with suppress(EntryError):
        decode_entry(bytes(raw))


def test_the_order_of_making_a_mapping_changes_no_bytes() -> None:
    there, back = {"a": 1, "b": 2}, {"b": 2, "a": 1}
    assert encode_entry(Entry(1, (Led(1, there),))) == encode_entry(Entry(1, (Led(1, back),)))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([ENTRY_FORMAT + 1, 1, []], f"format {ENTRY_FORMAT + 1}, and this Headrace reads {ENTRY_FORMAT}: a newer"),
        (
            [ENTRY_FORMAT, 1, [["Sung", []]]],
            "entry 3 holds a change named 'Sung', .* does not know: a newer",
        ),
        (
            [ENTRY_FORMAT, 1, [["Beat", [1, 2]]]],
            "a Beat of 2 values, .* knows 1: a newer Headrace wrote it; upgrade",
        ),
        ([ENTRY_FORMAT, 1, [["Beat", []]]], "a Beat of 0 values, and this Headrace knows 1$"),
        ([ENTRY_FORMAT, 1], "not a ledger entry"),
        ([ENTRY_FORMAT, 1, [["FragmentsListed", [[[1, 2]]]]]], "not a ledger entry"),
        ("entry", "not a ledger entry"),
    ],
)
def test_what_this_reader_does_not_know_is_named(body: object, words: str) -> None:
    with pytest.raises(EntryError, match=words):
        decode_entry(msgpack.packb(body), "entry 3")


def test_a_name_outside_utf_8_is_shown_and_byteless() -> None:
    with pytest.raises(EntryError, match=r"the name 'caf\\udce9.jsonl' is not UTF-8"):
        encode_entry(Entry(1, (PipelineApplied("v", {"input": "caf\udce9.jsonl"}),)))


def row_of(counts: Counts) -> list[object]:
    """The counts of an entry as any reader of msgpack sees them."""
    body = msgpack.unpackb(encode_entry(Entry(1, (replace(CLOSED, counts=counts),))))
    return body[2][0][1][5]


def test_counts_without_counters_are_written_as_before_there_were_any() -> None:
    before = [3, 0, 0, 0, {}, {}, {"upper": 2}, 40, 5, 6]
    assert row_of(Counts(kept=3, edited={"upper": 2}, tokens=40, sequences=5, padding=6)) == before
    assert row_of(Counts(kept=3, counters={"urls/without a URL": 1})) == [
        *(3, 0, 0, 0, {}, {}, {}, 0, 0, 0),
        {"urls/without a URL": 1},
    ]


def test_what_stages_counted_among_the_edits_is_read_as_their_counters() -> None:
    before = [3, 0, 0, 0, {}, {}, {"c4": 2, "c4/lines dropped": 9, "urls/without a URL": 1}, 40, 5, 6]
    body = [ENTRY_FORMAT, 1, [["Closed", ["write", "v", 1, [], [], before]]]]
    (change,) = decode_entry(msgpack.packb(body)).changes
    assert isinstance(change, Closed)
    assert change.counts.edited == {"c4": 2}
    assert change.counts.counters == {"c4/lines dropped": 9, "urls/without a URL": 1}
    assert (change.counts.tokens, change.counts.sequences, change.counts.padding) == (40, 5, 6)


@pytest.mark.parametrize("field", ["stage", "uri", "version", "start", "end", "reader"])
def test_each_fact_of_a_fragment_is_part_of_its_name(field: str) -> None:
    facts = {"stage": "s", "uri": "u", "version": "v", "start": 0, "end": 9, "reader": "r", "size": 9}
    changed = facts | {field: 5 if isinstance(facts[field], int) else "other"}
    assert Fragment.named(**facts).id != Fragment.named(**changed).id  # type: ignore[arg-type]


def test_the_size_is_no_part_of_a_fragments_name() -> None:
    one, two = (Fragment.named("s", "u\udcff", "v", start=0, end=-1, reader="r", size=size) for size in (1, 2))
    assert one.id == two.id
    assert len(one.id) == 16


@pytest.mark.parametrize(
    "other",
    [
        replace(CLOSED, version="w", epoch=2),
        replace(CLOSED, ranges=(Range(b"f" * 16, 0, 5),)),
        replace(CLOSED, counts=Counts(filtered=5)),
    ],
    ids=["another version", "unknown bytes", "other counts"],
)
def test_a_proposal_is_named_by_its_ranges_and_objects_alone(other: Closed) -> None:
    assert other.identity() == CLOSED.identity()


@pytest.mark.parametrize(
    "other",
    [
        replace(CLOSED, sink="copy"),
        replace(CLOSED, ranges=(Range(b"f" * 16, 0, 4),)),
        replace(
            CLOSED, objects=(StoredObject("tokens", f"shards/1/{'a' * 32}.safetensors", "xxh3-128:" + "1" * 32, 9),)
        ),
    ],
    ids=["another sink", "another range", "other bytes"],
)
def test_another_sink_range_or_object_is_another_proposal(other: Closed) -> None:
    assert other.identity() != CLOSED.identity()


@given(counts, counts)
def test_counts_add_up(left: Counts, right: Counts) -> None:
    both = left + right
    assert both == right + left
    assert both.records == left.records + right.records
    assert sum(both.counters.values()) == sum(left.counters.values()) + sum(right.counters.values())
    assert sum(both.filtered_by.values()) == sum(left.filtered_by.values()) + sum(right.filtered_by.values())
    assert left + Counts() == left


@given(fragments)
def test_a_range_knows_where_it_ends(fragment: Fragment) -> None:
    assert Range(fragment.id, 3, 4).end == 7
    assert Range(fragment.id, 3, 4, 30, 40).stop == 70
    assert Range(fragment.id, 3, 4, 30).stop == Range(fragment.id, 3, 4, -1, 40).stop == -1


@pytest.mark.parametrize(("reason", "complete"), [("completed", True), ("stopped", False)])
def test_an_old_version_shows_its_own_and_a_stopped_one_incomplete(reason: str, complete: bool) -> None:
    old = msgpack.packb([1, 1, [["VersionPublished", [1, reason]]]])
    assert decode_entry(old).changes == (VersionPublished(1, reason, -1, complete),)


def test_an_epoch_that_names_no_number_is_that_of_its_entry() -> None:
    old = msgpack.packb([1, 1, [["EpochRaised", ["created"]]]])
    assert decode_entry(old).changes == (EpochRaised("created", 0),)
