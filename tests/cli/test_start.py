"""What `headrace run` starts with."""

from __future__ import annotations

import json
import subprocess
import sys

RUN_S_MAX = 60


def loaded(code: str, names: tuple[str, ...]) -> list[str]:
    """Which of these modules a fresh interpreter has loaded behind that code."""
    told = f"import json, sys\n{code}\nprint(json.dumps([name for name in {names!r} if name in sys.modules]))"
    answer = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True, timeout=RUN_S_MAX)
    found: list[str] = json.loads(answer.stdout)
    return found


def test_a_run_imports_neither_the_controllers_core_nor_what_reads_records() -> None:
    names = (
        "headrace.cli.main",
        "headrace.cli.run",
        "headrace.cli.client",
        "headrace.cli.progress",
        "headrace.cli.page",
    )
    code = "".join(f"import {name}\n" for name in names)
    unwanted = ("headrace.controller.core.messages", "headrace.controller.convert", "numpy", "pyarrow", "minio")
    assert loaded(code, unwanted) == []


def test_a_nursery_imports_no_compiler_and_no_awkward_arrays() -> None:
    code = "from headrace.worker import nursery\nnursery._import_all()"
    names = ("numba", "awkward", "minio", "grpc", "pyarrow", "headrace.worker.task")
    assert loaded(code, names) == ["pyarrow", "headrace.worker.task"]
