from __future__ import annotations

import re
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.stages.batch import Batch
from headrace.stages.build import build_stage
from headrace.stages.filters import LINE_ENDS, STOP_WORDS, sentences
from headrace.stages.library import c4_quality, duplicate_lines, fineweb_quality, gopher_quality
from headrace.stages.text import SPACES, Texts

SPACE = SPACES.decode()
PIECES = [*"aB the of.…?!-•#{\n\n\t 9é漢\u2028", "the ", "...", "\n- "]
TEXT = st.lists(st.sampled_from(PIECES), max_size=60).map("".join)


def words(text: str) -> list[str]:
    return [word for word in re.split(f"[{SPACE}]+", text) if word]


def lines(text: str) -> list[str]:
    return [line.strip(SPACE) for line in text.split("\n") if line.strip(SPACE)]


def is_letter(character: str) -> bool:
    return ord(character) > 0x7F or character.isalpha()


def reference(text: str) -> dict[str, int]:
    """The slow way to each count."""
    found = lines(text)
    return {
        "words": len(words(text)),
        "characters": sum(map(len, words(text))),
        "alphabetic": sum(any(map(is_letter, word)) for word in words(text)),
        "stop": len({word.lower() for word in words(text)} & set(STOP_WORDS)),
        "sentences": sum(word[-1] in ".?!" for word in words(text)),
        "lines": len(found),
        "bullets": sum(line.startswith(("•", "-")) for line in found),
        "ellipses": sum(line.endswith(("...", "…")) for line in found),
        "ended": sum(line.endswith(LINE_ENDS) for line in found),
        "short": sum(len(line) < 3 for line in found),
        "repeated": len(found) - len(set(found)),
    }


@settings(deadline=None, max_examples=200)
@given(st.lists(TEXT, max_size=8), st.integers(0, 3))
def test_counts_are_those_of_a_slow_reference(texts: list[str], skipped: int) -> None:
    column = pa.array(texts, pa.string()).slice(min(skipped, len(texts)))
    found = Texts(column)
    counts = {
        "words": found.words,
        "characters": found.characters_in_words,
        "alphabetic": found.alphabetic_words,
        "stop": found.distinct_words_of(STOP_WORDS),
        "sentences": sentences(found),
        "lines": found.lines.count,
        "bullets": found.lines.per_text(found.lines.starting_with("•", "-")),
        "ellipses": found.lines.per_text(found.lines.ending_with("...", "…")),
        "ended": found.lines.per_text(found.lines.ending_with(*LINE_ENDS)),
        "short": found.lines.per_text(found.lines.characters < 3),
        "repeated": found.lines.per_text(found.lines.repeated()),
    }
    for index, text in enumerate(column.to_pylist()):
        assert {name: int(values[index]) for name, values in counts.items()} == reference(text), repr(text)


PROSE = "The ship sailed over the wide sea to a land of hills, and that was good to have. " * 8
CASES = [
    (gopher_quality(), PROSE, None),
    (gopher_quality(), "too short", "too few words"),
    (gopher_quality(words_max=100), PROSE, "too many words"),
    (gopher_quality(), "a b " * 50, "words too short"),
    (gopher_quality(), "incomprehensibilities " * 50, "words too long"),
    (gopher_quality(), PROSE + "#hash " * 40, "too many hash signs"),
    (gopher_quality(), PROSE + "wait… " * 40, "too many ellipses"),
    (gopher_quality(), "\n".join(["- " + PROSE] * 10), "too many bullet lines"),
    (gopher_quality(), "\n".join([PROSE + "so..."] * 5), "too many lines end in an ellipsis"),
    (gopher_quality(), PROSE + "12345 " * 60, "too few words with a letter"),
    (gopher_quality(), "Schiffe fahren weit hinaus " * 20, "too few stop words"),
    (duplicate_lines(), "one\ntwo\nthree\nfour", None),
    (duplicate_lines(), "one\none\none\ntwo", "too many repeated lines"),
    (duplicate_lines(), "long line here\n" * 2 + "a\nb\nc\nd", "too many characters in repeated lines"),
    (c4_quality(), PROSE, None),
    (c4_quality(), PROSE + "Lorem Ipsum.", "lorem ipsum"),
    (c4_quality(lorem_ipsum=True), PROSE + "Lorem Ipsum.", None),
    (c4_quality(), PROSE + "{", "curly bracket"),
    (c4_quality(curly_brackets=True), PROSE + "{", None),
    (c4_quality(), "One. Two. Three. Four.", "too few sentences"),
    (fineweb_quality(), PROSE, None),
    (fineweb_quality(), "\n".join(["a menu entry that is quite long indeed"] * 9), "too few lines end in punctuation"),
    (fineweb_quality(), "Short.\n" * 9 + PROSE, "too many short lines"),
]


@pytest.mark.parametrize(("stage", "text", "reason"), CASES)
def test_each_rule_filters_for_its_own_reason(
    stage: object, text: str, reason: str | None, batch_of: Callable[..., Batch]
) -> None:
    answer = build_stage(stage, {}).process(batch_of([PROSE, text, PROSE]))  # type: ignore[arg-type]
    found = [row["reason"] for row in answer.verdicts.to_pylist() if row["row"] == 1]
    assert found == ([] if reason is None else [reason])


def test_a_batch_without_rows_passes_each_filter(batch_of: Callable[..., Batch]) -> None:
    for stage in (gopher_quality(), duplicate_lines(), c4_quality(), fineweb_quality()):
        assert build_stage(stage, {}).process(batch_of([])).rows.num_rows == 0
