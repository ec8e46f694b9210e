import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from headrace.loader.dataset import dataset as dataset_module
from headrace.loader.dataset.dataset import open_dataset
from headrace.loader.dataset.manifest import TOKEN_MAX, parse_manifest
from headrace.store.contract.errors import ChecksumMismatch, FormatError, ObjectMissing


def test_rows_are_those_that_safetensors_reads(tiny_dataset: str):
    dataset = open_dataset(tiny_dataset)
    for number, entry in enumerate(dataset.manifest.shards):
        expected = safetensors.numpy.load_file(Path(tiny_dataset) / entry.tokens)["tokens"]
        rows = np.arange(expected.shape[0])[::-1]
        assert np.array_equal(dataset.rows(number, rows), expected[::-1])


def test_the_pieces_of_a_row_come_by_start_with_their_document(tiny_dataset: str):
    dataset = open_dataset(tiny_dataset)
    arrays = safetensors.numpy.load_file(Path(tiny_dataset) / dataset.manifest.shards[2].tokens)
    names = ("piece_sequence", "piece_start", "piece_length", "piece_document")
    table = np.stack([arrays[name] for name in names], axis=1).tolist()
    asked = [4, 0, 4, 8]
    expected = [
        (at, start, length, document)
        for at, row in enumerate(asked)
        for sequence, start, length, document in sorted(table)
        if sequence == row
    ]
    counts, pieces = dataset.shard(2).piece_table(np.array(asked))
    rows = np.repeat(np.arange(len(asked)), counts).tolist()
    assert [(row, *piece[:3]) for row, piece in zip(rows, pieces.tolist(), strict=True)] == expected


def test_the_layout_counts_the_sequences_of_all_shards(tiny_dataset: str):
    layout = open_dataset(tiny_dataset).layout
    assert (layout.shards, layout.samples, layout.ends.tolist()) == (4, 17, [5, 5, 14, 17])


def test_a_shard_with_one_flipped_bit_is_refused_when_first_read(make_dataset: Callable[..., str]):
    uri = make_dataset()
    dataset = open_dataset(uri)
    path = Path(uri) / dataset.manifest.shards[2].tokens
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    dataset.rows(0, np.array([0]))
    with pytest.raises(ChecksumMismatch, match="restore"):
        dataset.rows(2, np.array([0]))


def test_a_shard_is_checked_once_even_when_it_is_opened_again(
    make_dataset: Callable[..., str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dataset_module, "SHARDS_OPEN_MAX", 1)
    dataset = open_dataset(make_dataset())
    first = dataset.shard(0)
    for number in (2, 3, 0):
        dataset.rows(number, np.array([0]))
    assert dataset.shard(0) is not first
    assert dataset.verified_shards == 3


def test_a_shard_that_is_gone_is_named(make_dataset: Callable[..., str]):
    uri = make_dataset()
    dataset = open_dataset(uri)
    key = dataset.manifest.shards[0].tokens
    (Path(uri) / key).unlink()
    with pytest.raises(ObjectMissing, match="no object"):
        dataset.rows(0, np.array([0]))


def test_a_folder_without_a_manifest_is_no_dataset(tmp_path: Path):
    with pytest.raises(FormatError, match=r"no manifest\.json"):
        open_dataset(str(tmp_path))


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"format": 99}', b"\xff"])
def test_a_malformed_manifest_is_refused(tmp_path: Path, data: bytes):
    (tmp_path / "manifest.json").write_bytes(data)
    with pytest.raises(FormatError, match=r"manifest\.json"):
        open_dataset(str(tmp_path))


def test_a_shard_of_another_shape_than_the_manifest_says_is_refused(make_dataset: Callable[..., str]):
    uri = make_dataset()
    path = Path(uri) / "manifest.json"
    manifest = json.loads(path.read_bytes())
    manifest["shards"][0]["sequences"] += 1
    path.write_text(json.dumps(manifest))
    with pytest.raises(FormatError, match=r"promises tokens \[6, 16\]"):
        open_dataset(uri).rows(0, np.array([0]))


@pytest.mark.parametrize(
    ("name", "value"), [("piece_start", 16), ("piece_start", -1), ("piece_length", 17), ("piece_sequence", 99)]
)
def test_a_piece_outside_of_its_sequence_is_refused(make_dataset: Callable[..., str], name: str, value: int):
    uri = make_dataset()
    dataset = open_dataset(uri, verify=False)
    path = Path(uri) / dataset.manifest.shards[0].tokens
    arrays = safetensors.numpy.load_file(path)
    arrays[name][1] = value
    safetensors.numpy.save_file(arrays, path)
    with pytest.raises(FormatError, match="outside of"):
        dataset.shard(0).piece_table(np.array([0]))


@pytest.mark.parametrize("field", ["version", "seq_len", "pad_id", "eos_id"])
@pytest.mark.parametrize("value", [-1, 1.5, True, "1", [1], 1 << 41])
def test_a_manifest_whose_numbers_are_none_is_malformed(make_dataset: Callable[..., str], field: str, value: object):
    path = Path(make_dataset()) / "manifest.json"
    plain = json.loads(path.read_text())
    with pytest.raises(FormatError, match="is malformed"):
        parse_manifest(json.dumps({**plain, field: value}).encode(), "file:///x")


@pytest.mark.parametrize("field", ["seq_len", "pad_id", "eos_id"])
def test_a_manifest_with_more_than_a_batch_can_hold_is_malformed(make_dataset: Callable[..., str], field: str):
    plain = json.loads((Path(make_dataset()) / "manifest.json").read_text())
    parse_manifest(json.dumps({**plain, field: TOKEN_MAX}).encode(), "file:///x")
    with pytest.raises(FormatError, match=f"2147483648 is no whole number from 0 to {TOKEN_MAX}"):
        parse_manifest(json.dumps({**plain, field: TOKEN_MAX + 1}).encode(), "file:///x")


def test_a_shard_whose_tokens_cannot_hold_the_pad_id_is_refused(make_dataset: Callable[..., str]):
    uri = make_dataset()
    path = Path(uri) / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "pad_id": 1 << 16}))
    with pytest.raises(FormatError, match="its uint16 cannot hold the pad_id 65536"):
        open_dataset(uri).rows(0, np.array([0]))
