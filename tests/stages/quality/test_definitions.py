"""The compiled loops are held equal to the slow definitions, on hostile text."""

# ruff: noqa: RUF001

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings, strategies as st

from headrace.stages.quality.c4 import CITATION, CURLY, LOREM, POLICY, SCRIPT, clean_lines
from headrace.stages.quality.fineweb import fineweb_scores
from headrace.stages.quality.gopher import gopher_scores
from headrace.stages.quality.repetition import GopherRepetition, repetition_shares
from headrace.stages.text.words import split_words
from tests.kits.stages import slow_definitions as slow
from tests.kits.stages.quality import make_batch

ALL = LOREM | SCRIPT | POLICY | CURLY | CITATION
PIECES = [
    *"aB1 .,!?…'\"’-–—~()[]{}<>:;/=+*^#@$%&_|\\\n\n\n\t\r\x0b\x1c\x85\xa0\u2028\u3000",
    *"é漢字ßДя\u0301\u200d\u202e🙂👩\u200d🚀אبहि한あ。！？°²€•",
    "the ", "and ", "with", "U.S.", "e.g.", "don't", "it's ", "I'm", "cannot ", "5km", "10$", "US$5", "--", "---",
    "...", "[1]", "[edit]", "[citation needed]", "lorem ipsum", "JavaScript", "{", "Privacy Policy", "uses cookies ",
    "terms of use", "www.foo.com", "http://a-b.org:80/x?y", "me@x.co", "1.2.3.4", "a.b", "a.B",
    "\r\n", "- ", "• ",
    "one two three four five. ", "word word word ",
    "\n\n", ":)",
    "8)", "°C.", "……", "x" * 1001,
]  # fmt: skip
HOSTILE = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=60).map("".join),
    st.lists(st.sampled_from(["a", "b", "the", "c d", "\n", "\n\n", ". "]), max_size=80).map(" ".join),
    st.text(max_size=40),
)
COLUMNS = st.lists(HOSTILE, min_size=1, max_size=5)
PLENTY = settings(deadline=None, max_examples=150)


@PLENTY
@given(HOSTILE)
@example("")
@example("one")
@example("i.MX23 (see item 8). ):-( a^_^b o.o.o C++-like")
@example("http://x@y.co:8080/z http://-a.bc a@b@c.de x://y.zz 1.2.3.4/a")
def test_words_are_those_of_the_slow_definition(text: str) -> None:
    assert split_words(text) == slow.words(text)


@PLENTY
@given(COLUMNS)
@example([""])
def test_repetition_is_that_of_the_slow_definition(texts: list[str]) -> None:
    found = np.array(list(repetition_shares(pa.array(texts)).values())).T
    assert np.allclose(found, [slow.repetition(text) for text in texts])


@PLENTY
@given(HOSTILE, st.sampled_from([0.0, 0.1, 0.3]))
def test_a_text_dropped_for_its_lines_needs_no_words(text: str, limit: float) -> None:
    stage = GopherRepetition("r", *[limit] * 4, [0.2, 0.18, 0.16], [0.15, 0.14, 0.13, 0.12, 0.11, 0.10])
    limits = list(stage.limits.values())
    broken = [number for number, share in enumerate(slow.repetition(text)) if share > limits[number]]
    reasons = stage.process(make_batch([text])).verdicts.column("reason").to_pylist()
    assert reasons == [f"too many {list(stage.limits)[number]}" for number in broken[:1]]


@PLENTY
@given(COLUMNS)
@example([""])
def test_gophers_scores_are_those_of_the_slow_definition(texts: list[str]) -> None:
    found = np.array(list(gopher_scores(pa.array(texts)).values())).T
    assert np.allclose(found, [slow.gopher(text) for text in texts])


@PLENTY
@given(COLUMNS, st.booleans())
def test_c4s_lines_are_those_of_the_slow_definition(texts: list[str], punctuated: bool) -> None:
    found, left = clean_lines(pa.array(texts), (3, 1000, ALL, punctuated, -1))
    answers = [(*row[:3], text) for row, text in zip(found.tolist(), left.to_pylist(), strict=True)]
    assert answers == [slow.c4(text, punctuated) for text in texts]


@PLENTY
@given(COLUMNS)
@example(["\n \n", "a\n\na\n"])
def test_finewebs_scores_are_those_of_the_slow_definition(texts: list[str]) -> None:
    found = np.array(list(fineweb_scores(pa.array(texts), 3).values())).T
    assert np.allclose(found, [slow.fineweb(text, 3) for text in texts])


@PLENTY
@given(st.lists(HOSTILE, min_size=2, max_size=6), st.sampled_from([pa.string(), pa.large_string()]), st.integers(0, 2))
def test_a_slice_of_a_column_is_scored_like_its_texts(texts: list[str], kind: Any, skipped: int) -> None:
    column = pa.array(texts, kind).slice(skipped)
    alone = [gopher_scores(pa.array([text])) for text in texts[skipped:]]
    for name, values in gopher_scores(column).items():
        assert np.allclose(values, [float(scores[name][0]) for scores in alone])
    _, left = clean_lines(column, (3, 1000, ALL, False, -1))
    assert left.to_pylist() == [slow.c4(text)[3] for text in texts[skipped:]]


@settings(deadline=None, max_examples=100)
@given(HOSTILE, st.floats(0, 2))
def test_line_feeds_per_word_are_right_where_it_matters(text: str, limit: float) -> None:
    exact = fineweb_scores(pa.array([text]), 3)["line feeds per word"][0]
    quick = fineweb_scores(pa.array([text]), 3, limit)["line feeds per word"][0]
    assert (quick > limit) == (exact > limit)


@pytest.mark.parametrize("unit", ["a", "ab ", "=", "a.", "@a", "漢", "\n", "{a", "…", "a-", "'", "1,", "x.co@"])
def test_a_line_of_a_million_bytes_is_scored_in_a_moment(unit: str) -> None:
    column = pa.array([unit * (1_000_000 // len(unit.encode()))])
    for scores in (repetition_shares(column), gopher_scores(column), fineweb_scores(column, 30)):
        assert all(np.isfinite(values).all() for values in scores.values())
    found, left = clean_lines(column, (0, 1 << 40, ALL, False, -1))
    assert found.shape == (1, 4)
    left.validate(full=True)
