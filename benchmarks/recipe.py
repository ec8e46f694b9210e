"""The FineWeb filter recipe against datatrove, and tokenizing against Hugging Face tokenizers.

    python benchmarks/recipe.py FOLDER [--json] [--megabytes 250] [--peer-megabytes 25] [--workers 2] [--datatrove PY]

Method. FOLDER holds JSON Lines with `id` and `text`, which must not repeat. Its first lines are dealt out to as many
files as there are workers, once for Headrace and once, fewer, for the peers; on both sides each worker is a process
that reads its file, parses it, and puts every document through the four filter families in FineWeb's order, with the
published parameters (datatrove's defaults; C4 without its rule on terminal punctuation). Nothing is written. Clocks
start when all workers are warm (models loaded, loops compiled) and a rate is the files' bytes by the slowest worker's
time. On a machine that others use too, `times_by_cpu` (the ratio of processor times) is the steadier figure.
Agreement is over the documents that both sides read: dropped by both by dropped by either, each filter alone on
the original texts, and the recipe as a whole (also: kept or not, document by document). Gopher's repetition rules are
timed alone too: one worker a side, and what it is to filter is read before the clock starts.

datatrove runs in an interpreter of its own (`--datatrove`; else an environment is made in the user's cache folder:
datatrove 0.9.0, spacy, `xxhash<4`). Tokenizing: the `tokenize` stage beside `tokenizers`, both on the same cores with
an empty cache, token for token.

Last result (two cores, 260 MB of documentation, the peers 12 MB of it; agreement on 25 MB of two samples):

    the recipe                  92.0 MB/s   datatrove 1.40    66 times (68 by processor time)
    Gopher repetition, a core  120.6 MB/s   datatrove 0.99   121 times, without reading
    tokenize                   161.5 MB/s   tokenizers 5.1    32 times, token for token
    agreement                   1.000 for each filter and the recipe, on 3,796 and on 4,888 documents
"""

import argparse
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterable, Iterator
from typing import Any

MB = 1_000_000
PEER = "datatrove==0.9.0", "xxhash<4", "spacy", "orjson"
#: Documents that are named, where the two sides differ.
APART_MAX = 20
FAMILIES = ("gopher-repetition", "gopher-quality", "c4-quality", "fineweb-quality")


def stages() -> list[Any]:
    from headrace.stages import library

    return [
        library.gopher_repetition(),
        library.gopher_quality(),
        library.c4_quality(terminal_punctuation=False),
        library.fineweb_quality(),
    ]


def batches(path: str) -> Iterator[Any]:
    from headrace.stages.library import read_jsonl
    from headrace.stages.runtime import FragmentEnd, build_stage
    from headrace.store.ledger import UNBOUNDED, Gap

    source = build_stage(read_jsonl(path), {})
    for fragment in source.list():
        for item in source.read(fragment, [Gap(0, UNBOUNDED, 0)]):
            if not isinstance(item, FragmentEnd):
                yield item


def filter_batches(mode: str, read: Iterable[Any], transforms: dict[str, Any]) -> dict[str, Any]:
    """What each stage drops and why; held against every text ("each"), the texts too that C4 leaves, as hashes."""
    from headrace.stages.runtime import process_safely

    lost: dict[str, dict[str, str]] = {name: {} for name in transforms}
    edited: dict[str, str] = {}
    for batch in read:
        original = batch
        for name, transform in transforms.items():
            if mode == "each":
                batch = original
            before = batch.verdicts.num_rows
            batch = process_safely(transform, batch, name)
            new = batch.verdicts.slice(before)
            lost[name].update(zip(new.column("id").to_pylist(), new.column("reason").to_pylist(), strict=True))
            if mode == "each" and name == "c4-quality":
                left = batch.rows.select(["id", "text"]).to_pylist()
                edited |= {row["id"]: hashlib.sha256(row["text"].encode()).hexdigest()[:16] for row in left}
    return {"lost": lost, "edited": edited}


def tokenize_file(mode: str, path: str, tokenizer: str) -> dict[str, Any]:
    from headrace.stages.library import tokenize
    from headrace.stages.runtime import build_stage

    digest, count = hashlib.sha256(), 0
    if mode == "tokenize":
        stage = build_stage(tokenize(tokenizer, eos=None), {})
        encode = lambda batch: stage.process(batch).rows.column("tokens").values.to_numpy()  # noqa: E731
    else:
        import numpy as np
        import tokenizers

        engine = tokenizers.Tokenizer.from_file(tokenizer)
        encode = lambda batch: np.concatenate(  # noqa: E731
            [
                np.asarray(encoding.ids, np.uint32)
                for encoding in engine.encode_batch_fast(batch.rows["text"].to_pylist(), add_special_tokens=False)
            ]
        )
    ready()
    begun, cpu = time.perf_counter(), time.process_time()
    for batch in batches(path):
        tokens = encode(batch).astype("uint32")
        digest.update(tokens.tobytes())
        count += len(tokens)
    return {**spent(begun, cpu), "tokens": count, "digest": digest.hexdigest()}


def spent(begun: float, cpu: float) -> dict[str, float]:
    return {"seconds": time.perf_counter() - begun, "cpu_seconds": time.process_time() - cpu}


def ready() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


def work(mode: str, path: str, tokenizer: str) -> None:
    if mode in ("tokenize", "tokenizers"):
        print(json.dumps(tokenize_file(mode, path, tokenizer)), flush=True)
        return
    from headrace.stages.runtime import build_stage, process_safely

    chosen = stages()[:1] if mode == "repetition" else stages()
    transforms = {stage.name: build_stage(stage, {}) for stage in chosen}
    batch = next(batches(path))
    for name, transform in transforms.items():
        process_safely(transform, batch, name)
    read = list(batches(path)) if mode == "repetition" else batches(path)
    ready()
    begun, cpu = time.perf_counter(), time.process_time()
    found = filter_batches(mode, read, transforms)
    print(json.dumps({**spent(begun, cpu), **found}), flush=True)


def run_workers(command: list[str], files: list[pathlib.Path]) -> list[dict[str, Any]]:
    """Start a worker a file, let them go together when all are warm; their results."""
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    workers = [
        subprocess.Popen([*command, str(file)], stdin=pipe, stdout=pipe, text=True, env=environment) for file in files
    ]
    lines: list[str] = []
    for worker in workers:
        assert worker.stdout is not None
        while (line := worker.stdout.readline()).strip() != "ready":
            if not line:
                raise SystemExit(f"a worker ended before it was ready: {' '.join(command)}")
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    for worker in workers:
        out, _ = worker.communicate()
        lines.append(out.strip().splitlines()[-1])
    return [json.loads(line) for line in lines]


def deal(folder: pathlib.Path, megabytes: float, workers: int, into: pathlib.Path) -> list[pathlib.Path]:
    """The first lines of the folder's files, dealt out to `workers` files."""
    into.mkdir()
    paths = [into / f"{worker}.jsonl" for worker in range(workers)]
    files = [path.open("wb") for path in paths]
    left, seen = megabytes * MB, set()
    for number, line in enumerate(line for source in sorted(folder.glob("*.jsonl")) for line in source.open("rb")):
        key = hashlib.blake2b(json.loads(line)["text"].encode(), digest_size=8).digest()
        if key not in seen:
            seen.add(key)
            files[number % workers].write(line)
            left -= len(line)
        if left <= 0:
            break
    for file in files:
        file.close()
    if left > 0:
        print(f"{folder} holds {megabytes - left / MB:.0f} MB, not {megabytes:.0f}", file=sys.stderr)
    return paths


def rates(files: list[pathlib.Path], results: list[dict[str, Any]]) -> tuple[float, float]:
    """MB of input a second of all workers together: by the clock, and by the processors' time if each had a core."""
    megabytes = sum(file.stat().st_size for file in files) / MB
    cpu = sum(result["cpu_seconds"] for result in results) / len(results)
    return megabytes / max(result["seconds"] for result in results), megabytes / cpu


def dropped(results: list[dict[str, Any]], family: str | None = None) -> dict[str, str]:
    """The documents that a family, or the recipe, dropped, and why."""
    return {
        record: f"{name}: {reason}"
        for result in results
        for name, lost in result["lost"].items()
        if family in (None, name)
        for record, reason in lost.items()
    }


def agreement(ours: dict[str, str], theirs: dict[str, str], documents: int) -> dict[str, Any]:
    both, either = ours.keys() & theirs.keys(), ours.keys() | theirs.keys()
    apart = sorted(either - both)
    return {
        "dropped by both by dropped by either": round(len(both) / len(either), 4) if either else 1.0,
        "the same": round(1 - len(apart) / documents, 4),
        "kept by both": documents - len(either),
        "dropped by both": len(both),
        "dropped by headrace alone": len(ours.keys() - both),
        "dropped by datatrove alone": len(theirs.keys() - both),
        "apart": {record: [ours.get(record), theirs.get(record)] for record in apart[:APART_MAX]},
    }


def agreements(own: list[str], peer: list[str], files: list[pathlib.Path], theirs: list[Any] | None) -> dict[str, Any]:
    """Every filter on every document, and the recipe; the peer's answers to the recipe may be known already."""
    documents = sum(1 for file in files for _ in file.open("rb"))
    each, peer_each = run_workers([*own, "each"], files), run_workers([*peer, "each"], files)
    found: dict[str, Any] = {"documents": documents}
    for name in FAMILIES:
        found[name] = agreement(dropped(each, name), dropped(peer_each, name), documents)
    recipe = dropped(theirs or run_workers([*peer, "recipe"], files))
    found["recipe"] = agreement(dropped(run_workers([*own, "recipe"], files)), recipe, documents)
    left, peer_left = ({i: h for result in side for i, h in result["edited"].items()} for side in (each, peer_each))
    kept = left.keys() & peer_left.keys()
    found["texts that C4 leaves"] = {"both": len(kept), "equal": sum(left[i] == peer_left[i] for i in kept)}
    return found


def peer_python(given: str | None) -> str:
    if given:
        return given
    folder = pathlib.Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "headrace" / "datatrove-0.9.0"
    python = folder / "bin" / "python"
    if not (folder / "made").exists():
        print(f"making {folder} for datatrove", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([str(python), "-m", "pip", "-q", "install", *PEER], check=True, stdout=sys.stderr)
        (folder / "made").touch()
    return str(python)


def measure(options: argparse.Namespace, folder: pathlib.Path) -> dict[str, Any]:
    workers = options.workers
    large = deal(options.folder, options.megabytes, workers, folder / "large")
    small = deal(options.folder, options.peer_megabytes, workers, folder / "small")
    peer = [peer_python(options.datatrove), str(pathlib.Path(__file__).with_name("recipe_datatrove.py"))]
    own = [sys.executable, __file__, "--tokenizer", options.tokenizer, "--worker"]
    result: dict[str, Any] = {"megabytes": sum(f.stat().st_size for f in large) / MB, "workers": workers}
    ours, theirs = run_workers([*own, "recipe"], large), run_workers([*peer, "recipe"], small)
    result["recipe"] = versus(rates(large, ours), rates(small, theirs))
    alone = small[:1]
    result["repetition"] = versus(
        rates(large[:1], run_workers([*own, "repetition"], large[:1])),
        rates(alone, run_workers([*peer, "repetition"], alone)),
    )
    samples = {str(options.folder): agreements(own, peer, small, theirs)}
    for number, other in enumerate(options.also):
        files = deal(other, options.peer_megabytes, workers, folder / f"also{number}")
        samples[str(other)] = agreements(own, peer, files, None)
    result["agreement"] = samples
    if options.tokenizer:
        fast, slow = run_workers([*own, "tokenize"], large), run_workers([*own, "tokenizers"], small)
        same = run_workers([*own, "tokenize"], small)
        result["tokenize"] = versus(rates(large, fast), rates(small, slow))
        result["tokenize"]["token for token"] = [s["digest"] for s in slow] == [s["digest"] for s in same]
    return result


def versus(ours: tuple[float, float], theirs: tuple[float, float]) -> dict[str, Any]:
    return {
        "headrace_mb_s": round(ours[0], 2),
        "peer_mb_s": round(theirs[0], 3),
        "times": round(ours[0] / theirs[0], 1),
        "times_by_cpu": round(ours[1] / theirs[1], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=pathlib.Path, help="JSON Lines with id and text, or a worker's file")
    parser.add_argument("--megabytes", type=float, default=250)
    parser.add_argument("--peer-megabytes", type=float, default=25)
    parser.add_argument("--also", type=pathlib.Path, action="append", default=[], help="more texts for agreement")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--datatrove", help="an interpreter that has datatrove 0.9, spacy and xxhash<4")
    parser.add_argument("--tokenizer", default="", help="a tokenizer.json; without it tokenizing is left out")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, str(options.folder), options.tokenizer)
        return
    with tempfile.TemporaryDirectory() as folder:
        result = measure(options, pathlib.Path(folder))
    if options.json:
        print(json.dumps(result, indent=2))
        return
    for what in ("recipe", "repetition", "tokenize"):
        if what in result:
            print(
                f"{what:12} {result[what]['headrace_mb_s']:9.1f} MB/s, peer {result[what]['peer_mb_s']:7.2f} MB/s, "
                f"{result[what]['times']} times"
            )
    for sample, found in result["agreement"].items():
        print(f"agreement on {sample}: {found.pop('documents')} documents")
        for what, counts in found.items():
            print(f"    {what:22}", ", ".join(f"{count} {name}" for name, count in counts.items() if name != "apart"))


if __name__ == "__main__":
    main()
