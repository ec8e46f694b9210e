"""Tokens as texts again: by a table of bytes where the tokenizer merges bytes, else by the library `tokenizers`.

By the table the texts are those that were encoded, unless a normalizer changed them. Special tokens are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from headrace.stages.tokenizer.engine_battery import byte_characters, is_byte_level
from headrace.stages.tokenizer.vocabulary import tokenizer_bytes

Tokens = npt.NDArray[Any]
#: The texts of documents whose tokens lie end to end, of so many tokens each.
Decoder = Callable[[Tokens, npt.NDArray[np.int64]], "pa.Array[Any]"]


def make_decoder(path: str, sha256: str) -> Decoder:
    """The decoder of the tokenizer.json with this hash. Raises PipelineError where the file is another one."""
    data = tokenizer_bytes(path, sha256)
    parsed = orjson.loads(data)
    return _byte_decoder(parsed) if is_byte_level(parsed) else _library_decoder(data)


def _byte_decoder(parsed: Mapping[str, Any]) -> Decoder:
    values = {character: byte for byte, character in byte_characters().items()}
    pieces = {
        number: bytes(values[character] for character in word) if all(map(values.__contains__, word)) else b""
        for word, number in parsed["model"]["vocab"].items()
    }
    for token in parsed.get("added_tokens") or []:
        pieces[token["id"]] = b"" if token.get("special") else str(token["content"]).encode()
    sizes = np.zeros(max(pieces) + 1, np.int64)
    for number, piece in pieces.items():
        sizes[number] = len(piece)
    table = np.frombuffer(b"".join(pieces.get(number, b"") for number in range(len(sizes))), np.uint8)
    begins = np.cumsum(sizes) - sizes

    def decode(tokens: Tokens, lengths: npt.NDArray[np.int64]) -> pa.Array[Any]:
        known = np.where(tokens < len(sizes), tokens, 0).astype(np.int64)
        each = np.where(tokens < len(sizes), sizes[known], 0)
        ends = np.cumsum(each)
        total = int(ends[-1]) if len(ends) else 0
        data = table[np.arange(total) + np.repeat(begins[known] - (ends - each), each)]
        bounds = np.concatenate([np.zeros(1, np.int64), ends])[np.concatenate([[0], np.cumsum(lengths)])]
        parts: list[Any] = [None, pa.py_buffer(bounds.data), pa.py_buffer(data.data)]
        raw: Any = pa.Array.from_buffers(pa.large_binary(), len(lengths), parts)
        try:
            return raw.cast(pa.large_string())  # type: ignore[no-any-return]
        except pa.ArrowInvalid:
            return pa.array([text.decode("utf-8", "replace") for text in raw.to_pylist()], pa.large_string())

    return decode


def _library_decoder(data: bytes) -> Decoder:
    import tokenizers

    engine = tokenizers.Tokenizer.from_str(data.decode())

    def decode(tokens: Tokens, lengths: npt.NDArray[np.int64]) -> pa.Array[Any]:
        documents = [part.tolist() for part in np.split(tokens, np.cumsum(lengths)[:-1])] if len(lengths) else []
        return pa.array(engine.decode_batch(documents, skip_special_tokens=True), pa.large_string())

    return decode
