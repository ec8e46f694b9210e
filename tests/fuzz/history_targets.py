"""Targets of `headrace.store.history` and of expressions: small files beside a ledger, and what people ask for."""

from __future__ import annotations

from typing import Any

from headrace.store.contract.errors import FormatError
from headrace.store.datasets import where
from headrace.store.history import copies, tags
from tests.fuzz.harness import Target
from tests.fuzz.mutations import within_json


def run_tags(data: bytes) -> object | None:
    """What stands in the place of a file of tags: names that an address can hold, or its own error."""
    try:
        found = tags.TAGS.decode(data, "it")
    except FormatError:
        return None
    assert all(tags.is_tag(name) and tag.version >= 0 for name, tag in found.items())
    assert tags.TAGS.decode(tags.TAGS.encode(found), "it") == found
    return found


def run_copies(data: bytes) -> object | None:
    """What stands in the place of a file of copies: folders by their whole path, or its own error."""
    try:
        found = copies.COPIES.decode(data, "it")
    except FormatError:
        return None
    assert all(one.place.startswith("/") for one in found)
    assert copies.COPIES.decode(copies.COPIES.encode(found), "it") == found
    return [one.place for one in found]


def run_where(data: bytes) -> object | None:
    """An expression over fields: its own error, or a test that any record answers."""
    try:
        test = where.parse_where(data.decode("utf-8", "replace"))
    except where.ExpressionError:
        return None
    records: tuple[dict[str, Any], ...] = ({}, {"a": 1, "b": "x", "c": {"d": [1, "y", None]}, "id": "r", "tokens": 3})
    answers = [test(fields) for fields in records]
    assert all(type(answer) is bool for answer in answers)
    return answers


TARGETS = [
    Target(
        "copies",
        ("headrace.store.history.copies", "headrace.store.history.small_file"),
        run_copies,
        lambda: [copies.COPIES.encode([copies.Copy("/o", "h", "mds", 1, -1), copies.Copy("/p", "h", "parquet", 2, 7)])],
        mutate=within_json,
    ),
    Target(
        "where",
        ("headrace.store.datasets.where",),
        run_where,
        lambda: [b"a == 1 and not startswith(b, 'x')", b"c.d in [1, -2.5, None] or tokens >= 3", b"'y' not in c.d"],
    ),
    Target(
        "tags",
        ("headrace.store.history.tags", "headrace.store.history.small_file"),
        run_tags,
        lambda: [tags.TAGS.encode({"one": tags.Tag(1, 7), "two": tags.Tag(2, 9)})],
        mutate=within_json,
    ),
]
