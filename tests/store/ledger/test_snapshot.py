"""Snapshots: a fold as one object. Invariant of the fuzzers: any bytes give a fold or a FormatError."""

from dataclasses import fields, replace
from pathlib import Path

import msgpack
import pytest
from hypothesis import given, strategies as st

from headrace.store.contract.errors import FormatError, ObjectMissing
from headrace.store.files.store import FileStore
from headrace.store.ledger.core.cluster_changes import (
    MemberExpelled,
    QueueSet,
    RunBegun,
    RunChanged,
    RunEnded,
    RunGated,
    RunHeld,
    RunPlanned,
    RunQueued,
    RunSteered,
    RunStopAsked,
    TokenSpent,
    WorkerDrainAsked,
    WorkerJoined,
)
from headrace.store.ledger.core.cluster_fold import ClusterState
from headrace.store.ledger.core.entries import (
    Beat,
    Change,
    ClaimsReleased,
    Closed,
    Entry,
    EpochRaised,
    FragmentDropped,
    FragmentEnded,
    FragmentsListed,
    Led,
    PipelineApplied,
    Resigned,
    VersionPublished,
    decode_entry,
    encode_entry,
)
from headrace.store.ledger.core.fold import LedgerState
from headrace.store.ledger.core.fragments import Counts, Fragment, Range, StoredObject
from headrace.store.ledger.core.log_state import LogState
from headrace.store.ledger.log import Appended, Log, fold_log
from headrace.store.ledger.snapshot import CLUSTER_COVERED, LEDGER_COVERED, decode_snapshot, encode_snapshot

A, B = (Fragment.named("read", f"file:///{n}", "v", start=0, end=-1, reader="lines", size=9) for n in "ab")
TOKENS, CHECK = f"shards/1/{1:032x}.safetensors", f"xxh3-128:{1:032x}"
ME = {"host": "here", "pid": 7}


def closes(fragment: Fragment, first: int, count: int, sink: str = "write") -> Closed:
    stored = StoredObject(
        "tokens", f"shards/1/{fragment.id.hex()[:24]}{first:08x}.safetensors", f"xxh3-128:{first:032x}", 5
    )
    counts = Counts(kept=count - 1, filtered=1, filtered_by={"keep/short": 1}, tokens=3 * count)
    return Closed(sink, "v", 1, (Range(fragment.id, first, count, 10 * first, 10 * count),), (stored,), counts)


def folded(*entries: tuple[Change, ...]) -> LedgerState:
    state = LedgerState()
    for number, changes in enumerate(((Led(1, ME),), *entries)):
        state.apply(number, Entry(1, changes))
    return state


BEGUN = (PipelineApplied("v", {"name": "p"}), EpochRaised("created"), FragmentsListed((A, B)))
WHOLE = (BEGUN, (closes(A, 0, 4), closes(A, 6, 2)), (closes(B, 3, 3, "copy"), FragmentEnded(A.id, 8)), (Beat(1),))


def test_a_ledger_goes_on_from_its_snapshot_as_if_folded() -> None:
    dropped = FragmentDropped(B.id, "it changed", True)
    state = folded(*WHOLE, (dropped,), (VersionPublished(1, "completed"), Resigned(1)))
    twin = decode_snapshot(encode_snapshot(state))
    assert twin == state
    more = Entry(2, (Led(2, ME), closes(A, 4, 2)))
    for item in (state, twin):
        item.apply(item.number + 1, more)
    assert twin == state


def test_a_snapshot_remembers_which_claims_were_released() -> None:
    released = ClaimsReleased("write", ((A.id, (1, 3)), (B.id, (4,))))
    state = folded(*WHOLE, (released,), (ClaimsReleased("copy", ((A.id, (2,)),)),))
    twin = decode_snapshot(encode_snapshot(state))
    assert isinstance(twin, LedgerState)
    assert twin.fragments[A.id].released == {"write": {1, 3}, "copy": {2}}
    assert twin == state


@pytest.mark.parametrize("words", range(8))
def test_the_arrays_of_a_snapshot_begin_at_multiples_of_eight(words: int) -> None:
    state = folded((PipelineApplied("v", {"name": "p" * words}), EpochRaised("created"), FragmentsListed((A, B))))
    data = encode_snapshot(state)
    length = int.from_bytes(data[8:16], "little")
    assert (16 + length) % 8 == 0
    unpacker = msgpack.Unpacker(raw=False, strict_map_key=False)
    unpacker.feed(data[16 : 16 + length])
    places = unpacker.unpack()[4]
    assert places
    assert {offset % 8 for _, _, _, offset in places} == {0}


def test_a_log_is_known_by_its_first_entry() -> None:
    one, other = LedgerState(), LedgerState()
    one.apply(0, Entry(1, (Led(1, ME),)))
    other.apply(0, Entry(1, (Led(1, {**ME, "pid": 8}),)))
    origin = one.origin
    assert origin
    assert origin != other.origin
    one.apply(1, Entry(1, BEGUN))
    assert one.origin == origin
    assert decode_snapshot(encode_snapshot(one)).origin == origin


def counting(first: int, **counts: dict[str, int]) -> Closed:
    return replace(closes(A, first, 2), counts=Counts(kept=2, **counts))  # type: ignore[arg-type]


def test_counters_come_back_from_a_snapshot() -> None:
    state = folded(BEGUN, (counting(0, counters={"urls/without a URL": 2}), counting(2, edited={"upper": 1})))
    assert decode_snapshot(encode_snapshot(state)) == state


def test_a_snapshot_of_before_there_were_counters_goes_on_with_them() -> None:
    # Encoded as it stands this has the words of the time: what stages counted is among the edits.
    state = folded(BEGUN, (counting(0, edited={"c4": 1, "c4/lines dropped": 5}),))
    twin = decode_snapshot(encode_snapshot(state))
    assert isinstance(twin, LedgerState)
    twin.apply(twin.number + 1, Entry(1, (counting(2, edited={"c4": 2}, counters={"c4/lines dropped": 4}),)))
    assert twin.counts["write"] == Counts(kept=4, edited={"c4": 3}, counters={"c4/lines dropped": 9})
    assert twin.shards[0].closed.counts.counters == {"c4/lines dropped": 5}


def test_a_clusters_log_comes_back_from_its_snapshot() -> None:
    state = ClusterState()
    state.apply(0, Entry(1, (Led(1, ME), WorkerJoined("w", "here", 2), TokenSpent("t", "w", "k"))))
    begun = RunBegun("p", {"name": "p"}, {"fuse": True}), RunPlanned("p", {"tasks": [["p/read.0"]]})
    state.apply(
        1, Entry(1, (*begun, RunStopAsked("p", cancel=False), RunBegun("q", {}, {}), RunEnded("q", "failed", "x")))
    )
    request = {"pause": True, "replicas": {"read": 2}, "places": {}, "transports": {}}
    wishes = (
        RunSteered("p", request),
        RunSteered("p", {**request, "pause": None}),
        RunChanged("p", {"tasks": []}, made=True),
    )
    state.apply(2, Entry(1, (*wishes, WorkerDrainAsked("w", back=False))))
    state.apply(3, Entry(1, (MemberExpelled("worker/w"), TokenSpent("u", "w", "new"))))
    queued = (
        QueueSet("a", 2, 8, 1, "operator/ann"),
        RunQueued("r", {"name": "r"}, {"queue": "a"}),
        RunHeld("p", True, "x"),
        RunGated("p", ("kept is below 1",)),
    )
    state.apply(4, Entry(1, queued))
    assert decode_snapshot(encode_snapshot(state)) == state


def test_an_empty_fold_has_a_snapshot_too() -> None:
    assert decode_snapshot(encode_snapshot(LedgerState())) == LedgerState()
    assert decode_snapshot(encode_snapshot(ClusterState())) == ClusterState()


def test_every_field_of_a_fold_stands_in_its_snapshot() -> None:
    assert {item.name for item in fields(LedgerState)} == LEDGER_COVERED
    assert {item.name for item in fields(ClusterState)} == CLUSTER_COVERED


@given(st.binary(max_size=300))
def test_any_bytes_give_a_fold_or_a_format_error(data: bytes) -> None:
    for candidate in (data, b"HRSNAP01" + data):
        with pytest.raises(FormatError):
            decode_snapshot(candidate)


SOUND = encode_snapshot(folded(*WHOLE))


@given(st.integers(0, len(SOUND) - 1), st.integers(1, 255))
def test_a_flipped_byte_gives_a_fold_or_a_format_error(position: int, change: int) -> None:
    damaged = bytearray(SOUND)
    damaged[position] ^= change
    try:
        assert isinstance(decode_snapshot(bytes(damaged)), LogState)
    except FormatError:
        return


@given(st.integers(0, len(SOUND) - 1))
def test_a_torn_snapshot_is_refused(length: int) -> None:
    with pytest.raises(FormatError):
        decode_snapshot(SOUND[:length])


def filled(path: Path, count: int, *, led: tuple[int, ...] = (0,)) -> tuple[Log, LedgerState]:
    """A log of beats whose terms begin at `led`, and its fold."""
    log, state, term = Log(FileStore(path)), LedgerState(), 0
    for number in range(count):
        term += number in led
        entry = Entry(term, (Led(term, ME) if number in led else Beat(term),))
        assert log.append(number, encode_entry(entry)) == Appended(number)
        state.apply(number, entry)
    return log, state


def snapshot_at(log: Log, upto: int, path: Path) -> LedgerState:
    state = LedgerState()
    for number, data in list(Log(FileStore(path)).read())[: upto + 1]:
        state.apply(number, decode_entry(data))
    log.write_snapshot(upto, encode_snapshot(state))
    return state


def test_a_new_reader_takes_the_snapshot_and_others_the_entries(tmp_path: Path) -> None:
    log, state = filled(tmp_path, 8)
    snapshot_at(log, 5, tmp_path)
    found, behind = log.read_from()
    assert found is not None
    assert (found[0], [number for number, _ in behind]) == (5, [6, 7])
    found, behind = log.read_from(3)
    assert (found, [number for number, _ in behind]) == (None, [4, 5, 6, 7])
    assert fold_log(log, LedgerState()) == state


def test_truncation_keeps_term_beginnings_and_a_late_reader_jumps(tmp_path: Path) -> None:
    log, state = filled(tmp_path, 10, led=(0, 4))
    late = LedgerState()
    for number, data in list(log.read())[:2]:
        late.apply(number, decode_entry(data))
    snapshot_at(log, 7, tmp_path)
    assert log.truncate(7, keep=state.led_at) == 6
    left = sorted(path.name for path in (tmp_path / "ledger").iterdir())
    assert [int(name.split(".")[0]) for name in left] == [0, 4, 7, 8, 9]
    assert fold_log(log, late) == state
    assert fold_log(log, LedgerState()) == state


def test_nothing_is_truncated_that_no_snapshot_covers(tmp_path: Path) -> None:
    log, _ = filled(tmp_path, 6)
    snapshot_at(log, 3, tmp_path)
    with pytest.raises(ValueError, match="no snapshot covers entry 4"):
        log.truncate(4, keep=())
    assert len(list(log.read())) == 6


def test_a_leader_finds_its_next_number_after_any_truncation(tmp_path: Path) -> None:
    log, state = filled(tmp_path, 10, led=(0, 4))
    snapshot_at(log, 8, tmp_path)
    log.truncate(8, keep=state.led_at)
    assert not isinstance(log.append(4, encode_entry(Entry(1, (Beat(1),)))), Appended)


def test_an_entry_created_in_a_truncated_place_can_be_discarded(tmp_path: Path) -> None:
    log, state = filled(tmp_path, 10)
    snapshot_at(log, 8, tmp_path)
    log.truncate(8, keep=state.led_at)
    assert log.append(3, encode_entry(Entry(2, (Led(2, ME),)))) == Appended(3)
    assert log.overtaken(3)
    assert not log.overtaken(9)
    before = LedgerState(number=2, term=1, led_at=[0])
    assert fold_log(log, before) == state, "a reader that stood just before it is not misled"
    log.discard(3)
    with pytest.raises(ObjectMissing):
        FileStore(tmp_path).get(log.key(3))
    with pytest.raises(ValueError, match="not covered"):
        log.discard(9)


@pytest.mark.parametrize("pipeline", [{"stages": 5}, {"stages": [7]}, {"name": b"x"}, {"stages": [{"parameters": []}]}])
def test_a_snapshot_with_a_pipeline_that_is_none_is_refused(pipeline: dict[str, object]) -> None:
    state = folded((PipelineApplied("v", {"name": "x"}),))
    state.pipelines["v"] = pipeline
    with pytest.raises(FormatError, match="a pipeline that is none"):
        decode_snapshot(encode_snapshot(state))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"ranges": (Range(A.id, -1, 4),)}, "range.first"),
        (
            {"objects": (StoredObject("tokens", f"shards/1/{1:032x}.safetensors", f"xxh3-128:{1:032x}", -1),)},
            "object.size",
        ),
        ({"counts": Counts(kept=-1)}, "kept is -1"),
        ({"objects": (StoredObject("tokens", f"{TOKENS}.parquet", CHECK, 1),)}, "a tokens"),
    ],
    ids=["range", "size", "count", "role"],
)
def test_a_snapshot_with_less_than_nothing_is_refused(wrong: dict[str, object], said: str) -> None:
    state = folded((FragmentsListed((A,)),), (closes(A, 0, 4),))
    state.shards[0].closed = replace(state.shards[0].closed, **wrong)
    with pytest.raises(FormatError, match=said):
        decode_snapshot(encode_snapshot(state))
