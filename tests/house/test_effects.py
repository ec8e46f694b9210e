"""What a shell does beside its loop ends as something that somebody learns of: nobody starts it around the helpers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("cluster", "daemon", "controller", "worker", "transport")
#: What begins something whose error is forgotten unless it is asked for.
BEGINNINGS = {
    "create_task",
    "ensure_future",
    "gather",
    "add_done_callback",
    "Thread",
    "Timer",
    "ThreadPoolExecutor",
    "ProcessPoolExecutor",
    "start_new_thread",
}
#: The two helpers.
HELPERS = {"daemon/effects.py", "daemon/threads.py"}


def around(root: Path) -> Iterator[str]:
    """Every call that begins something without a helper, also by a name that was imported."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            if name in HELPERS:
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                function = node.func if isinstance(node, ast.Call) else None
                called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
                if called in BEGINNINGS:
                    assert isinstance(node, ast.Call)
                    yield f"{name}:{node.lineno}: {called}"


def test_nothing_begins_around_the_helpers() -> None:
    assert list(around(ROOT)) == [], "use headrace.daemon.effects or headrace.daemon.threads"


@pytest.mark.parametrize(
    "text",
    [
        "asyncio.create_task(work())",
        "loop.create_task(work())",
        "from threading import Thread\nThread(target=work).start()",
        "ThreadPoolExecutor(1).submit(work)",
        "future.add_done_callback(told)",
    ],
)
def test_a_planted_beginning_is_found(tmp_path: Path, text: str) -> None:
    (tmp_path / "worker").mkdir()
    (tmp_path / "worker" / "daemon.py").write_text(text)
    assert list(around(tmp_path))
