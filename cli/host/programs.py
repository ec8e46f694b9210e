"""Reader, tokenizer, filters and loader on this host, over text that is on any machine with Python."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace.cli.host.corpus import standard_library, trained_tokenizer
from headrace.cli.host.machine import MeasureError
from headrace.pipeline import PipelineError, Stage
from headrace.stages.library import c4_quality, fineweb_quality, gopher_quality, gopher_repetition, read_files, tokenize
from headrace.stages.runtime import Batch, FragmentEnd, InputError, build_stage, process_safely
from headrace.store import StoreError
from headrace.store.files import own_cache
from headrace.store.ledger import UNBOUNDED, Gap
from headrace.store.shards import build_tokens, checksum, documents_schema, table_to_parquet

#: Text that is measured with.
TEXT_BYTES = 4 << 20
#: The loader's shards: sequences of one, tokens of a sequence, and shards.
SEQUENCES, SEQ_LEN, SHARDS = 2048, 2048, 4
BATCH_SIZE = 32
PAD_ID, EOS_ID = 0, 1


def texts() -> tuple[list[Batch], float]:
    """Batches of some MiB of the standard library, and the bytes a second at which a source read them."""
    try:
        source = build_stage(read_files(standard_library(), follow_links=True), {})
        found: list[Batch] = []
        size, began = 0, time.perf_counter()
        for fragment in source.list():
            for item in source.read(fragment, [Gap(0, UNBOUNDED, 0)]) if fragment is not None else ():
                if not isinstance(item, FragmentEnd):
                    found.append(item)
                    size += text_bytes(item)
            if size >= TEXT_BYTES:
                break
    except (PipelineError, InputError, StoreError, OSError) as error:
        raise MeasureError(f"the standard library's sources cannot be read: {error}") from error
    if not size:
        raise MeasureError("this Python has no sources to measure with")
    return found, size / (time.perf_counter() - began)


def text_bytes(batch: Batch) -> int:
    """Bytes of the texts of a batch."""
    return int(batch.rows.column("text").nbytes)


def measure_tokenizer(tokenizer: str, seconds: float) -> dict[str, float]:
    """Tokenize by one core with the tokenizer of this name; trained on the spot where it is empty.

    Raises MeasureError.
    """
    batches, read = texts()
    try:
        with tempfile.TemporaryDirectory() as folder:
            stage = tokenize(tokenizer or trained_tokenizer(own_cache("bench") or Path(folder)))
            transform = build_stage(stage, {})
    except (PipelineError, OSError) as error:
        raise MeasureError(str(error)) from error
    counted: dict[str, float] = {"bytes": 0.0, "tokens": 0.0}

    def once(batch: Batch) -> None:
        tokens: Any = process_safely(transform, batch, stage.name).rows.column("tokens")
        counted["bytes"] += text_bytes(batch)
        counted["tokens"] += len(tokens.values)

    rate = _rate(once, batches, seconds)
    if not counted["tokens"]:
        raise MeasureError(f"the tokenizer {tokenizer!r} made no token of {TEXT_BYTES >> 20} MiB of text")
    return {
        "reader_bytes_s": read,
        "tokenizer_bytes_s": rate,
        "text_bytes_token": counted["bytes"] / counted["tokens"],
    }


def measure_filters(seconds: float) -> dict[str, float]:
    """Texts through each set of rules by one core, all of them through each. Raises MeasureError."""
    batches, _ = texts()
    stages: Sequence[Stage] = (gopher_quality(), gopher_repetition(), c4_quality(), fineweb_quality())
    built = [(stage.name, build_stage(stage, {})) for stage in stages]

    def once(batch: Batch) -> None:
        for name, transform in built:
            process_safely(transform, batch, name)

    return {"filters_bytes_s": _rate(once, batches, seconds)}


def measure_loader(folder: Path, seconds: float) -> dict[str, float]:
    """Batches of every field from shards that are made in `folder` and removed again. Raises MeasureError."""
    from headrace.loader import Loader
    from headrace.loader.batch import KERNELS

    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix="headrace-bench-") as made:
            _write_dataset(Path(made))
            loader = Loader(made, batch_size=BATCH_SIZE, alone=True)
            # loops that are compiled are loaded, as they are some batches into any job
            KERNELS.wait(max(seconds, 10.0))
            try:
                return {"loader_tokens_s": _tokens_s(loader, seconds)}
            finally:
                loader.close()
    except (StoreError, OSError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise MeasureError(f"{folder}: {why}; give another folder with --folder") from error


def _tokens_s(loader: Any, seconds: float) -> float:
    tokens, took = 0, 0.0
    while took < seconds:
        batches = iter(loader)
        next(batches)
        began = time.perf_counter()
        for batch in batches:
            tokens += batch["tokens"].size
            int(batch["tokens"].sum())
        took += time.perf_counter() - began
    return tokens / took


def _write_dataset(root: Path) -> None:
    import pyarrow as pa

    random = np.random.default_rng(0)
    shards: list[dict[str, Any]] = []
    (root / "shards" / "0").mkdir(parents=True)
    for _ in range(SHARDS):
        lengths = np.full(SEQUENCES * 4, SEQ_LEN // 4)
        flat = random.integers(2, 50_000, int(lengths.sum()), dtype=np.uint16)
        facts = {"tokenizer": "bench", "eos_id": str(EOS_ID)}
        built = build_tokens(flat, lengths, seq_len=SEQ_LEN, dtype=np.uint16, pad_id=PAD_ID, metadata=facts)
        digest = checksum(built.parts)
        key = f"shards/0/{digest.partition(':')[2]}"
        with (root / f"{key}.safetensors").open("wb") as file:
            file.writelines(built.parts)
        rows = [
            {"id": str(row), "source": "bench", "fragment": "", "row": row, "tokens": SEQ_LEN // 4}
            for row in range(len(lengths))
        ]
        table = pa.Table.from_pylist(rows, schema=documents_schema())
        (root / f"{key}.documents.parquet").write_bytes(table_to_parquet(table))
        counts = {"records": len(lengths), "token_count": built.tokens, "sequences": built.packing.sequences}
        names = {"tokens": f"{key}.safetensors", "documents": f"{key}.documents.parquet", "checksum": digest}
        shards.append({**names, **counts})
    manifest: dict[str, Any] = {"format": 1, "dataset": "bench", "version": 1, "seq_len": SEQ_LEN, "tokenizer": "bench"}
    manifest |= {"pad_id": PAD_ID, "eos_id": EOS_ID, "shards": shards}
    (root / "manifest.json").write_text(json.dumps(manifest))


def _rate(work: Callable[[Batch], None], batches: Sequence[Batch], seconds: float) -> float:
    """Bytes of text a second, behind one batch in which all is compiled and loaded; at least one batch."""
    work(batches[0])
    size, began = 0, time.perf_counter()
    while not size or time.perf_counter() - began < seconds:
        for batch in batches:
            work(batch)
            size += text_bytes(batch)
            if time.perf_counter() - began >= seconds:
                break
    return size / (time.perf_counter() - began)
