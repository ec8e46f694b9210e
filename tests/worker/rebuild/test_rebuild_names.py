"""Which shard `rebuild` takes, where several have what was given in a key."""

from pathlib import Path

import pytest

from headrace.store.contract.errors import FormatError
from headrace.store.datasets.dataset import fold_ledger
from headrace.store.files.store import FileStore
from headrace.store.ledger.core.entries import (
    Closed,
    Entry,
    FragmentsListed,
    Led,
    PipelineApplied,
    encode_entry,
)
from headrace.store.ledger.core.fragments import Counts, Fragment, Range, StoredObject
from headrace.store.ledger.log import Log
from headrace.worker.rebuild.shard_rebuild import find_shard, order

FRAGMENT = Fragment.named("read", "file:///a.jsonl", "1", start=0, end=-1, reader="jsonl", size=9)
#: The hash of tokens of which there are none.
NOTHING = "0" * 32


def empty(first: int, verdicts: str) -> Closed:
    """A shard that kept nothing: its tokens have the same bytes, and so the same key, as any other's."""
    keys = {"tokens": f"shards/1/{NOTHING}.safetensors", "verdicts": f"shards/1/{verdicts * 32}.verdicts.parquet"}
    objects = tuple(StoredObject(role, key, "xxh3-128:" + "0" * 32, 1) for role, key in keys.items())
    return Closed("write", "v", 0, (Range(FRAGMENT.id, first, 2),), objects, Counts(filtered=2))


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A ledger with two shards that kept nothing."""
    log = Log(FileStore(tmp_path))
    begun = (Led(1, {}), PipelineApplied("v", {"name": "p"}), FragmentsListed((FRAGMENT,)))
    log.append(0, encode_entry(Entry(1, begun)))
    log.append(1, encode_entry(Entry(1, (empty(0, "a"), empty(2, "b")))))
    return tmp_path


def test_two_empty_shards_with_one_key_are_named_apart(dataset: Path) -> None:
    with pytest.raises(FormatError) as refused:
        order(str(dataset), NOTHING)
    for words in ("2 shards", f"{'a' * 32}.verdicts.parquet of entry 1", f"{'b' * 32}.verdicts.parquet of entry 1"):
        assert words in str(refused.value)


def test_a_key_of_its_own_takes_the_shard_that_has_it(dataset: Path) -> None:
    state = fold_ledger(FileStore(dataset))
    found = find_shard(state, f"shards/1/{'b' * 32}.verdicts.parquet", "file:///d")
    assert found.ranges[0].first == 2


def test_a_name_that_no_shard_has_is_refused(dataset: Path) -> None:
    with pytest.raises(FormatError, match="no shard of the ledger has 'ffff' in a key"):
        order(str(dataset), "ffff")
