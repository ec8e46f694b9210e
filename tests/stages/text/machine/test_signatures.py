"""The types of loops that Python calls, as they stand in the sources."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.stages.text.machine.build import MODULES, entries
from headrace.stages.text.machine.native import Array, Number, Tuple, parse

ROOT = Path(__file__).resolve().parents[4]


def test_a_signature_says_what_is_taken_and_given() -> None:
    found = parse("(u8[], (i64[,], f64), bool) -> (i64, u64)")
    assert found.takes == (Array("u8", 1), Tuple((Array("i64", 2), Number("f64"))), Number("bool"))
    assert (found.gives, found.gives_tuple) == ((Number("i64"), Number("u64")), True)


def test_a_loop_may_give_one_number_or_nothing() -> None:
    assert (parse("(i64) -> f64").gives, parse("(i64) -> f64").gives_tuple) == ((Number("f64"),), False)
    assert parse("(i64)").gives is None
    assert parse("(i64) -> (i64)").gives_tuple


@pytest.mark.parametrize(
    "text", ["i64", "(i65)", "(u8)", "(i64", "(i64) i64", "(i64) -> u8[]", "(i64[) -> i64", "(i64;)", "(i64) -> (u8[])"]
)
def test_what_is_no_signature_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"type|signature|numbers"):
        parse(text)


def test_each_module_with_such_loops_is_built() -> None:
    holders = {
        "headrace." + ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (ROOT / "stages").rglob("*.py")
        if re.search(r"^@entry\(", path.read_text(), re.MULTILINE)
    }
    assert holders == set(MODULES)


def test_each_of_these_loops_has_a_signature_and_its_own_name() -> None:
    found = [(loop.module, loop.__name__) for loop in entries()]
    assert len(set(found)) == len(found) > 30
    for loop in entries():
        assert len(parse(loop.signature).takes) == loop.function.__code__.co_argcount, loop.__name__
