"""The notebook among the examples: its cells run one after another, as a notebook runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "notebook.ipynb"
#: Runs cells in `__main__`, their lines known as IPython has them known, and shows what the last line of one is.
KERNEL = """
import ast, json, linecache, sys
main = sys.modules["__main__"]
for number, cell in enumerate(json.load(open(sys.argv[1]))["cells"]):
    if cell["cell_type"] == "code":
        text, name = "".join(cell["source"]), f"<cell {number}>"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        tree = ast.parse(text)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec"), main.__dict__)
        if last is not None:
            shown = eval(compile(ast.Expression(last.value), name, "eval"), main.__dict__)
            print(shown._repr_html_() if hasattr(shown, "_repr_html_") else "")
"""


def test_each_cell_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", KERNEL, str(NOTEBOOK)], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "completed 100%" in done.stdout
    assert "balanced" in done.stdout
    assert "(4, 256)" in done.stdout
    assert "function returned False" in done.stdout


def test_it_is_kept_without_outputs() -> None:
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert [cell["outputs"] for cell in cells] == [[]] * len(cells)
