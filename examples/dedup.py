"""Read, filter, keep one of several duplicates, tokenize, write.

    headrace run examples/dedup.py -p input='corpus/*.jsonl' -p output=file://$PWD/data/dedup

Texts that are equal but for white space are duplicates. With `-p near=true` (the default) a judge compares texts that
share a band of MinHash values (docs/guide/dedup.md); `-p threshold=0.8` takes the bands that err least about that
similarity. Cheap filters stand before dedup, so that it has less to decide.
"""

from headrace import Pipeline, dedup, gopher_quality, gopher_repetition, read, redact_pii, tokenize, write_tokens


def build(
    input: str,  # noqa: A002
    output: str,
    tokenizer: str = "deepseek",
    seq_len: int = 2048,
    near: bool = True,
    threshold: float = 0.0,
) -> Pipeline:
    tokens = tokenize(tokenizer)
    return Pipeline.chain(
        "dedup",
        output,
        read(input),
        gopher_repetition(),
        gopher_quality(),
        *dedup(near=near, threshold=threshold or None),
        redact_pii(),
        tokens,
        write_tokens(tokens, seq_len=seq_len),
    )
