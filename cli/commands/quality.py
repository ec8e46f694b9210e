"""`headrace tokenizer train`, the scorecard of a dataset, and the gate that a dataset must pass."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from headrace.client import EXIT_FAULT, CliError
from headrace.store import counted


def train_tokenizer(source: str, output: str, *, vocab_size: int, sample_mb: int, text_key: str, as_json: bool) -> int:
    """Train a byte-level BPE on a sample of a source; the exit code."""
    from headrace.stages.library import read
    from headrace.stages.tokenizer import train

    trained = train(read(source, text_key=text_key), output, vocab_size=vocab_size, sample_bytes=sample_mb << 20)
    if as_json:
        print(json.dumps(asdict(trained)))
    else:
        sample = f"{counted(trained.records, 'record')}, {trained.sample_bytes / 1e6:.1f} MB"
        print(f"{trained.path}: {trained.vocab_size:,} tokens, trained on {sample}")
    return 0


def write_card(uri: str, folder: Path) -> int:
    """Write card.md and card.html of a dataset into a folder; the exit code."""
    from headrace.stages.quality.scorecard import card

    markdown, html = card(uri)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("card.md", markdown), ("card.html", html)):
        (folder / name).write_text(text, encoding="utf-8")
        print(folder / name)
    return 0


def pass_gate(uri: str, path: str) -> int:
    """Hold a dataset against the limits of a gate file; exit code 1 with the rows that it breaks."""
    from headrace.stages.quality.scorecard import gate

    try:
        broken = gate(uri, path)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise CliError(f"gate file {path!r}: {why}") from error
    for row in broken:
        print(row)
    print(f"{uri} {'does not pass' if broken else 'passes'} {path}")
    return EXIT_FAULT if broken else 0
