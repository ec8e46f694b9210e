"""Each promise and invariant of tests/promises.toml names tests and mutants that exist."""

import tomllib
from pathlib import Path

from headrace.chaos.sim.mutants import MUTANTS
from headrace.chaos.sim.queues.mutants import MUTANTS as QUEUE_MUTANTS

TESTS = Path(__file__).parents[1]
PAGE = tomllib.loads((TESTS / "promises.toml").read_text(encoding="utf-8"))
#: May only grow: a promise that is given up is a decision, and no slip.
PROMISES_MIN, INVARIANTS_MIN = 160, 24


def named(tests: Path) -> set[str]:
    return {path.stem for path in tests.rglob("test_*.py")}


def missing(entries: list[dict[str, list[str]]], there: set[str]) -> set[str]:
    return {name for entry in entries for name in entry.get("tests", [])} - there


def test_each_promise_names_tests_that_exist() -> None:
    entries = [*PAGE["promise"], *PAGE["invariant"]]
    assert missing(entries, named(TESTS)) == set(), "tests/promises.toml: name the module that holds this now"


def test_a_test_that_is_gone_is_found() -> None:
    assert missing([{"tests": ["test_walls", "test_nothing"]}], named(TESTS)) == {"test_nothing"}


def test_each_promise_has_a_test_and_stands_once() -> None:
    says = [(entry["area"], entry["says"]) for entry in PAGE["promise"]]
    assert all(entry["tests"] for entry in PAGE["promise"])
    assert len(set(says)) == len(says) >= PROMISES_MIN


def test_each_mutant_breaks_an_invariant_and_invariants_are_numbered_once() -> None:
    numbers = [entry["number"] for entry in PAGE["invariant"]]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= INVARIANTS_MIN
    claimed = {name for entry in PAGE["invariant"] for name in entry.get("mutants", [])}
    assert claimed == {*MUTANTS, *QUEUE_MUTANTS}
