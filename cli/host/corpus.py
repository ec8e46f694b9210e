"""The pipeline of the quickstart: real text that is on any machine with Python."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from headrace.pipeline import Pipeline
from headrace.stages.library import duplicate_lines, gopher_quality, read_files, tokenize, write_tokens
from headrace.stages.tokenizer import train_tokenizer

SEQ_LEN = 512
#: Of the tokenizer that the quickstart trains, in a second: its vocabulary, and the text that it learns from.
VOCAB_SIZE = 8192
SAMPLE_BYTES = 2 << 20
#: What stands in a package's folder for people to read.
DOCUMENTATION = ("*.md", "*.rst", "*.txt", "METADATA")
#: Folders of the standard library's that hold what others installed.
_NOT_STANDARD = ("site-packages", "dist-packages", "__pycache__")


def trained_tokenizer(folder: Path) -> str:
    """The tokenizer.json in the folder; trained on the standard library where there is none."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        source = read_files(standard_library(), follow_links=True)
        train_tokenizer(source, path, vocab_size=VOCAB_SIZE, sample_bytes=SAMPLE_BYTES)
    return str(path)


def quickstart_pipeline(output: str, tokenizer: str) -> Pipeline:
    """The standard library's sources and the installed packages' documentation, filtered, tokenized and packed."""
    # A distribution's Python has links out of its own folders.
    sources = [
        read_files(standard_library(), follow_links=True, name="stdlib"),
        read_files(documentation(), follow_links=True, name="docs"),
    ]
    tokens = tokenize(tokenizer)
    # The limits are for commented code and short documents; the published ones (the defaults) are for web pages.
    following = [
        gopher_quality(
            words_min=20, word_length_max=16, symbols_per_word_max=0.5, alphabetic_words_min=0.5, stop_words_min=1
        ),
        duplicate_lines(lines_max=0.5, characters_max=0.4),
        tokens,
        write_tokens(tokens, seq_len=SEQ_LEN),
    ]
    before = tuple(source.name for source in sources)
    stages = [replace(source, replicas=1) for source in sources]
    for stage in following:
        stages.append(replace(stage, after=before))
        before = (stage.name,)
    return Pipeline(name="quickstart", dataset=output, stages=tuple(stages))


def standard_library() -> str:
    """Globs of the interpreter's own sources, without what was installed beside them."""
    root = Path(sysconfig.get_path("stdlib"))
    folders = sorted(item for item in root.iterdir() if item.is_dir() and item.name not in _NOT_STANDARD)
    return _globs([(root, "*.py"), *((folder, "**/*.py") for folder in folders)])


def documentation() -> str:
    """Globs of the documentation that installed packages carry."""
    root = Path(sysconfig.get_path("purelib"))
    return _globs([(root, f"**/{pattern}") for pattern in DOCUMENTATION])


def _globs(candidates: Iterable[tuple[Path, str]]) -> str:
    """Those that match something, since a source refuses one that does not."""
    found = [str(root / pattern) for root, pattern in candidates if next(root.glob(pattern), None) is not None]
    return ",".join(found)
