"""The pipeline that these tests run, and the command that runs it."""

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.kits.run.command_server import DEADLINE_S as DEADLINE_S, ended
from tests.kits.run.kill import headrace
from tests.kits.run.small_tokenizer import small_tokenizer

PIPELINE = '''"""Plain text to tokens, in shards so small that a short run has many ledger entries."""

from headrace.pipeline.graph import Pipeline
from headrace.stages.library import map_records, read_jsonl, tokenize, write_tokens


def has_many_lines(record):
    if record["text"].count("import") == 13:
        raise ValueError("thirteen imports")
    return record if record["text"].count("\\n") >= 10 else None


def build(input: str, output: str, tokenizer: str = "TOKENIZER", seq_len: int = 512) -> Pipeline:
    tokens = tokenize(tokenizer)
    return Pipeline.chain(
        "small",
        output,
        read_jsonl(input, fragment_bytes=1 << 20, batch_bytes=1 << 16),
        map_records(has_many_lines),
        tokens,
        write_tokens(tokens, seq_len=seq_len, shard_bytes=1 << 17),
    )
'''


def dataset_command(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`headrace dataset` in a folder, ended."""
    return ended(headrace("dataset", *arguments), cwd=home)


def dataset_answer(home: Path, *arguments: str) -> dict[str, Any]:
    """What a dataset command says with `--json`."""
    done = dataset_command(home, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def pipeline() -> str:
    """The text of the pipeline file."""
    return PIPELINE.replace("TOKENIZER", small_tokenizer())


def run_command(home: Path, output: str, *arguments: str) -> list[str]:
    return headrace(
        "run", "small.py", "-p", f"input={home}/corpus/*.jsonl", "-p", f"output={output}", *arguments, "--json"
    )
