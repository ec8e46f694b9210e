"""The style that a script can hold: sizes with a ratchet, and words that must not stand in the tree.

A function over the limit says why in a comment with `long:`; the two lists below are what was over a limit when the
test was written, with its size then. They may only shrink: a new entry, or a larger number, fails.
"""

from __future__ import annotations

import ast
import functools
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.house.test_walls import MAY_IMPORT

ROOT = Path(__file__).resolve().parents[2]
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500
#: Of a room, besides its door and what starts it; a reader takes in so many names at once.
ROOM_FILES_MAX = 12

#: Functions over the limit that do not say why, as `path:name`, with their lines.
LONG_FUNCTIONS: dict[str, int] = {}
#: Files over the limit, with their lines.
LONG_FILES: dict[str, int] = {}

TEXTS = {".py", ".pyi", ".md", ".toml", ".txt", ".proto", ".service", ".env", ".yml", ".yaml", ".cfg", ".json", ""}
SKIPPED = {".git", "build", "dist", "data", "node_modules", "__pycache__"}
#: What names one machine or one index and so has no place here.
BANNED = re.compile(
    r"/work/|/tmp/hv|/opt/pypi|/opt/wheels|/root/|--(extra-)?index-url|find-links|pypi\.org/simple", re.IGNORECASE
)
#: What asks objects of others for an attribute that they may not have, and why no class tells.
ASKED_BY_NAME = {
    "cli/help.py": "click's groups and typer's own copies of them",
    "cli/main.py": "click's errors and typer's own copies of them",
    "cli/manual.py": "click's groups and typer's own copies of them",
    "client/pipeline_file.py": "the user's module",
    "daemon/log_lines.py": "what a log line's caller gave as `extra`",
    "loader/batch/buffers.py": "of Python 3.13",
    "loader/cache/partial_shard.py": "as the system that Python was built on has it",
    "loader/dataset/shard.py": "any object behind a buffer",
    "loader/tensors.py": "the loaders of others",
    "stages/library/stages.py": "any callable of the user's",
    "stages/runtime/malloc.py": "of glibc alone",
    "stages/sources/tables/parquet_values.py": "Arrow's types of times, some of which have a unit",
    "stages/tokenizer/engines.py": "a tokenizer's model, one of several classes",
    "store/ledger/core/log_state.py": "the slots of any class",
    "store/s3/connection/wire.py": "urllib3's socket, which it keeps to itself",
    "worker/processes/forkserver_start.py": "of glibc alone",
}
#: How a test would sleep.
SLEEPS = {"sleep", "time.sleep", "asyncio.sleep"}
#: What was left for later without saying so to anyone.
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")


@functools.cache
def tree() -> list[Path]:
    """The files of the tree that people wrote; hidden folders (but .ci) and generated stubs left out."""
    found: list[Path] = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if (name[0] != "." or name == ".ci") and name not in SKIPPED]
        found += (Path(folder, name) for name in names if name not in SKIPPED and "_pb2" not in name)
    return sorted(path for path in found if path.is_file())


def sources() -> Iterator[tuple[Path, str]]:
    """The Python files, and what stands in them."""
    return ((path, path.read_text(encoding="utf-8")) for path in tree() if path.suffix == ".py")


def statements(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """These statements and all within them, expressions left out."""
    for node in body:
        yield node
        for inner in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from statements(getattr(node, inner, ()))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def long_functions(name: str, text: str) -> dict[str, int]:
    """The functions over the limit without a comment that says why, with their lines."""
    lines = text.splitlines()
    found: dict[str, int] = {}
    for node in statements(ast.parse(text).body if len(lines) > FUNCTION_LINES_MAX else ()):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.end_lineno is None:
            continue
        size = node.end_lineno - node.lineno + 1
        if size > FUNCTION_LINES_MAX and not any(
            "# long:" in line for line in lines[node.lineno - 1 : node.end_lineno]
        ):
            found[f"{name}:{node.name}"] = size
    return found


def grown(found: dict[str, int], known: dict[str, int]) -> dict[str, int]:
    """What is over its limit and either new or larger than it was."""
    return {name: size for name, size in found.items() if size > known.get(name, 0)}


def test_no_function_grows_past_a_screen() -> None:
    found: dict[str, int] = {}
    for path, text in sources():
        found |= long_functions(name_of(path), text)
    assert grown(found, LONG_FUNCTIONS) == {}, f"over {FUNCTION_LINES_MAX} lines: split it, or say `# long: why`"
    assert LONG_FUNCTIONS.keys() <= found.keys(), "the ratchet turns: take what was mended off the list"


def test_no_file_grows_past_its_limit() -> None:
    sizes = {name_of(path): text.count("\n") for path, text in sources()}
    found = {name: size for name, size in sizes.items() if size > FILE_LINES_MAX}
    assert grown(found, LONG_FILES) == {}, f"over {FILE_LINES_MAX} lines: two files, each with a description of its own"
    assert LONG_FILES.keys() <= found.keys(), "the ratchet turns: take what was mended off the list"


def crowded(folders: Iterable[str]) -> list[str]:
    """The rooms with too many files, from the folder of each file."""
    return sorted(folder for folder, files in Counter(folders).items() if files > ROOM_FILES_MAX)


def test_no_room_has_more_files_than_a_reader_takes_in() -> None:
    names = (name_of(path) for path, _ in sources() if not path.name.startswith("__"))
    rooms = (name.rpartition("/")[0] for name in names if name.partition("/")[0] in MAY_IMPORT)
    assert crowded(rooms) == []


def test_a_crowded_room_is_found() -> None:
    assert crowded([*["store"] * ROOM_FILES_MAX, *["loader"] * (ROOM_FILES_MAX + 1)]) == ["loader"]


@pytest.mark.parametrize("words", [BANNED, UNFINISHED], ids=["one machine", "unfinished"])
def test_no_banned_word_stands_in_the_tree(words: re.Pattern[str]) -> None:
    found: list[str] = []
    for path in tree():
        if path == Path(__file__) or path.suffix not in TEXTS:
            continue
        text = path.read_text(encoding="utf-8")
        found += (f"{name_of(path)}:{text.count(chr(10), 0, at.start()) + 1}: {at[0]}" for at in words.finditer(text))
    assert found == []


def test_no_test_sleeps() -> None:
    found: list[str] = []
    for path, text in sources():
        if not name_of(path).startswith("tests/") or "sleep" not in text:
            continue
        calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
        found += [f"{name_of(path)}:{call.lineno}" for call in calls if ast.unparse(call.func) in SLEEPS]
    assert found == [], "wait for an event with a deadline, or drive a fake clock"


def test_a_long_function_is_found_unless_it_says_why() -> None:
    body = "\n".join(f"    x{number} = {number}" for number in range(FUNCTION_LINES_MAX))
    assert long_functions("a.py", f"def silent():\n{body}") == {"a.py:silent": FUNCTION_LINES_MAX + 1}
    assert long_functions("a.py", f"def frank():\n    # long: one table\n{body}") == {}


def test_the_ratchet_refuses_what_is_new_and_what_grew() -> None:
    assert grown({"a": 80, "b": 75, "c": 71}, {"a": 79, "b": 75}) == {"a": 80, "c": 71}


def test_decisions_are_numbered_once_each_and_without_a_gap() -> None:
    records = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert [int(record.name[:4]) for record in records] == list(range(1, len(records) + 1))
    for record in records:
        first = record.read_text().partition("\n")[0]
        assert first.startswith(f"# {int(record.name[:4])}. "), f"{record.name} begins with {first!r}"


def test_code_names_decisions_in_full_so_that_another_number_is_noticed() -> None:
    known = {record.stem for record in (ROOT / "docs" / "decisions").glob("*.md")}
    files = [ROOT / "Makefile", *ROOT.glob("*.toml"), *ROOT.glob("wheels/*/setup.py")]
    texts = [*sources(), *((path, path.read_text(encoding="utf-8")) for path in files)]
    named = {(path.name, name) for path, text in texts for name in re.findall(r"docs/decisions/(\d[\w-]*)", text)}
    assert len(named) >= 5
    assert {(file, name) for file, name in named if name not in known} == set()


def test_a_decision_has_at_most_twenty_lines() -> None:
    for record in (ROOT / "docs" / "decisions").glob("*.md"):
        lines = record.read_text(encoding="utf-8").splitlines()
        assert len(lines) <= 20, f"{record.name} has {len(lines)} lines"
        assert max(map(len, lines)) <= 120, record.name


def asked_by_name(text: str) -> bool:
    """Whether a file asks an object for an attribute that it may not have."""
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("getattr", "hasattr")
        and isinstance(node.args[1], ast.Constant)
        for node in ast.walk(ast.parse(text))
    )


def test_contracts_say_what_an_object_has() -> None:
    found = {
        name
        for path, text in sources()
        if (name := name_of(path)).partition("/")[0] in MAY_IMPORT and re.search(r"\b(get|has)attr\(", text)
        if asked_by_name(text)
    }
    assert found - ASKED_BY_NAME.keys() == set(), "let the contract say it, or ask for the class"
    assert ASKED_BY_NAME.keys() - found == set(), "the ratchet turns: take what was mended off the list"


def test_who_asks_by_name_is_found() -> None:
    assert asked_by_name('worker = getattr(command, "worker", "")')
    assert not asked_by_name("values = [getattr(state, name) for name in FIELDS]")


def test_nobody_asks_for_the_scheme_of_a_stores_uri() -> None:
    asked = re.compile(r"store\.uri\.(lower|split|partition|startswith|removeprefix)\(")
    found = [name_of(path) for path, text in sources() if asked.search(text)]
    assert found == [], "let the store say what it can do: ObjectStore.is_remote"
