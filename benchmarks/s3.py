"""The S3 store against the plain minio client, moving the same objects.

    python benchmarks/s3.py [--json] [--rounds N] [--mib N]
    python benchmarks/s3.py --run CORPUS [--megabytes 150] [--rounds N] [--datatrove PYTHON]   # whole runs: s3_run.py

Method. One SeaweedFS on this machine (or the server of `HEADRACE_TEST_S3`), random bytes. For each size both ways put
the same objects under fresh keys, then get them, one after the other in one thread; rounds alternate which way goes
first. `put` is `create` (conditional) against `put_object`, `get` is a whole `get` against `get_object(...).read()`.
Speeds are medians, the ratio is the median of the rounds' ratios. Ours also computes and verifies a checksum.
The server shares the cores with the client, so the limit is the server's; the plain client is the measure of it.

Last result (`--rounds 5 --mib 128`, SeaweedFS 4.48 on the same two cores): docs/performance.md.
"""

import argparse
import io
import json
import os
import pathlib
import secrets
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import urllib3
from minio import Minio

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from headrace.store.s3 import S3Store
from tests.kits.store.s3_server import S3Server, shared_server

MIB = 1 << 20
#: Sizes in bytes: a ledger entry, a small shard, a shard, and the largest that is read in one request.
SIZES = {"16 KiB": 16 << 10, "4 MiB": 4 * MIB, "32 MiB": 32 * MIB, "64 MiB": 64 * MIB}
OBJECTS_MAX = 64


class Plain:
    """The minio client as its own documentation uses it."""

    def __init__(self, server: S3Server) -> None:
        self.bucket = server.bucket
        self.client = Minio(
            server.endpoint.removeprefix("http://"),
            os.environ["AWS_ACCESS_KEY_ID"],
            os.environ["AWS_SECRET_ACCESS_KEY"],
            secure=False,
            region=os.environ.get("AWS_REGION", "us-east-1"),
        )

    def put(self, key: str, body: bytes) -> None:
        self.client.put_object(self.bucket, key, io.BytesIO(body), len(body))

    def get(self, key: str) -> bytes:
        response: urllib3.BaseHTTPResponse = self.client.get_object(self.bucket, key)
        try:
            return response.read()
        finally:
            response.close()
            response.release_conn()


class Ours:
    def __init__(self, server: S3Server) -> None:
        self.store = S3Store(f"s3://{server.bucket}?endpoint={server.endpoint}")

    def put(self, key: str, body: bytes) -> None:
        assert self.store.create(key, [body])

    def get(self, key: str) -> bytes:
        return self.store.get(key)


def timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def move(way: Plain | Ours, bodies: list[bytes]) -> tuple[float, float]:
    """Seconds to put the objects and to get them again."""
    keys = [f"bench/{secrets.token_hex(8)}" for _ in bodies]

    def put() -> None:
        for key, body in zip(keys, bodies, strict=True):
            way.put(key, body)

    def get() -> None:
        for key, body in zip(keys, bodies, strict=True):
            assert len(way.get(key)) == len(body)

    return timed(put), timed(get)


def measure(ways: dict[str, Plain | Ours], size: int, total: int, rounds: int) -> dict[str, dict[str, float]]:
    bodies = [os.urandom(size) for _ in range(max(1, min(OBJECTS_MAX, total // size)))]
    moved_mb = sum(map(len, bodies)) / 1e6
    speeds: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name in sorted(ways, reverse=bool(number % 2)):
            put_s, get_s = move(ways[name], bodies)
            if number:  # the first round warms up
                speeds[name].append((moved_mb / put_s, moved_mb / get_s))
    found: dict[str, dict[str, float]] = {}
    for place, verb in enumerate(("put", "get")):
        ours, plain = ([speed[place] for speed in speeds[name]] for name in ("ours", "plain"))
        found[verb] = {
            "mb_s": round(statistics.median(ours), 1),
            "plain_mb_s": round(statistics.median(plain), 1),
            "ratio": round(statistics.median(a / b for a, b in zip(ours, plain, strict=True)), 2),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--mib", type=int, default=128, help="moved a round and way, for each size (at most 64 objects)"
    )
    parser.add_argument("--run", type=pathlib.Path, help="a folder of JSON Lines: whole runs instead (s3_run.py)")
    parser.add_argument("--megabytes", type=int, default=150, help="of --run")
    parser.add_argument("--chains", default="", help="of --run: some of its chains, with commas between")
    parser.add_argument("--datatrove", default="", help="of --run: an interpreter that has datatrove, as a peer")
    options = parser.parse_args()
    server = shared_server()
    if options.run is not None:
        import s3_run

        chains = options.chains.split(",") if options.chains else list(s3_run.CHAINS)
        found = s3_run.measure(server, options.run, options.megabytes, options.rounds, chains, options.datatrove)
        print(json.dumps(found))
        return
    ways: dict[str, Plain | Ours] = {"ours": Ours(server), "plain": Plain(server)}
    result = {name: measure(ways, size, options.mib * MIB, options.rounds) for name, size in SIZES.items()}
    if options.json:
        print(json.dumps(result))
        return
    print(f"{'what':<14}{'ours MB/s':>12}{'plain MB/s':>12}{'ratio':>8}")
    for size, verbs in result.items():
        for verb, row in verbs.items():
            print(f"{verb} {size:<10}{row['mb_s']:>12}{row['plain_mb_s']:>12}{row['ratio']:>8}")


if __name__ == "__main__":
    main()
