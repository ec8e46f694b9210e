"""Targets of what stages are told by others: commands, the makers of tokenizers, processes that hold models."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterable
from random import Random
from typing import Any
from unittest.mock import patch

import msgpack
import numpy as np
import orjson
import pyarrow as pa

from headrace.pipeline.errors import PipelineError
from headrace.stages.commands.arrow_stream import END_OF_STREAM, ArrowStream
from headrace.stages.commands.exchange import ArrowExchange, Exchange, LineExchange
from headrace.stages.commands.process import CommandFailedError
from headrace.stages.dedup.core import partitions
from headrace.stages.dedup.spans.span_file import HEADER_BYTES, SpanFacts, facts_of, write_header
from headrace.stages.functions import functions
from headrace.stages.quality.models import model_host
from headrace.stages.runtime import arrow_check
from headrace.stages.runtime.batch import PART, ROW, SOURCE_ROWS
from headrace.stages.runtime.errors import StageContractError
from headrace.stages.tokenizer import engine_choice, minified, vocabulary
from headrace.store import FormatError
from tests.fuzz.fuzz_files import empty_folder
from tests.fuzz.harness import Target

GIVEN = pa.record_batch(
    [
        pa.array([3, 5, 6, 9], pa.int64()),
        pa.array(["a", "b", "c", "d"]),
        pa.array(["one", "two", "three", "four"]),
        pa.array([None, '{"x":1}', None, None], pa.string()),
    ],
    schema=SOURCE_ROWS,
)

# -- requests to partitions of an index --


def run_index_request(data: bytes) -> object | None:
    """What a decider asks a partition, and what a partition answers: read as it was written, or refused."""
    try:
        request = partitions.PartitionRequest.decode(data, WORDS)
    except ValueError:
        pass
    else:
        assert request.encode() == data
        return request.number, request.words.tolist(), request.numbers.tolist()
    try:
        number, holders = partitions.decode_answer(data)
    except ValueError:
        return None
    assert partitions.encode_answer(number, holders) == data
    return number, None if holders is None else holders.tolist()


WORDS = 8


def index_request_seeds() -> list[bytes]:
    none, words = np.zeros(0, np.int64), np.array([0, 4, 7])
    keys = np.array([[1, 2], [3, 0], [4, 0]], np.uint64)
    some = np.array([1, 2])
    return [
        partitions.PartitionRequest(3, np.array([9]), some, some, keys, words).encode(),
        partitions.PartitionRequest(1, none, none, none, keys[:0], none).encode(),
        partitions.encode_answer(2, np.array([-1, 5])),
        partitions.encode_answer(2, None),
    ]


# -- answers of commands --


def _answers(exchange: Exchange, taken: Any) -> object | None:
    """What a command answered, which is about records that it was given, each one once and in their order."""
    try:
        for part in taken:
            exchange.take(part)
    except (CommandFailedError, StageContractError):
        return None
    missing = exchange.missing(0)
    assert sorted([*missing, *exchange.answers]) == list(range(exchange.count))
    assert list(exchange.answers) == sorted(exchange.answers)
    found: list[Any] = []
    for place, answer in exchange.answers.items():
        assert answer["text"].encode().decode() == answer["text"]
        found.append((place, answer["text"], functions.pack_metadata(answer.get("metadata"), None)))
    return found or None


def run_command_lines(data: bytes) -> object | None:
    """However the pipe cuts them, lines are what they are."""
    whole, pieces = LineExchange("jq", GIVEN), LineExchange("jq", GIVEN)
    found = _answers(whole, [data])
    parts = [data[at : at + 7] for at in range(0, len(data), 7)]
    assert _answers(pieces, parts) == found
    return found


def command_line_seeds() -> Iterable[bytes]:
    whole = LineExchange("jq", GIVEN).given()
    yield whole
    yield b"\n" + b"".join(whole.splitlines(keepends=True)[1:3])
    yield orjson.dumps({ROW: 5, PART: 0, "id": "b", "text": "TWO", "metadata": {"y": [1.5, None]}}) + b"\n"


def run_command_arrow(data: bytes) -> object | None:
    exchange = ArrowExchange("numpy", GIVEN)
    exchange.stream = ArrowStream()
    exchange.given()
    return _answers(exchange, [data])


def command_arrow_seeds() -> Iterable[bytes]:
    yield ArrowStream().encode(GIVEN)
    yield ArrowStream().encode(GIVEN.slice(1, 2)) + END_OF_STREAM
    wide = pa.record_batch(
        {
            ROW: pa.array([3, 9], pa.int64()),
            "text": pa.array(["a", "b"], pa.large_string()),
            "metadata": pa.array(['{"a":{}}', None], pa.string()),
        }
    )
    yield ArrowStream().encode(wide)


def odd_batches() -> Iterable[pa.RecordBatch]:
    """Columns of kinds that a command may give, some of which hold more than they have bytes."""
    rows = pa.array([3, 5], pa.int64())
    columns: dict[str, Any] = {
        "views": pa.array(["x" * 20, "y"], pa.string_view()),
        "nulls": pa.nulls(2),
        "lists": pa.array([["a"], None], pa.list_(pa.string())),
        "structs": pa.array([{"a": 1, "b": "c"}, None]),
        "many": pa.FixedSizeListArray.from_arrays(pa.nulls(1 << 13), 1 << 12),
        "views of lists": pa.ListViewArray.from_arrays([0, 0], [2, 2], pa.array([1, 2])),
        "times": pa.array([1 << 60, 2], pa.timestamp("s")),
        "encoded": pa.RunEndEncodedArray.from_arrays([2], ["a"]),
        "decimals": pa.array([1, 2], pa.decimal128(20, 2)),
        "maps": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int32())),
    }
    for column in columns.values():
        for name in ("text", "metadata", PART, "id", "other"):
            yield pa.record_batch([rows, column], names=[ROW, name])
        yield pa.record_batch([rows, pa.array(["a", "b"]), column], names=[ROW, "text", "text"])


ODD = [ArrowStream().encode(batch) for batch in odd_batches()]


def run_arrow_stream(data: bytes) -> object | None:
    """However the pipe cuts them, batches are what they are, and sound; what they take is bounded by their bytes."""
    found: list[Any] = []
    for step in (len(data) or 1, 5):
        stream = ArrowStream()
        try:
            batches = [batch for at in range(0, len(data), step) for batch in stream.take(data[at : at + step])]
        except CommandFailedError:
            batches = None
        found.append(batches)
    whole, pieces = found
    assert (whole is None) == (pieces is None)
    if not whole:
        return None
    for batch, again in zip(whole, pieces, strict=True):
        batch.validate(full=True)
        assert batch.num_rows <= arrow_check.ROWS_MAX
        assert batch.equals(again) or batch.num_rows
    return [(batch.schema.to_string(), batch.num_rows) for batch in whole]


def mutate_arrow(data: bytes, random: Random) -> bytes:
    """Another message, another number in its metadata, or a part of one put elsewhere."""
    if random.random() < 0.2:
        return random.choice(ODD)
    changed = bytearray(data)
    for _ in range(random.randrange(1, 4)):
        if len(changed) < 16:
            break
        at = random.randrange(len(changed) - 8) & ~3
        kind = random.randrange(4)
        if kind == 0:
            changed[at : at + 4] = struct.pack("<i", random.choice((-1, 0, 1, 2, 4, 8, 1 << 20, (1 << 31) - 1)))
        elif kind == 1:
            changed[at : at + 8] = struct.pack("<q", random.choice((-1, 0, 1, 2, 8, 1 << 24, 1 << 40, (1 << 63) - 1)))
        elif kind == 2:
            whence = random.randrange(len(changed) - 8) & ~3
            changed[at : at + 8] = changed[whence : whence + 8]
        else:
            changed[at] = random.randrange(256)
    return bytes(changed)


# -- tokenizers --

VOCABULARY = {
    "version": "1.0",
    "added_tokens": [{"id": 4, "content": "</s>", "special": True}],
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, " ": 3}, "merges": ["a b"]},
}
UNIGRAM = {"model": {"type": "Unigram", "vocab": [["<eos>", 0.0], ["a", -1.5]]}}


def run_tokenizer(data: bytes) -> object | None:
    """The facts of a tokenizer's file: every id that a shard may hold lies below the size, and fits 32 bits."""
    with empty_folder() as folder:
        path = folder / "tokenizer.json"
        text, _, config = data.partition(b"\0")
        path.write_bytes(text)
        (folder / "tokenizer_config.json").write_bytes(config)
        vocabulary._read.cache_clear()
        try:
            facts = vocabulary.resolve_tokenizer(str(path))
        except PipelineError:
            return None
    assert type(facts.vocab_size) is int
    assert 0 < facts.vocab_size <= 1 << 32
    for number in (facts.eos_id, facts.pad_id):
        assert number is None or (type(number) is int and 0 <= number < facts.vocab_size)
    return facts.vocab_size, facts.eos_token, facts.eos_id, facts.pad_id


def tokenizer_seeds() -> Iterable[bytes]:
    yield orjson.dumps(VOCABULARY)
    yield orjson.dumps(UNIGRAM) + b'\0{"eos_token": {"content": "a"}, "pad_token": "<eos>"}'


def run_minify(data: bytes) -> object | None:
    """A tokenizer's file, minified, says the same; a merge is a string of two words, or the pair of them."""
    try:
        parsed = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    model = parsed.get("model") if isinstance(parsed, dict) else None
    if not isinstance(model, dict) or not isinstance(model.get("merges", []), list):
        return None
    said = orjson.loads(minified.minify(parsed))
    merges = said["model"].pop("merges")
    assert [_pair(merge) for merge in merges] == [_pair(merge) for merge in model.pop("merges", [])]
    assert said == parsed
    return parsed, merges


def _pair(merge: Any) -> Any:
    return merge.split(" ") if isinstance(merge, str) and merge.count(" ") == 1 else merge


def run_engine_choice(data: bytes) -> object | None:
    """What was kept of a comparison is taken only where it is one of these engines; else it is found out anew."""
    names = engine_choice.engine_names()
    fresh = engine_choice.Choice(names[1], why="found out anew")
    with empty_folder() as folder, patch.dict("os.environ", XDG_CACHE_HOME=str(folder)):
        engine_choice.kept("name", lambda: fresh)
        (path,) = (folder / "headrace" / "engines").iterdir()
        path.write_bytes(data)
        found = engine_choice.kept("name", lambda: fresh)
    assert found.engine in names
    assert engine_choice.Choice.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    return found if found != fresh else None


def engine_choice_seeds() -> Iterable[bytes]:
    both, reference = engine_choice.engine_names()
    for choice in (
        engine_choice.Choice(both, ((0x80, 0x90), (0x100, 0x100)), ("</s>",)),
        engine_choice.Choice(reference, why="it panics"),
    ):
        yield json.dumps(choice.to_dict()).encode()


# -- who holds a model --


def run_model_message(data: bytes) -> object | None:
    """A message is an object, or the connection has broken."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        theirs.sendall(data)
        theirs.close()
        try:
            found = model_host.receive(ours)
        except ConnectionError:
            return None
    assert found is None or (isinstance(found, dict) and all(isinstance(key, str) for key in found))
    return repr(found) if found else None


def model_message_seeds() -> Iterable[bytes]:
    for message in ({"texts": ["a", "b"]}, {"scores": struct.pack("<2d", 0.5, 1.0)}, {"problem": ""}, {"error": "E"}):
        packed = msgpack.packb(message, use_bin_type=True)
        yield struct.pack("<Q", len(packed)) + packed


def mutate_framed(data: bytes, random: Random) -> bytes:
    """Another body behind a length that is right."""
    body = bytearray(data[8:] or b"\x80")
    for _ in range(random.randrange(1, 4)):
        at = random.randrange(len(body))
        body[at : at + random.randrange(2)] = random.randbytes(random.randrange(3))
        body = body or bytearray(b"\x80")
    return struct.pack("<Q", len(body)) + bytes(body)


# -- an index of repeats --


def run_repeats_index(data: bytes) -> object | None:
    """A header is refused by an error of ours, or says how long its file is."""
    try:
        facts = facts_of(data[:HEADER_BYTES], len(data), "index")
    except FormatError:
        return None
    assert 8 * facts.spans <= len(data) - HEADER_BYTES
    return facts


def repeats_index_seeds() -> Iterable[bytes]:
    for spans, keeps_one in ((0, False), (2, False), (2, True)):
        facts = SpanFacts("line", 3, 10, keeps_one, 7, spans, "0" * 32)
        yield write_header(facts) + bytes(spans * (16 if keeps_one else 8))


ROWS_WORDS = (b'"__row":5', b'"__part":0', b'"id":"b"', b'"text":"x"', b'"metadata":{}', b"}\n{")
TOKENIZER_WORDS = (b'"model"', b'"vocab"', b'"added_tokens"', b'"content"', b'"id"', b"4294967295", b"1e3", b"[[")

TARGETS = [
    Target(
        "command_lines",
        ("headrace.stages.commands.exchange",),
        run_command_lines,
        command_line_seeds,
        words=ROWS_WORDS,
    ),
    Target(
        "command_arrow",
        ("headrace.stages.commands.exchange",),
        run_command_arrow,
        command_arrow_seeds,
        mutate=mutate_arrow,
    ),
    Target(
        "arrow_stream",
        ("headrace.stages.commands.arrow_stream",),
        run_arrow_stream,
        command_arrow_seeds,
        mutate=mutate_arrow,
    ),
    Target(
        "tokenizer", ("headrace.stages.tokenizer.vocabulary",), run_tokenizer, tokenizer_seeds, words=TOKENIZER_WORDS
    ),
    Target(
        "minify",
        ("headrace.stages.tokenizer.minified",),
        run_minify,
        lambda: [orjson.dumps(VOCABULARY)],
        words=(b'"merges":["',),
    ),
    Target(
        "repeats_index",
        ("headrace.stages.dedup.spans.span_file",),
        run_repeats_index,
        repeats_index_seeds,
        words=(b'"spans": ', b'"words_min": ', b'"paragraph"'),
        bytes_max=2 * HEADER_BYTES,
    ),
    Target(
        "index_request",
        ("headrace.stages.dedup.core.partitions",),
        run_index_request,
        index_request_seeds,
        bytes_max=4096,
    ),
    Target("engine_choice", ("headrace.stages.tokenizer.engine_choice",), run_engine_choice, engine_choice_seeds),
    Target(
        "model_message",
        ("headrace.stages.quality.models.model_host",),
        run_model_message,
        model_message_seeds,
        mutate=mutate_framed,
    ),
]
