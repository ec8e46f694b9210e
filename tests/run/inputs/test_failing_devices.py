"""Input on a device that fails: its fragment halts alone, all else is closed, and what follows is the user's choice.

A process's memory stands for the device: nothing lies at its address 0, and to read there is EIO.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.stages.runtime.errors import DeviceFailed
from headrace.stages.sources.jsonl import JsonlSource
from headrace.stages.sources.objects.inputs import Inputs
from headrace.store.datasets.dataset import Dataset
from headrace.store.ledger.core.intervals import UNBOUNDED, Gap
from tests.kits.inputs.bad_stores import RUN_S_MAX
from tests.kits.run.command_server import ended
from tests.kits.run.small_tokenizer import small_tokenizer

RECORDS = 50
#: Any process of this user may read its memory (prctl(2), PR_SET_PTRACER), whatever the system's rule is.
DEVICE = "import ctypes; ctypes.CDLL(None).prctl(0x59616d61, ctypes.c_ulong(-1), 0, 0, 0); print(flush=True); input()"
PIPELINE = """
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import read, tokenize, write_tokens


def build(input: str, output: str, damaged: str = "stop") -> Pipeline:
    tokens = tokenize("TOKENIZER")
    source = read(input, damaged=damaged)
    return Pipeline.chain("failing", output, source, tokens, write_tokens(tokens, seq_len=128))
"""


@pytest.fixture
def device() -> Iterator[Path]:
    """A file whose bytes cannot be got."""
    with subprocess.Popen([sys.executable, "-c", DEVICE], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        # Held open, so that the system does not forget it, and its age with it.
        with open(f"/proc/{process.pid}/mem", "rb"):
            yield Path(f"/proc/{process.pid}/mem")
        process.kill()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "failing.py").write_text(PIPELINE.replace("TOKENIZER", small_tokenizer()))
    (tmp_path / "corpus").mkdir()
    for part in ("a", "c"):
        lines = [json.dumps({"id": f"{part}{number}", "text": f"record {number}"}) for number in range(RECORDS)]
        (tmp_path / "corpus" / f"{part}.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def run(home: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    parameters = ["-p", "input=corpus/*", "-p", "output=out", *arguments, "--json"]
    command = [sys.executable, "-P", "-m", "headrace.cli", "run", "failing.py", *parameters, "--follow-links"]
    return ended(command, cwd=home, timeout=RUN_S_MAX)


def closed(home: Path) -> dict[str, int]:
    states = Dataset.open(str(home / "out")).state.fragments.values()
    return {Path(state.fragment.uri).name: state.of("write").size for state in states}


@pytest.mark.parametrize("name", ["b.jsonl", pytest.param("b.jsonl.gz", marks=pytest.mark.slow)])
def test_a_file_on_a_failing_device_halts_alone(home: Path, device: Path, name: str) -> None:
    (home / "corpus" / name).symlink_to(device)
    done = run(home)
    assert done.returncode == 1, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("headrace: "))
    for words in (
        "1 fragment stands open, since their devices failed: cannot read",
        "Input/output error at byte 0; look into the kernel log",
        "The same command reads them when that is mended; or --changed-input drop gives up what is open of them",
    ):
        assert words in line
    assert closed(home) == {"a.jsonl": RECORDS, name: 0, "c.jsonl": RECORDS}
    assert run(home, "--changed-input", "reread").returncode == 1, "there is no new object to read"
    given_up = run(home, "--changed-input", "drop")
    assert given_up.returncode == 0, given_up.stderr
    assert json.loads(given_up.stdout)["complete"]
    assert closed(home) == {"a.jsonl": RECORDS, name: 0, "c.jsonl": RECORDS}


def test_what_a_failing_device_keeps_is_quarantined_where_the_source_says_so(home: Path, device: Path) -> None:
    (home / "corpus" / "b.jsonl").symlink_to(device)
    done = run(home, "-p", "damaged=quarantine")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["complete"], report["balanced"], report["records_read"]) == (True, True, 2 * RECORDS + 1)
    assert closed(home) == {"a.jsonl": RECORDS, "b.jsonl": 1, "c.jsonl": RECORDS}


def test_the_error_says_file_place_and_remedy(tmp_path: Path, device: Path) -> None:
    path = tmp_path / "b.jsonl"
    path.symlink_to(device)
    (found,) = Inputs([str(path)], ("*",))
    source = JsonlSource("read", [str(path)])
    (fragment,) = source.fragments(found)
    with pytest.raises(DeviceFailed, match=r'Input/output error at byte 0.*see to the disk.*damaged="quarantine"'):
        list(source.read(fragment, [Gap(0, UNBOUNDED)]))
