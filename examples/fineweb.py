"""Read, filter by the four families of rules behind FineWeb, in its order, tokenize, write.

    headrace run examples/fineweb.py -p input='corpus/*.jsonl' -p output=file://$PWD/data/fineweb

Gopher's repetition rules, Gopher's quality rules, C4 without its rule that lines end in punctuation, and FineWeb's own
(Penedo et al. 2024). `-p language=en` keeps texts in these languages, `-p urls=blocked.txt` leaves out domains and URLs
on a list, `-p pii=true` puts placeholders for e-mail addresses, public IP addresses and phone numbers. Add
`--limit 1000` for a preview with samples of what each filter removes.
"""

from headrace import (
    Pipeline,
    c4_quality,
    fineweb_quality,
    gopher_quality,
    gopher_repetition,
    language as keep_language,
    read_jsonl,
    redact_pii,
    tokenize,
    url_filter,
    write_tokens,
)


def build(
    input: str,  # noqa: A002
    output: str,
    tokenizer: str = "deepseek",
    seq_len: int = 2048,
    text_key: str = "text",
    id_key: str = "id",
    language: str = "",
    urls: str = "",
    pii: bool = False,
) -> Pipeline:
    tokens = tokenize(tokenizer)
    before = [url_filter(urls)] if urls else []
    before += [keep_language(language)] if language else []
    return Pipeline.chain(
        "fineweb",
        output,
        read_jsonl(input, text_key=text_key, id_key=id_key),
        *before,
        gopher_repetition(),
        gopher_quality(),
        c4_quality(terminal_punctuation=False),
        fineweb_quality(),
        *([redact_pii()] if pii else []),
        tokens,
        write_tokens(tokens, seq_len=seq_len),
    )
