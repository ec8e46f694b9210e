"""The part of `benchmarks/loader.py` that reads from a store, cache cold.

Ours is the time from opening the dataset to the last batch of one pass in the default order: each shard is fetched,
checked by blocks, written to the cache, and each of its tokens is given out with every field, or with none beside the
tokens (`tokens`), and summed. The limit is the minio client's `get_object` on the same objects, whose tokens are summed
too: that is work of whoever uses the tokens and not of who brings them. `ratio` is against the plain client as
`benchmarks/s3.py` has it, which gets one object after the other; `ratio_threads` against the better of that and of four
threads; `_not_summed` against the latter where it leaves the bytes alone, and `_files` where it writes them to files on
the cache's disk, as ours does, and does not sum. All run in turns, of which the first warms the server up. The
median turn counts, and each turn's ratio is against the limit of the same turn.

With a link's rate (`--link`) the server lies in a network namespace behind a link of so many Gbit/s, as a store is that
shares no cores with who trains; it has no latency beside that of its queue.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

STORE_LATENCY_S = 0.02
THREADS = (1, 4)
SHARDS, SHARD_ROWS, SEQ_LEN = 20, 3800, 2048
COMPILE_S_MAX = 60.0
#: what is made of each batch of ours
OURS: dict[str, tuple[str, ...] | None] = {"ours": None, "tokens": ()}
#: of a link, in the words of `tc-tbf(8)`: what may pass at once, and for how long bytes may queue
LINK_BURST, LINK_QUEUE = "4mb", "50ms"
LINK_NETWORK, LINK_HERE, LINK_THERE = 30, "10.99.7.1", "10.99.7.2"
LINK_S_MAX = 20.0


class SlowStore:
    """A local store behind a wait: no local files, `STORE_LATENCY_S` before each read."""

    is_remote = True

    def __init__(self, uri: str) -> None:
        from headrace.store import Capabilities, open_store

        self.inner, self.capabilities = open_store(uri), Capabilities()

    @property
    def uri(self) -> str:
        return self.inner.uri

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        time.sleep(STORE_LATENCY_S)
        return self.inner.get(key, offset, length)

    def head(self, key: str) -> Any:
        return self.inner.head(key)

    def open_local(self, key: str) -> None:
        return None


def from_store(
    dataset: str | None,
    uri: str | None,
    batch_size: int,
    turns: int,
    link_gbit_s: float | None = None,
    shards: int = SHARDS,
) -> dict[str, Any]:
    """Bytes a second of all shards through a cold cache, over those of a plain client that gets whole objects."""
    from headrace.loader.batch import KERNELS
    from headrace.store import open_store

    # as they are some batches into any job
    assert KERNELS.wait(COMPILE_S_MAX), KERNELS.error
    with contextlib.ExitStack() as stack:
        if dataset is None and (uri is None or uri == "seaweedfs"):
            dataset = stack.enter_context(made_dataset(shards))
        store: Any = None if dataset is None else SlowStore(dataset)
        get: Callable[[str], bytes] = getattr(store, "get", bytes)
        if uri:
            ours = uri == "seaweedfs"
            uri, get = served(str(dataset), link_gbit_s, stack) if ours else (uri, open_store(uri).get)
            store = open_store(uri)
        rates: dict[str, list[float]] = {}
        for turn in range(turns + 1):
            for name, value in one_turn(store, get, batch_size).items():
                if turn:
                    rates.setdefault(name, []).append(value)
    for kind in KINDS:
        rates[kind] = [max(pair) for pair in zip(*(rates[f"{kind}{n}"] for n in THREADS), strict=True)]
    found = {f"{name}_bytes_s": statistics.median(values) for name, values in rates.items()}
    limits = {"": "summed1", "_threads": "summed", "_not_summed": "memory", "_files": "files"}
    for name, ours_ in (("ratio", "ours"), ("ratio_tokens", "tokens")):
        for end, limit in limits.items():
            found[name + end] = statistics.median(a / b for a, b in zip(rates[ours_], rates[limit], strict=True))
    return {
        **found,
        "runs": {name: [round(value) for value in values] for name, values in rates.items()},
        "store": uri or f"a directory with {STORE_LATENCY_S * 1e3:.0f} ms before each read",
        "link_gbit_s": link_gbit_s,
    }


KINDS = ("summed", "memory", "files")
#: header and pieces are summed with the tokens, some in a thousand
WORD = np.int32


def one_turn(store: Any, get: Callable[[str], bytes], batch_size: int) -> dict[str, float]:
    """Bytes a second: ours, and of the plain client into memory and into files by its threads."""
    from headrace.loader import Loader
    from headrace.loader.cache import ShardCache
    from headrace.loader.dataset import dataset_in

    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        keys = [shard.tokens for shard in dataset_in(store, cache=ShardCache(folder)).manifest.shards]

        def summed(key: str) -> int:
            data = get(key)
            np.frombuffer(data, WORD, len(data) // WORD().itemsize).sum()
            return len(data)

        def fetched(key: str) -> int:
            return len(get(key))

        def filed(key: str) -> int:
            return Path(folder, key.replace("/", "-")).write_bytes(get(key))

        size = 0
        for kind, job in zip(KINDS, (summed, fetched, filed), strict=True):
            for threads in THREADS:
                began = time.perf_counter()
                with ThreadPoolExecutor(threads) as pool:
                    size = sum(pool.map(job, keys))
                found[f"{kind}{threads}"] = size / (time.perf_counter() - began)
                for path in Path(folder).iterdir():
                    path.unlink()
        for name, fields in OURS.items():
            with tempfile.TemporaryDirectory(dir=folder) as cache:
                began = time.perf_counter()
                loader = Loader(dataset_in(store, cache=ShardCache(cache)), batch_size=batch_size, fields=fields)
                for batch in loader:
                    batch["tokens"].sum()
                found[name] = size / (time.perf_counter() - began)
                loader.close()
    return found


@contextlib.contextmanager
def behind_link(gbit_s: float) -> Iterator[list[str]]:
    """An address behind a link of this rate, and the command that enters its network namespace. Needs root."""
    name = f"headrace-{os.getpid()}"
    here, there = "hr-bench0", "hr-bench1"
    inside = ["ip", "netns", "exec", name]
    rate = ["rate", f"{gbit_s * 1e3:.0f}mbit", "burst", LINK_BURST, "latency", LINK_QUEUE]
    try:
        for command in (
            ["ip", "netns", "add", name],
            ["ip", "link", "add", here, "type", "veth", "peer", "name", there, "netns", name],
            ["ip", "address", "add", f"{LINK_HERE}/{LINK_NETWORK}", "dev", here],
            ["ip", "link", "set", here, "up"],
            [*inside, "ip", "address", "add", f"{LINK_THERE}/{LINK_NETWORK}", "dev", there],
            [*inside, "ip", "link", "set", there, "up"],
            [*inside, "ip", "link", "set", "lo", "up"],
            [*inside, "tc", "qdisc", "add", "dev", there, "root", "tbf", *rate],
        ):
            subprocess.run(command, check=True, timeout=LINK_S_MAX)
        yield [LINK_THERE, *inside]
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=False, timeout=LINK_S_MAX)


@contextlib.contextmanager
def made_dataset(shards: int = SHARDS) -> Iterator[str]:
    """A dataset of random tokens in documents of lengths as the web has them: so many shards of 31 MB each."""
    from headrace.store.shards import build_tokens, content_hash

    random = np.random.default_rng(0)
    entries = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "shards/1").mkdir(parents=True)
        for _ in range(shards):
            lengths = np.clip(random.lognormal(6.2, 1.0, SHARD_ROWS * 3), 8, 30_000).astype(np.int64)
            lengths = lengths[: np.searchsorted(np.cumsum(lengths), SHARD_ROWS * SEQ_LEN)]
            tokens = random.integers(3, 120_000, int(lengths.sum()), dtype=np.uint32)
            shard = build_tokens(tokens, lengths, seq_len=SEQ_LEN, dtype=np.uint32, pad_id=1, metadata={})
            name = content_hash(shard.parts)
            key = f"shards/1/{name}.safetensors"
            (Path(folder) / key).write_bytes(b"".join(shard.parts))
            entries.append(
                {
                    "tokens": key,
                    "documents": key.replace("safetensors", "documents.parquet"),
                    "verdicts": key.replace("safetensors", "verdicts.parquet"),
                    "checksum": f"xxh3-128:{name}",
                    "records": lengths.size,
                    "kept": lengths.size,
                    "token_count": tokens.size,
                    "sequences": shard.packing.sequences,
                }
            )
        manifest = {"format": 1, "dataset": "random", "version": 1, "seq_len": SEQ_LEN, "tokenizer": "none"}
        text = json.dumps({**manifest, "pad_id": 1, "eos_id": None, "shards": entries})
        (Path(folder) / "manifest.json").write_text(text)
        yield folder


def served(dataset: str, link_gbit_s: float | None, stack: contextlib.ExitStack) -> tuple[str, Callable[[str], bytes]]:
    """The dataset in a SeaweedFS of our own: its URI, and how the plain minio client gets an object."""
    from minio import Minio

    from headrace.store import open_store

    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.kits.store.s3_server import shared_server

    server = shared_server(*stack.enter_context(behind_link(link_gbit_s))) if link_gbit_s else shared_server()
    uri = server.uri("bench")
    local, remote = open_store(dataset), open_store(uri)
    for info in local.list(""):
        if info.key == "manifest.json" or info.key.endswith(".safetensors"):
            remote.replace(info.key, [local.get(info.key)])
    client = Minio(
        server.endpoint.removeprefix("http://"),
        os.environ["AWS_ACCESS_KEY_ID"],
        os.environ["AWS_SECRET_ACCESS_KEY"],
        secure=False,
        region="us-east-1",
    )

    def get(key: str) -> bytes:
        response = client.get_object(server.bucket, f"bench/{key}")
        try:
            return response.read()
        finally:
            response.close()
            response.release_conn()

    return uri, get
