"""`headrace dataset gc` on what killed runs leave behind, beside a run that goes on, and killed itself."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.store.datasets.dataset import Dataset
from tests.kits.run.command import DEADLINE_S, run_command
from tests.kits.run.command_server import ended
from tests.kits.run.daemons import until
from tests.kits.run.dataset import fates
from tests.kits.run.kill import Marked, count_entries, dies_behind, headrace, kill_after_entries


def gc(dataset: Path, *arguments: str) -> dict[str, Any]:
    done = ended(headrace("dataset", "gc", str(dataset), "--json", *arguments))  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def objects(dataset: Path) -> set[str]:
    return {
        str(path.relative_to(dataset))
        for folder in ("shards", "quarantine")
        for path in (dataset / folder).rglob("*.*")
    }


def _title(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def verified(dataset: Path) -> bool:
    done = ended(headrace("dataset", "verify", str(dataset)))
    return done.returncode == 0


def left_behind(dataset: Path, epoch: int) -> Path:
    """A shard as a killed sink leaves it: written, and never proposed."""
    path = dataset / "shards" / str(epoch) / f"{'0' * 31}1.safetensors"
    path.write_bytes(b"written, never proposed")
    return path


@pytest.fixture(scope="module")
def killed(home: Path) -> Path:
    """A dataset whose run was killed with -9 in the middle, all processes at once."""
    run = Marked(run_command(home, "collected"), home)
    assert kill_after_entries(run, lambda: closed_shards(home / "collected"), 3, 0)
    return home / "collected"


def closed_shards(dataset: Path) -> int:
    return len(Dataset.open(str(dataset)).state.shards) if count_entries(dataset / "ledger") else 0


@pytest.mark.slow
def test_leftovers_of_killed_sinks_go_and_everything_is_closed(home: Path, killed: Path, undisturbed: Path) -> None:
    (epoch,) = (int(path.name) for path in (killed / "shards").iterdir())
    orphan = left_behind(killed, epoch)
    before = objects(killed)
    told = gc(killed, "--dry-run")
    assert (told["objects"], told["live"]) == (0, False)
    assert told["undecided"] >= 1
    assert objects(killed) == before
    done = gc(killed)
    assert done["objects"] == told["undecided"]
    assert not orphan.exists()
    assert done["floor"] > epoch
    assert verified(killed)
    assert gc(killed)["objects"] == 0
    again = ended(run_command(home, "collected"), cwd=home)
    assert again.returncode == 0, again.stderr
    assert verified(killed)
    assert fates(killed) == fates(undisturbed)


@pytest.mark.slow
def test_a_collection_beside_a_run_deletes_nothing_of_it(home: Path, undisturbed: Path) -> None:
    run = Marked(run_command(home, "live"), home)
    process = run.start()
    try:
        until(lambda: closed_shards(home / "live") >= 3, "some shards")
        # Held for the first collection, so that it meets a run however fast that is; the others come as it goes on.
        held = [pid for pid in run.alive() if _title(pid).startswith(b"headrace task")]
        assert held
        for pid in held:
            os.kill(pid, signal.SIGSTOP)
        first = gc(home / "live")
        for pid in held:
            os.kill(pid, signal.SIGCONT)
        assert (first["objects"], first["live"]) == (0, True)
        deadline = time.monotonic() + DEADLINE_S
        while process.poll() is None:
            assert time.monotonic() < deadline
            assert gc(home / "live")["objects"] == 0
        out, error = process.communicate(timeout=DEADLINE_S)
    finally:
        run.kill()
    assert process.returncode == 0, error
    assert json.loads(out)["balanced"]
    assert verified(home / "live")
    assert fates(home / "live") == fates(undisturbed)


def test_a_killed_collection_leaves_a_sound_dataset_for_the_next(undisturbed: Path, tmp_path: Path) -> None:
    dataset = tmp_path / "copy"
    shutil.copytree(undisturbed, dataset)
    (epoch,) = (int(path.name) for path in (dataset / "shards").iterdir())
    named = objects(dataset)
    many = [dataset / "shards" / str(epoch) / f"{number:032x}.safetensors" for number in range(3000)]
    for path in many:
        path.write_bytes(b"garbage")
    command = dies_behind("headrace.store.files.store:FileStore.delete", 1000, "dataset", "gc", str(dataset))
    killed = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    left = len(objects(dataset) - named)
    assert 0 < left < 3000
    assert verified(dataset)
    assert gc(dataset)["objects"] == left
    assert objects(dataset) == named
    assert verified(dataset)
