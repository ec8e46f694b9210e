"""The work of `examples/plain.py` in Ray Data; run by benchmarks/plain.py with a Python that has ray and gigatoken.

    python plain_ray.py guide|tuned|arrow|hf TOKENIZER_JSON EOS_ID CORES OUT FILE...

Ray's readers and writers are its own. The tokenizer is called by a function and not by an actor, since Ray does not
fuse an actor with its reader. The function lies in a module, so that each of Ray's processes loads the tokenizer once.
The column of text is not written, as it is not wanted.

- guide: as Ray's guides to text and to transforming data have it, with its own settings. The function is given batches
  in the default format, a dict of numpy arrays, and calls the tokenizer's own method for a batch of texts
  (plain_ray_guide.py).
- tuned: the same, and a block is a file, which `override_num_blocks` says. Left to itself, Ray 2.60 cuts what it has
  read of a file into 32 blocks and more and fuses nothing with its reader; so told, reading, tokenizing and writing are
  one task a file.
- arrow: as tuned, with what Headrace knows of the tokenizer. A batch is a block, an Arrow table, and the encoder has a
  column of it in one piece and back, so that Ray does not pay for Python objects and copies that it does not need.
- hf: as tuned, but the same tokenizer.json is run by `tokenizers`, the library that users of Ray have it in.

It prints one object: `ready_at`, the moment of CLOCK_MONOTONIC at which `ray.init` was done.
"""

import json
import sys
import time

import ray
from plain_ray_guide import tokenize, tokenize_column, tokenize_usual


def main() -> None:
    way, path, eos, cores, out, *files = sys.argv[1:]
    ray.init(num_cpus=int(cores), log_to_driver=False, include_dashboard=False)
    ready_at = time.monotonic()
    data = ray.data.read_json(files, override_num_blocks=None if way == "guide" else len(files))
    given = {"path": path, "eos": int(eos)}
    if way == "arrow":
        data = data.map_batches(tokenize_column, fn_kwargs=given, batch_format="pyarrow", batch_size=None)
    else:
        data = data.map_batches(tokenize_usual if way == "hf" else tokenize, fn_kwargs=given)
    data.write_parquet(out)
    print(json.dumps({"ready_at": ready_at}))


if __name__ == "__main__":
    main()
