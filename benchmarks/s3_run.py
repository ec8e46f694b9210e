"""Whole runs from S3 to S3 against the plain minio client moving the same objects; `s3.py --run CORPUS` runs it.

Method. CORPUS is a folder of JSON Lines; `--megabytes` of it are packed as each chain reads them and put into the
bucket. For each chain three ways alternate, each timed from the start of its command to its end:

- plain: processes of the plain minio client, one a core, which get every input object and put every object that the
  run wrote, with the same bytes and under fresh keys. Nothing is read of what is got: it only moves.
- loop: processes of the plain minio client, one a core, which get an object, do the same stages, and put what comes
  of it (`s3_loop.py`): the script that one would write instead. It accounts for nothing and tries nothing twice.
- s3: `headrace run` with input and output in the bucket.
- files: the same run with the same input and output as files; what it takes the stages take, not the store.
- datatrove, with `--datatrove PYTHON`, of the chains that it has: the same files read and written by datatrove, with a
  worker a core (`s3_datatrove.py`). `files_peer` is datatrove / files.

`ratio` is plain / s3: what moving alone takes against a run that must also do its work, so that it cannot be near 1.
`work` is loop / s3: both do the same; `work_cpu` is that of the processor time of all processes and the server, which
a machine in use disturbs less. `moving` is plain / (s3 - files): what the plain client takes, against what the store
adds to a run. `files_peer` is datatrove / files. Seconds are medians, ratios medians of the rounds'. The server shares
the cores with all of it.

chain     reads                      writes                     the stages do
text      files of 4 MiB             Parquet with the text      decode, copy, compress (zstd)
parquet   Parquet (zstd)             Parquet with the text      the same, and decompress
jsonl     .jsonl.zst                 .jsonl.zst                 parse, write JSON, compress
tokens    .jsonl.zst                 token shards               tokenize

Last result: docs/performance.md.
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import pathlib
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from minio import Minio

from headrace.store import open_store
from tests.kits.store.s3_server import S3Server

MIB = 1 << 20
TEXT_BYTES = 4 * MIB
RUN_S_MAX = 600.0
PIPELINE = """
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import read, tokenize, write_documents, write_jsonl, write_tokens


def build(input: str, output: str, chain: str) -> Pipeline:
    tokens = tokenize("deepseek")
    sinks = {
        "text": (write_documents(shard_bytes=32 << 20),),
        "parquet": (write_documents(shard_bytes=32 << 20),),
        "jsonl": (write_jsonl(shard_bytes=32 << 20),),
        "tokens": (tokens, write_tokens(tokens)),
    }
    return Pipeline.chain("moved", output, read(input), *sinks[chain])
"""
CHAINS = ("text", "parquet", "jsonl", "tokens")
LOOP = pathlib.Path(__file__).with_name("s3_loop.py")
PEER = pathlib.Path(__file__).with_name("s3_datatrove.py")
PEER_CHAINS = ("jsonl", "parquet")


@dataclass(frozen=True, slots=True)
class Timed:
    """Of one way: seconds by the clock, of its processes, and of the server meanwhile."""

    seconds: float
    cpu_s: float
    server_cpu_s: float

    @property
    def all_cpu_s(self) -> float:
        """Of its processes and the server."""
        return self.cpu_s + self.server_cpu_s


def measure(
    server: S3Server, corpus: pathlib.Path, megabytes: int, rounds: int, chains: list[str], peer: str = ""
) -> dict[str, Any]:
    """The figures of each chain."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=corpus, prefix=".s3-") as name:
        folder = pathlib.Path(name)
        (folder / "moved.py").write_text(PIPELINE)
        lines = _lines(corpus, megabytes * 1_000_000)
        for chain in chains:
            given = folder / chain
            given.mkdir()
            _pack(chain, lines, given)
            found[chain] = _chain(server, folder, given, chain, rounds, peer if chain in PEER_CHAINS else "")
    return found


def _chain(
    server: S3Server, folder: pathlib.Path, given: pathlib.Path, chain: str, rounds: int, peer: str
) -> dict[str, Any]:
    prefix = f"run-{chain}-{secrets.token_hex(4)}"
    store = open_store(server.uri(f"{prefix}/in"))
    for path in sorted(given.iterdir()):
        store.create(path.name, [path.read_bytes()])
    times: dict[str, list[Timed]] = {"s3": [], "loop": [], "plain": [], "files": []}
    inputs = [f"{prefix}/in/{path.name}" for path in sorted(given.iterdir())]
    outputs: list[str] = []
    for number in range(rounds):
        out = f"{prefix}/out-{number}"
        base, query = server.uri(f"{prefix}/in").split("?", 1)
        times["s3"].append(_timed(lambda b=base, q=query, o=out: _run(folder, chain, f"{b}/*?{q}", server.uri(o))))
        outputs = [f"{out}/{info.key}" for info in open_store(server.uri(out)).list("")]
        loop = f"{prefix}/loop-{number}"
        times["loop"].append(_timed(lambda o=loop: _loop(server, folder, chain, inputs, o)))
        _same_shards(server, out, loop)
        times["plain"].append(_timed(lambda o=outputs: _move(server, inputs, o)))
        local = folder / f"{chain}-{number}"
        times["files"].append(_timed(lambda at=local: _run(folder, chain, f"{given}/*", str(at))))
        if peer:
            place = folder / f"{chain}-datatrove-{number}"
            times.setdefault("datatrove", []).append(_timed(lambda at=place: _peer(peer, chain, given, at)))
        for way, timed in times.items():
            print(chain, way, timed[-1], file=sys.stderr, flush=True)
    return _summary(server, times, inputs, outputs)


def _summary(server: S3Server, times: dict[str, list[Timed]], inputs: list[str], outputs: list[str]) -> dict[str, Any]:
    client = _client(server)
    sizes = {key: client.stat_object(server.bucket, key).size or 0 for key in inputs + outputs}
    rounds = list(zip(times["s3"], times["plain"], times["files"], strict=True))
    loops = list(zip(times["s3"], times["loop"], strict=True))
    found: dict[str, Any] = {
        "objects": [len(inputs), len(outputs)],
        "mb": [round(sum(sizes[key] for key in keys) / 1e6, 1) for keys in (inputs, outputs)],
    }
    for way, timed in times.items():
        found[f"{way}_s"] = _median(item.seconds for item in timed)
        found[f"{way}_cpu_s"] = _median(item.cpu_s for item in timed)
        if way in ("s3", "plain", "loop"):
            found[f"{way}_server_cpu_s"] = _median(item.server_cpu_s for item in timed)
    found["ratio"] = _median(plain.seconds / s3.seconds for s3, plain, _ in rounds)
    found["work"] = _median(loop.seconds / s3.seconds for s3, loop in loops)
    found["work_cpu"] = _median(loop.all_cpu_s / s3.all_cpu_s for s3, loop in loops)
    found["moving"] = _median(plain.seconds / max(s3.seconds - files.seconds, 0.01) for s3, plain, files in rounds)
    if peers := times.get("datatrove"):
        pairs = zip(peers, times["files"], strict=True)
        found["files_peer"] = _median(theirs.seconds / files.seconds for theirs, files in pairs)
    return found


def _median(values: Iterable[float]) -> float:
    return round(statistics.median(values), 2)


def _timed(work: Any) -> Timed:
    start, ours, server = time.perf_counter(), _cpu_children(), _cpu_of_server()
    work()
    return Timed(
        round(time.perf_counter() - start, 3), round(_cpu_children() - ours, 3), round(_cpu_of_server() - server, 3)
    )


def _cpu_children() -> float:
    """Seconds of every process that this one has waited for."""
    times = os.times()
    return times.children_user + times.children_system


def _cpu_of_server() -> float:
    """Seconds of the server that the tests' kit started; 0 where it is another's."""
    ticks = os.sysconf("SC_CLK_TCK")
    for entry in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, rest = entry.read_text().rpartition(")")
            fields = rest.split()
            if name.endswith("(weed") and int(fields[1]) == os.getpid():
                return (int(fields[11]) + int(fields[12])) / ticks
    return 0.0


def _run(folder: pathlib.Path, chain: str, given: str, output: str) -> None:
    parameters = ["-p", f"input={given}", "-p", f"output={output}", "-p", f"chain={chain}"]
    command = [sys.executable, "-P", "-m", "headrace.cli", "run", "moved.py", *parameters, "--json"]
    done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True, timeout=RUN_S_MAX)
    if done.returncode or not json.loads(done.stdout)["balanced"]:
        raise SystemExit(f"{chain}: {done.stderr}")


def _loop(server: S3Server, folder: pathlib.Path, chain: str, inputs: list[str], output: str) -> None:
    order = {
        "endpoint": server.endpoint,
        "bucket": server.bucket,
        "inputs": inputs,
        "output": output,
        "chain": chain,
        "pipeline": str(folder / "moved.py"),
        "cores": len(os.sched_getaffinity(0)),
    }
    (folder / "order.json").write_text(json.dumps(order))
    command = [sys.executable, "-P", str(LOOP), str(folder / "order.json")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=RUN_S_MAX)
    if done.returncode:
        raise SystemExit(f"{chain}: {done.stderr}")


def _same_shards(server: S3Server, run: str, loop: str) -> None:
    """Both have put about the same bytes of shards, whatever the ledger holds besides."""
    sizes = [sum(info.size for info in open_store(server.uri(name)).list("shards/")) for name in (run, loop)]
    if not sizes[0] or abs(sizes[0] - sizes[1]) > 0.02 * sizes[0]:
        raise SystemExit(f"{run} has {sizes[0]} bytes of shards, {loop} has {sizes[1]}")


def _peer(python: str, chain: str, given: pathlib.Path, output: pathlib.Path) -> None:
    cores = len(os.sched_getaffinity(0))
    command = [python, str(PEER), chain, str(given), str(output), str(cores)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=RUN_S_MAX)
    sizes = [sum(path.stat().st_size for path in folder.glob("*")) for folder in (given, output)]
    if done.returncode or sizes[1] < sizes[0] / 2:  # what it cannot read it passes over
        raise SystemExit(f"datatrove, {chain}: {sizes[1]} bytes of {sizes[0]}: {done.stderr}")


def _client(server: S3Server) -> Minio:
    return Minio(
        server.endpoint.removeprefix("http://"),
        os.environ["AWS_ACCESS_KEY_ID"],
        os.environ["AWS_SECRET_ACCESS_KEY"],
        secure=False,
        region=os.environ.get("AWS_REGION", "us-east-1"),
    )


def _move(server: S3Server, inputs: list[str], outputs: list[str]) -> None:
    """Get the inputs and put objects like the outputs, with a process a core."""
    cores = len(os.sched_getaffinity(0))
    client = _client(server)
    bodies = []
    for key in outputs:  # not a part of moving, and so read before
        response = client.get_object(server.bucket, key)
        bodies.append(response.read())
        response.release_conn()
    work = multiprocessing.get_context("fork")
    begin = work.Barrier(cores + 1)
    movers = [
        work.Process(target=_mover, args=(server, inputs[number::cores], bodies[number::cores], begin))
        for number in range(cores)
    ]
    for mover in movers:
        mover.start()
    begin.wait()
    for mover in movers:
        mover.join()
        if mover.exitcode:
            raise SystemExit("the plain client failed")


def _mover(server: S3Server, inputs: list[str], bodies: list[bytes], begin: Any) -> None:
    client = _client(server)
    begin.wait()
    for key in inputs:
        response = client.get_object(server.bucket, key)
        response.read()
        response.release_conn()
    for body in bodies:
        client.put_object(server.bucket, f"moved/{secrets.token_hex(8)}", io.BytesIO(body), len(body))


def _lines(corpus: pathlib.Path, limit: int) -> list[bytes]:
    """Lines of the corpus of about so many bytes."""
    found: list[bytes] = []
    size = 0
    for path in sorted(corpus.glob("*.jsonl")):
        with path.open("rb") as file:
            for line in file:
                if size >= limit:
                    return found
                found.append(line)
                size += len(line)
    return found


def _pack(chain: str, lines: list[bytes], folder: pathlib.Path) -> None:
    """The lines as the chain reads them."""
    for number, part in enumerate(_parts(lines, 16 * MIB)):
        if chain in ("jsonl", "tokens"):
            packed: bytes = pa.Codec("zstd").compress(b"".join(part), asbytes=True)
            (folder / f"{number:03d}.jsonl.zst").write_bytes(packed)
            continue
        records = [json.loads(line) for line in part]
        if chain == "parquet":
            table = pa.table({key: [record.get(key) for record in records] for key in ("id", "text")})
            pq.write_table(table, folder / f"{number:03d}.parquet", compression="zstd", row_group_size=1000)
            continue
        text = "\n".join(record["text"] for record in records).encode()
        for at in range(0, len(text), TEXT_BYTES):
            body = text[at : at + TEXT_BYTES].decode(errors="ignore")
            (folder / f"{number:03d}-{at // TEXT_BYTES}.txt").write_text(body)


def _parts(lines: list[bytes], size: int) -> Iterator[list[bytes]]:
    """The lines in runs of about `size` bytes."""
    held: list[bytes] = []
    count = 0
    for line in lines:
        held.append(line)
        count += len(line)
        if count >= size:
            yield held
            held, count = [], 0
    if held:
        yield held
