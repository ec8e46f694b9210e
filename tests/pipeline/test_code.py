"""What of a module's text decides, and is part of a pipeline's version: its syntax tree, not its words for people."""

import pytest

from headrace.pipeline.code import fingerprint
from headrace.pipeline.graph import Pipeline, difference

MODULE = '''"""A filter."""

from headrace.stages.library.stages import map_records

LIMIT = 10


def long_enough(record, floor=3):
    """Keep what is long."""
    if len(record["text"]) < max(LIMIT, floor):
        return None
    return {**record, "kind": 'long', "share": 1.0}


class Rule:
    """A rule."""

    name: str = "rule"
'''


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"""Keep what is long."""', '"""Keep what is long enough."""'),
        ('    """Keep what is long."""\n', ""),
        ('"""A filter."""\n', ""),
        ('    """A rule."""\n', "    pass\n"),
        ("LIMIT = 10", "LIMIT = 10  # characters"),
        ("LIMIT = 10", "LIMIT = (\n    10\n)"),
        ("'long'", '"long"'),
        ("\n\n\n", "\n"),
        ("\n", "\r\n"),
        ("    return None", "    return None\n    'a word to the reader'"),
        ('"kind": ', '"ki" "nd":    '),
    ],
)
def test_what_changes_nothing_leaves_the_fingerprint(before: str, after: str) -> None:
    assert before in MODULE
    assert fingerprint(MODULE.replace(before, after)) == fingerprint(MODULE)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("LIMIT = 10", "LIMIT = 11"),
        ("LIMIT = 10", "LIMIT = 10.0"),
        ("LIMIT = 10", "LIMIT = True"),
        ("floor=3", "floor=4"),
        ("1.0", "1"),
        ("'long'", "b'long'"),
        ("return None", "return record"),
        ("<", "<="),
        ("max(LIMIT, floor)", "max(floor, LIMIT)"),
        ("map_records", "map_batches"),
        ('name: str = "rule"', 'name: str = "rules"'),
        ("floor=3", "*, floor=3"),
        ("return None", "return"),
    ],
)
def test_what_may_change_a_verdict_changes_the_fingerprint(before: str, after: str) -> None:
    assert before in MODULE
    assert fingerprint(MODULE.replace(before, after, 1)) != fingerprint(MODULE)


@pytest.mark.parametrize(
    "reader",
    [
        "WORDS = __doc__",
        "WORDS = Rule.__doc__",
        "from inspect import getdoc as words",
        "import inspect\nW = inspect.getsource(Rule)",
    ],
)
def test_a_docstring_that_the_module_itself_reads_decides(reader: str) -> None:
    text = MODULE + reader + "\n"
    assert fingerprint(text.replace("A rule.", "Another rule.")) != fingerprint(text)


def test_a_text_that_this_python_cannot_read_is_taken_by_its_words() -> None:
    assert fingerprint("def (") == fingerprint("def (")
    assert fingerprint("def (") != fingerprint("def ( ")
    assert fingerprint("a\0b") != fingerprint("a")


def test_the_fingerprint_of_today_is_that_of_tomorrow() -> None:
    """What stands in ledgers: another value would refuse every resume."""
    assert fingerprint(MODULE) == "50f6003d7806db29"


def test_a_pipeline_is_compared_by_what_its_modules_decide() -> None:
    def of(text: str) -> Pipeline:
        return Pipeline("p", "file:///out", (), modules={"pipeline": text})

    moved = of(MODULE.replace("A filter.", "The filter."))
    assert (moved.version(), difference(moved.identity(), of(MODULE).identity())) == (of(MODULE).version(), [])
    other = of(MODULE.replace("LIMIT = 10", "LIMIT = 20"))
    assert other.version() != of(MODULE).version()
    (line,) = difference(of(MODULE).identity(), other.identity())
    assert line.startswith("source of pipeline: ")


def test_of_a_text_that_python_cannot_hold_the_text_decides() -> None:
    deep = "{" * 300
    assert fingerprint(deep) != fingerprint(deep + "#")
