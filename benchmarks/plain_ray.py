"""The work of `examples/plain.py` in Ray Data; run by benchmarks/plain.py with a Python that has ray and gigatoken.

python plain_ray.py TOKENIZER_JSON EOS_ID CORES OUT FILE...
"""

import json
import sys
import time

STARTED = time.monotonic()

import numpy as np  # noqa: E402 - the clock starts before the imports
import pyarrow as pa  # noqa: E402
import ray  # noqa: E402


class Tokenize:
    """The same tokenizer, a process of Ray's each."""

    def __init__(self, path: str, eos: int) -> None:
        import gigatoken

        with open(path, "rb") as file:
            self.encoder = gigatoken.Tokenizer.from_str(file.read().decode())
        self.eos = eos

    def __call__(self, table: pa.Table) -> pa.Table:
        rows = [np.append(np.asarray(ids, np.uint32), np.uint32(self.eos)) for ids in self.encode(table)]
        lengths = pa.array([len(row) for row in rows], pa.int64())
        return pa.table({"id": table.column("id"), "tokens": pa.array(rows, pa.list_(pa.uint32())), "count": lengths})

    def encode(self, table: pa.Table) -> list[list[int]]:
        return self.encoder.encode_batch(table.column("text").to_pylist())


def main() -> None:
    path, eos, cores, out, *files = sys.argv[1:]
    ray.init(num_cpus=int(cores), log_to_driver=False, include_dashboard=False)
    started = time.monotonic() - STARTED
    data = ray.data.read_json(files)
    data = data.map_batches(
        Tokenize, fn_constructor_args=(path, int(eos)), batch_format="pyarrow", batch_size=1024, concurrency=int(cores)
    )
    data.write_parquet(out)
    tokens = ray.data.read_parquet(out).sum("count")
    print(json.dumps({"start_s": started, "tokens": int(tokens)}))


if __name__ == "__main__":
    main()
