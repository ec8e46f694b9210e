"""datatrove's side of `s3.py --run`, in an interpreter that has datatrove: the same files read and written, on files.

    python s3_datatrove.py jsonl|parquet INPUT OUTPUT WORKERS

As its documentation writes it: a reader and a writer with their defaults, but for zstd, which the files have, and as
many tasks as workers. Records are read and written in its own layout, `metadata` a field.
"""

from __future__ import annotations

import importlib.metadata  # noqa: F401 (datatrove uses it without importing it)
import sys
from typing import Any

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader, ParquetReader
from datatrove.pipeline.writers.jsonl import JsonlWriter
from datatrove.pipeline.writers.parquet import ParquetWriter


def main() -> None:
    chain, given, output, workers = sys.argv[1:]
    stages: dict[str, list[Any]] = {
        "jsonl": [JsonlReader(given, compression="zstd"), JsonlWriter(output, "${rank}.jsonl.zst", compression="zstd")],
        "parquet": [ParquetReader(given), ParquetWriter(output, compression="zstd")],
    }
    count = int(workers)
    LocalPipelineExecutor(stages[chain], tasks=count, workers=count, logging_dir=f"{output}.logs").run()


if __name__ == "__main__":
    main()
