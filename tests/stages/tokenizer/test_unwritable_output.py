"""A tokenizer that cannot be written is told by its path, and nothing stands there that looks whole."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from headrace.pipeline.errors import PipelineError
from headrace.stages.library import read_jsonl
from headrace.stages.tokenizer.training import train_tokenizer
from headrace.store.files import disk


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"text": f"some words and number {one}"}) + "\n" for one in range(50)))
    return path


def test_an_output_that_is_a_folder_is_refused(texts: Path, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"is no file for a tokenizer: name the tokenizer\.json to write"):
        train_tokenizer(read_jsonl(str(texts)), tmp_path, vocab_size=300)


def test_on_a_full_disk_the_tokenizer_of_before_stays(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, rename = tmp_path / "tokenizer.json", disk.rename
    output.write_text("before")

    def full(source: str, target: Path) -> None:
        if target == output:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        rename(source, target)

    monkeypatch.setattr(disk, "rename", full)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)) as caught:
        train_tokenizer(read_jsonl(str(texts)), output, vocab_size=300)
    assert caught.value.filename == str(output)
    assert output.read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "tokenizer.json"]


def test_a_configuration_that_nobody_named_is_not_replaced(texts: Path, tmp_path: Path) -> None:
    output, config = tmp_path / "mine.json", tmp_path / "tokenizer_config.json"
    config.write_text('{"chat_template": "made by hand"}')
    with pytest.raises(PipelineError, match=r"tokenizer_config\.json' is there already and is not replaced"):
        train_tokenizer(read_jsonl(str(texts)), output, vocab_size=300)
    assert config.read_text() == '{"chat_template": "made by hand"}'
    assert not output.exists()


def test_a_tokenizer_is_trained_again_beside_its_own_configuration(texts: Path, tmp_path: Path) -> None:
    for eos in ("<|endoftext|>", "</s>"):
        train_tokenizer(read_jsonl(str(texts)), tmp_path / "mine.json", vocab_size=300, eos=eos)
        assert json.loads((tmp_path / "tokenizer_config.json").read_text()) == {"eos_token": eos}


def test_a_tokenizer_is_not_written_over_by_its_configuration(texts: Path, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"name the tokenizer\.json to write"):
        train_tokenizer(read_jsonl(str(texts)), tmp_path / "tokenizer_config.json", vocab_size=300)


def test_an_output_that_is_a_link_stays_one(texts: Path, tmp_path: Path) -> None:
    target, link = tmp_path / "shared.json", tmp_path / "tokenizer.json"
    link.symlink_to(target)
    train_tokenizer(read_jsonl(str(texts)), link, vocab_size=300)
    assert link.is_symlink()
    assert "vocab" in target.read_text()
