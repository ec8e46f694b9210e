"""Read, keep what reads like prose, tokenize, write: a first set of the filters behind FineWeb.

    headrace run examples/fineweb.py -p input='corpus/*.jsonl' -p output=file://$PWD/data/fineweb

Add `--limit 1000` for a preview with samples of what each filter removes.
"""

from headrace.pipeline.graph import Pipeline
from headrace.stages.library import (
    c4_quality,
    duplicate_lines,
    fineweb_quality,
    gopher_quality,
    read_jsonl,
    tokenize,
    write_tokens,
)


def build(
    input: str,  # noqa: A002
    output: str,
    tokenizer: str = "deepseek",
    seq_len: int = 2048,
    text_key: str = "text",
    id_key: str = "id",
) -> Pipeline:
    tokens = tokenize(tokenizer)
    return Pipeline.chain(
        "fineweb",
        output,
        read_jsonl(input, text_key=text_key, id_key=id_key),
        duplicate_lines(),
        gopher_quality(),
        c4_quality(),
        fineweb_quality(),
        tokens,
        write_tokens(tokens, seq_len=seq_len),
    )
