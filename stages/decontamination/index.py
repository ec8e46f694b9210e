"""The index of the items of some suites: arrays, made once a host and mapped by all its tasks.

Of each question it has the grams, by hash, with their places and weights: a gram weighs log(1 + items / items that have
it). Of each ANCHOR_EVERY grams in a row the rarest is an anchor, by which the item is found; one of more than HOT_ITEMS
items is none. So a text is asked for anchors at every word, and a question of six words is not stepped over.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import pathlib
import time
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import xxhash

from headrace.stages.decontamination.suites import Item, Suite, read_suites
from headrace.stages.decontamination.units import ANSWER_GRAM, GRAM, hash_units, read_units, room_for
from headrace.stages.text import longest, text_bytes
from headrace.stages.text.machine import compiled, entry
from headrace.store.files import own_cache, taken_alone, whole_file

logger = logging.getLogger("headrace.stages")

#: Changes with what is in the file, and with what it means.
FORMAT: Final = 1
ANCHOR_EVERY: Final = 4
HOT_ITEMS: Final = 64
#: An answer of at most so many words stands in a text as a whole.
SHORT_ANSWER_WORDS: Final = 3
#: Bytes of index files that are kept in the cache, without the newest.
CACHE_BYTES_MAX: Final = 4 << 30
#: How long a task waits for another one that makes the index; then it makes one for itself.
WAIT_SECONDS_MAX: Final = 120.0
_MAGIC: Final = b"headrace suites\n"
_ALIGN: Final = 64
_HASH_BYTES: Final = 16
_HEAD_BYTES_MAX: Final = 1 << 20
_SUFFIX: Final = ".index"

Array = npt.NDArray[Any]

#: The arrays, by name. Of n items: `*_first` is [n + 1].
ARRAYS: Final[dict[str, str]] = {
    "suite": "int32",  # [n] the number of the item's suite
    "number": "int32",  # [n] its place in the suite
    "words": "int32",  # [n, 3] of question, answer and passage
    "span": "int32",  # [n] grams of the question, with repeated ones
    "total": "float64",  # [n] the weight of all its grams
    "grams_first": "int64",
    "grams": "uint64",  # of each item in ascending order
    "places": "int32",  # which gram of the question each is
    "weights": "float32",
    "answers_first": "int64",
    "answers": "uint64",
    "answer_size": "int32",  # [n] units of a gram of the answer
    "passages_first": "int64",
    "passages": "uint64",
    "filter": "uint64",  # a bit for each anchor, by its highest bits
    "slots": "uint64",  # an open table of anchors; 0 where none is
    "slot_first": "int64",  # [slots, 2] which of `holders` have it
    "holders": "int32",  # the items
}


@dataclass(frozen=True, slots=True)
class SuiteIndex:
    """The arrays, and how many items are not among them: too short, too common, or there already."""

    arrays: Mapping[str, Array]
    left_out: int

    @property
    def items(self) -> int:
        """How many texts are looked for; an item may be more than one."""
        return len(self.arrays["suite"])


def open_index(stage: str, tables: Sequence[Mapping[str, Any]]) -> SuiteIndex:
    """The index of these suites: mapped from this user's cache, where it is made if it is not there.

    Raises PipelineError where a suite is not what it was when it was declared.
    """
    folder = own_cache("suites")
    if folder is None:
        return make_index(read_suites(stage, tables))
    path = folder / f"{_name(tables)}{_SUFFIX}"
    with taken_alone(folder, "making", WAIT_SECONDS_MAX):
        found = _load(path)
        if found is None:
            begun = time.monotonic()
            made = make_index(read_suites(stage, tables))
            size = _save(path, made)
            logger.info(
                "the index of the suites is made: %d items, %d bytes, %.1f s",
                made.items,
                size,
                time.monotonic() - begun,
            )
            _clear(folder, path)
            found = _load(path) or made
    return found


def make_index(suites: Sequence[Suite]) -> SuiteIndex:
    """Make the arrays in memory."""
    targets, left_out = _targets(suites)
    texts, found = zip(*(_read([str(target[part]) for target in targets]) for part in range(3)), strict=True)
    arrays: dict[str, Array] = {
        "suite": np.array([target[3] for target in targets], np.int32),
        "number": np.array([target[4] for target in targets], np.int32),
        "words": np.stack([part[:, 1] for part in found], axis=1).astype(np.int32),
        "span": found[0][:, 2].astype(np.int32),
    }
    arrays |= _questions(texts[0], found[0][:, 2])
    arrays |= _answers(texts[1], found[1])
    first, grams, _ = _sorted_grams(texts[2], found[2][:, 2])
    arrays |= {"passages_first": first, "passages": grams}
    anchored = _anchors(arrays)
    for name, array in arrays.items():
        assert array.dtype == ARRAYS[name], name
        array.flags.writeable = False
    return SuiteIndex(arrays, left_out + len(targets) - anchored)


# -- what is looked for --


def _targets(suites: Sequence[Suite]) -> tuple[list[tuple[str, str, str, int, int]], int]:
    """Question, answer, passage, suite and number of what is looked for; and how many items are there twice.

    A question that is too short for a gram, or that many items have, is looked for with its choices or its answer, in
    each of the forms that they are printed in.
    """
    questions = [item.question for suite in suites for item in suite.items]
    is_long = iter((_read(questions)[1][:, 0] >= GRAM).tolist())
    counts = Counter(map(str.casefold, questions))
    seen: set[Item] = set()
    found: list[tuple[str, str, str, int, int]] = []
    twice = 0
    for place, suite in enumerate(suites):
        for number, item in enumerate(suite.items):
            has_gram = next(is_long)
            if item in seen:
                twice += 1
                continue
            seen.add(item)
            if has_gram and counts[item.question.casefold()] <= HOT_ITEMS:
                found.append((item.question, item.answer, item.passage, place, number))
            else:
                found += [(text, "", item.passage, place, number) for text in _longer(item)]
    return found, twice


def _longer(item: Item) -> Iterator[str]:
    if item.choices:
        yield " ".join((item.question, *item.choices))
        yield " ".join((item.question, *(f"{chr(ord('A') + at % 26)} {one}" for at, one in enumerate(item.choices))))
    elif item.answer:
        yield from (f"{item.question} {word}{item.answer}" for word in ("", "A ", "Answer "))
    else:
        yield item.question


# -- the arrays --


@entry("(u8[], i64[], u32[], i32[], u64[], i64[,])")
def _measure(data: Any, offsets: Any, units: Any, starts: Any, grams: Any, found: Any) -> None:
    for text in range(len(offsets) - 1):
        count, words, ready = read_units(data, offsets[text], offsets[text + 1], True, units, starts, grams)
        found[text, 0], found[text, 1], found[text, 2] = count, words, ready


def _read(texts: Sequence[str]) -> tuple[tuple[Array, Array], Array]:
    """The bytes and bounds of texts, and `[texts, 3]` units, words and grams of each."""
    data, offsets = text_bytes(pa.array(texts, pa.large_string()))
    found = np.zeros((len(texts), 3), np.int64)
    _measure(data, offsets, *room_for(longest(offsets)), found)
    return (data, offsets), found


@compiled
def _sort(hashes: Any, places: Any, first: int, end: int) -> None:
    """Sort `[first, end)` by hash and place (Shell 1959, with Knuth's gaps)."""
    gap = 1
    while gap < (end - first) // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for at in range(first + gap, end):
            value, place, to = hashes[at], places[at], at
            while to >= first + gap and (
                hashes[to - gap] > value or (hashes[to - gap] == value and places[to - gap] > place)
            ):
                hashes[to], places[to] = hashes[to - gap], places[to - gap]
                to -= gap
            hashes[to], places[to] = value, place
        gap //= 3


@entry("(u64[], i32[], i64[], i64[])")
def _unique(hashes: Any, places: Any, first: Any, kept: Any) -> None:
    """Sort each item's grams and keep the first of equal ones, all moved to the front; `kept` are the new bounds."""
    to = 0
    for item in range(len(first) - 1):
        begin = to
        _sort(hashes, places, first[item], first[item + 1])
        for at in range(first[item], first[item + 1]):
            if to > begin and hashes[to - 1] == hashes[at]:
                continue
            hashes[to], places[to] = hashes[at], places[at]
            to += 1
        kept[item + 1] = to


@entry("(u8[], i64[], u32[], i32[], u64[], i64[], u64[], i32[])")
def _collect(
    data: Any, offsets: Any, units: Any, starts: Any, grams: Any, first: Any, hashes: Any, places: Any
) -> None:
    for text in range(len(offsets) - 1):
        _, __, ready = read_units(data, offsets[text], offsets[text + 1], True, units, starts, grams)
        for place in range(ready):
            hashes[first[text] + place], places[first[text] + place] = grams[place], place


@entry("(u8[], i64[], u32[], i32[], u64[], i64[], u64[], i32[], i32[])")
def _collect_answers(
    data: Any, offsets: Any, units: Any, starts: Any, grams: Any, first: Any, hashes: Any, places: Any, sizes: Any
) -> None:
    for text in range(len(offsets) - 1):
        read_units(data, offsets[text], offsets[text + 1], True, units, starts, grams)
        for place in range(first[text + 1] - first[text]):
            hashes[first[text] + place] = hash_units(units, starts[place], sizes[text])
            places[first[text] + place] = place


def _bounds(counts: Array) -> Array:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def _made_unique(hashes: Array, places: Array, first: Array) -> tuple[Array, Array, Array]:
    kept = np.zeros(len(first), np.int64)
    _unique(hashes, places, first, kept)
    return kept, hashes[: kept[-1]].copy(), places[: kept[-1]].copy()


def _sorted_grams(text: tuple[Array, Array], counts: Array) -> tuple[Array, Array, Array]:
    """The bounds of each text's grams, these in ascending order, and their places."""
    first = _bounds(counts)
    hashes, places = np.empty(first[-1], np.uint64), np.empty(first[-1], np.int32)
    _collect(*text, *room_for(longest(text[1])), first, hashes, places)
    return _made_unique(hashes, places, first)


def _questions(text: tuple[Array, Array], counts: Array) -> dict[str, Array]:
    first, grams, places = _sorted_grams(text, counts)
    items = len(first) - 1
    _, which, holders = np.unique(grams, return_inverse=True, return_counts=True)
    weights = np.log1p(items / holders)[which].astype(np.float32)
    owner = np.repeat(np.arange(items), np.diff(first))
    total = np.bincount(owner, weights.astype(np.float64), minlength=items)
    return {
        "grams_first": first, "grams": grams, "places": places, "weights": weights, "total": total,
        "holders": holders[which].astype(np.int32),
    }  # fmt: skip


def _answers(text: tuple[Array, Array], found: Array) -> dict[str, Array]:
    """The grams of long answers, and the whole of short ones as one gram."""
    units, words = found[:, 0], found[:, 1]
    is_short = (words <= SHORT_ANSWER_WORDS) | (units < ANSWER_GRAM)
    sizes = np.where(is_short, units, ANSWER_GRAM).astype(np.int32)
    counts = np.where(is_short, np.minimum(units, 1), _long_counts(text, sizes))
    first = _bounds(counts)
    hashes, places = np.empty(first[-1], np.uint64), np.empty(first[-1], np.int32)
    _collect_answers(*text, *room_for(longest(text[1])), first, hashes, places, sizes)
    first, hashes, _ = _made_unique(hashes, places, first)
    return {"answers_first": first, "answers": hashes, "answer_size": sizes}


@entry("(u8[], i64[], u32[], i32[], u64[], i32[], i64[])")
def _count_long(data: Any, offsets: Any, units: Any, starts: Any, grams: Any, sizes: Any, counts: Any) -> None:
    for text in range(len(offsets) - 1):
        count, words, _ = read_units(data, offsets[text], offsets[text + 1], True, units, starts, grams)
        while words and starts[words - 1] + sizes[text] > count:
            words -= 1
        counts[text] = words


def _long_counts(text: tuple[Array, Array], sizes: Array) -> Array:
    counts = np.zeros(len(sizes), np.int64)
    _count_long(*text, *room_for(longest(text[1])), sizes, counts)
    return counts


# -- the anchors --


@entry("(i64[], i32[], i32[], i32[], i64[], i64[], i32[]) -> (i64, i64)")
def _choose(first: Any, places: Any, holders: Any, span: Any, best: Any, chosen: Any, owner: Any) -> tuple[int, int]:
    """Put the anchors (which grams) and their items end to end; returns how many, and of how many items."""
    count = items = 0
    for item in range(len(first) - 1):
        groups = (span[item] + ANCHOR_EVERY - 1) // ANCHOR_EVERY
        for group in range(groups):
            best[group] = -1
        for gram in range(first[item], first[item + 1]):
            group = places[gram] // ANCHOR_EVERY
            rival = best[group]
            if holders[gram] <= HOT_ITEMS and (
                rival < 0
                or holders[gram] < holders[rival]
                or (holders[gram] == holders[rival] and places[gram] < places[rival])
            ):
                best[group] = gram
        before = count
        for group in range(groups):
            if best[group] >= 0:
                chosen[count], owner[count] = best[group], item
                count += 1
        items += count > before
    return count, items


@entry("(u64[], i64[], u64[], i64[,], u64[], u64)")
def _insert(keys: Any, bounds: Any, slots: Any, slot_first: Any, bits: Any, shift: Any) -> None:
    mask = np.uint64(len(slots) - 1)
    for place in range(len(keys)):
        key = keys[place]
        slot = key & mask
        while slots[slot] != 0:
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = key
        slot_first[slot, 0], slot_first[slot, 1] = bounds[place], bounds[place + 1]
        bit = key >> shift
        bits[bit >> np.uint64(6)] |= np.uint64(1) << (bit & np.uint64(63))


def _anchors(arrays: dict[str, Array]) -> int:
    """Put the anchors into the arrays; returns of how many items."""
    first, span = arrays["grams_first"], arrays["span"]
    room = int(((span + ANCHOR_EVERY - 1) // ANCHOR_EVERY).sum())
    best = np.empty(int(span.max(initial=0)) // ANCHOR_EVERY + 1, np.int64)
    chosen, owner = np.empty(room, np.int64), np.empty(room, np.int32)
    items: int
    count, items = _choose(first, arrays["places"], arrays["holders"], span, best, chosen, owner)
    hashes, owner = arrays["grams"][chosen[:count]], owner[:count]
    order = np.argsort(hashes, kind="stable")
    keys, bounds = np.unique(hashes[order], return_index=True)
    size = 1 << max(6, (2 * len(keys)).bit_length())
    slots, slot_first = np.zeros(size, np.uint64), np.zeros((size, 2), np.int64)
    bits = np.zeros(max(1, 8 * size // 64), np.uint64)
    shift = np.uint64(64 - (8 * size).bit_length() + 1)
    _insert(keys, np.append(bounds, count).astype(np.int64), slots, slot_first, bits, shift)
    arrays |= {"slots": slots, "slot_first": slot_first, "filter": bits, "holders": owner[order]}
    return items


# -- the file --


def _name(tables: Sequence[Mapping[str, Any]]) -> str:
    """The name of the index of these suites: what they say, and how it is read."""
    content = [FORMAT, unicodedata.unidata_version, ANCHOR_EVERY, HOT_ITEMS, [table["sha256"] for table in tables]]
    return xxhash.xxh3_128_hexdigest(orjson.dumps(content))


def _save(path: pathlib.Path, index: SuiteIndex) -> int:
    """Write the file under its name at once and whole; its bytes. An error leaves none, and is logged."""
    parts: list[bytes] = []
    entries: list[tuple[str, list[int], int]] = []
    at = 0
    for name in ARRAYS:
        array = np.ascontiguousarray(index.arrays[name])
        entries.append((name, list(array.shape), at))
        padding = -array.nbytes % _ALIGN
        parts += [array.tobytes(), bytes(padding)]
        at += array.nbytes + padding
    head = orjson.dumps({"format": FORMAT, "left_out": index.left_out, "arrays": entries})
    head += b" " * (-(len(_MAGIC) + _HASH_BYTES + 8 + len(head)) % _ALIGN)
    digest = xxhash.xxh3_128(head)
    for part in parts:
        digest.update(part)
    try:
        with whole_file(path) as file:
            file.write(_MAGIC + digest.digest() + len(head).to_bytes(8, "little") + head)
            file.writelines(parts)
    except OSError as error:
        logger.warning("the index of the suites cannot be kept in %s: %s; each task makes its own", path.parent, error)
    return at


def _load(path: pathlib.Path) -> SuiteIndex | None:
    """Map the file; None where there is none, or not the one that was written."""
    try:
        with path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return None
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        os.utime(path)
    except OSError:
        return None
    begin = len(_MAGIC) + _HASH_BYTES + 8
    size = int.from_bytes(data[begin - 8 : begin], "little")
    if bytes(data[: len(_MAGIC)]) != _MAGIC or not 0 < size <= min(_HEAD_BYTES_MAX, len(data) - begin):
        return None
    if xxhash.xxh3_128_digest(data[begin:]) != bytes(data[len(_MAGIC) : begin - 8]):
        logger.warning("%s is damaged: the index is made again", path)
        return None
    head = orjson.loads(data[begin : begin + size])
    arrays: dict[str, Array] = {}
    for name, shape, at in head["arrays"]:
        count = int(np.prod(shape, dtype=np.int64))
        arrays[name] = np.frombuffer(data, ARRAYS[name], count, begin + size + at).reshape(shape)
    return SuiteIndex(arrays, head["left_out"])


def _clear(folder: pathlib.Path, newest: pathlib.Path) -> None:
    """Delete the files that were used longest ago, until the others take at most CACHE_BYTES_MAX."""
    kept = 0
    with contextlib.suppress(OSError):
        found = [(path.stat().st_mtime, path.stat().st_size, path) for path in folder.glob(f"*{_SUFFIX}")]
        for _, size, path in sorted(found, reverse=True):
            kept += size
            if path != newest and kept > CACHE_BYTES_MAX:
                path.unlink(missing_ok=True)
