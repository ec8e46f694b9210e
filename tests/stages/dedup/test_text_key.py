"""The own keys of texts: equal for those that differ in white space alone."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, strategies as st

from headrace.stages.dedup import Scheme, make_keys

#: White space of one byte to three, letters of one to four, marks that begin as white space does, and a zero.
CHARACTERS = "ab \t\x1c\x85\xa0\u2003\u3000é中\u2019\u200b😀\x00"
#: As long as what is hashed at once, and around.
FILLED = st.integers(0, 70).map("x".__mul__)
TEXTS = st.lists(st.tuples(FILLED, st.text(CHARACTERS, max_size=70), FILLED).map("".join), min_size=2, max_size=8)


@given(TEXTS)
def test_they_are_equal_where_the_pieces_are(texts: list[str]) -> None:
    texts += [" ".join(text.split()) for text in texts]
    keys = make_keys(pa.array(texts, pa.string()), Scheme(bands=0))
    by_key = {tuple(key): tuple(text.split()) for key, text in zip(keys.tolist(), texts, strict=True)}
    assert [by_key[tuple(key)] for key in keys.tolist()] == [tuple(text.split()) for text in texts]
    assert len(by_key) == len({tuple(text.split()) for text in texts})


def test_a_text_of_any_length_ends_where_it_ends() -> None:
    texts = ["y" * size for size in range(200)] + ["y" * size + "\x00" for size in range(200)]
    keys = make_keys(pa.array(texts, pa.string()), Scheme(bands=0))
    assert len({tuple(key) for key in keys.tolist()}) == len(texts)
