"""The part of `benchmarks/loader.py` that stands in for a GPU: a loop whose step leaves the processor alone.

A step on a GPU is a wait, seen from the host. Here it is one of `STEP_S` by the clock, behind each batch of
`TorchLoader` on the CPU, so that the loop takes 32 rows of 2,048 tokens every 25 ms, 2.6 million tokens a second,
for which a model of a billion parameters would take 16 PFLOP/s (6 a parameter and token). Measured over a pass of the
dataset or `STEPS_MAX` steps are the share of the time in which the loop waited for its batch, once the first is there,
the longest such wait, and how many cores the whole process kept busy. *local* reads local shards; *store*, with `--s3`,
reads through a cold cache, behind a link where `--link` says so. What it does not show is the copy to a device.
"""

import contextlib
import tempfile
import time
from typing import Any

STEP_S = 0.025
STEPS_MAX = 800
COMPILE_S_MAX = 60.0


def paced(dataset: str, uri: str | None, batch_size: int, link_gbit_s: float | None) -> dict[str, Any]:
    """Waits and processor time of a paced loop over local shards, and over those of a store where one is named."""
    from loader_store import served

    from headrace.loader.batch import KERNELS
    from headrace.loader.cache import ShardCache
    from headrace.loader.dataset import dataset_in, open_dataset
    from headrace.store import open_store

    assert KERNELS.wait(COMPILE_S_MAX), KERNELS.error
    found = {"step_ms": STEP_S * 1e3, "local": one_pass(open_dataset(dataset), batch_size)}
    if uri:
        with contextlib.ExitStack() as stack:
            uri = served(dataset, link_gbit_s, stack)[0] if uri == "seaweedfs" else uri
            cache = ShardCache(stack.enter_context(tempfile.TemporaryDirectory()))
            found["store"] = one_pass(dataset_in(open_store(uri), cache=cache), batch_size)
            found["link_gbit_s"] = link_gbit_s
    return found


def one_pass(dataset: Any, batch_size: int) -> dict[str, float]:
    """Of one pass in steps of `STEP_S`: shares of its time and of a step, milliseconds, cores."""
    from headrace.loader import Loader, TorchLoader

    loader = TorchLoader(Loader(dataset, batch_size=batch_size))
    began = time.perf_counter()
    batches = iter(loader)
    next(batches)
    first_s = time.perf_counter() - began
    waits: list[float] = []
    began, cpu_s = time.perf_counter(), time.process_time()
    while len(waits) < STEPS_MAX:
        time.sleep(STEP_S)
        asked = time.perf_counter()
        if next(batches, None) is None:
            break
        waits.append(time.perf_counter() - asked)
    took_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_s
    loader.close()
    return {
        "first_ms": first_s * 1e3,
        "steps": len(waits),
        "wait_share": sum(waits) / took_s,
        "wait_ms_max": max(waits) * 1e3,
        "cpu_cores": cpu_s / took_s,
    }
