"""Functions of a notebook or of a script that runs itself: they travel as text, with what they use."""

from __future__ import annotations

import json
import linecache
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from headrace.pipeline import PipelineError
from headrace.stages.shipping.shipping import as_module, cell_modules, travels_as_text

CELL = """
import json
import re as regular
from collections import Counter
from pathlib import Path

LIMITS = {"words": 3, "marks": ("!", "?")}
MARK = regular.compile("[!?]+", regular.IGNORECASE)


def decorated(function):
    return function


class Counted(Counter):
    def most(self):
        return max(self.values(), default=0)


def shorten(text: NotThere) -> str:
    return MARK.sub("!", text)


@decorated
def keep(record: dict[str, NotThere]) -> NotThere:
    words = shorten(record["text"]).split()
    return len(words) >= LIMITS["words"] and Counted(words).most() < 3 and json.loads("true") and Path("a").name == "a"
"""


def cell(text: str) -> Any:
    """What a cell defines, as IPython runs it: in `__main__`, its lines known to linecache."""
    name = f"<cell {len(linecache.cache)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    main = types.ModuleType("__main__")
    exec(compile(text, name, "exec", dont_inherit=True), main.__dict__)
    return main


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = cell(CELL.replace("NotThere", "str"))
    monkeypatch.setitem(sys.modules, "__main__", made)
    return made


def test_it_takes_along_what_it_uses_and_nothing_else(main: Any) -> None:
    module, _, name = as_module(main.keep).partition(":")
    text = cell_modules()[module]
    assert "LIMITS" in text
    namespace: dict[str, Any] = {"__name__": module}
    exec(compile(text, module, "exec", dont_inherit=True), namespace)
    for words, kept in (("a b c", True), ("a b", False), ("a a a", False)):
        assert namespace[name]({"text": words}) is main.keep({"text": words}) is kept
    assert "shorten" in as_module_text(main.keep)
    assert "MARK" not in as_module_text(main.decorated)


def as_module_text(function: Any) -> str:
    return cell_modules()[as_module(function).partition(":")[0]]


def test_annotations_are_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made = cell("from __future__ import annotations\n" + CELL)
    monkeypatch.setitem(sys.modules, "__main__", made)
    assert "NotThere" in as_module_text(made.keep)


SCOPES = """
import threading

record = text = model = word = limit = inner = first = best = label = kind = caught = opened = threading.Lock()
LIMIT, LEAST, WORDS, MARKS, NAME, STEP = 9, 1, ("a",), "!", "tidy", 2


def known(limit=LIMIT):
    return lambda function: function


@known(limit=LIMIT)
def keep(record: text, *, least: model = LEAST) -> label:
    global best

    class Kind:
        model = NAME
        label = model

        def inner(self, first):
            return first.text + MARKS + self.label

    def inner(word, step=STEP):
        return [first for first in word if first not in WORDS][::step]

    try:
        with open(record["none"]) as opened:
            caught = opened
    except KeyError as caught:
        del caught
    kind, limit = Kind(), lambda text: len(text) + least
    kind.text = (best := record["text"])
    return kind.inner(kind), limit(inner(kind.text))
"""


def test_names_of_functions_and_classes_are_no_names_of_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    made = cell(SCOPES)
    monkeypatch.setitem(sys.modules, "__main__", made)
    namespace: dict[str, Any] = {"__name__": "shipped"}
    exec(compile(as_module_text(made.keep), "shipped", "exec", dont_inherit=True), namespace)
    assert namespace["keep"]({"text": "abcd"}) == made.keep({"text": "abcd"}) == ("abcd!tidy", 3)


OWN = """
from json import dumps as hash

def filter(text):
    return text.upper()

def keep(record):
    return filter(record["text"]), hash([1]), len(record), open, __name__
"""


def test_names_of_python_that_the_user_defines_travel_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    made = cell(OWN)
    made.open = type("Opener", (), {"__module__": "IPython.core.interactiveshell"})
    monkeypatch.setitem(sys.modules, "__main__", made)
    namespace: dict[str, Any] = {"__name__": "shipped"}
    exec(compile(as_module_text(made.keep), "shipped", "exec", dont_inherit=True), namespace)
    assert namespace["keep"]({"text": "a"}) == ("A", "[1]", 1, open, "shipped")


def shipped(monkeypatch: pytest.MonkeyPatch, made: Any) -> Any:
    """The function `keep` of a cell as a worker has it."""
    monkeypatch.setitem(sys.modules, "__main__", made)
    namespace: dict[str, Any] = {"__name__": "shipped"}
    exec(compile(as_module_text(made.keep), "shipped", "exec", dont_inherit=True), namespace)
    return namespace["keep"]


CYCLES = [
    """
class Base:
    def make(self):
        return Child()

class Child(Base):
    def kind(self):
        return "child"

def keep(record):
    return Base().make().kind()
""",
    """
def first(record, again=True):
    return second(record) if again else "first"

def second(record, other=first):
    return other(record, False)

def keep(record):
    return first(record)
""",
    """
def known(function):
    def maker():
        return Kind.made
    return function

@known
def inner(record):
    return "inner"

class Kind:
    made = [one for one in (inner,)]

    def get(self):
        return self.made[0]

def keep(record):
    return inner(record)
""",
]


@pytest.mark.parametrize("text", CYCLES)
def test_what_a_definition_needs_stands_before_it_in_a_circle(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    made = cell(text)
    assert shipped(monkeypatch, made)({}) == made.keep({})


MAYBE = [
    "if FLAG:\n        word = 'own'",
    "for word in ():\n        pass",
    "while FLAG:\n        word = 'own'",
    "try:\n        word = [][0]\n    except IndexError:\n        pass",
    "word = 'own'\n    del word",
]


@pytest.mark.parametrize("body", MAYBE)
def test_a_name_that_a_class_may_lack_travels(monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    get = "def get(self):\n        return self.taken"
    text = f"class Kind:\n    {body}\n    taken = word\n    {get}\n\ndef keep(record):\n    return Kind().get()\n"
    made = cell(f"FLAG, word = False, 'global'\n{text}")
    assert shipped(monkeypatch, made)({}) == made.keep({}) == "global"


def test_another_text_is_another_module(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = set()
    for constant in (1, 1, 2):
        made = cell(f"LIMIT = {constant}\ndef keep(record):\n    return len(record['text']) > LIMIT\n")
        monkeypatch.setitem(sys.modules, "__main__", made)
        paths.add(as_module(made.keep))
    assert len(paths) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import threading\nlock = threading.Lock()\ndef keep(record):\n    return bool(lock)\n", "'lock', a lock"),
        ("keep = lambda record: True\n", "define it with def"),
        (
            "def outer():\n    def keep(record):\n        return True\n    return keep\nkeep = outer()\n",
            "define it with def",
        ),
        ("many = list(range(100_000))\ndef keep(record):\n    return bool(many)\n", "'many', a list"),
        (
            "from functools import partial\nprint = partial(print, flush=True)\ndef keep(record):\n    print(record)\n",
            "'print', a partial, .*: give it a name other than Python's 'print', make it within the function",
        ),
        ("nan = float('nan')\ndef keep(record):\n    return bool(nan)\n", "'nan', a float"),
    ],
)
def test_what_cannot_travel_is_named(monkeypatch: pytest.MonkeyPatch, text: str, words: str) -> None:
    made = cell(text)
    monkeypatch.setitem(sys.modules, "__main__", made)
    with pytest.raises(PipelineError, match=words):
        as_module(made.keep)


CHANGED = [
    ("def make(n):\n    def up(r):\n        return r * n\n    return up\nup, n = make(3), 5", "up(2)", "within"),
    ("def make(n):\n    def up():\n        nonlocal n\n        n += 1\n    return up\nup = make(1)", "up()", "within"),
    (
        "def make(n):\n    class A:\n        def get(self):\n            return n\n    return A\nA = make(1)",
        "A()",
        "within",
    ),
    ("def b(f):\n    return wraps(f)(lambda r: 2 * f(r))\ndef up(r):\n    return r\nup = b(up)", "up(1)", "not define"),
    ("def old(r):\n    return r\nnew = old\ndef old(r):\n    return -r", "new(1)", "not define"),
    ("OF = {\n    'up': lambda r: r,\n}\nup = OF['up']", "up(1)", "its text is unknown"),
    ("N = 1\ndef up(r, n=N):\n    return r + n\nN = 100", "up(1)", "kept"),
    ("N = 1\ndef up(r, *, n=N + 1):\n    return r + n\nN = 100", "up(1)", "kept"),
    ("def up(r):\n    return r\nup.__defaults__ = (2,)", "up()", "its text is unknown"),
    ("def up(r=1):\n    return r\nup.__defaults__ = (2,)", "up()", "kept"),
    ("def one(r):\n    return r\ndef up(r, f=one):\n    return f(r)\ndef one(r):\n    return -r", "up(1)", "kept"),
    ("N = 1\nclass A:\n    n = N\n    def get(self):\n        return self.n\nN = 2", "A().get()", "kept"),
    ("N = 1\nclass A:\n    def get(self, n=N):\n        return n\nN = 2", "A().get()", "kept"),
    ("def up(r):\n    return keep and r", "up(1)", "two things"),
]


@pytest.mark.parametrize(("text", "call", "words"), CHANGED)
def test_what_its_text_would_define_otherwise_is_refused(
    monkeypatch: pytest.MonkeyPatch, text: str, call: str, words: str
) -> None:
    made = cell(f"from functools import wraps\n{text}\ndef keep(record):\n    return {call}\n")
    function = made.keep
    made.keep = None if words == "two things" else function
    monkeypatch.setitem(sys.modules, "__main__", made)
    with pytest.raises(PipelineError, match=f"^'.*' cannot travel, .*{words}.*: "):
        as_module(function)


ALIKE = """
from contextlib import contextmanager
from functools import wraps

LIMIT, LIMITS, seen = 1, {"words": 3}, {}

class Tools:
    limit = LIMIT
    seen = []

    class Inner:
        def get(self, limit=LIMIT):
            return limit

    def shown(self):
        return self.limit

def twice(function):
    @wraps(function)
    def inner(record, *more):
        return function(function(record, *more), *more)
    return inner

@contextmanager
def opened(least=LIMITS["words"] + LIMIT):
    yield least

@twice
def up(record, by=LIMIT, *, seen=seen, cache={}):
    seen[record] = cache[record] = True
    return record + by

tidy = lambda text, marks=("!",) * LIMIT: text.strip(*marks)
Inner, shown, other = Tools.Inner, Tools.shown, up

def keep(record):
    Tools.seen.append(1)
    with opened() as least:
        return tidy("a!"), other(1), up(2, 2), least, Inner().get(), isinstance(Tools.Inner(), Inner), shown(Tools())
"""


def test_other_names_and_wrappers_of_a_definition_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    made = cell(ALIKE)
    direct = made.keep({})
    assert shipped(monkeypatch, made)({}) == direct == ("a", 3, 6, 4, 1, True, 1)


def test_a_function_without_its_text_is_refused() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec("def keep(record): return True", namespace)
    with pytest.raises(PipelineError, match="its text is unknown"):
        as_module(namespace["keep"])


def test_functions_of_modules_are_imported() -> None:
    assert not travels_as_text(json.dumps)
    assert not travels_as_text(len)


SCRIPT = """
import json, sys
import headrace

MINIMUM = 3


def long_enough(record):
    return len(record["text"].split()) >= MINIMUM


def shout(record):
    record["text"] = record["text"].upper()
    return record


if __name__ == "__main__":
    stages = [headrace.read(sys.argv[1]), headrace.filter_records(long_enough), headrace.map_records(shout)]
    pipeline = headrace.Pipeline.chain("cells", sys.argv[2], *stages, headrace.write_documents())
    shown = headrace.preview(pipeline)
    done = headrace.run(pipeline, progress=False)
    print(json.dumps([shown.kept, shown.filtered, done.balance.to_dict()["filtered_by"], done.balance.counts.kept]))
"""


def test_a_script_that_runs_itself_runs_its_functions_in_tasks(tmp_path: Path) -> None:
    texts = ["one", "one two three", "a b c d"]
    lines = [json.dumps({"id": str(number), "text": text}) for number, text in enumerate(texts)]
    (tmp_path / "in.jsonl").write_text("\n".join([*lines, ""]))
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-P", "script.py", "in.jsonl", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [2, 1, {"long_enough/function returned False": 1}, 2]
