"""The invariants of deduplication, and the mutants that their checks must find."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from headrace.stages.dedup import kept, partitioned
from headrace.stages.dedup.core.scheme import Scheme
from headrace.stages.dedup.minhash import make_keys
from headrace.stages.dedup.stage import Dedup
from headrace.store.contract.objects import ObjectStore
from headrace.store.ledger.core.entries import (
    Closed,
    Entry,
    EpochRaised,
    FragmentsListed,
    Led,
    PipelineApplied,
    encode_entry,
)
from headrace.store.ledger.core.fold import LedgerState
from headrace.store.ledger.core.fragments import Counts, Fragment, Range, StoredObject
from headrace.store.open import open_store
from headrace.store.shards.dedup_files import RecordName, encode_keys
from tests.kits.store.duplicates import index_faults, leaning_faults, shared_keys

FRAGMENT = Fragment.named("read", "file:///in", "1", start=0, end=-1, reader="r", size=1)
SCHEME = Scheme(bands=0)


def name(row: int) -> RecordName:
    return RecordName(FRAGMENT.id, row)


def keys(*texts: str) -> np.ndarray:
    return make_keys(pa.array(texts, pa.string()), SCHEME)


def test_a_duplicate_leans_on_what_is_kept_at_or_before_its_entry() -> None:
    kept = {name(0): 3, name(1): 5}
    assert list(leaning_faults([(3, name(2), name(0)), (5, name(3), name(1))], kept)) == []
    assert "kept behind it by 5" in next(leaning_faults([(4, name(3), name(1))], kept))
    assert "which is not kept" in next(leaning_faults([(4, name(3), name(9))], kept))


def test_two_kept_records_that_share_a_key_are_found() -> None:
    assert list(shared_keys([(name(0), (1, 2)), (name(1), (3,))])) == []
    assert list(shared_keys([(name(0), (1, 2)), (name(1), (3, 2))])) == [
        f"records {name(0)} and {name(1)} are both kept and share a key"
    ]


def test_an_index_holds_the_kept_and_let_through_only() -> None:
    assert list(index_faults({name(0), name(1)}, {name(0)}, {name(1)})) == []
    assert "is kept" in next(index_faults(set(), {name(0)}, set()))
    assert "it let through" in next(index_faults(set(), set(), {name(0)}))
    assert "neither kept nor let through" in next(index_faults({name(0)}, set(), set()))


# ---- an index that is loaded ----


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """A dataset that keeps record 0 by one entry and record 1 by the next, and then raises its epoch."""
    store = open_store(str(tmp_path_factory.mktemp("data")))
    entries = [
        Entry(1, (Led(1, {}),)),
        Entry(1, (PipelineApplied("v", {}), EpochRaised("created"), FragmentsListed((FRAGMENT,)))),
        *(Entry(1, (_shard(store, row, text),)) for row, text in enumerate(("one", "two"))),
        Entry(1, (EpochRaised("the dedup index was lost"),)),
    ]
    for number, entry in enumerate(entries):
        store.create(f"ledger/{number:020d}.msgpack", [encode_entry(entry)])
    return store


def _shard(store: ObjectStore, row: int, text: str) -> Closed:
    key = f"shards/1/{row:032x}.keys"
    store.create(key, [encode_keys([(FRAGMENT.id, np.array([row]), keys(text))], SCHEME.identity())])
    stored = (StoredObject("keys", key, "xxh3-128:" + "0" * 32, 1),)
    return Closed("write", "v", 1, (Range(FRAGMENT.id, row, 1),), stored, Counts(kept=1))


def loaded(store: ObjectStore) -> Dedup:
    stage = Dedup("dedup", SCHEME.ngram, SCHEME.bands, SCHEME.rows)
    stage.begin(store, 4, "write")
    return stage


def held(stage: Dedup) -> set[RecordName]:
    return {name(row) for row in range(4) if stage.index.number(name(row)) >= 0}


def test_an_index_is_loaded_with_all_kept_keys_before_its_epoch(store: ObjectStore) -> None:
    stage = loaded(store)
    assert list(index_faults(held(stage), {name(0), name(1)}, set())) == []
    answers = stage.index.decide(FRAGMENT.id, np.array([2, 3]), keys("two", "three"))
    assert [answer and answer.name for answer in answers] == [name(1), None]


def test_an_index_that_is_loaded_one_entry_short_is_found(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant "an index loaded one entry short"."""
    whole = kept.key_files
    short = lambda state, epoch, *rest: whole(state, epoch - 2, *rest)  # noqa: E731
    monkeypatch.setattr(partitioned, "key_files", short)
    stage = loaded(store)
    assert list(index_faults(held(stage), {name(0), name(1)}, set())) == [
        f"the index does not hold the keys of {name(1)}, which is kept"
    ]
    (answer,) = stage.index.decide(FRAGMENT.id, np.array([2]), keys("two"))
    assert answer is None, "it keeps what is kept already"
    alike = [(name(row), [int(part) for part in keys(text)[0]]) for row, text in ((0, "one"), (1, "two"), (2, "two"))]
    assert len(list(shared_keys(alike))) == 1


def test_what_another_sink_kept_is_not_loaded(store: ObjectStore) -> None:
    assert kept.key_files(_state(store), 4, ["another"], "here") == []


def _state(store: ObjectStore) -> LedgerState:
    from headrace.store.datasets.dataset import fold_ledger

    return fold_ledger(store)
