"""The work of `examples/plain.py` in Ray Data; run by benchmarks/plain.py with a Python that has ray and gigatoken.

    python plain_ray.py guide|arrow|hf TOKENIZER_JSON EOS_ID CORES OUT FILE...

Ray's readers and writers are its own, and so are its sizes of blocks.

- guide: as Ray's guides to text and to transforming data have it. A function is given batches in the default format, a
  dict of numpy arrays, and calls the tokenizer's own method for a batch of texts (plain_ray_guide.py). It is a plain
  function, so that Ray can fuse reading, tokenizing and writing into one task, and lies in a module, so that each of
  Ray's processes loads the tokenizer once. The column of text is not written, as it is not wanted.
- arrow: with what Headrace knows of the tokenizer. Batches are Arrow tables, and the encoder is given an Arrow column
  in one piece and back, so that Ray does not pay for Python objects that it does not need. The tokenizers are actors
  that take no CPU of Ray's books, else none would be left for the tasks that read and it would wait for ever; they
  share the cores as the system sees fit.
- hf: as guide, but the same tokenizer.json is run by `tokenizers`, the library that users of Ray have it in.
"""

import json
import sys
import time

STARTED = time.monotonic()

import awkward as ak  # noqa: E402 - the clock starts before the imports
import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import ray  # noqa: E402
from plain_ray_guide import tokenize, tokenize_usual  # noqa: E402


class Tokenize:
    """The same tokenizer, a process of Ray's each."""

    def __init__(self, path: str, eos: int) -> None:
        from gigatoken.gigatoken_rs import load_hf_json

        with open(path, "rb") as file:
            self.encoder = load_hf_json(file.read())
        self.eos = eos

    def __call__(self, table: pa.Table) -> pa.Table:
        offsets, tokens = self.encode(table.column("text").combine_chunks())
        longer = offsets + np.arange(len(offsets))
        places = np.ones(longer[-1], np.bool_)
        places[longer[1:] - 1] = False
        joined = np.full(len(places), self.eos, np.uint32)
        joined[places] = tokens
        column = pa.LargeListArray.from_arrays(pa.array(longer, pa.int64()), pa.array(joined, pa.uint32()))
        return pa.table({"id": table.column("id"), "tokens": column, "count": pa.array(np.diff(longer), pa.int64())})

    def encode(self, text: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        text = text.combine_chunks() if isinstance(text, pa.ChunkedArray) else text
        text = text.cast(pa.large_string())
        _, bounds, content = text.buffers()
        offsets = np.frombuffer(bounds, np.int64)[text.offset : text.offset + len(text) + 1]
        characters = ak.contents.NumpyArray(np.frombuffer(content, np.uint8), parameters={"__array__": "char"})
        strings = ak.contents.ListOffsetArray(ak.index.Index64(offsets), characters, parameters={"__array__": "string"})
        answer = self.encoder.encode_batch(ak.Array(strings), parallel=False).layout
        ends = np.asarray(answer.offsets.data, np.int64)
        return ends - ends[0], np.asarray(answer.content.data, np.uint32)[ends[0] : ends[-1]]


def main() -> None:
    way, path, eos, cores, out, *files = sys.argv[1:]
    ray.init(num_cpus=int(cores), log_to_driver=False, include_dashboard=False)
    started = time.monotonic() - STARTED
    data = ray.data.read_json(files)
    if way in ("guide", "hf"):
        data = data.map_batches(
            tokenize if way == "guide" else tokenize_usual, fn_kwargs={"path": path, "eos": int(eos)}
        )
    else:
        data = data.map_batches(
            Tokenize,
            fn_constructor_args=(path, int(eos)),
            batch_format="pyarrow",
            batch_size=1024,
            compute=ray.data.ActorPoolStrategy(size=int(cores)),
            num_cpus=0,
        )
    data.write_parquet(out)
    seconds = time.monotonic() - STARTED
    tokens = ray.data.read_parquet(out).sum("count")
    print(json.dumps({"start_s": started, "seconds": seconds, "tokens": int(tokens)}))


if __name__ == "__main__":
    main()
