"""The judge: what is a duplicate of a kept record, and what only shares the form of one."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from headrace.pipeline.errors import PipelineError
from headrace.stages.dedup.core.scheme import DEFAULTS, RULE, Scheme
from headrace.stages.dedup.judge import SKETCH_BYTES_MAX, WORDS_MAX
from headrace.stages.dedup.key_index import KeyIndex, Match
from headrace.stages.dedup.minhash import make_keys, make_sketches
from headrace.stages.dedup.sketches import are_sketches, is_sketch
from headrace.stages.library.filters import dedup
from headrace.store.contract.errors import FormatError
from headrace.store.shards.dedup_files import RecordName, decode_keys, encode_keys, encode_sketches, merge_sketches

FRAGMENT = b"f" * 16
SCHEME = Scheme(*DEFAULTS[True], RULE)
VOCABULARY = [f"{first}{second}{number}" for first in "bcdfgklmnprst" for second in "aeiou" for number in range(60)]


def words(seed: int, count: int) -> str:
    return " ".join(random.Random(seed).choices(VOCABULARY, k=count))


def decide(texts: Sequence[str], index: KeyIndex | None = None, first: int = 0, size: int = 64) -> list[Match | None]:
    """What an index answers to texts in this order, a batch at a time."""
    index = index or KeyIndex(SCHEME)
    answers: list[Match | None] = []
    for at in range(0, len(texts), size):
        part = texts[at : at + size]
        keys, sketches = make_sketches(pa.array(part, pa.string()), SCHEME)
        answers += index.decide(FRAGMENT, np.arange(first + at, first + at + len(part)), keys, sketches)
    return answers


def kept(texts: Sequence[str]) -> int:
    return sum(answer is None for answer in decide(texts))


# ---- duplicates ----


def edited(text: str, chance: random.Random) -> str:
    return " ".join(chance.choice(VOCABULARY) if chance.random() < 0.05 else word for word in text.split(" "))


def scanned(text: str, chance: random.Random) -> str:
    return "".join(chance.choice("abcdefgh") if chance.random() < 0.01 else letter for letter in text)


DUPLICATES: dict[str, Callable[[str, random.Random], str]] = {
    "edited": edited,
    "scanned": scanned,
    "with a header": lambda text, chance: f"{words(chance.randrange(1 << 30), 25)}\n\n{text}",
    "with a footer": lambda text, chance: f"{text}\n\n{words(chance.randrange(1 << 30), 25)}",
    "with both": lambda text, chance: (
        f"{words(chance.randrange(1 << 30), 20)}\n{text}\n{words(chance.randrange(99), 20)}"
    ),
    "truncated": lambda text, chance: text[: int(len(text) * 0.9)],
    "in capitals": lambda text, chance: text.upper().replace(" ", "  "),
}


@pytest.mark.parametrize("kind", DUPLICATES)
@pytest.mark.parametrize("size", [200, 600, 1500, 6000])
def test_a_text_with_light_changes_is_a_duplicate(kind: str, size: int) -> None:
    chance = random.Random(3)
    originals = [words(number, size) for number in range(60)]
    assert kept(originals) == 60
    answers = decide(originals + [DUPLICATES[kind](text, chance) for text in originals])
    named = [answer.name.row if answer is not None else None for answer in answers[60:]]
    assert sum(found == place for place, found in enumerate(named)) >= 58


def test_of_many_noisy_copies_of_one_text_few_are_kept() -> None:
    """Two of them have 58 % of their 3-grams in common, so that bands miss some."""
    original, chance = words(1, 500), random.Random(5)
    first = edited(original, chance)
    assert kept([first, *(edited(original, chance) for _ in range(400))]) <= 20


# ---- forms ----


def slots(parts: Sequence[str], number: int, width: int) -> str:
    """A form: the same parts in each, and words of its own between them."""
    chance = random.Random(1_000_000 + number)
    return " ".join(f"{part} {' '.join(chance.choices(VOCABULARY, k=width))}" for part in parts)


FORMS: dict[str, Callable[[int], str]] = {
    "four schemas of 90 words and 40 words": lambda number: slots([words(s, 90) for s in range(4)], number, 10),
    "400 words and 80 words at the end": lambda number: f"{words(1, 400)} {words(9000 + number, 80)}",
    "eight parts and a name behind each": lambda number: slots([words(s, 40) for s in range(8)], number, 1),
    "a licence of 600 words with a name and a year": lambda number: (
        f"Copyright {1900 + number % 120} {words(9000 + number, 2)}. {words(1, 600)}"
    ),
    "a blank form and filled ones": lambda number: f"{words(1, 400)} {words(9000 + number, 80 if number else 0)}",
}


@pytest.mark.parametrize("form", FORMS)
def test_of_a_thousand_filled_forms_at_most_five_are_lost(form: str) -> None:
    assert kept([FORMS[form](number) for number in range(1000)]) >= 995


def test_a_copy_of_a_filled_form_is_a_duplicate_of_that_form() -> None:
    forms = [FORMS["400 words and 80 words at the end"](number) for number in range(40)]
    answers = decide([*forms, *(f"A page  {text}" for text in forms)])
    assert [answer and answer.name.row for answer in answers[40:]] == list(range(40))


def test_a_short_text_with_another_word_is_no_duplicate() -> None:
    assert kept(["the cat sat on the mat and slept", "the dog sat on the mat and slept"]) == 2


def test_a_text_that_holds_a_short_one_and_much_more_is_kept() -> None:
    assert kept([words(1, 100), f"{words(1, 100)} {words(2, 300)}"]) == 2


def test_without_a_judge_a_shared_band_decides() -> None:
    forms = [FORMS["four schemas of 90 words and 40 words"](number) for number in range(200)]
    scheme = Scheme()
    found = KeyIndex(scheme).decide(FRAGMENT, np.arange(200), make_keys(pa.array(forms, pa.string()), scheme))
    assert sum(answer is None for answer in found) < 20
    assert all(answer is None or answer.score == -1 for answer in found)


# ---- sketches ----


@given(st.integers(0, 3 * WORDS_MAX))
@settings(max_examples=60, deadline=None)
def test_a_sketch_is_bounded_whatever_the_text(count: int) -> None:
    _, column = make_sketches(pa.array([words(count, count)], pa.string()), SCHEME)
    sketch = column[0].as_py()
    assert is_sketch(sketch)
    assert len(sketch) <= SKETCH_BYTES_MAX
    assert (sketch[0] == 0) == (count <= WORDS_MAX)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 1024, 1025, 5000, 100_000])
def test_a_text_of_one_word_many_times_has_a_verdict(count: int) -> None:
    texts = [f"w{number} " * count for number in range(40)]
    assert kept(texts) == 40
    assert kept([f"{text}." for text in texts] + texts) == 40 + (40 if count > WORDS_MAX else 0)


def test_a_sample_of_few_entries_decides_nothing() -> None:
    """Of a long text and a short one that share a band by chance, the judge would look at next to nothing."""
    long, short = (make_sketches(pa.array([words(1, count)], pa.string()), SCHEME) for count in (60_000, 30))
    keys = short[0].copy()
    keys[:, 2:] = long[0][:, 2:]
    index = KeyIndex(SCHEME)
    assert index.decide(FRAGMENT, np.arange(1), *long) == [None]
    assert index.decide(FRAGMENT, np.arange(1, 2), keys, short[1]) == [None]


@pytest.mark.parametrize("data", [b"", b"\x20", b"\x00\x01", b"\x01ab", bytes(SKETCH_BYTES_MAX + 1)])
def test_bytes_that_are_no_sketch_are_refused(data: bytes) -> None:
    assert not is_sketch(data)
    keys = make_keys(pa.array(["a"], pa.string()), SCHEME)
    with pytest.raises(ValueError, match="sketch"):
        KeyIndex(SCHEME).decide(FRAGMENT, np.arange(1), keys, pa.array([data], pa.binary()))


def test_an_index_made_again_reads_the_sketches_it_needs_and_answers_alike() -> None:
    texts = [words(number, 300) for number in range(100)]
    keys, sketches = make_sketches(pa.array(texts, pa.string()), SCHEME)
    rows, reads = np.arange(100), []
    file = encode_sketches([(FRAGMENT, rows, sketches)])

    def reader() -> pa.Table:
        reads.append(1)
        return _table(file)

    again = KeyIndex(SCHEME)
    kept_keys = decode_keys(encode_keys([(FRAGMENT, rows, keys)], SCHEME.identity()), SCHEME.identity(), "k")
    again.expect(0, len(kept_keys.records), reader)
    again.load(kept_keys)
    chance = random.Random(1)
    assert decide([words(500, 300)], again, first=500) == [None]
    assert reads == []
    answers = decide([edited(text, chance) for text in texts], again, first=1000)
    assert sum(answer is not None and answer.name.row == place for place, answer in enumerate(answers)) >= 97
    assert reads == [1]


def test_a_file_without_the_sketch_of_a_kept_record_is_an_error() -> None:
    keys, sketches = make_sketches(pa.array([words(1, 300)], pa.string()), SCHEME)
    again = KeyIndex(SCHEME)
    file = encode_sketches([(b"g" * 16, np.arange(1), sketches)])
    kept_keys = decode_keys(encode_keys([(FRAGMENT, np.arange(1), keys)], "s"), "s", "k")
    again.expect(0, 1, lambda: _table(file))
    again.load(kept_keys)
    with pytest.raises(FormatError, match="lack"):
        decide([f"{words(1, 300)} more"], again, first=7)


def test_files_of_sketches_merge_into_one_that_does_not_depend_on_order() -> None:
    _, sketches = make_sketches(pa.array([words(number, 30) for number in range(4)], pa.string()), SCHEME)
    one = encode_sketches([(FRAGMENT, np.arange(2), sketches[:2])])
    two = encode_sketches([(b"a" * 16, np.arange(2), sketches[2:])])
    assert merge_sketches([("a", one), ("b", two)]) == merge_sketches([("b", two), ("a", one)])


@given(st.binary(max_size=300))
@settings(max_examples=40, deadline=None)
def test_bytes_that_are_no_file_of_sketches_are_an_error(data: bytes) -> None:
    with pytest.raises(FormatError):
        merge_sketches([("x.sketches", data)])


def test_an_unknown_judge_and_an_unknown_rule_are_refused() -> None:
    with pytest.raises(PipelineError, match='must be "words" or "none"'):
        dedup(judge="strict")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rule 9"):
        Scheme(rule=9)


def _table(file: bytes) -> pa.Table:
    import pyarrow.parquet as pq

    with pq.ParquetFile(pa.BufferReader(file)) as opened:
        return opened.read()


def test_a_record_read_again_is_kept_again() -> None:
    texts = [words(number, 100) for number in range(20)]
    index = KeyIndex(SCHEME)
    assert decide(texts, index) == [None] * 20 == decide(texts, index)
    assert index.release(RecordName(FRAGMENT, 3))
    assert decide([texts[3]], index, first=77) == [None]


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x00a", b"\x01ab", bytes(SKETCH_BYTES_MAX + 1)])
def test_a_column_of_sketches_is_checked_value_by_value(data: bytes) -> None:
    good = make_sketches(pa.array(["one text", "another"], pa.string()), Scheme(*DEFAULTS[True], RULE))[1]
    assert are_sketches(good)
    assert are_sketches(good.slice(1))
    assert are_sketches(good.slice(0, 0))
    assert not is_sketch(data)
    assert not are_sketches(pa.array([*good.to_pylist(), data], pa.binary()))
    assert not are_sketches(pa.array([None], pa.binary()))
    assert not are_sketches(pa.array(["text"], pa.string()))
