"""Where memory order is weak no ring is planned: shown with the platform patched in every process of a run."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from headrace.controller.core.plan import locality
from headrace.controller.core.plan.locality import PIPE, QUIC, RING, WorkerFacts, fallback_of, transport_of
from headrace.pipeline import PipelineError
from headrace.transport.ring import ring
from tests.kits.run.command import pipeline
from tests.kits.run.kill import headrace

EDGE = ("read", "write")
WEAK, AT = (ring.WEAK_MEMORY,), ("10.0.0.1:1",)


def worker(name: str, labels: tuple[str, ...] = ()) -> WorkerFacts:
    return WorkerFacts(name, 1, "host", labels, AT, door=True)


def test_worker_and_controller_mean_the_same_label() -> None:
    assert locality.WEAK_MEMORY == ring.WEAK_MEMORY


@pytest.mark.parametrize(
    ("machine", "labels"),
    [("x86_64", ()), ("AMD64", ()), ("aarch64", WEAK), ("arm64", WEAK), ("riscv64", WEAK), ("", WEAK)],
)
def test_a_worker_says_that_its_memory_is_weak(
    monkeypatch: pytest.MonkeyPatch, machine: str, labels: tuple[str, ...]
) -> None:
    monkeypatch.setattr(ring.platform, "machine", lambda: machine)
    assert ring.memory_labels() == labels


@pytest.mark.parametrize("other", ["one", "two"])
@pytest.mark.parametrize("first", [True, False])
def test_links_of_a_worker_with_weak_memory_are_pipes(other: str, *, first: bool) -> None:
    ends = worker("one", WEAK), worker(other, WEAK if other == "one" else ())
    sender, receiver = ends if first else ends[::-1]
    assert transport_of(sender, receiver, EDGE) == PIPE
    assert transport_of(sender, receiver, EDGE, PIPE) == PIPE
    assert transport_of(sender, receiver, EDGE, QUIC) == QUIC
    with pytest.raises(PipelineError, match="memory of worker 'one' is weakly ordered"):
        transport_of(sender, receiver, EDGE, RING)


def test_links_of_workers_with_ordered_memory_are_rings() -> None:
    assert transport_of(worker("one"), worker("two"), EDGE) == RING


@pytest.mark.parametrize("transport", [PIPE, RING])
def test_two_workers_that_cannot_pass_descriptors_fall_back_to_quic(transport: str) -> None:
    assert fallback_of(worker("one"), worker("two"), transport, "") == QUIC
    assert fallback_of(worker("one"), worker("one"), transport, "") == ""
    assert fallback_of(worker("one"), worker("two"), transport, transport) == ""


def test_a_run_on_such_a_machine_completes_over_pipes(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    lines = [json.dumps({"id": str(number), "text": f"line {number}\n" * 20}) for number in range(200)]
    (tmp_path / "corpus" / "a.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "small.py").write_text(pipeline())
    patched = tmp_path / "patched"
    patched.mkdir()
    (patched / "sitecustomize.py").write_text("import platform\nplatform.machine = lambda: 'aarch64'\n")
    environment = {**os.environ, "PYTHONPATH": f"{patched}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    words = ("run", "small.py", "-p", f"input={tmp_path}/corpus/*.jsonl", "-p", "output=out", "--no-fuse", "--json")
    done = subprocess.run(
        headrace(*words), env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["records_closed"], said["balanced"], said["complete"], said["deaths"]) == (200, True, True, [])
