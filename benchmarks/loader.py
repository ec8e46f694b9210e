"""How fast the loader is: tokens a second, resume, memory, reads from a store with latency, and a GPU's wait.

    python benchmarks/loader.py --json [--dataset URI] [--peers DIRECTORY] [--only local resume s3 disk paced gpu]

Method
------
*local*: one process, local shards in the page cache, windowed order, every field made, checksums on, each token summed
by the caller; and once more with tokens alone (`fields=()`). Ours is measured as it comes, where a thread makes some
batches ahead, and in one thread (`prefetch=0`). The limit is a bare gather in one thread: the same tokens in one
flat memory map, the same number of random rows a batch by `numpy.take` into one buffer, each token summed. Peers read
the same tokens from their own format, shuffled, by the loaders that their documentation shows and with no checksums of
their own, each token summed as int32 in numpy, in environments of their own below `--peers` (made on first use with
`uv pip`, else with `venv`; a peer that cannot be installed is reported as such). Each is measured twice: giving
`tokens` alone, which is all that it makes, and with `every_field`, where `derived` makes what ours makes of each batch
(labels, loss mask, positions, bounds of segments) by numpy from the end tokens, as its user would; document ids it
cannot know. LitData is measured with a worker process too, since ours has a second thread, and the better counts. The
clock of each pass starts with its first batch: LitData takes some 10 ms to begin one, which would be a sixteenth of a
pass over 150 MB and is nothing over a dataset of a usual size. All run in turns, and the median turn counts.
*resume*: 10^9 samples of 2,048 tokens in 15,259 sparse shards of 65,536. A fresh process imports the loader and
numpy, then opens the dataset by the public constructor, loads a state at 1, 50 and 99 %, and stops the clock with the
first batch in hand. Memory is the resident size then, less that of a process that imports the same and opens nothing.
*s3*: `benchmarks/loader_store.py`: a cold cache in front of a store, every sample read, against a plain client that
gets the same objects whole with one and with four threads, into memory (summed or not) and into files.
`--s3 seaweedfs` starts a real server on this machine, `--s3 URI` takes a store elsewhere; without it each read of a
directory waits. Without `--dataset` one of 20 shards and 600 MB is made, or of `--shards`.
*disk*: `benchmarks/loader_disk.py`: local shards that are larger than the memory a cgroup leaves, against a scan.
*paced*: `benchmarks/loader_paced.py`: a loop of 25 ms a step that leaves the processor alone, as a GPU's step does; how
long it waits for batches, and the processor time of its process.
*gpu*: needs a CUDA device: the share of a step's time that the loop waits, and the CPU time a rank.

Last result, on two cores of an AMD EPYC that other work shared outside of the timed runs:

    local    limit 1,813 M tokens/s
             as it comes: every field 1,768 M, ratio 0.97; tokens alone 2,358 M, ratio 1.30
             in one thread: every field 1,196 M, ratio 0.66; tokens alone 1,505 M, ratio 0.83
             LitData 0.2.76: tokens 268 M, with every field 205 M; with a worker process 70 M
             times LitData, as it comes: tokens alone 8.8, every field 8.6; in one thread: 5.6 and 5.8; every field
             of ours against its tokens alone 6.6
             MosaicML streaming 0.13.0: tokens 27 M, every field 25 M
    resume   1 % 51 ms, 50 % 48 ms, 99 % 50 ms, the slowest of fifteen 64 ms; 27 MB held
    s3       1,248 MB/s against 1,753 MB/s of four threads of the minio client into memory, summed: 0.76
             not summed 2,220 MB/s: 0.56; into files 1,539 MB/s: 0.81
    gpu      not measured: no device

And on two cores of an Intel Xeon (docs/performance.md):

    local    limit 1,328 M tokens/s
             as it comes: every field 877 M, ratio 0.63; tokens alone 1,272 M, ratio 0.94
             in one thread: every field 650 M, ratio 0.50; tokens alone 1,001 M, ratio 0.74
             LitData 0.2.76: tokens 203 M, with every field 121 M; with a worker process 49 M
             times LitData, as it comes: tokens alone 6.3, every field 7.3; in one thread: 4.9 and 5.4
             MosaicML streaming 0.13.0: tokens 19 M, every field 13 M
    resume   1 % 72 ms, 50 % 71 ms, 99 % 69 ms, the slowest of fifteen 75 ms; 26 MB held
    s3       817 MB/s against 882 MB/s of the plain client: ratio 0.88, in a second run 0.94; 1,169 MB/s of four
             threads: 0.67 and 0.65; into files 1,084 MB/s: 0.73 and 0.70; over 2.4 GB (--shards 80) 722 MB/s against
             850 MB/s: 0.86, four threads 0.61; behind a link of 2 Gbit/s 221 MB/s against 239 MB/s: 0.92
    disk     616 MB/s of shards of 1.9 GB with 700 MB of memory, a scan 1,199 MB/s: 0.51; the first pass 347 MB/s
    paced    a step of 25 ms: local shards 0.8 % of the time waited, 0.04 of a core; behind a link of 2 Gbit/s, cache
             cold, 0.3 % and 0.03, the first batch after 0.66 s

Five times the best peer is met by the loader as it comes, and on the EPYC in one thread. There, in one thread, a batch
of 65,536 tokens with every field takes 54 us of processor, 15 of them the caller's sum, 27 the loop that fills it, and
12 its plan and Python; tokens alone take 39. With the thread the two cores must be free.

Against the store the goal of 0.8 is met beside the plain client, at 620 MB and at 2.4 GB, and not beside four threads
of it. On the EPYC a pass of 623 MB takes 0.85 to 0.9 s of processor, 0.4 of it in the server; the plain client takes
0.55 with the server, and 0.61 where it sums. Batches come when nearly all is there (the
first after 0.34 to 0.38 s of 0.53), since a window of the default order reads from all twenty shards, and asking for
its blocks alone costs more: some 3 ms of both processors a request. So assembling, some 0.15 s, adds to fetching.
New pages of the cache's files are what varies most: on a virtual machine whose host has taken back its free memory,
they alone took 1.1 s more in some turns.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from loader_disk import from_disk
from loader_paced import paced
from loader_store import SHARDS, from_store

PARTS = ["local", "resume", "s3", "disk", "paced", "gpu"]
SEQ_LEN = 2048
BATCH = 32
TURNS = 5
TURN_S = 1.0
COMPILE_S_MAX = 60.0
PEERS = {"litdata": "litdata", "mosaicml": "mosaicml-streaming"}
#: worker processes of a peer's loader, each number of which is measured; MosaicML's dataset refuses to be forked into
#: one after it was read
PEER_WORKERS = {"litdata": (0, 1), "mosaicml": (0,)}
#: what is made of each batch of ours, and how many batches ahead: by default a thread makes some
OURS: dict[str, tuple[tuple[str, ...] | None, int | None]] = {
    "every_field": (None, None),
    "tokens": ((), None),
    "every_field_one_thread": (None, 0),
    "tokens_one_thread": ((), 0),
}
#: what a peer makes of each batch
PEER_KINDS = ("tokens", "every_field")
RESUME_SAMPLES = 10**9
RESUME_SHARD = 65_536


def rate(batches: Callable[[], Any], turn_s: float = TURN_S) -> float:
    """Tokens a second over at least `turn_s`, from the first batch of each pass on.

    `batches` makes an iterator of token arrays, a pass, and is called again.
    """
    tokens, total, took = 0, 0, 0.0
    while took < turn_s:
        given = iter(batches())
        next(given)
        began = time.perf_counter()
        for batch in given:
            total += int(batch.sum())
            tokens += batch.size
        took += time.perf_counter() - began
    assert total >= 0
    return tokens / took


def gather(flat: Path, dtype: str, batch_size: int) -> Callable[[], Any]:
    tokens = np.memmap(flat, dtype, "r").reshape(-1, SEQ_LEN)
    random = np.random.default_rng(0)
    out = np.empty((batch_size, SEQ_LEN), dtype)

    def batches() -> Any:
        rows = random.permutation(len(tokens))
        for first in range(0, len(rows) - batch_size + 1, batch_size):
            yield np.take(tokens, rows[first : first + batch_size], axis=0, out=out, mode="clip")

    return batches


def local(dataset: str, peers: Path | None) -> dict[str, Any]:
    from headrace.loader import Loader
    from headrace.loader.batch import KERNELS
    from headrace.loader.dataset import open_dataset

    with tempfile.TemporaryDirectory() as folder:
        opened = open_dataset(dataset)
        flat = Path(folder) / "flat"
        parts = [opened.shard(number).tokens for number in range(opened.layout.shards)]
        dtype = str(parts[0].dtype)
        eos = opened.manifest.pad_id if opened.manifest.eos_id is None else opened.manifest.eos_id
        with flat.open("wb") as file:
            for part in parts:
                part.tofile(file)
        del parts

        def ours(fields: tuple[str, ...] | None, prefetch: int | None) -> Any:
            # opened anew each turn, as the limit maps its file anew: the turn pays for its checksums and page faults
            loader = Loader(dataset, batch_size=BATCH, prefetch=prefetch, fields=fields)
            return lambda: (batch["tokens"] for batch in loader)

        # compiled loops are loaded, as they are some batches into any job
        assert KERNELS.wait(COMPILE_S_MAX), KERNELS.error
        runs: dict[str, list[float]] = {name: [] for name in ("limit", *OURS)}
        for _ in range(TURNS):
            runs["limit"].append(rate(gather(flat, dtype, BATCH)))
            for name, (fields, prefetch) in OURS.items():
                runs[name].append(rate(ours(fields, prefetch)))
        found = {name: statistics.median(values) for name, values in runs.items()}
        measured = {name: peer(name, peers, flat, dtype, eos) for name in PEERS} if peers else {}
    # of neighbouring turns, since the host's speed drifts
    ratios = {name: statistics.median(a / b for a, b in zip(runs[name], runs["limit"], strict=True)) for name in OURS}
    rates = [value for value in measured.values() if isinstance(value, dict)]
    best = {kind: max(one[kind] for value in rates for one in value.values()) for kind in PEER_KINDS if rates}
    return {
        "tokens_s": found["every_field"],
        "tokens_alone_s": found["tokens"],
        "limit_tokens_s": found["limit"],
        "ratio": ratios["every_field"],
        "ratio_alone": ratios["tokens"],
        "one_thread": {
            "tokens_s": found["every_field_one_thread"],
            "tokens_alone_s": found["tokens_one_thread"],
            "ratio": ratios["every_field_one_thread"],
            "ratio_alone": ratios["tokens_one_thread"],
        },
        "peers": measured or "not asked for; pass --peers DIRECTORY",
        # like against like; and every field of ours against the tokens alone of a peer
        "ratio_best_peer": {kind: found[kind] / value for kind, value in best.items()}
        | {f"{kind}_one_thread": found[f"{kind}_one_thread"] / value for kind, value in best.items()}
        | ({"every_field_against_tokens": found["every_field"] / best["tokens"]} if best else {}),
    }


def peer(name: str, folder: Path, flat: Path, dtype: str, eos: int) -> dict[str, dict[str, float]] | str:
    """Tokens a second of one peer by its worker processes and by what it makes, or why there is none."""
    python = folder / name / "bin" / "python"
    try:
        if not python.exists():
            if shutil.which("uv"):
                make = [["uv", "venv", str(folder / name)]]
                make.append(["uv", "pip", "install", "--python", str(python), "numpy", PEERS[name]])
            else:
                make = [[sys.executable, "-m", "venv", str(folder / name)]]
                make.append([str(python), "-m", "pip", "install", "--quiet", "numpy", PEERS[name]])
            for command in make:
                subprocess.run(command, check=True, capture_output=True, timeout=900)
        command = [str(python), __file__, "--peer", name, "--flat", str(flat), "--dtype", dtype, "--eos", str(eos)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (subprocess.SubprocessError, OSError, ValueError) as error:
        text = getattr(error, "stderr", None) or str(error)
        last = (text.decode() if isinstance(text, bytes) else text).strip().splitlines()[-1:]
        return f"not measured: {''.join(last)[:200]}"


def derived(tokens: Any, eos: int) -> dict[str, Any]:
    """What ours makes of a batch beside its tokens [B, L], by numpy from the end tokens alone."""
    ends = tokens == eos
    labels = np.empty_like(tokens)
    labels[:, :-1] = tokens[:, 1:]
    labels[:, -1] = -100
    labels[ends] = -100
    begins = np.ones(tokens.shape, np.bool_)
    begins[:, 1:] = ends[:, :-1]
    bounds = np.append(np.flatnonzero(begins), tokens.size)
    lengths = np.diff(bounds)
    places = np.arange(tokens.size, dtype=np.int32) - np.repeat(bounds[:-1].astype(np.int32), lengths)
    return {
        "tokens": tokens,
        "labels": labels,
        "loss_mask": labels != -100,
        "position_ids": places.reshape(tokens.shape),
        "cu_seqlens": bounds.astype(np.int32),
        "max_seqlen": int(lengths.max()),
    }


def peer_rates(batches: Callable[[], Any], eos: int) -> dict[str, float]:
    """Tokens a second by what is made of each batch, in turns."""
    turns: dict[str, Callable[[], Any]] = {
        "tokens": batches,
        "every_field": lambda: (derived(tokens, eos)["tokens"] for tokens in batches()),
    }
    runs = [{kind: rate(turn) for kind, turn in turns.items()} for _ in range(3)]
    return {kind: statistics.median(run[kind] for run in runs) for kind in PEER_KINDS}


def run_peer(name: str, flat: Path, dtype: str, eos: int) -> dict[str, dict[str, float]]:
    """Runs in the peer's own environment, where Headrace is not."""
    tokens = np.memmap(flat, dtype, "r").reshape(-1, SEQ_LEN)
    folder = flat.parent / name
    if name == "mosaicml":
        from streaming import MDSWriter, StreamingDataset
        from torch.utils.data import DataLoader

        with MDSWriter(out=str(folder), columns={"tokens": f"ndarray:{dtype}:{SEQ_LEN}"}) as writer:
            for row in tokens:
                writer.write({"tokens": np.asarray(row)})
        dataset = StreamingDataset(local=str(folder), shuffle=True, batch_size=BATCH)

        def made(workers: int) -> Callable[[], Any]:
            batches = DataLoader(dataset, BATCH, num_workers=workers, persistent_workers=workers > 0, collate_fn=list)
            return lambda: (
                np.stack([row["tokens"] for row in batch]).astype(np.int32, copy=False) for batch in batches
            )

    else:
        import litdata
        from litdata.streaming.item_loader import TokensLoader

        litdata.optimize(
            fn=Rows(str(flat), dtype),
            inputs=[(first, min(first + 1024, len(tokens))) for first in range(0, len(tokens), 1024)],
            output_dir=str(folder),
            chunk_bytes="64MB",
            item_loader=TokensLoader(block_size=SEQ_LEN),
            num_workers=1,
        )
        dataset = litdata.StreamingDataset(str(folder), item_loader=TokensLoader(block_size=SEQ_LEN), shuffle=True)

        def made(workers: int) -> Callable[[], Any]:
            batches = litdata.StreamingDataLoader(
                dataset, batch_size=BATCH, num_workers=workers, persistent_workers=workers > 0
            )
            return lambda: (batch.numpy() for batch in batches)

    return {f"workers_{workers}": peer_rates(made(workers), eos) for workers in PEER_WORKERS[name]}


class Rows:
    """What LitData's writer calls, in processes of its own."""

    def __init__(self, flat: str, dtype: str) -> None:
        self.flat, self.dtype = flat, dtype

    def __call__(self, span: tuple[int, int]) -> Any:
        import torch

        tokens = np.memmap(self.flat, self.dtype, "r").reshape(-1, SEQ_LEN)
        for row in tokens[span[0] : span[1]]:
            yield torch.from_numpy(row.astype(np.int32))


def sparse_dataset(root: Path) -> None:
    """10^9 samples in sparse shards: one piece a row, tokens that are a hole; files are links to sixteen."""
    from headrace.loader.cache import file_checksum

    pieces = np.arange(RESUME_SHARD, dtype=np.int32)
    fields = [
        ("piece_document", pieces),
        ("piece_length", np.full_like(pieces, SEQ_LEN)),
        ("piece_sequence", pieces),
        ("piece_start", np.zeros_like(pieces)),
    ]
    header, offset = {}, 0
    for name, array in fields:
        header[name] = {"dtype": "I32", "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    end = offset + RESUME_SHARD * SEQ_LEN * 2
    header["tokens"] = {"dtype": "U16", "shape": [RESUME_SHARD, SEQ_LEN], "data_offsets": [offset, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    folder = root / "shards/1"
    folder.mkdir(parents=True)
    for number in range(16):
        with (folder / f"file-{number}").open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text + b"".join(array.tobytes() for _, array in fields))
            file.truncate(8 + len(text) + end)
    checksum, _ = file_checksum(str(folder / "file-0"))
    shards = []
    for number in range(-(-RESUME_SAMPLES // RESUME_SHARD)):
        key = f"shards/1/{number:032x}.safetensors"
        os.link(folder / f"file-{number % 16}", root / key)
        shards.append(
            {
                "tokens": key,
                "documents": key.replace("safetensors", "documents.parquet"),
                "verdicts": key.replace("safetensors", "verdicts.parquet"),
                "checksum": checksum,
                "records": RESUME_SHARD,
                "kept": RESUME_SHARD,
                "token_count": RESUME_SHARD * SEQ_LEN,
                "sequences": RESUME_SHARD,
            }
        )
    manifest = {"format": 1, "dataset": "sparse", "version": 1, "seq_len": SEQ_LEN, "tokenizer": "none", "pad_id": 0}
    (root / "manifest.json").write_text(json.dumps({**manifest, "eos_id": None, "shards": shards}))


RESUMED = """
import json, sys, time
import numpy
from headrace.loader.loader import Loader

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

uri, share = sys.argv[1], float(sys.argv[2])
empty = resident()
state = json.load(open(sys.argv[3])) if len(sys.argv) > 3 else None
began = time.perf_counter()
loader = Loader(uri, batch_size=8)
if state:
    loader.load_state_dict(state)
batch = next(iter(loader))
took_ms = (time.perf_counter() - began) * 1e3
assert batch["tokens"].shape == (8, 2048)
held = resident() - empty
print(json.dumps({"ms": took_ms, "held_bytes": held, "state": loader.state_dict()}))
loader.close()
"""


def resume() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "dataset"
        sparse_dataset(root)

        def run(*arguments: str) -> dict[str, Any]:
            done = subprocess.run(
                [sys.executable, "-c", RESUMED, str(root), *arguments], capture_output=True, text=True, check=True
            )
            return dict(json.loads(done.stdout))

        state = run("0")["state"]
        found: dict[str, Any] = {}
        for share in (0.01, 0.5, 0.99):
            state["position"] = int(RESUME_SAMPLES * share)
            path = Path(folder) / "state.json"
            path.write_text(json.dumps(state))
            runs = [run(str(share), str(path)) for _ in range(TURNS)]
            found[f"{share:.0%}_ms"] = statistics.median(one["ms"] for one in runs)
            found[f"{share:.0%}_ms_max"] = max(one["ms"] for one in runs)
        return {
            **found,
            "held_mb": statistics.median(one["held_bytes"] for one in runs) / 1e6,
            "samples": RESUME_SAMPLES,
        }


def gpu(dataset: str) -> dict[str, Any] | str:
    try:
        import torch
    except ImportError:
        return "not measured: no torch"
    if not torch.cuda.is_available():
        return "not measured: no CUDA device"
    from headrace.loader import Loader, TorchLoader

    loader = TorchLoader(Loader(dataset, batch_size=8), "cuda")
    weight = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    table = torch.randn(1 << 18, 4096, device="cuda", dtype=torch.bfloat16)
    steps, waited, began, cpu = 0, 0.0, 0.0, 0.0
    batches = iter(loader)
    while steps < 60:
        if steps == 10:
            torch.cuda.synchronize()
            began, cpu, waited = time.perf_counter(), _cpu_s(), 0.0
        before = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - before
        x = table[batch["tokens"].flatten()]
        for _ in range(24):
            x = x @ weight
        # as a training loop does that logs its loss
        float(x.float().mean())
        steps += 1
    took = time.perf_counter() - began
    return {"wait_share": waited / took, "cpu_cores": (_cpu_s() - cpu) / took, "step_ms": took / 50 * 1e3}


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", help="a dataset of seq_len 2,048, such as examples/plain.py makes")
    parser.add_argument("--peers", type=Path, help="a directory for the peers' environments")
    parser.add_argument("--s3", help="seaweedfs starts one; or the URI of the dataset in a real store")
    parser.add_argument("--link", type=float, metavar="GBIT", help="with --s3 seaweedfs: behind a link of that rate")
    parser.add_argument("--shards", type=int, default=SHARDS, help="with --s3 and no --dataset: shards of 31 MB made")
    parser.add_argument("--only", nargs="*", choices=PARTS)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("--flat", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--dtype", help=argparse.SUPPRESS)
    parser.add_argument("--eos", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.peer:
        print(json.dumps(run_peer(asked.peer, asked.flat, asked.dtype, asked.eos)))
        return
    only = asked.only or PARTS
    if not asked.dataset and set(only) - {"resume", "s3", "disk"}:
        parser.error("--dataset is needed for all but --only resume s3 disk")
    parts: dict[str, Callable[[], Any]] = {
        "local": lambda: local(asked.dataset, asked.peers),
        "resume": resume,
        "s3": lambda: from_store(asked.dataset, asked.s3, BATCH, TURNS, asked.link, asked.shards),
        "disk": from_disk,
        "paced": lambda: paced(asked.dataset, asked.s3, BATCH, asked.link),
        "gpu": lambda: gpu(asked.dataset),
    }
    result = {name: parts[name]() for name in only}
    print(json.dumps(result, indent=None if asked.json else 2))


if __name__ == "__main__":
    main()
