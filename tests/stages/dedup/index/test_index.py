"""The index of keys, in memory and on disk, against a dict that does the same record by record."""

from __future__ import annotations

import functools
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from headrace.stages.dedup.core.scheme import Scheme
from headrace.stages.dedup.index import claims, lookups, runs, saved
from headrace.stages.dedup.index.claims import KeySource, LoadedKeys, Partition
from headrace.stages.dedup.index.lookups import CANDIDATES_MAX
from headrace.stages.dedup.index.records import ASKED
from headrace.stages.dedup.index.slots import NOBODY, SECTIONS
from headrace.stages.dedup.key_index import KeyIndex, Match
from headrace.stages.text.machine import compiled, pointer
from headrace.store.shards import RecordName, decode_keys, encode_keys

SCHEME = Scheme(bands=4, rows=4)
FRAGMENT, OTHER = b"f" * 16, b"g" * 16
TEMPORARY = tempfile.gettempdir()
KINDS = pytest.mark.parametrize("folder", [None, TEMPORARY], ids=["memory", "disk"])


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of few records, and merges that take many steps."""
    make_small(monkeypatch)


def make_small(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claims, "SEALED_MIN", 20)
    patch.setattr(runs, "CHUNK_SLOTS", 16)
    patch.setattr(runs, "FAN_IN", 3)


@dataclass
class Reference:
    """Who holds which key, as a dict."""

    holders: dict[tuple[int, ...], int] = field(default_factory=dict)
    released: set[int] = field(default_factory=set)

    def parts(self, keys: Any) -> list[tuple[int, ...]]:
        high, low, *bands = (int(word) for word in keys)
        return [(0, high, low), *((place, band) for place, band in enumerate(bands, 2) if band)]

    def holder(self, part: tuple[int, ...]) -> int:
        found = self.holders.get(part, NOBODY)
        return NOBODY if found in self.released else found

    def find(self, keys: Any) -> list[tuple[int, int]]:
        exact, *others = (self.holder(part) for part in self.parts(keys))
        counts = {holder: others.count(holder) for holder in others if holder not in (NOBODY, exact)}
        found = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return ([(exact, SCHEME.words)] if exact != NOBODY else []) + found

    def claim(self, number: int, keys: Any) -> None:
        for part in self.parts(keys):
            if self.holder(part) == NOBODY:
                self.holders[part] = number


def keys_of(chance: np.random.Generator, count: int, different: int = 1 << 62) -> Any:
    """Keys of which about `different` differ."""
    texts = chance.integers(1, different, count, dtype=np.uint64)
    bands = chance.integers(0, different, (count, SCHEME.bands), dtype=np.uint64)
    spread = np.uint64(0xD6E8FEB86659FD93)
    return np.concatenate([np.stack([texts * spread, texts], axis=1), bands * spread], axis=1)


def add(index: KeyIndex, fragment: bytes, rows: Any, keys: Any) -> Any:
    """Number records of a fragment that are kept. Their keys are not claimed yet."""
    first, row = index.records, index.prepare(keys)
    claims.add_all(row, index.table.names(fragment, rows), keys)
    index.table.note_spans(first)
    return np.arange(first, index.records)


def claim(index: KeyIndex, numbers: Any, keys: Any) -> None:
    """Give records those of their keys that nobody holds, in order."""
    claim_all(index.prepare(keys), keys, numbers, *(np.empty(CANDIDATES_MAX, np.int64) for _ in range(2)))
    index.table.check()


@compiled
def claim_all(row: Any, keys: Any, numbers: Any, found: Any, shared: Any) -> None:
    state, words = pointer(row, 0), keys.shape[1]
    for place in range(len(keys)):
        own, hashes = pointer(keys, place * words), lookups.hashes_of(state, place)
        exact = lookups.find_equal(state, own, hashes)
        lookups.find_holders(state, own, hashes, exact, pointer(found, 0), pointer(shared, 0), 1)
        lookups.claim(state, own, hashes, numbers[place])


def answers(index: KeyIndex, keys: Any) -> list[list[tuple[int, int]]]:
    found, shared = index.find(keys)
    return [
        [(number, bands) for number, bands in zip(*pair, strict=True) if number != NOBODY]
        for pair in zip(found.tolist(), shared.tolist(), strict=True)
    ]


@KINDS
@given(seed=st.integers(0, 1 << 32), different=st.sampled_from([3, 30, 1000]))
@settings(max_examples=25, deadline=None)
def test_an_index_answers_as_a_dict_does_whatever_is_claimed_and_released(
    folder: str | None, seed: int, different: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        chance, index, known = np.random.default_rng(seed), KeyIndex(SCHEME, folder=folder), Reference()
        for _ in range(30):
            keys = keys_of(chance, int(chance.integers(1, 12)), different)
            rows = np.arange(index.records, index.records + len(keys))
            assert answers(index, keys) == [known.find(row) for row in keys]
            numbers = add(index, FRAGMENT, rows, keys)
            claim(index, numbers, keys)
            for number, row in zip(numbers.tolist(), keys, strict=True):
                known.claim(number, row)
            gone = int(chance.integers(0, index.records))
            assert index.release(RecordName(FRAGMENT, gone)) == (gone not in known.released)
            known.released.add(gone)


@KINDS
@given(seed=st.integers(0, 1 << 32), section=st.sampled_from([0, 511, SECTIONS - 1]), close=st.booleans())
@settings(max_examples=15, deadline=None)
def test_an_index_whose_keys_crowd_one_section_answers_as_a_dict_does(
    folder: str | None, seed: int, section: int, close: bool
) -> None:
    """Of hashes that are spread over the section, and of such that nearly all want its first or its last home."""
    chance, index, known = np.random.default_rng(seed), KeyIndex(SCHEME, folder=folder), Reference()
    many, batch = 1200, 60
    below = chance.integers(0, 1 << 32, (many, SCHEME.words), dtype=np.uint64)
    if close:
        places = chance.permutation(below.size).reshape(below.shape).astype(np.uint64)
        below = np.where(places & np.uint64(1), places, np.uint64((1 << 32) - 1) - places)
    hashes = (np.uint64(section) << np.uint64(32)) | below
    keys = np.stack([key_of(hashes[:, word], word if word >= 2 else 0) for word in range(SCHEME.words)], axis=1)
    # One in four has what an earlier one has.
    again = chance.random((many, SCHEME.words)) < 0.25
    again[:, 1] = again[:, 0]
    keys = np.where(again, keys[chance.integers(0, many, many)], keys)
    for first in range(0, many, batch):
        some = keys[first : first + batch]
        assert answers(index, some) == [known.find(row)[:CANDIDATES_MAX] for row in some]
        numbers = add(index, FRAGMENT, np.arange(first, first + batch), some)
        claim(index, numbers, some)
        for number, row in zip(numbers.tolist(), some, strict=True):
            known.claim(number, row)
        for gone in chance.integers(0, index.records, 5).tolist():
            index.release(RecordName(FRAGMENT, gone))
            known.released.add(gone)
    assert answers(index, keys) == [known.find(row)[:CANDIDATES_MAX] for row in keys]


def key_of(hashes: Any, word: int) -> Any:
    """Keys of these hashes of 42 bits: `hash_of` undone."""
    value = hashes << np.uint64(22) | np.uint64(1)
    value = value ^ (value >> np.uint64(29)) ^ (value >> np.uint64(58))
    with np.errstate(over="ignore"):
        value = value * np.uint64(pow(0xC2B2AE3D27D4EB4F, -1, 1 << 64))
    return value ^ (value >> np.uint64(32)) ^ np.uint64(word * 0x9E3779B97F4A7C15 % (1 << 64))


@KINDS
@pytest.mark.usefixtures("small")
def test_holders_stand_by_shared_bands_and_then_by_age(folder: str | None) -> None:
    index = KeyIndex(SCHEME, folder=folder)
    one, two, three, asked = (np.zeros((1, SCHEME.words), np.uint64) for _ in range(4))
    one[0] = [1, 1, 11, 0, 0, 0]
    two[0] = [2, 2, 0, 12, 0, 0]
    three[0] = [3, 3, 0, 0, 13, 14]
    asked[0] = [2, 2, 11, 12, 13, 14]
    for row, keys in enumerate((one, two, three)):
        claim(index, add(index, FRAGMENT, np.array([row]), keys), keys)
    assert answers(index, asked) == [[(1, SCHEME.words), (2, 2), (0, 1)]]
    asked[0, :2] = 9
    assert answers(index, asked) == [[(2, 2), (0, 1), (1, 1)]]
    assert SCHEME.bands <= CANDIDATES_MAX


@KINDS
def test_a_text_with_the_hash_of_another_is_another(folder: str | None) -> None:
    """Keys whose first halves are the same share a slot's hash: the second halves tell them apart."""
    index, keys = KeyIndex(Scheme(bands=0), folder=folder), np.full((5, 2), 7, np.uint64)
    keys[:, 1] = np.arange(1, 6)
    assert index.decide(FRAGMENT, np.arange(5), keys) == [None] * 5
    found = index.decide(OTHER, np.arange(5), keys)
    assert [match and match.name for match in found] == [RecordName(FRAGMENT, row) for row in range(5)]


@KINDS
def test_records_without_a_key_are_kept_and_take_nothing(folder: str | None) -> None:
    scheme = Scheme(bands=0, url=1)
    index, keys = KeyIndex(scheme, folder=folder), np.zeros((5000, 2), np.uint64)
    keys[::1000] = 7
    before = index.nbytes
    found = index.decide(FRAGMENT, np.arange(5000), keys)
    assert [place for place, match in enumerate(found) if match is not None] == [1000, 2000, 3000, 4000]
    # Room for the records of a batch is made before it is known which of them have keys.
    assert (index.records, index.nbytes - before < 20 * 5000) == (1, True)
    assert not index.release(RecordName(FRAGMENT, 1))
    kept = np.array([match is None for match in found])
    data = encode_keys([(FRAGMENT, np.arange(5000)[kept], keys[kept])], scheme.identity())
    again = KeyIndex(scheme, folder=folder)
    assert again.load(decode_keys(data, scheme.identity(), "keys")) == 0
    assert (len(again.levels.runs), again.nbytes - before < 20 * 5000) == (0, True)
    assert again.decide(OTHER, np.arange(5000), keys)[:2] == [Match(RecordName(FRAGMENT, 0), near=False), None]
    claim(again, add(again, OTHER, np.arange(2), keys[1:3]), keys[1:3])
    assert again.find(keys[:2])[0][:, 0].tolist() == [0, NOBODY]


@KINDS
def test_what_two_sinks_kept_of_one_record_is_one_record(folder: str | None) -> None:
    keys = keys_of(np.random.default_rng(3), 100)
    data = encode_keys([(FRAGMENT, np.arange(100), keys)], SCHEME.identity())
    index = KeyIndex(SCHEME, folder=folder)
    for _ in ("write", "archive"):
        index.load(decode_keys(data, SCHEME.identity(), "keys"))
    index.settled = index.records
    assert index.decide(FRAGMENT, np.arange(100), keys) == [None] * 100, "it is read again for a third"
    found = index.decide(OTHER, np.arange(100), keys)
    assert [match and (match.name, match.settled) for match in found] == [
        (RecordName(FRAGMENT, row), True) for row in range(100)
    ]
    fresh = keys_of(np.random.default_rng(4), 1)
    assert index.decide(OTHER, np.array([100]), fresh) == [None]
    (match,) = index.decide(OTHER, np.array([101]), fresh)
    assert match is not None
    assert (match.name, match.settled) == (RecordName(OTHER, 100), False)


def test_a_partition_that_is_asked_for_no_key_names_nobody() -> None:
    part, keys, words = Partition(2, "", 0, 1), np.zeros((1, 2), np.uint64), np.zeros(1, np.int64)
    part.give(np.zeros(1, np.int64), keys, words)
    assert part.ask(keys, words).tolist() == [NOBODY]


@KINDS
@pytest.mark.usefixtures("small")
def test_a_record_of_a_batch_may_lean_on_one_before_it(folder: str | None) -> None:
    index, keys = KeyIndex(SCHEME, folder=folder), keys_of(np.random.default_rng(1), 300)
    keys[1::2] = keys[::2]
    found = index.decide(FRAGMENT, np.arange(300), keys)
    assert found[::2] == [None] * 150
    assert [match and match.name.row for match in found[1::2]] == list(range(0, 300, 2))


@KINDS
@pytest.mark.usefixtures("small")
def test_a_record_is_found_by_its_name_however_its_fragment_was_read(folder: str | None) -> None:
    index, chance = KeyIndex(SCHEME, folder=folder), np.random.default_rng(2)
    order = [(FRAGMENT, 0), (OTHER, 50), (FRAGMENT, 50), (OTHER, 0), (FRAGMENT, 25)]
    for fragment, first in order:
        keys = keys_of(chance, 25)
        claim(index, add(index, fragment, np.arange(first, first + 50, 2), keys), keys)
    numbers = {}
    for fragment, first in order:
        for row in range(first, first + 50, 2):
            numbers[fragment, row] = index.number(RecordName(fragment, row))
    assert sorted(numbers.values()) == list(range(125))
    assert all(index.name(number) == RecordName(*name) for name, number in numbers.items())
    assert index.number(RecordName(FRAGMENT, 24)) != NOBODY
    nowhere = ((FRAGMENT, 1), (OTHER, 101), (b"", 0), (OTHER, -1))
    assert [index.number(RecordName(*name)) for name in nowhere] == [NOBODY] * 4


@pytest.mark.usefixtures("small")
def test_an_index_on_disk_that_was_merged_many_times_forgets_nothing() -> None:
    index, keys = KeyIndex(SCHEME, folder=TEMPORARY), keys_of(np.random.default_rng(3), 20_000)
    for first in range(0, len(keys), 100):
        rows = np.arange(first, first + 100)
        assert index.decide(FRAGMENT, rows, keys[rows]) == [None] * 100
    assert max(run.level for run in index.levels.runs) >= 2
    assert len(index.levels.runs) <= 4 * runs.FAN_IN
    found, shared = index.find(keys)
    assert (found[:, 0] == np.arange(20_000)).all()
    assert (shared[:, 0] == SCHEME.words).all()
    assert (found[:, 1:] == NOBODY).all()


def test_the_filter_lets_few_keys_through_that_were_never_held() -> None:
    index = KeyIndex(SCHEME, folder=TEMPORARY)
    for first in range(0, 600_000, 20_000):
        keys = keys_of(np.random.default_rng(first), 20_000)
        claim(index, add(index, FRAGMENT, np.arange(first, first + 20_000), keys), keys)
    before, keys = index.table.row[ASKED], keys_of(np.random.default_rng(1), 20_000)
    index.find(keys)
    assert (index.table.row[ASKED] - before) / (20_000 * (SCHEME.words - 1)) < 0.025


def test_memory_a_record_stays_below_its_limits() -> None:
    """Of a record with 16 bands, as the arrays are sized; `benchmarks/dedup_index.py` measures what is resident."""
    scheme, records = Scheme(bands=16, rows=4), 200_000
    index, chance = KeyIndex(scheme), np.random.default_rng(5)
    for first in range(0, records, 5000):
        keys = chance.integers(1, 1 << 63, (5000, scheme.words), dtype=np.uint64)
        claim(index, add(index, FRAGMENT, np.arange(first, first + 5000), keys), keys)
    assert index.nbytes / records < 200


# ---- what is saved ----


def filled(records: int = 3000, fragment: bytes = FRAGMENT) -> tuple[KeyIndex, Any, bytes]:
    index, keys = KeyIndex(SCHEME, folder=TEMPORARY), keys_of(np.random.default_rng(records), records)
    data = encode_keys([(fragment, np.arange(records), keys)], SCHEME.identity())
    assert index.load(decode_keys(data, SCHEME.identity(), "keys")) == 0
    return index, keys, data


def counts(index: KeyIndex, sources: int) -> list[int]:
    return [index.records] + [0] * (sources - 1)


@pytest.mark.usefixtures("small")
def test_an_index_that_is_opened_answers_as_the_one_that_was_saved(tmp_path: Path) -> None:
    index, keys, _ = filled()
    gone = RecordName(FRAGMENT, 17)
    index.release(gone)
    path = saved.save(index, tmp_path, ["a", "b"], counts(index, 2))
    assert os.stat(path).st_mode & 0o777 == 0o600
    again = KeyIndex(SCHEME, folder=TEMPORARY)
    assert saved.open_saved(again, tmp_path, ["a", "b", "c"]) == [3000, 0]
    assert answers(again, keys) == answers(index, keys)
    assert again.records == index.records
    assert again.number(gone) == NOBODY
    assert again.number(RecordName(FRAGMENT, 2999)) == index.number(RecordName(FRAGMENT, 2999)) != NOBODY
    more = keys_of(np.random.default_rng(9), 3000)
    for kept in (index, again):
        claim(kept, add(kept, OTHER, np.arange(3000), more), more)
    both = np.concatenate([keys, more])
    assert answers(again, both) == answers(index, both)
    third = KeyIndex(SCHEME, folder=TEMPORARY)
    saved.save(again, tmp_path, ["a", "b", "c"], counts(again, 3))
    assert saved.open_saved(third, tmp_path, ["a", "b", "c"]) == [6000, 0, 0]
    assert answers(third, both) == answers(index, both)
    assert len(list(tmp_path.iterdir())) == 1


def test_an_index_of_other_sources_or_another_scheme_is_not_opened(tmp_path: Path) -> None:
    index, _, _ = filled()
    saved.save(index, tmp_path, ["a", "b"], counts(index, 2))
    for sources in (["a"], ["b", "a"], ["a", "c"], []):
        assert saved.open_saved(KeyIndex(SCHEME, folder=TEMPORARY), tmp_path, sources) == []
    assert saved.open_saved(KeyIndex(Scheme(bands=5, rows=4), folder=TEMPORARY), tmp_path, ["a", "b"]) == []


def test_a_file_under_the_name_of_another_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    index, _, _ = filled()
    path = saved.save(index, tmp_path, ["a"], counts(index, 1))
    path.rename(tmp_path / f"{saved.chain(SCHEME.identity(), ['b'])[1]}{saved.SUFFIX}")
    assert saved.open_saved(KeyIndex(SCHEME, folder=TEMPORARY), tmp_path, ["b"]) == []
    assert "of other sources" in caplog.text


def test_a_file_that_others_may_read_or_a_link_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    index, _, _ = filled()
    path = saved.save(index, tmp_path, ["a"], counts(index, 1))
    path.chmod(0o640)
    assert saved.open_saved(KeyIndex(SCHEME, folder=TEMPORARY), tmp_path, ["a"]) == []
    path.chmod(0o600)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert saved.open_saved(KeyIndex(SCHEME, folder=TEMPORARY), tmp_path, ["a"]) == []
    assert "not a file of this user alone" in caplog.text
    assert "cannot be opened" in caplog.text


@given(place=st.integers(0, 1 << 30), flipped=st.integers(1, 255), cut=st.booleans())
@settings(max_examples=120, deadline=None)
def test_a_damaged_file_is_refused_or_does_no_harm(place: int, flipped: int, cut: bool) -> None:
    """Slots and records are not read when a file is opened: what is damaged there names nobody beyond the records."""
    data, keys, path = bytearray(SAVED[0]), SAVED[1], SAVED[2]
    at = place % len(data)
    if cut:
        del data[at:]
    else:
        data[at] ^= flipped
    path.write_bytes(data)
    path.chmod(0o600)
    again = KeyIndex(SCHEME, folder=TEMPORARY)
    opened = saved.open_saved(again, path.parent, ["a"])
    if cut or at < HEADER_BYTES:
        assert opened == []
    if opened:
        try:
            found, _ = again.find(keys)
        except OSError:
            return
        assert found.max() < again.records


def test_a_scratch_file_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)
    index, _, data = KeyIndex(SCHEME, str(tmp_path)), *filled()[1:]
    index.load(decode_keys(data, SCHEME.identity(), "keys"))
    index.seal()
    assert index.levels.runs
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(autouse=True, scope="module")
def _saved(tmp_path_factory: pytest.TempPathFactory) -> None:
    index, keys, _ = filled(300)
    path = saved.save(index, tmp_path_factory.mktemp("saved"), ["a"], [300])
    SAVED[:] = [path.read_bytes(), keys, path]


SAVED: list[Any] = []
HEADER_BYTES = 276


def test_an_index_begins_with_what_was_saved_and_loads_the_rest(tmp_path: Path) -> None:
    files, read = [filled(2000), filled(300, OTHER)], list[int]()

    def sources(count: int) -> list[KeySource]:
        def reader(place: int) -> Any:
            read.append(place)
            return decode_keys(files[place][2], SCHEME.identity(), "keys")

        return [KeySource(f"checksum {at}", functools.partial(reader, at)) for at in range(count)]

    both = np.concatenate([files[0][1], files[1][1]])
    first, whole = KeyIndex(SCHEME, str(tmp_path)), KeyIndex(SCHEME)
    assert first.begin(sources(1)) == [LoadedKeys(0, 2000, 0)]
    assert whole.begin(sources(2)) == [LoadedKeys(0, 2000, 0), LoadedKeys(2000, 300, 0)]
    read.clear()
    again = KeyIndex(SCHEME, str(tmp_path))
    assert again.begin(sources(2)) == [LoadedKeys(0, 2000, 0), LoadedKeys(2000, 300, 0)]
    assert read == [1]
    assert answers(again, both) == answers(whole, both)
    # 300 of 2300 are too few to save them all again.
    assert [path.stem for path in tmp_path.iterdir()] == saved.chain(SCHEME.identity(), ["checksum 0"])[1:]


def test_an_index_that_cannot_be_saved_has_loaded_its_keys(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, keys, data = filled(500)

    def load() -> Any:
        return decode_keys(data, SCHEME.identity(), "keys")

    index = KeyIndex(SCHEME, str(tmp_path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "mkstemp", refuse)
        index.begin([KeySource("checksum", load)])
    assert "is not saved" in caplog.text
    assert (index.find(keys)[0][:, 0] == np.arange(500)).all()


def refuse(**_: Any) -> Any:
    raise OSError(28, "No space left on device")
