"""A pipeline through a gate, so that a test can do things while its records are on their way."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from tests.kits.run.dataset import fates
from tests.kits.run.netns import Cluster, Host, wait_for
from tests.kits.run.small_tokenizer import small_tokenizer

#: The last two thirds of the records come when the gate is open.
PIPELINE = '''"""Text to tokens through a gate: records behind the first wait until a file is there."""

import os
import time

from headrace.pipeline.graph import Pipeline
from headrace.stages.library import map_records, read_jsonl, tokenize, write_tokens


def gate(record):
    if int(record["id"][1:]) >= 500:
        while not os.path.exists(GATE):
            time.sleep(0.01)
    return record if len(record["text"]) % 7 else None


def build(input: str, output: str) -> Pipeline:
    tokens = tokenize("TOKENIZER")
    return Pipeline.chain(
        "gated",
        output,
        read_jsonl(input, batch_bytes=1 << 14),
        map_records(gate),
        tokens,
        write_tokens(tokens, seq_len=512, shard_bytes=1 << 17),
    )


GATE = "@gate@"
'''


def write_pipeline(folder: Path, gate: str = "") -> Path:
    """The pipeline file, whose gate is beside it unless another is named."""
    path = folder / "gated.py"
    text = PIPELINE.replace("TOKENIZER", small_tokenizer())
    # The gate's path must not make another pipeline of it: it is no part of what a record becomes.
    path.write_text(text.replace("@gate@", gate or str(folder / "gate")))
    return path


class Gated:
    """The gated pipeline, reading on one host and writing on another."""

    def __init__(self, cluster: Cluster, ctl: Host, texts: Path, folder: Path) -> None:
        self.cluster, self.ctl, self.folder = cluster, ctl, folder
        done = cluster.call(
            ctl, "apply", str(write_pipeline(folder)), "-p", f"input={texts}/*.jsonl", "-p", f"output={folder}/out",
            "--place", "read=one", "--place", "write=two",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        # The sender may say nothing of it: it stands in the gate.
        wait_for(lambda: self.of_link("write", "frames") > 0, "the first records over the link")
        assert self.link()["generation"] == 1

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.cluster.status(self.ctl)["pipelines"][0]
        return status

    def link(self) -> dict[str, Any]:
        (link,) = self.status()["links"]
        return dict(link)

    def of_link(self, stage: str, what: str) -> int:
        """What the task with this stage says of its end of the link: frames that went over it, or bytes in flight."""
        pipelines = self.cluster.status(self.ctl)["pipelines"]
        tasks = [task for pipeline in pipelines for task in pipeline["tasks"] if stage in task["stages"]]
        return sum(int(link[what]) for task in tasks for link in task["progress"]["links"])

    def open_gate(self) -> None:
        (self.folder / "gate").touch()

    def finish(self) -> dict[tuple[str, int], tuple[Any, ...]]:
        wait_for(lambda: self.status()["state"] in ("completed", "failed"), "the end of the run")
        assert self.status()["state"] == "completed", self.status()["failure"]
        return fates(self.folder / "out")


def task_processes(host: Host) -> list[int]:
    """The processes of tasks that run on a host."""
    listed = subprocess.run(["ip", "netns", "pids", host.namespace], capture_output=True, text=True, timeout=300)
    found = []
    for pid in listed.stdout.split():
        try:
            title = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"headrace task" in title:
            found.append(int(pid))
    return found
