"""Regular expressions meet bytes that others wrote: each takes linear time, and stands where this test finds it."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

from tests.house.superlinear import superlinear  # noqa: E402

FOLDERS = (
    "client",
    "cluster",
    "daemon",
    "pipeline",
    "stages",
    "transport",
    "store",
    "controller",
    "worker",
    "loader",
    "cli",
    "chaos",
)
#: Calls that make an expression from a text.
MAKERS = {"compile", "match", "search", "fullmatch", "sub", "subn", "split", "findall", "finditer"}
#: Where such a call may stand.
_MAKES = re.compile(rf"\bre\s*\.\s*({'|'.join(MAKERS)})\b")
#: Expressions that are made from what a user or a store is called, by function: all they hold is escaped, or of a size
#: that the command line bounds.
MADE = {
    "stages/sources/objects/patterns.py": {"__init__", "_enters"},
    "stages/quality/edits.py": {"__init__"},
    "stages/quality/urls.py": {"__init__"},
    "store/ledger/log.py": {"__init__"},
}


def modules() -> Iterator[ModuleType]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if path.name not in ("__main__.py", "sitecustomize.py") and "\nimport re\n" in text:
                name = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
                yield importlib.import_module(f"headrace.{name}")


def expressions() -> dict[str, tuple[re.Pattern[Any], set[str]]]:
    """Each that stands at the top of a module, with the methods that the module calls; they are the module's own."""
    found: dict[str, tuple[re.Pattern[Any], set[str]]] = {}
    for module in modules():
        text = Path(str(module.__file__)).read_text(encoding="utf-8")
        for name, value in vars(module).items():
            if isinstance(value, re.Pattern) and re.search(rf"^{name}\b.* = ", text, re.MULTILINE):
                called = set(re.findall(rf"\b{name}\.(\w+)\(", text))
                # Handed on, it may be searched with; to replace or to split is to search.
                exact = called <= {"match", "fullmatch"} and called
                found[f"{module.__name__}:{name}"] = value, called if exact else {"search"}
    return found


EXPRESSIONS = expressions()


def test_they_are_all_there() -> None:
    assert len(EXPRESSIONS) > 25


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_each_takes_linear_time(name: str) -> None:
    pattern, methods = EXPRESSIONS[name]
    assert superlinear(pattern, methods) == ""


@pytest.mark.parametrize(
    "expression",
    [
        rb"\s*(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html|head)\b",
        r"(a+)+b",
        r"(a|a)*b",
        r"\s+$",
        r"<.*>",
        r"[a-z]+@[a-z]+\.",
        r'\{\s*\n\s*"x"',
        r"(?:x,?)*y",
    ],
)
def test_what_backtracks_is_found(expression: str | bytes) -> None:
    flags = re.DOTALL | re.IGNORECASE
    pattern: re.Pattern[Any] = re.compile(expression, flags)
    assert superlinear(pattern) != ""


def made_within_functions(root: Path) -> Iterator[tuple[str, str]]:
    """File and function of each expression that is not compiled at the top of a module."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            for function in ast.walk(ast.parse(text)) if _MAKES.search(text) else ():
                if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    continue
                for node in ast.walk(function):
                    if (
                        isinstance(node, ast.Call)
                        and isinstance(node.func, ast.Attribute)
                        and node.func.attr in MAKERS
                        and isinstance(node.func.value, ast.Name)
                        and node.func.value.id == "re"
                    ):
                        yield path.relative_to(root).as_posix(), function.name


def test_each_is_compiled_at_the_top_of_its_module() -> None:
    stray = [
        f"{name}: {function}" for name, function in made_within_functions(ROOT) if function not in MADE.get(name, ())
    ]
    assert stray == [], "compile it at the top of the module, where its time is looked at"
