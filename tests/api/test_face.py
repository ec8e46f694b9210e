"""`import headrace`: what it names, what it costs, and that checkouts, wheels and type checkers find it."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
from headrace.pipeline import Stage
from headrace.pipeline.door import named
from headrace.stages import library

ROOT = Path(__file__).resolve().parents[2]
#: Modules that importing the face may load; each takes well under a millisecond.
MODULES_MAX = 12
#: What takes milliseconds to import.
HEAVY = {"typing", "re", "ast", "pathlib", "numpy", "pyarrow", "grpc", "typer", "torch"}
#: Where users' imports may come from; the last two need `transformers`, `lightning`.
FACES = {"headrace", "headrace.loader", "headrace.loader.hugging_face", "headrace.loader.lightning"}
IMPORTED = re.compile(r"^ *(?:from|import) (headrace[\w.]*)", re.MULTILINE)
TYPED = """
from headrace import Pipeline, RunOptions, read, run, tokenize, write_tokens

def build(input: str, output: str) -> Pipeline:
    tokens = tokenize("deepseek")
    return Pipeline.chain("plain", output, read(input), tokens, write_tokens(tokens))

report = run(build("a", "b"), RunOptions(replicas=2))
reveal_type(report.balance.counts.records)
"""


def python(*arguments: str, cwd: Path = ROOT) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def names() -> dict[str, tuple[str, str]]:
    return named((ROOT / "api" / "__init__.py").read_text())


def test_importing_it_loads_a_dozen_light_modules() -> None:
    code = (
        "import os, sys, json; a = set(sys.modules); import headrace; print(json.dumps(sorted(set(sys.modules) - a)))"
    )
    loaded = set(json.loads(python("-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT / '.typing')!r}); {code}")))
    assert len(loaded) <= MODULES_MAX
    assert not loaded & HEAVY


def test_each_name_is_there() -> None:
    found = {name: getattr(headrace, name) for name in names() if name != "TorchLoader"}
    assert len(found) > 50
    homes = {name: sys.modules[names()[name][0]] for name in found}
    assert {name: getattr(homes[name], names()[name][1]) for name in found} == found


def test_it_names_every_stage_of_the_library() -> None:
    # Compiling what they need is no declaration.
    assert set(named(Path(str(library.__file__)).read_text())) - {"Compiling"} <= set(names())
    trees = [ast.parse(path.read_text()) for path in (ROOT / "stages/library").glob("*.py")]
    functions = [node for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef) and node.returns]
    made = {node.name for node in functions if "Stage" in ast.unparse(node.returns) and node.name[0] != "_"}
    assert len(made) > 20
    assert made <= set(names())


def test_its_names_are_listed_for_who_completes_them() -> None:
    assert set(names()) <= set(dir(headrace))
    assert not {"os", "door", "pipeline", "TYPE_CHECKING"} & set(dir(headrace)), "what only the module itself uses"


def test_a_star_imports_its_names_where_nothing_is_missing_for_them() -> None:
    code = "import sys; sys.modules['torch'] = None; found = {}; exec('from headrace import *', found); print(*found)"
    assert set(python("-c", code).split()) - {"__builtins__"} == set(names()) - {"TorchLoader"}


def test_a_name_that_it_has_not_is_refused() -> None:
    with pytest.raises(AttributeError, match="headrace has no nothing"):
        headrace.nothing  # noqa: B018 # type: ignore[attr-defined]


def test_the_classes_are_those_of_the_rooms() -> None:
    assert headrace.Stage is Stage


def test_the_module_runs_the_command() -> None:
    assert python("-m", "headrace", "--version") == headrace.__version__


def test_a_folder_of_its_name_does_not_hide_it(tmp_path: Path) -> None:
    (tmp_path / "headrace" / "store").mkdir(parents=True)
    code = "import headrace.store as s; from headrace import Pipeline; print(Pipeline.__name__, s.open_store.__name__)"
    assert python("-c", code, cwd=tmp_path) == "Pipeline open_store"


def test_a_checker_sees_the_types(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(TYPED + 'Pipeline.chain("x", 1)\n')
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "mine.py"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300).stdout
    assert 'Type of "report.balance.counts.records" is "int"' in shown, shown
    assert "1 error," in shown, shown
    assert '"Literal[1]" is not assignable to "str"' in shown, shown


def test_examples_and_pages_import_the_face_and_nothing_deeper() -> None:
    pages = [*(ROOT / "examples").glob("*.py"), ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    found = [(page.name, name) for page in pages for name in IMPORTED.findall(page.read_text())]
    assert len(found) > 5
    assert [(page, name) for page, name in found if name not in FACES] == []
