"""What `headrace run` starts with."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.cli.__main__ import _gives_way
from headrace.cli.commands import run as embedded_run
from headrace.cli.main import invoke
from headrace.cli.run_options import parse_run, run_command
from headrace.client.client import RunOptions
from headrace.client.embedded import SHARED

RUN_S_MAX = 300
MARK = "HEADRACE_TEST_START"


def loaded(code: str, names: tuple[str, ...]) -> list[str]:
    """Which of these modules a fresh interpreter has loaded behind that code."""
    told = f"import json, sys\n{code}\nprint(json.dumps([name for name in {names!r} if name in sys.modules]))"
    answer = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True, timeout=RUN_S_MAX)
    found: list[str] = json.loads(answer.stdout)
    return found


def test_a_run_imports_neither_the_controllers_core_nor_what_reads_records() -> None:
    names = (
        "headrace.cli.run_options",
        "headrace.cli.commands.run",
        "headrace.client.client",
        "headrace.cli.ui.progress_lines",
        "headrace.cli.ui.report",
        "headrace.stages.library.warm",
    )
    code = "".join(f"import {name}\n" for name in names)
    code += "from headrace.cli.run_options import parse_run, run_options\nrun_options(parse_run(['run', 'p.py']))\n"
    unwanted = (
        "headrace.controller.core.messages.messages",
        "headrace.controller.convert",
        "numpy",
        "pyarrow",
        "minio",
        "typer",
        "rich",
    )
    assert loaded(code, unwanted) == []


def test_daemons_load_no_certificates_and_no_metrics_unasked() -> None:
    code = "import headrace.controller.server, headrace.worker.daemon"
    unwanted = ("cryptography", "numpy", "pyarrow", "statistics", "aioquic", "prometheus_client", "http.client")
    assert loaded(code, unwanted) == []


def test_a_forkserver_imports_no_compiler_and_no_ledger_entries() -> None:
    code = "from headrace.worker.task import forkserver_main as main\nmain._import_all(main.PRELOADED)"
    unwanted = ("numba", "awkward", "minio", "grpc", "headrace.store.ledger.core.entries")
    names = (*unwanted, "pyarrow", "headrace.worker.task.task")
    assert loaded(code, names) == ["pyarrow", "headrace.worker.task.task"]


def test_what_the_first_processes_share_each_forkserver_needs_anyway() -> None:
    code = "from headrace.worker.task import forkserver_main as main\nmain._import_all(main.PRELOADED)"
    assert loaded(code, SHARED) == list(SHARED)


def marked(mark: str) -> list[int]:
    """The processes that have the mark in their environment."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    "arguments", [("nowhere.py",), ("--no-such-option",), ("faulty.py",)], ids=["no file", "wrong usage", "a fault"]
)
def test_a_run_that_never_begins_leaves_no_process_behind(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "faulty.py").write_text("def build():\n    raise ValueError('no')\n")
    mark = f"{os.getpid()}-{tmp_path.name}"
    command = [sys.executable, "-P", "-m", "headrace.cli", "run", *arguments]
    variables = {**os.environ, MARK: mark, "SPT_NOENV": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=RUN_S_MAX, check=False
    )
    assert done.returncode in (1, 2), done.stderr
    assert "Traceback" not in done.stderr
    deadline = time.monotonic() + RUN_S_MAX
    for pid in marked(mark):
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        assert select.select([pidfd], [], [], deadline - time.monotonic())[0], f"process {pid} lives on"
        os.close(pidfd)


USUAL = [
    "run x.py",
    "run x.py --json",
    "run --no-fuse x.py -p input=a*.jsonl --parameter output=out --json",
    "run -p text=a=b --amend --no-fuse --fuse x.py",
    "run x.py -p input",
    "run x.py --parameter=input=a",
    "run x.py --replicas 2 --replicas=3 --max-quarantined 1% --changed-input drop",
    "run x.py --record-seconds 0.5 --task-memory 100 --seal-seconds 1e1 --follow-links",
]
UNUSUAL = [
    "",
    "status",
    "run",
    "run x.py y.py",
    "run x.py -p",
    "run x.py -p --json",
    "run x.py -pinput=a",
    "run -- x.py",
    "run x.py --replicas two",
    "run x.py --replicas -1",
    "run x.py --record-seconds nan",
    "run x.py --json=true",
    "run x.py --help",
    "run x.py --jso",
]


@pytest.mark.parametrize("line", USUAL)
def test_the_usual_runs_are_understood_as_the_parser_of_all_commands_does(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    understood: list[tuple[Path, list[str], RunOptions, bool, bool]] = []

    def note(
        path: Path,
        given: list[str],
        make_options: Callable[[], RunOptions],
        *,
        as_json: bool,
        follow_links: bool = False,
        page: bool = False,
        base: tuple[str, str] = ("", ""),
    ) -> int:
        assert not page
        assert base == ("", "")
        understood.append((path, given, make_options(), as_json, follow_links))
        return 7

    monkeypatch.setattr(embedded_run, "run_file", note)
    given = parse_run(line.split())
    assert given is not None
    assert run_command(given) == invoke(line.split()) == 7
    assert understood[0] == understood[1]


@pytest.mark.parametrize("line", UNUSUAL)
def test_what_is_not_usual_is_left_to_that_parser(line: str) -> None:
    assert parse_run(line.split()) is None


PLAIN_STAGES = """
import sys
from headrace.pipeline.graph import Pipeline
from headrace.stages.runtime.batch import Batch
from headrace.stages.runtime.build import build_stage, process_safely
from headrace.stages.library import read, tokenize, write_tokens
from headrace.store.ledger.core.intervals import UNBOUNDED, Gap
from headrace.store.open import open_store
from headrace.worker.task.batch.coverage import fates

tokens = tokenize("deepseek")
pipeline = Pipeline.chain("plain", sys.argv[2], read(sys.argv[1]), tokens, write_tokens(tokens))
source, transform, sink = (build_stage(stage, {}) for stage in pipeline.stages)
sink.begin(pipeline.name, "plain")
store = open_store(pipeline.dataset)
read = [item for fragment in source.list() for item in source.read(fragment, [Gap(0, UNBOUNDED, 0)])]
batches = [process_safely(transform, item, "tokenize") for item in read if isinstance(item, Batch)]
assert all(fates(batch).all() for batch in batches)
spilled = [sink.spill(batch, store) for batch in batches]
assert sink.write(spilled, store, "shards/1/").counts.kept == 3
print("numpy.ma" in sys.modules)
"""


def test_the_stages_of_a_plain_run_import_nothing_of_masked_arrays(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("".join(f'{{"id": "{index}", "text": "a b c"}}\n' for index in range(3)))
    command = [sys.executable, "-c", PLAIN_STAGES, str(tmp_path / "in.jsonl"), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=RUN_S_MAX)
    assert done.stdout.split() == ["False"], done.stderr


@pytest.mark.parametrize(
    ("line", "gives"),
    [
        ("replace plain filter gopher_quality", True),
        ("insert plain gopher_quality --after read", True),
        ("remove plain filter", True),
        ("move plain dedup two --wait", True),
        ("scale plain tokenize 3", True),
        ("apply plain.py --amend", True),
        ("apply plain.py", False),
        ("run plain.py --amend", False),
        ("dataset trace --index -- file:///data", True),
        ("dataset log file:///data", False),
        ("", False),
    ],
)
def test_a_command_that_changes_a_run_gives_way_to_it(line: str, gives: bool) -> None:
    assert _gives_way(line.split()) is gives
