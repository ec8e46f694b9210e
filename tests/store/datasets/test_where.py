"""Expressions over fields: what they mean, and that nothing else is taken."""

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from headrace.store import FormatError
from headrace.store.datasets.where import CHARACTERS_MAX, ExpressionError, parse_where, rows_where

FIELDS = {
    "id": "d1",
    "source": "file:///a",
    "tokens": 40,
    "lang": "de",
    "score.q": 0.5,
    "user": {"name": "ann", "age": 7},
    "tags": ["a", "b", 1],
    "ok": True,
    "none": None,
}


@pytest.mark.parametrize(
    "text",
    [
        "lang == 'de'",
        "lang != 'en'",
        "user.name == 'ann' and user.age >= 7",
        "score.q < 0.6",
        "tokens > 39 and tokens <= 40",
        "'a' in tags",
        "lang in ['en', 'de']",
        "lang in ('en', 'de')",
        "'e' in lang",
        "lang not in ['en']",
        "startswith(id, 'd')",
        "not (lang == 'en' or missing == 1)",
        "ok == True",
        "none == None",
        "tokens > -1",
    ],
)
def test_what_holds(text: str) -> None:
    assert parse_where(text)(FIELDS)


@pytest.mark.parametrize(
    "text",
    [
        "missing == 'x'",
        "missing != 'x'",
        "missing not in ['x']",
        "lang < 3",
        "tokens < 'a'",
        "ok == 1",
        "ok > 0",
        "True in tags",
        "user.name.first == 'a'",
        "startswith(tokens, '4')",
        "lang == 'de' and missing == 1",
        "none < 1",
        "1 in lang",
        "lang not in none",
    ],
)
def test_what_does_not_hold(text: str) -> None:
    assert not parse_where(text)(FIELDS)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "lang",
        "1",
        "lang ==",
        "lang = 'de'",
        "f(lang)",
        "lang.upper() == 'DE'",
        "startswith(lang)",
        "startswith('a', lang)",
        "startswith(lang, prefix='a')",
        "lang is None",
        "1 < tokens < 3",
        "tags[0] == 'a'",
        "(lambda: 1)() == 1",
        "[x for x in tags] == 1",
        "lang == f'{id}'",
        "lang == b'de'",
        "tokens + 1 == 2",
        "__import__('os') == 1",
        "lang == 'a' if ok == True else lang == 'b'",
        "a" * (CHARACTERS_MAX + 1),
        "(" * 300 + "lang == 'a'" + ")" * 300,
        " and ".join(["a == 1"] * 200),
        "lang == 'a'\0",
    ],
)
def test_what_is_no_expression_of_the_language_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse_where(text)


@given(st.text(max_size=60))
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    try:
        test = parse_where(text)
    except ExpressionError:
        return
    assert test(FIELDS) in (True, False)


def test_rows_are_judged_by_metadata_and_columns() -> None:
    table = pa.table(
        {
            "id": ["a", "b", "c", "d"],
            "source": ["s"] * 4,
            "tokens": [1, 2, 3, 4],
            "metadata": ['{"n": 1}', None, '{"n": 3, "id": "z"}', "[1]"],
        }
    )
    assert rows_where(table, parse_where("n >= 1")).tolist() == [True, False, True, False]
    assert rows_where(table, parse_where("id == 'c' or tokens == 4")).tolist() == [False, False, True, True]


@pytest.mark.parametrize("metadata", ["{", "[" * 5000, '{"a":' + "9" * 5000 + "}x"])
def test_metadata_that_is_no_json_is_named(metadata: str) -> None:
    table = pa.table({"id": ["d1"], "source": ["s"], "tokens": [1], "metadata": [metadata]})
    with pytest.raises(FormatError, match="the metadata of a record is no"):
        rows_where(table, parse_where("a == 1"))
