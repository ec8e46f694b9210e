"""The training example: two processes over gloo, killed and started again, against a run that was not."""

import importlib.util
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

pytest.importorskip("torch")

EXAMPLE = Path(__file__).parents[2] / "examples/train.py"
STEPS = 12
DEADLINE_S = 300


def start(dataset: str, out: Path, processes: int = 2, **arguments: object) -> subprocess.Popen[str]:
    shape = {"width": 16, "layers": 1, "heads": 2, "vocabulary": 64, "steps": STEPS, "checkpoint-every": 4}
    options = [f"--{name}={value}" for name, value in {**shape, **arguments}.items()]
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"),
            "--local-addr=127.0.0.1",  # else its own name is looked up, which a container may not know
            *(str(EXAMPLE), f"--dataset={dataset}", f"--out={out}", *options),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> None:
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, output[-3000:]


def losses(out: Path) -> dict[int, str]:
    found = {}
    for line in (out / "losses.jsonl").read_text().splitlines():
        if line.endswith("}"):
            step, _, loss = line.partition(", ")
            found[int(step.rpartition(" ")[2])] = loss
    return found


@pytest.mark.slow
def test_a_killed_run_goes_on_along_the_same_curve(make_dataset: Callable[..., str], tmp_path: Path):
    dataset = make_dataset(sequences=(20, 15), seq_len=32)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(start(dataset, whole))
    process = start(dataset, killed, steps=10_000)
    try:
        # the kill falls wherever it is behind step 6
        wait_for_step(process, 6)
    finally:
        # torchrun gives its ranks sessions of their own: each is killed by its number
        for number in (*ranks(process.pid), process.pid):
            os.kill(number, signal.SIGKILL)
        process.communicate(timeout=DEADLINE_S)
    reached = max(losses(killed))
    finish(start(dataset, killed, steps=max(STEPS, reached + 2), compare=whole))
    expected = losses(whole)
    assert {step: losses(killed)[step] for step in expected} == expected
    # the plot has both curves, one over the other
    picture = ET.parse(killed / "losses.svg").getroot()
    lines = [line.attrib["points"].split() for line in picture.iter("{http://www.w3.org/2000/svg}polyline")]
    assert [len(line) for line in lines] == [STEPS, max(STEPS, reached + 2)]


def test_a_plot_leaves_out_no_numbers_and_torn_lines(tmp_path: Path):
    spec = importlib.util.spec_from_file_location("train_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    path = tmp_path / "losses.jsonl"
    path.write_text('{"step": 0, "loss": NaN}\n')
    example.plot(tmp_path, None)
    assert not (tmp_path / "losses.svg").exists()
    path.write_text("""{"step": 0, "loss": 3.5}
{"step": 1, "lo{"step": 1, "loss": 3.0}
{"step": 2, "loss": NaN}
{"step": 3, "loss": 2.5}
""")
    assert example.losses(tmp_path) == {0: 3.5, 3: 2.5}
    example.plot(tmp_path, None)
    assert (tmp_path / "losses.svg").exists()


def ranks(parent: int) -> list[int]:
    return [int(number) for number in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def wait_for_step(process: subprocess.Popen[str], step: int) -> None:
    assert process.stdout is not None
    with a_deadline_for(process):
        seen = []
        for line in process.stdout:
            seen.append(line)
            if line.startswith(f"step {step} "):
                return
    raise AssertionError("".join(seen)[-3000:])


@contextmanager
def a_deadline_for(process: subprocess.Popen[str]) -> Iterator[None]:
    """Ends a process that says nothing more."""
    timer = threading.Timer(DEADLINE_S, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
