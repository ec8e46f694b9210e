"""What `verify` finds between shards: each damage is planted, and told in a line."""

from pathlib import Path

import pytest

from headrace.store.datasets.dataset import Dataset
from headrace.store.datasets.verify_whole import overlap_problems
from headrace.store.files.store import FileStore
from headrace.store.ledger.core.entries import Closed, Entry, FragmentsListed, Led
from headrace.store.ledger.core.fold import ClosedShard, LedgerState
from headrace.store.ledger.core.fragments import Counts, Range
from tests.kits.store.dataset_writer import FATES, FRAGMENT, Writer


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path)


@pytest.fixture
def writer(store: FileStore) -> Writer:
    return Writer(store)


def problems(store: FileStore) -> tuple[str, ...]:
    return Dataset.open(store.uri).verify().problems


def test_a_duplicate_of_a_kept_record_is_sound_from_there(store: FileStore, writer: Writer) -> None:
    writer.entry(writer.shard(FATES))
    writer.entry(writer.shard(["duplicate"], first=len(FATES)))
    assert problems(store) == ()


FICKLE = "that stage let it through when it was read before"
BROKEN = "the stage that decided it is broken"


@pytest.mark.parametrize(
    ("target", "words"),
    [
        pytest.param("1", f"1, which is not kept but filtered by stage s for 'r'; {FICKLE}", id="a filtered record"),
        pytest.param(
            f"{FRAGMENT.id.hex()}#3",
            f"#3, which is not kept but quarantined by stage s for 'r'; {FICKLE}",
            id="a quarantined record, by its place",
        ),
        pytest.param("5", f"5, which is not kept; {BROKEN}", id="a duplicate"),
        pytest.param("nobody", f"as duplicate of nobody, which is not kept; {BROKEN}", id="no record"),
        pytest.param(None, "as duplicate of nothing", id="nothing"),
        pytest.param("9", "as duplicate of 9, which is kept by entry 2 only, behind it", id="one that is kept later"),
    ],
)
def test_a_duplicate_whose_target_is_not_kept_by_then_is_found(
    store: FileStore, writer: Writer, target: str | None, words: str
) -> None:
    writer.target = target
    writer.entry(writer.shard(FATES))
    writer.entry(writer.shard(["filtered", 2], first=len(FATES)))
    (problem,) = problems(store)
    assert problem.startswith("entry 1: ")
    assert "has record 5" in problem
    assert words in problem


def test_what_a_later_dedup_stage_called_a_duplicate_may_be_named(store: FileStore) -> None:
    """It is decided, as what a filter removes is: the first stage had let it through."""
    writer = Writer(store, {"name": "s", "kind": "stateful"}, {"name": "t", "kind": "stateful", "after": ["s"]})
    writer.stage = "t"
    writer.entry(writer.shard([3, "duplicate"]))
    writer.stage, writer.target = "s", "1"
    writer.entry(writer.shard(["duplicate"], first=2))
    assert problems(store) == ()
    writer.stage = "t"
    writer.entry(writer.shard(["duplicate"], first=3))
    (problem,) = problems(store)
    assert "has record 3 as duplicate of 1, which is not kept" in problem


def closed(first: int, end: int, sink: str = "write") -> Closed:
    return Closed(sink, "v", 0, (Range(FRAGMENT.id, first, end - first),), (), Counts(kept=end - first))


def folded(*shards: Closed) -> LedgerState:
    state = LedgerState()
    state.apply(0, Entry(1, (Led(1, {}), FragmentsListed((FRAGMENT,)))))
    for shard in shards:
        state.apply(state.number + 1, Entry(1, (shard,)))
    return state


def test_shards_that_lie_apart_or_are_of_two_sinks_do_not_overlap() -> None:
    state = folded(closed(10, 20), closed(0, 10), closed(25, 30), closed(0, 30, sink="other"))
    assert list(overlap_problems(state)) == []


def test_records_that_two_shards_close_are_found_though_the_fold_was_blind() -> None:
    state = folded(closed(0, 10), closed(10, 20))
    state.shards.append(ClosedShard(3, closed(15, 18)))
    (problem,) = overlap_problems(state)
    assert problem.startswith("entry 3: of file:///corpus/a.jsonl, records 15..17 overlap [(15, 18)]")


def test_a_fold_that_holds_more_closed_than_its_shards_do_is_found() -> None:
    state = folded(closed(0, 10))
    state.fragments[FRAGMENT.id].of("write").add(10, 12)
    (problem,) = overlap_problems(state)
    assert problem == "file:///corpus/a.jsonl: the fold has [(0, 12)] closed for write, its shards [(0, 10)]"


def test_objects_that_no_entry_names_are_counted_and_are_no_problem(store: FileStore, writer: Writer) -> None:
    writer.entry(writer.shard(FATES))
    store.create(f"shards/0/{7:032x}.documents.parquet", [b"left behind"])
    store.create("shards/0/notes.txt", [b"of somebody else"])
    report = Dataset.open(store.uri).verify()
    assert report.sound
    assert (report.unnamed, report.unnamed_size) == (1, 11)
