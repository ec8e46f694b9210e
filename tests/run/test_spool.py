"""Records that are pushed at a spool which is killed again and again are in the dataset exactly once."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from headrace.store.contract.errors import StoreError
from headrace.store.datasets.dataset import Dataset
from headrace.worker.spool.spool import Spool, SpoolFullError
from tests.kits.run.command_server import ended
from tests.kits.run.daemons import until
from tests.kits.run.kill import headrace

PATIENCE_S = 120.0
KILLS, PUSHES, RECORDS = 5, 60, 7
PIPELINE = """
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import read_jsonl, write_documents


def build(input: str, output: str) -> Pipeline:
    return Pipeline.chain("pushed", output, read_jsonl(input), write_documents())
"""


class Server:
    """The spool's server as a process; `port` is that of the one that lives."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._command = [sys.executable, "-P", "-m", "headrace.worker.spool.server", str(folder), *options]
        self.port = 0

    def start(self) -> None:
        command = [*self._command, "--listen", "insecure-tcp:127.0.0.1:0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().rpartition(":")[2])

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode

    def push(self, body: bytes, key: str = "") -> tuple[int, dict[str, object], str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request("POST", "/records", body, {"Idempotency-Key": key} if key else {})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read()), answer.getheader("Retry-After", "")
        finally:
            connection.close()

    def post(self, path: str) -> dict[str, object]:
        return self._ask("POST", path)

    def get(self, path: str) -> dict[str, object]:
        return self._ask("GET", path)

    def _ask(self, method: str, path: str) -> dict[str, object]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, b"" if method == "POST" else None)
            answer = connection.getresponse()
            assert answer.status == 200
            return dict(json.loads(answer.read()))
        finally:
            connection.close()


def lines(name: str, count: int = RECORDS) -> bytes:
    records = [{"id": f"{name}-{part}", "text": f"{name} {part}"} for part in range(count)]
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def push_all(server: Server, name: str, acknowledged: list[str]) -> None:
    """Push as a scraper does: again, under the same key, until it is acknowledged."""
    for number in range(PUSHES):
        key = f"{name}.{number}"

        def pushed(key: str = key) -> bool:
            try:
                return server.push(lines(key), key)[0] == 200
            except (OSError, http.client.HTTPException, ValueError):
                return False

        until(pushed, f"push {key}", PATIENCE_S)
        acknowledged.append(key)


def test_what_a_killed_spool_acknowledged_is_in_the_dataset_once(tmp_path: Path) -> None:
    (tmp_path / "pushed.py").write_text(PIPELINE)
    server = Server(tmp_path / "spool", "--segment-bytes", "4096")
    server.start()
    acknowledged: list[str] = []
    clients = [threading.Thread(target=push_all, args=(server, name, acknowledged)) for name in ("a", "b")]
    for client in clients:
        client.start()
    chance = random.Random(1)
    for kill in range(KILLS):
        wanted = kill * 2 * PUSHES // KILLS + chance.randint(1, 8)
        until(lambda wanted=wanted: len(acknowledged) >= wanted, "pushes are acknowledged")  # type: ignore[misc]
        server.end(signal.SIGKILL)
        server.start()
    for client in clients:
        client.join(PATIENCE_S)
    assert len(acknowledged) == 2 * PUSHES
    assert server.end(signal.SIGTERM) == 0

    parameters = ("-p", f"input={tmp_path}/spool/*.jsonl", "-p", f"output={tmp_path}/out")
    done = ended(headrace("run", "pushed.py", *parameters, "--json"), cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    dataset = Dataset.open(str(tmp_path / "out"))
    keys = [item.key for shard in dataset.shards if (item := shard.object("documents")) is not None]
    found = Counter(identity for key in keys for identity in pq.read_table(tmp_path / "out" / key)["id"].to_pylist())
    assert found == Counter(f"{key}-{part}" for key in acknowledged for part in range(RECORDS))


def test_a_full_spool_takes_nothing_until_segments_are_gone(tmp_path: Path) -> None:
    server = Server(tmp_path, "--limit-bytes", "600", "--segment-bytes", "200")
    server.start()
    try:
        while (answer := server.push(lines("x", 4)))[0] == 200:
            assert sum(path.stat().st_size for path in tmp_path.glob("*.jsonl*")) <= 600
        assert answer[0] == 503
        assert "600 bytes" in str(answer[1]["error"])
        assert int(answer[2]) > 0
        for path in tmp_path.glob("*.jsonl"):
            path.unlink()
        assert server.push(lines("y", 4))[:2] == (200, {"records": 4, "shed": 0})
    finally:
        server.end(signal.SIGTERM)


def test_the_uncommitted_is_cut_off_and_known_keys_not_rewritten(tmp_path: Path) -> None:
    spool = Spool(tmp_path, limit_bytes=1 << 20)
    assert spool.push(b'{"id": "a"}\n\n{"id": "b"}', "one").records == 2
    assert spool.push(b'{"id": "a"}\n\n{"id": "b"}', "one").records == 2
    with pytest.raises(StoreError, match="another process has it"):
        Spool(tmp_path, limit_bytes=1 << 20)
    with pytest.raises(SpoolFullError):
        spool.push(b"x" * (1 << 20))
    # As a power cut would leave it: data that no journal names, and half an entry.
    for name, torn in (("jsonl.open", b'{"id": "c"}\n{"id"'), ("commits", b'{"end": 36, "rec')):
        with open(tmp_path / f"000000000001.{name}", "ab") as file:
            file.write(torn)
    os.close(spool._guard)
    again = Spool(tmp_path, limit_bytes=1 << 20)
    assert (tmp_path / "000000000001.jsonl").read_bytes() == b'{"id": "a"}\n{"id": "b"}\n'
    assert again.push(b'{"id": "a"}\n\n{"id": "b"}', "one").records == 2
    assert again.push(b'{"id": "c"}', "two").records == 1
    again.close()
    assert (tmp_path / "000000000002.jsonl").read_bytes() == b'{"id": "c"}\n'
