"""A record that kills its process in a pipeline with dedup is quarantined alone, and a copy of it takes its place."""

import json
import os
import select
import signal
import time
from pathlib import Path

import pytest

from headrace.store.datasets.dataset import Dataset
from tests.kits.run.command import DEADLINE_S
from tests.kits.run.command_server import ended
from tests.kits.run.dedup import epochs, fates_of
from tests.kits.run.kill import Marked, headrace

PIPELINE = '''"""Records that kill the stage that their text names; a copy with another space in it does no harm."""

import os
from dataclasses import replace

from headrace.pipeline.graph import Pipeline, Stage, StageKind
from headrace.stages.library import dedup, map_batches, read_jsonl, write_jsonl
from headrace.stages.sinks.spill import SpilledStrings
from headrace.stages.sinks.texts import JsonlSink


def harm(rows, stage):
    if f"{stage} kills" in rows["text"].to_pylist():
        os.abort()
    return rows


def before(rows):
    return harm(rows, "before")


def behind(rows):
    return harm(rows, "behind")


class Writing(JsonlSink):
    def write(self, batches, store, prefix):
        texts = SpilledStrings(self._in_order(batches, store), ("text",))
        harm({"text": texts.column("text", 0, len(texts.sizes))}, "write")
        return super().write(batches, store, prefix)


def build(input: str, output: str) -> Pipeline:
    write = write_jsonl(shard_bytes=1 << 11)
    return Pipeline.chain(
        "deadly",
        output,
        read_jsonl(input, batch_bytes=1 << 11),
        map_batches(before),
        *dedup(near=False),
        map_batches(behind),
        Stage("write", StageKind.SINK, "deadly:Writing", write.parameters, volatile=write.volatile),
    )
'''
RECORDS, COPIES = 400, 60
#: Which record kills which stage, and its copies, which do no harm.
DEADLY = {120: "before", 200: "behind", 330: "write"}
SPARED = {index + 20: stage for index, stage in DEADLY.items()}


def write_corpus(folder: Path) -> None:
    (folder / "deadly.py").write_text(PIPELINE)
    texts = [f"record {index % (RECORDS - COPIES)}" for index in range(RECORDS)]
    for index, stage in DEADLY.items():
        texts[index] = f"{stage} kills"
    for index, stage in SPARED.items():
        texts[index] = f"{stage}  kills"
    lines = [json.dumps({"id": str(index), "text": text}) for index, text in enumerate(texts)]
    (folder / "input.jsonl").write_text("\n".join(lines) + "\n")


def command(folder: Path) -> list[str]:
    parameters = ("-p", f"input={folder}/input.jsonl", "-p", f"output={folder}/out")
    return headrace("run", str(folder / "deadly.py"), *parameters, "--json")


def check(folder: Path, answer: str) -> None:
    """Those that kill are quarantined under their stage, their copies are kept, and of any others each text is."""
    assert json.loads(answer)["balanced"]
    by_id = {int(fate.id): fate for fate in fates_of(folder / "out").values()}
    assert sorted(by_id) == list(range(RECORDS))
    quarantined = {index: fate.stage for index, fate in by_id.items() if fate.verdict == "quarantined"}
    assert quarantined == DEADLY
    assert {by_id[index].verdict for index in SPARED} == {"kept"}
    pairs = [(by_id[one], by_id[other]) for one in range(COPIES) if (other := one + RECORDS - COPIES) not in SPARED]
    assert {frozenset((one.verdict, other.verdict)) for one, other in pairs} == {frozenset(("kept", "duplicate"))}
    assert sum(fate.verdict == "duplicate" for fate in by_id.values()) == len(pairs)


@pytest.mark.slow
def test_killers_around_dedup_are_found_and_spared_by_rebuild(
    tmp_path: Path,
) -> None:
    write_corpus(tmp_path)
    done = ended(command(tmp_path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    check(tmp_path, done.stdout)
    assert epochs(tmp_path / "out") == ["created"], "the index outlives what dies around it"
    deadly = [shard for shard in Dataset.open(str(tmp_path / "out")).shards if shard.closed.counts.quarantined]
    for shard in deadly:
        table = next(item for item in shard.closed.objects if item.role == "verdicts")
        rebuild = headrace(
            "dataset", "rebuild", "--trust-code", f"{tmp_path}/out", Path(table.key).name.partition(".")[0], "--json"
        )
        again = ended(rebuild, cwd=tmp_path / "out")
        assert again.returncode == 0, again.stderr
        assert json.loads(again.stdout)["differing"] == []


@pytest.mark.slow
def test_it_is_found_though_the_index_dies_when_asked(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    run = Marked(command(tmp_path), tmp_path)
    process = run.start()
    ended = os.pidfd_open(process.pid)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    deadline = time.monotonic() + DEADLINE_S
    # Until the run ends there are nine lives of a solitary task, and each takes a process of some hundred milliseconds.
    while not tasks(run, "solitary"):
        assert not poll.poll(5), "the run ended before it had a solitary task"
        assert time.monotonic() < deadline
    for pid in tasks(run, "dedup"):
        os.kill(pid, signal.SIGKILL)
    out, errors = process.communicate(timeout=DEADLINE_S)
    os.close(ended)
    assert process.returncode == 0, errors.decode()
    check(tmp_path, out.decode())
    assert epochs(tmp_path / "out") == ["created", "the dedup index begins anew"]
    assert not run.alive()


def tasks(run: Marked, stage: str) -> list[int]:
    return [pid for pid in run.alive() if title(pid).startswith(f"headrace task deadly/{stage}.")]


def title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
