"""A pipeline with many small shards, a corpus for it, and the command."""

import json
import subprocess
import sys
from pathlib import Path

from tests.kits.run.command_server import ended
from tests.kits.run.small_tokenizer import small_tokenizer

DEADLINE_S = 300.0
PIPELINE = '''"""Tokens in shards so small that a short run has many ledger entries."""

from headrace.pipeline.graph import Pipeline
from headrace.stages.library import map_records, read_jsonl, tokenize, write_tokens


def has_no_seven(record):
    if record["id"].endswith("13"):
        raise ValueError("thirteen")
    return None if record["id"].endswith("7") else record


def build(input: str, output: str, shard_bytes: int = 1 << 15) -> Pipeline:
    tokens = tokenize("TOKENIZER")
    return Pipeline.chain(
        "small",
        output,
        read_jsonl(input, fragment_bytes=1 << 18, batch_bytes=1 << 14),
        map_records(has_no_seven),
        tokens,
        write_tokens(tokens, seq_len=256, shard_bytes=shard_bytes),
    )
'''
RECORDS = 1_200
WORDS = (
    "the",
    "river",
    "carries",
    "each",
    "record",
    "to",
    "the",
    "turbine",
    "and",
    "none",
    "is",
    "lost",
    "on",
    "its",
    "way",
)


def line(number: int) -> str:
    """A record of about 2 kB, unlike any other."""
    words = (f"{WORDS[(number * 7 + word * 3) % len(WORDS)]} {number * word % 9973}" for word in range(200))
    return json.dumps({"id": f"r{number}", "text": " ".join(words), "part": number % 4})


def pipeline() -> str:
    """The text of the pipeline file."""
    return PIPELINE.replace("TOKENIZER", small_tokenizer())


def inputs(home: Path) -> list[str]:
    return ["-p", f"input={home}/corpus/*.jsonl"]


def call(home: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-P", "-m", "headrace.cli", *arguments]
    return ended(command, cwd=home)
