"""Coverage-guided fuzzing of everything that reads bytes of a peer: a second each here, longer in the slow suite."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HARNESS = Path(__file__).with_name("fuzz_decoders.py")
#: Time for each target in the slow suite, in seconds; FUZZ_S in the environment makes a longer session of it.
FUZZ_S = int(os.environ.get("FUZZ_S", "10"))
#: Time for each target in the default suite, in seconds.
GLIMPSE_S = 1
#: The canary is found in some seconds; this is what a crowded machine is given.
CANARY_S = 120

TARGETS = ["frame", "control", "ticket", "stream", "credit"]


def fuzz(target: str, folder: Path, seconds: int) -> "subprocess.CompletedProcess[str]":
    corpus = folder / "corpus"
    corpus.mkdir()
    options = [f"-max_total_time={seconds}", "-max_len=512", "-seed=1", f"-artifact_prefix={folder}/"]
    command = [sys.executable, str(HARNESS), target, *options, str(corpus)]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60)


@pytest.mark.parametrize("seconds", [GLIMPSE_S, pytest.param(FUZZ_S, marks=pytest.mark.slow)])
@pytest.mark.parametrize("target", TARGETS)
def test_no_bytes_break_a_decoder(target: str, seconds: int, tmp_path: Path) -> None:
    done = fuzz(target, tmp_path, seconds)
    assert done.returncode == 0, (
        f"{HARNESS.name} {target}: {[path.name for path in tmp_path.glob('crash-*')]}\n{done.stderr[-3000:]}"
    )


def test_the_canary_is_found(tmp_path: Path) -> None:
    done = fuzz("canary", tmp_path, CANARY_S)
    assert done.returncode != 0
    assert "the canary sings" in done.stdout + done.stderr
