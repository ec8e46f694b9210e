"""The pipeline of the quickstart: real text that is on any machine with Python."""

from __future__ import annotations

import sysconfig
from dataclasses import replace
from pathlib import Path

from headrace.pipeline.graph import Pipeline
from headrace.stages.library import read_files, repetition, tokenize, word_count, write_tokens

SEQ_LEN = 512
TOKENIZER = "deepseek"
#: What stands in a package's folder for people to read.
DOCUMENTATION = ("*.md", "*.rst", "*.txt", "METADATA")
#: Folders of the standard library's that hold what others installed.
_NOT_STANDARD = ("site-packages", "dist-packages", "__pycache__")


def quickstart_pipeline(output: str) -> Pipeline:
    """The standard library's sources and the installed packages' documentation, filtered, tokenized and packed."""
    filters = [word_count(minimum=20), repetition()]
    stages = [
        read_files(standard_library(), name="stdlib"),
        read_files(documentation(), name="docs"),
        *filters,
        tokenize(TOKENIZER),
        write_tokens(TOKENIZER, seq_len=SEQ_LEN),
    ]
    after: tuple[str, ...] = ("stdlib", "docs")
    linked = stages[:2]
    for stage in stages[2:]:
        linked.append(replace(stage, after=after))
        after = (stage.name,)
    return Pipeline(name="quickstart", dataset=output, stages=tuple(linked))


def standard_library() -> list[str]:
    """Globs of the interpreter's own sources, without what was installed beside them."""
    root = Path(sysconfig.get_path("stdlib"))
    folders = sorted(item for item in root.iterdir() if item.is_dir() and item.name not in _NOT_STANDARD)
    return [str(root / "*.py"), *(str(folder / "**" / "*.py") for folder in folders)]


def documentation() -> list[str]:
    """Globs of the documentation that installed packages carry."""
    root = Path(sysconfig.get_path("purelib"))
    return [str(root / "**" / pattern) for pattern in DOCUMENTATION]
