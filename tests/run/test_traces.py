"""A run whose batches are traced: a collector learns what each stage did, and cannot spoil the run."""

import json
import os
import socket
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from tests.kits.run.collector import CollectorServer
from tests.kits.run.command import DEADLINE_S, run_command

pytestmark = pytest.mark.slow


def traced(home: Path, output: Path, collector: str, share: str = "1") -> dict[str, object]:
    environ = {**os.environ, "HEADRACE_TRACES": collector, "HEADRACE_TRACES_SHARE": share}
    command = run_command(home, str(output))
    done = subprocess.run(command, capture_output=True, text=True, cwd=home, timeout=DEADLINE_S, env=environ)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_each_batch_of_a_run_is_one_trace_over_its_stages(home: Path, tmp_path: Path) -> None:
    with CollectorServer() as collector:
        told = traced(home, tmp_path / "out with a space", f"http://127.0.0.1:{collector.port}")
        spans = collector.spans()
    assert told["balanced"]
    stages = defaultdict[bytes, list[str]](list)
    for span in spans:
        stages[span.trace_id].append(span.name)
    shards = [span for span in spans if span.name == "write shard"]
    batches = [names for names in stages.values() if names != ["write shard"]]
    assert len(batches) > 20
    assert all(names == ["read", "has_many_lines", "tokenize", "write"] for names in batches)
    known = {(span.trace_id, span.span_id) for span in spans if span.name == "write"}
    links = [(link.trace_id, link.span_id) for shard in shards for link in shard.links]
    assert len(links) == len(set(links)), "a batch is in one shard"
    assert set(links) <= known
    assert len(links) > 0.9 * len(known), "but for what a run that ends takes along"


@pytest.mark.parametrize("answers", [False, True], ids=["dead", "silent"])
def test_a_run_ends_well_without_its_collector(home: Path, tmp_path: Path, answers: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        if not answers:
            listening.close()
            place = "http://127.0.0.1:1"
        else:
            place = f"http://127.0.0.1:{listening.getsockname()[1]}"
        assert traced(home, tmp_path / "out", place)["balanced"]
