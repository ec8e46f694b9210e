"""What tasks are born with: allocators that keep little of what is freed."""

import os
import subprocess
import sys

from headrace.worker.cradle import environment

_KEPT = """
import re, pyarrow as pa
from headrace.worker.memory import give_back
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


def test_what_a_task_frees_is_given_back() -> None:
    born = environment({name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ})
    said = subprocess.run([sys.executable, "-c", _KEPT], env=born, capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, said.stderr
    backend, held_mib, kept_mib = said.stdout.split()
    assert backend == "system"
    assert int(held_mib) >= 110
    assert int(kept_mib) <= 16


def test_who_sets_a_variable_has_it_so() -> None:
    assert environment({"MALLOC_ARENA_MAX": "3"})["MALLOC_ARENA_MAX"] == "3"
