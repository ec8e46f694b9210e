"""Promises of durability go through one place, where a test can see in which order they are kept."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    "client",
    "cluster",
    "daemon",
    "cli",
    "controller",
    "loader",
    "pipeline",
    "stages",
    "store",
    "transport",
    "worker",
)
#: What makes something durable, or gives it a name that somebody may rely on.
DEEDS = {"fsync", "fdatasync", "link", "rename", "replace"}
#: Where such a call may stand.
_MAY = re.compile(rf"\.\s*({'|'.join(DEEDS - {'replace'})})\b|\bos\s*\.\s*replace\b")
#: The one place; a folder that may import nothing of ours; and what promises nothing behind a power failure.
ELSEWHERE = {
    "store/files/disk.py": "the place itself",
    "cli/host/machine.py": "what a disk takes for it is measured",
    "cluster/certificates.py": "transport imports nothing of ours",
    "controller/effects/lineage.py": "events that are made of the ledger again",
    "daemon/log_files.py": "lines of a log",
    "loader/cache/cache.py": "a cache, whose blocks are checked as they are read",
}


def around(root: Path) -> Iterator[str]:
    """Every call of one of the deeds on `os` or on a path, outside of the places named above."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            if name in ELSEWHERE:
                continue
            text = path.read_text(encoding="utf-8")
            for node in ast.walk(ast.parse(text)) if _MAY.search(text) else ():
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_deed(node):
                    yield f"{name}:{node.lineno}: {ast.unparse(node.func)}"


def _is_deed(call: ast.Call) -> bool:
    function = call.func
    assert isinstance(function, ast.Attribute)
    if function.attr not in DEEDS:
        return False
    owner = ast.unparse(function.value)
    # `path.rename(target)` has one argument and its owner is a path; text and dates have a `replace` of their own.
    return owner == "os" or (function.attr == "rename" and owner != "disk" and len(call.args) == 1)


def test_nobody_makes_things_durable_around_the_one_place() -> None:
    assert list(around(ROOT)) == [], "call `headrace.store.files.disk`, or name the file above and say why"


def test_a_planted_sync_is_found(tmp_path: Path) -> None:
    (tmp_path / "worker").mkdir()
    text = "import os\nos.fsync(3)\npath.rename(target)\ndisk.sync(3)\nname.replace('a', 'b')\n"
    (tmp_path / "worker" / "spool.py").write_text(text)
    assert [line.partition(": ")[0] for line in around(tmp_path)] == [
        "worker/spool.py:2",
        "worker/spool.py:3",
    ]
