"""Trains a byte-level BPE tokenizer on a sample of a source, by Hugging Face `tokenizers`."""

from __future__ import annotations

import json
import os
import pathlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace.pipeline import PipelineError, Stage, StageKind
from headrace.stages.runtime import FragmentEnd, Source, build_stage
from headrace.store.files import disk
from headrace.store.ledger import UNBOUNDED, Gap

EOS = "<|endoftext|>"
SAMPLE_BYTES = 100_000_000
#: 256 bytes and the end of a text.
VOCAB_SIZE_MIN = 257
#: The file beside a tokenizer that names its special tokens.
CONFIG = "tokenizer_config.json"
#: Bytes of one that is looked into; ours has less.
CONFIG_BYTES_MAX = 1 << 16
#: A configuration that names the end of a text and nothing else.
_OWN = re.compile(rb'\{"eos_token": "(?:[^"\\]|\\.)*"\}\n')


@dataclass(frozen=True, slots=True)
class Trained:
    """A tokenizer that was trained, and on what."""

    path: str
    vocab_size: int
    records: int
    sample_bytes: int


def train_tokenizer(
    source: Stage,
    output: str | os.PathLike[str],
    *,
    vocab_size: int = 32_000,
    sample_bytes: int = SAMPLE_BYTES,
    eos: str = EOS,
) -> Trained:
    """Train on about `sample_bytes` of the source's text and write `output`, a tokenizer.json.

    The sample is every n-th record of the whole source, so the same source gives the same tokenizer. The file beside
    it, tokenizer_config.json, names `eos`; another one that lies there is not replaced. Raises PipelineError,
    InputError, OSError.
    """
    if source.kind is not StageKind.SOURCE:
        raise PipelineError(f'stage "{source.name}" is no source: train on read_jsonl(...) or the like')
    if vocab_size < VOCAB_SIZE_MIN:
        raise PipelineError(f"vocab_size is {vocab_size}; a byte-level vocabulary needs at least {VOCAB_SIZE_MIN}")
    path = pathlib.Path(output)
    if path.name == CONFIG or (path.exists() and not path.is_file()):
        raise PipelineError(f"{str(path)!r} is no file for a tokenizer: name the tokenizer.json to write")
    config = path.with_name(CONFIG)
    if os.path.lexists(config) and not _is_ours(config):
        raise PipelineError(f"{str(config)!r} is there already and is not replaced: write to another folder")
    tokenizers = _library()
    sample = _Sample(build_stage(source, {}), sample_bytes)
    engine = tokenizers.Tokenizer(tokenizers.models.BPE())
    engine.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[eos],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    engine.train_from_iterator(sample.texts(), trainer)
    if not sample.records:
        raise PipelineError(f'stage "{source.name}" has no text to train on')
    disk.make_folder(path.parent)
    _write(path, engine.to_str(pretty=True))
    _write(config, json.dumps({"eos_token": eos}) + "\n")
    return Trained(str(path), engine.get_vocab_size(), sample.records, sample.bytes)


class _Sample:
    def __init__(self, source: Source, wanted_bytes: int) -> None:
        self.source = source
        self.fragments = [item for item in source.list() if item is not None]
        total = sum(fragment.size for fragment in self.fragments)
        self.stride = max(1, total // max(1, wanted_bytes))
        #: Records of the source so far, and those of the sample.
        self.seen = 0
        self.records = 0
        self.bytes = 0

    def texts(self) -> Iterator[str]:
        for fragment in self.fragments:
            for item in self.source.read(fragment, [Gap(0, UNBOUNDED, 0)]):
                if isinstance(item, FragmentEnd):
                    break
                texts: Any = item.rows.column("text")
                before, self.seen = self.seen, self.seen + len(texts)
                for text in texts.to_pylist()[-before % self.stride :: self.stride]:
                    self.records += 1
                    self.bytes += len(text.encode())
                    yield text


def _is_ours(path: pathlib.Path) -> bool:
    """Whether a configuration says no more than what this writes."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return _OWN.fullmatch(file.read(CONFIG_BYTES_MAX + 1)) is not None


def _write(path: pathlib.Path, text: str) -> None:
    with disk.whole_file(path.resolve()) as file:
        file.write(text.encode())
        os.fchmod(file.fileno(), 0o644)


def _library() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise PipelineError("training a tokenizer needs tokenizers: pip install tokenizers") from error
    return tokenizers
