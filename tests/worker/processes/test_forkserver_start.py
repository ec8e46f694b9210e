"""What tasks start with: allocators that keep little of what is freed."""

import json
import os
import socket
import subprocess
import sys
from typing import Any, cast

import msgpack
import pytest

from headrace.worker.processes.forkserver_start import Forkserver, environment, hear
from headrace.worker.task.channel import Channel

_FORKED = """
import os
from headrace.worker.processes.forkserver_start import _be_born_with, environment
_be_born_with(environment(os.environ))
"""
_KEPT = """
import re, pyarrow as pa
from headrace.stages.runtime.malloc import give_back
def own():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read()).group(1)) >> 10
pa.array(["warm"])
before = own()
column = pa.array(["x" * 1_000_000 for _ in range(64)])
text = [bytes([65]) * 1_000_000 for _ in range(64)]
held = own() - before
del column, text
give_back()
print(pa.default_memory_pool().backend_name, held, own() - before)
"""


@pytest.mark.parametrize("forked", [False, True])
def test_what_a_task_frees_is_given_back(*, forked: bool) -> None:
    given = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    born, code = (given, _FORKED + _KEPT) if forked else (environment(given), _KEPT)
    said = subprocess.run([sys.executable, "-c", code], env=born, capture_output=True, text=True, timeout=300)
    assert said.returncode == 0, said.stderr
    backend, held_mib, kept_mib = said.stdout.split()
    assert backend == "system"
    assert int(held_mib) >= 110
    assert int(kept_mib) <= 16


def test_who_sets_a_variable_has_it_so() -> None:
    assert environment({"MALLOC_ARENA_MAX": "3"})["MALLOC_ARENA_MAX"] == "3"


@pytest.mark.parametrize("begun", [b"", b'[["headrace.stages'])
def test_the_end_of_the_pipe_ends_the_wait_for_the_word(begun: bytes) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    read, write = os.pipe()
    os.write(write, begun)
    os.close(write)
    assert not hear(read, Forkserver(cast("Any", None), Channel(ours)))
    os.close(read)
    ours.close()
    theirs.close()


def test_the_end_of_the_pipe_ends_the_wait_behind_a_large_word() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    read, write = os.pipe()
    os.write(write, b'[["headrace.stages.tokenizer.tokenize", {"sha256": "a"}]]\n')
    os.close(write)
    forkserver = Forkserver(cast("Any", None), Channel(ours))
    assert hear(read, forkserver)
    assert not hear(read, forkserver), "what is asked for next is not there either"
    os.close(read)
    ours.close()
    theirs.close()


def test_a_forkserver_is_told_once_and_the_rest_left() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    forkserver = Forkserver(cast("Any", None), Channel(ours))
    read, write = os.pipe()
    words = [("headrace.stages.sources.jsonl", {}), ("headrace.stages.tokenizer.tokenize", {"sha256": "a"})]
    os.write(write, f"{json.dumps(words)}\n127.0.0.1:1\n".encode())
    assert hear(read, forkserver)  # something large: it returns since there is more to read
    forkserver.tell(words)
    forkserver.tell([("headrace.stages.tokenizer.tokenize", {"sha256": "b"})])
    told = [msgpack.unpackb(data) for data in Channel(theirs).receive()]
    assert told == [*map(list, words), ["headrace.stages.tokenizer.tokenize", {"sha256": "b"}]]
    assert os.read(read, 100) == b"127.0.0.1:1\n"
    os.write(write, b'[["headrace.stages.sinks.texts", {}]]\n')
    assert hear(read, forkserver)  # nothing large: it does not wait
    os.close(write)
    assert not hear(read, forkserver)
    os.close(read)
    ours.close()
    theirs.close()
