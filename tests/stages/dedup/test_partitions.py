"""A partitioned index gives the verdicts of a whole one, with any number of partitions, on disk or in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from headrace.pipeline import PipelineError
from headrace.stages.dedup.core import partitions
from headrace.stages.dedup.core.partitions import (
    NOBODY,
    OpenRequests,
    PartitionRequest,
    ServedRequest,
    decode_answer,
    encode_answer,
    partitions_of,
)
from headrace.stages.dedup.core.scheme import RULE, Scheme
from headrace.stages.dedup.index import KeySource, Partition
from headrace.stages.dedup.key_index import KeyIndex, Match
from headrace.stages.dedup.partitioned import IndexShare, PartitionedIndex
from headrace.stages.library import dedup
from headrace.store import FormatError
from headrace.store.shards import RecordName, decode_keys, encode_keys

SCHEME = Scheme(ngram=3, bands=6, rows=4)
JUDGED = Scheme(ngram=3, bands=6, rows=4, rule=RULE)
NONE = np.zeros(0, np.int64)


class Parted:
    """A decider and its partitions, which talk at once."""

    def __init__(self, partitions: int, folder: Path | None = None, scheme: Scheme = SCHEME) -> None:
        place = [None if folder is None else str(folder / f"{at}") for at in range(partitions + 1)]
        self.index = PartitionedIndex(scheme, partitions, place[0])
        self.shares = [IndexShare(scheme, at, partitions, place[at + 1]) for at in range(partitions)]

    def decide(
        self, fragment: bytes, rows: np.ndarray, keys: np.ndarray, sketches: object = None
    ) -> list[Match | None]:
        requests = self.index.requests(keys)
        answers = [share.serve(request) for share, request in zip(self.shares, requests, strict=True)]
        again = [share.serve(request) for share, request in zip(self.shares, requests, strict=True)]
        assert again == answers, "a request that comes again has the same answer"
        self.index.answered(answers, len(keys))
        return self.index.decide(fragment, rows, keys, sketches)

    def begin(self, sources: list[KeySource]) -> None:
        for index in self.indexes:
            index.begin(sources)

    @property
    def indexes(self) -> list[KeyIndex | Partition]:
        return [self.index, *(share.index for share in self.shares)]


def batch_of(chance: np.random.Generator, pool: np.ndarray, count: int) -> np.ndarray:
    keys = pool[chance.integers(0, len(pool), count)].copy()
    other = chance.random(keys.shape) < 0.5
    keys[other] = chance.integers(1, 1 << 63, int(other.sum()), dtype=np.uint64)
    keys[chance.random(count) < 0.05] = 0
    return keys


def pool_of(chance: np.random.Generator, records: int) -> np.ndarray:
    return chance.integers(1, 1 << 63, (records, SCHEME.words), dtype=np.uint64)


@given(seed=st.integers(0, 1 << 32), partitions=st.sampled_from([1, 2, 7]), on_disk=st.booleans())
@settings(max_examples=12, deadline=None)
def test_verdicts_are_those_of_one_index(
    tmp_path_factory: pytest.TempPathFactory, seed: int, partitions: int, on_disk: bool
) -> None:
    chance = np.random.default_rng(seed)
    folder = tmp_path_factory.mktemp("parted") if on_disk else None
    whole, parted, pool = KeyIndex(SCHEME), Parted(partitions, folder), pool_of(chance, 60)
    for number in range(12):
        keys, fragment = batch_of(chance, pool, 40), number.to_bytes(16, "little")
        found = whole.decide(fragment, np.arange(40), keys)
        assert parted.decide(fragment, np.arange(40), keys) == found
        if number % 3 == 0:
            assert parted.decide(fragment, np.arange(40), keys) == whole.decide(fragment, np.arange(40), keys)
        for row in chance.integers(0, 40, 8).tolist():
            name = RecordName(fragment, row)
            assert parted.index.release(name) == whole.release(name)


@pytest.mark.parametrize("partitions", [1, 3])
def test_an_index_that_begins_anew_goes_on_as_one(tmp_path: Path, partitions: int) -> None:
    """Files of keys are loaded, in other partitions than before, and saved; what is opened again is the same."""
    chance, whole = np.random.default_rng(5), KeyIndex(SCHEME)
    pool, sources = pool_of(chance, 80), list[KeySource]()
    for number in range(3):
        keys, fragment = batch_of(chance, pool, 60), number.to_bytes(16, "little")
        kept = np.array([found is None for found in whole.decide(fragment, np.arange(60), keys)])
        data = encode_keys([(fragment, np.arange(60)[kept], keys[kept])], SCHEME.identity())
        loaded = decode_keys(data, SCHEME.identity(), "keys")
        sources.append(KeySource(f"{number}", lambda loaded=loaded: loaded, int(kept.sum())))  # type: ignore[misc]
    one = KeyIndex(SCHEME)
    one.begin(sources)
    keys = batch_of(chance, pool, 60)
    expected = one.decide(bytes(16), np.arange(100, 160), keys)
    for folder in (None, tmp_path, tmp_path):
        parted = Parted(partitions, folder)
        parted.begin(sources)
        assert parted.decide(bytes(16), np.arange(100, 160), keys) == expected
    prepared = Parted(partitions)
    for at, index in enumerate(prepared.indexes):
        index.begin(sources[: at % 3])
        index.follow(sources[at % 3 :])
    assert prepared.decide(bytes(16), np.arange(100, 160), keys) == expected, "whatever each had before the last"


def test_keys_of_other_records_than_the_ledger_says_are_refused() -> None:
    data = encode_keys([(bytes(16), np.arange(3), pool_of(np.random.default_rng(1), 3))], SCHEME.identity())
    source = KeySource("", lambda: decode_keys(data, SCHEME.identity(), "keys"), 4)
    with pytest.raises(FormatError, match="the keys of 3 records lies beside 4"):
        IndexShare(SCHEME, 0, 2).index.begin([source])


def test_the_judge_compares_what_partitions_name() -> None:
    keys = pool_of(np.random.default_rng(1), 1).repeat(2, axis=0)
    keys[1, :2] += np.uint64(1)
    sketches = pa.array([b"\x00ab", b"\x00cd"], pa.binary())
    parted, whole = Parted(2, scheme=JUDGED), KeyIndex(JUDGED)
    for row in (0, 1):
        mine = keys[row : row + 1], sketches.slice(row, 1)
        assert parted.decide(bytes(16), np.array([row]), *mine) == whole.decide(bytes(16), np.array([row]), *mine)


def test_records_are_not_decided_before_the_partitions_were_asked() -> None:
    parted, keys = Parted(2), pool_of(np.random.default_rng(1), 2)
    with pytest.raises(ValueError, match="no partition was asked"):
        parted.index.decide(bytes(16), np.arange(2), keys)
    requests = parted.index.requests(keys)
    answers = [share.serve(request) for share, request in zip(parted.shares, requests, strict=True)]
    holders = decode_answer(answers[0])[1]
    assert holders is not None
    for wrong in (encode_answer(2, holders), encode_answer(1, NONE), encode_answer(1, None)):
        with pytest.raises(ValueError, match="another request"):
            parted.index.answered([wrong, answers[1]], 2)
    with pytest.raises(ValueError, match="names record 0 of 0"):
        parted.index.answered([encode_answer(1, np.zeros_like(holders)), answers[1]], 2)


def test_partitions_are_equal_ranges_of_the_highest_bits() -> None:
    high = np.array([0, (1 << 62) - 1, 1 << 62, 1 << 63, (1 << 64) - 1], np.uint64)
    assert partitions_of(high, 4).tolist() == [0, 0, 1, 2, 3]
    assert partitions_of(high, 1).tolist() == [0] * 5


KEYS, WORDS = np.array([[1, 2], [3, 0], [4, 5]], np.uint64), np.array([0, 4, 0])
REQUEST = PartitionRequest(7, np.array([3]), np.array([0, 2]), np.array([5, 6]), KEYS, WORDS)


def test_a_request_and_an_answer_are_read_as_they_were_written() -> None:
    read = PartitionRequest.decode(REQUEST.encode(), 8)
    for name in ("released", "claimed", "numbers", "keys", "words"):
        assert np.array_equal(getattr(read, name), getattr(REQUEST, name))
    assert read.number == 7
    number, holders = decode_answer(encode_answer(9, np.array([NOBODY, 4])))
    assert number == 9
    assert holders is not None
    assert holders.tolist() == [NOBODY, 4]
    assert decode_answer(encode_answer(9, None)) == (9, None)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        REQUEST.encode()[:-1],
        REQUEST.encode() + bytes(1),
        bytes(8) + b"\xff" * 16,
        PartitionRequest(1, NONE, np.array([0, 1]), np.array([6, 5]), KEYS, WORDS).encode(),
        PartitionRequest(1, NONE, NONE, NONE, KEYS, np.array([0, 8, 0])).encode(),
        PartitionRequest(1, NONE, NONE, NONE, KEYS, np.array([0, 1, 0])).encode(),
    ],
    ids=["empty", "cut off", "too long", "counts of no end", "numbers that fall", "word beyond", "half a key"],
)
def test_bytes_that_are_no_request_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"request|claims"):
        PartitionRequest.decode(data, 8)


def test_a_request_has_so_many_keys_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    data = REQUEST.encode()
    monkeypatch.setattr(partitions, "KEYS_MAX", len(KEYS))
    assert PartitionRequest.decode(data, 8).number == 7
    monkeypatch.setattr(partitions, "KEYS_MAX", len(KEYS) - 1)
    with pytest.raises(ValueError, match=f"a request for {len(KEYS)} keys with . claims; the limit is {len(KEYS) - 1}"):
        PartitionRequest.decode(data, 8)


@pytest.mark.parametrize(
    "data", [b"", encode_answer(1, np.array([1]))[:-1], bytes(8) + b"\x01\x00\x00\x00\x01" + bytes(4)]
)
def test_bytes_that_are_no_answer_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="answer"):
        decode_answer(data)


def test_a_claim_of_a_key_that_was_not_asked_for_is_refused() -> None:
    share = IndexShare(SCHEME, 0, 1)
    request = PartitionRequest(1, NONE, np.array([0]), np.array([0]), np.zeros((0, 2), np.uint64), NONE)
    with pytest.raises(ValueError, match="did not ask for"):
        share.serve(request.encode())


def test_a_fenced_partition_says_so() -> None:
    answer = IndexShare(SCHEME, 0, 1).refuse(REQUEST.encode())
    assert decode_answer(answer) == (7, None)


def test_a_batch_is_decided_when_all_partitions_have_answered() -> None:
    requests = OpenRequests[str, str](2)
    requests.ask(["a", "b"])
    assert requests.answered(1, 1, "later") is None
    assert requests.unanswered() == [(0, "a")]
    with pytest.raises(ValueError, match="no answer yet"):
        requests.ask(["c", "d"])
    assert requests.answered(1, 1, "again") is None
    assert requests.answered(0, 0, "of another request") is None
    assert requests.answered(0, 1, "first") == ["first", "later"]
    assert requests.unanswered() == []


def test_a_request_is_served_once_and_in_order() -> None:
    served = ServedRequest[str]()
    assert served.again(1) is None
    served.served(1, "one")
    assert served.again(1) == "one"
    assert served.again(2) is None
    served.served(2, "two")
    assert served.again(1) == "two", "it lay in a link that was made anew, and has its answer"
    for number in (0, 4):
        with pytest.raises(ValueError, match=f"request {number} came behind request 2"):
            served.again(number)


def test_the_stage_has_a_task_more_than_partitions() -> None:
    assert [stage.replicas for stage in dedup(partitions=3)] == [None, 4]
    assert [stage.parameters for stage in dedup(partitions=3)] == [stage.parameters for stage in dedup()]
    with pytest.raises(PipelineError, match="partitions"):
        dedup(partitions=257)
