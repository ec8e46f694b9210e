"""Shards, read back by safetensors and Parquet alone."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, strategies as st
from safetensors import safe_open
from safetensors.numpy import load, load_file, save

from headrace.store.contract.errors import ChecksumMismatch, FormatError, ObjectMissing
from headrace.store.files.scratch import DraftFile, open_draft
from headrace.store.files.store import FileStore
from headrace.store.shards import shard, sidecars
from headrace.store.shards.builder import ShardBytes, build_tokens
from headrace.store.shards.shard import checksum, content_hash, read_shard, verify_object

PAD = 9


def _build(documents: list[list[int]], seq_len: int = 8, dtype: Any = np.uint16, **metadata: str) -> ShardBytes:
    flat = np.array([token for document in documents for token in document], np.uint32)
    lengths = [len(document) for document in documents]
    return build_tokens(flat, lengths, seq_len=seq_len, dtype=dtype, pad_id=PAD, metadata=metadata)


def _documents(arrays: dict[str, np.ndarray], count: int) -> list[list[int]]:
    """Put the documents together again as docs/reference/format.md says, with nothing of ours."""
    documents: list[list[int]] = [[] for _ in range(count)]
    pieces = zip(*(arrays[f"piece_{name}"] for name in ("document", "sequence", "start", "length")), strict=True)
    for document, sequence, start, length in pieces:
        documents[document] += arrays["tokens"][sequence, start : start + length].tolist()
    return documents


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path)


@given(st.lists(st.lists(st.integers(0, 65535), max_size=40), max_size=30), st.integers(1, 17), st.booleans())
def test_safetensors_alone_gives_back_every_document(documents: list[list[int]], seq_len: int, wide: bool) -> None:
    built = _build(documents, seq_len, np.uint32 if wide else np.uint16)
    arrays = load(b"".join(built.parts))
    assert arrays["tokens"].dtype == (np.uint32 if wide else np.uint16)
    assert arrays["tokens"].shape == (built.packing.sequences, seq_len)
    assert _documents(arrays, len(documents)) == documents
    assert built.size == len(b"".join(built.parts))


@given(st.lists(st.lists(st.integers(10, 99), max_size=40), max_size=30), st.integers(1, 17))
def test_what_no_piece_covers_is_padding(documents: list[list[int]], seq_len: int) -> None:
    built = _build(documents, seq_len)
    tokens = load(b"".join(built.parts))["tokens"]
    assert (tokens == PAD).sum() == built.packing.padding
    assert built.tokens == sum(map(len, documents))


@given(
    st.lists(st.lists(st.lists(st.integers(0, 65535), max_size=20), max_size=8), max_size=6),
    st.integers(1, 17),
    st.integers(0, 1),
)
def test_tokens_in_several_arrays_give_the_same_bytes(parts: list[list[list[int]]], seq_len: int, overlap: int) -> None:
    documents = [document for part in parts for document in part]
    flat = [np.array([token for document in part for token in document], np.uint32) for part in parts]
    facts: dict[str, Any] = {"seq_len": seq_len + overlap, "dtype": np.uint16, "pad_id": PAD, "metadata": {}}
    lengths = [len(document) for document in documents]
    apart = build_tokens(flat, lengths, overlap=overlap, **facts)
    whole = build_tokens(np.concatenate([np.zeros(0, np.uint32), *flat]), lengths, overlap=overlap, **facts)
    assert b"".join(apart.parts) == b"".join(whole.parts)
    assert apart.tokens == whole.tokens


def test_a_document_in_two_arrays_is_refused() -> None:
    halves = [np.array([1, 2], np.uint32), np.array([3], np.uint32)]
    with pytest.raises(ValueError, match="give whole documents"):
        build_tokens(halves, [3], seq_len=4, dtype=np.uint16, pad_id=0, metadata={})


def test_a_shard_on_disk_opens_with_load_file_and_facts(store: FileStore) -> None:
    built = _build([[1, 2, 3], [4]], seq_len=3, dataset="books", tokenizer_hash="abc")
    store.create("shard.safetensors", built.parts)
    path = str(store.open_local("shard.safetensors"))
    assert load_file(path)["tokens"].tolist() == [[1, 2, 3], [4, PAD, PAD]]
    with safe_open(path, "np") as file:
        metadata = file.metadata()
        assert metadata.pop("blocks").startswith("xxh3-64/65536/")
        assert len(metadata.pop("header_xxh3")) == 16
        assert metadata == {
            "format_version": "1", "seq_len": "3", "pad_id": "9", "sequences": "2", "pieces": "2", "documents": "2",
            "token_count": "4", "padding": "2", "dataset": "books", "tokenizer_hash": "abc",
        }  # fmt: skip


def test_a_shard_without_a_kept_document_is_a_valid_shard(store: FileStore) -> None:
    built = _build([], seq_len=2048)
    store.create("empty", built.parts)
    arrays = load_file(str(store.open_local("empty")))
    assert arrays["tokens"].shape == (0, 2048)
    assert arrays["tokens"].dtype == np.uint16
    assert read_shard(store, "empty")["tokens"].shape == (0, 2048)


def test_the_same_documents_give_the_same_bytes_in_any_order_of_metadata() -> None:
    documents = [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [], [5]]
    first, second = _build(documents, a="1", b="2"), _build(documents, b="2", a="1")
    assert b"".join(first.parts) == b"".join(second.parts)
    assert content_hash(first.parts) == content_hash([b"".join(second.parts)])


def test_arrays_start_at_multiples_of_eight_and_of_their_items(store: FileStore) -> None:
    store.create("k", _build([[1, 2, 3]], seq_len=3).parts)
    header = shard.read_header(store, "k")
    assert min(tensor.offset for tensor in header.tensors.values()) % 8 == 0
    assert all(tensor.offset % tensor.dtype.itemsize == 0 for tensor in header.tensors.values())


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"flat_tokens": [70000]}, "do not fit uint16"),
        ({"flat_tokens": [-1]}, "do not fit uint16"),
        ({"pad_id": 65536}, "pad_id 65536 does not fit"),
        ({"dtype": np.int32}, "holds uint16 or uint32"),
        ({"lengths": [2]}, "2 tokens in all, but 1 tokens given"),
        ({"metadata": {"pad_id": "1"}}, "contradict what the format says"),
        ({"metadata": {"note": "x" * (1 << 20)}}, "shorten the metadata"),
    ],
)
def test_arguments_that_do_not_fit_together_are_refused(arguments: dict[str, Any], problem: str) -> None:
    good: dict[str, Any] = {
        "flat_tokens": [1], "lengths": [1], "seq_len": 4, "dtype": np.uint16, "pad_id": 0, "metadata": {}
    }  # fmt: skip
    good.update(arguments)
    flat = np.array(good.pop("flat_tokens"), np.int64)
    with pytest.raises(ValueError, match=problem):
        build_tokens(flat, good.pop("lengths"), **good)


class _RemoteStore(FileStore):
    """A store without local paths."""

    @property
    def is_remote(self) -> bool:
        return True

    def open_local(self, key: str) -> None:
        return None


@pytest.mark.parametrize("kind", [FileStore, _RemoteStore])
def test_a_shard_reads_the_same_mapped_and_fetched(tmp_path: Path, kind: type[FileStore]) -> None:
    store = kind(tmp_path)
    built = _build([[1, 2, 3], [4]], seq_len=3)
    store.create("k", built.parts)
    arrays = read_shard(store, "k")
    assert not arrays["tokens"].flags.writeable
    expected = load(b"".join(built.parts))
    assert sorted(arrays) == sorted(expected)
    assert all(np.array_equal(arrays[name], expected[name]) for name in expected)


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_a_shard_or_a_format_error(
    tmp_path_factory: pytest.TempPathFactory, body: bytes, framed: bool
) -> None:
    store = FileStore(tmp_path_factory.mktemp("any"))
    store.create("k", [struct.pack("<Q", len(body)) + body if framed else body])
    try:
        read_shard(store, "k")
    except FormatError as error:
        message = str(error)
        assert "is not a token shard" in message


@pytest.mark.parametrize("entry", [
    '{"dtype":"F4","shape":[1],"data_offsets":[0,4]}', '{"dtype":"I32","shape":[2],"data_offsets":[0,4]}',
    '{"dtype":"I32","shape":[2],"data_offsets":[0,8]}', '{"dtype":"I32","shape":[-1],"data_offsets":[4,0]}',
    '{"dtype":"I32","shape":[true],"data_offsets":[0,4]}', '{"dtype":"I32","shape":[0.5]}', "3", '{"dtype":[]}',
])  # fmt: skip
def test_a_header_that_does_not_fit_its_file_is_a_format_error(store: FileStore, entry: str) -> None:
    text = f'{{"tokens":{entry}}}'.encode()
    store.create("k", [struct.pack("<Q", len(text)), text, b"1234"])
    with pytest.raises(FormatError, match="is not a token shard"):
        read_shard(store, "k")


def test_a_shard_cut_short_is_a_format_error(store: FileStore) -> None:
    body = b"".join(_build([[1, 2, 3], [4]], seq_len=3).parts)
    store.create("k", [body[:-1]])
    with pytest.raises(FormatError, match="ends at byte"):
        read_shard(store, "k")


def test_an_object_is_verified_chunk_by_chunk(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "VERIFY_CHUNK_BYTES", 16)
    for size in (0, 15, 16, 17, 64):
        body = bytes(range(size))
        store.create(f"{size}", [body])
        assert verify_object(store, f"{size}", checksum([body])) == size


def test_changed_missing_and_unknown_checksums_are_told_apart(store: FileStore) -> None:
    store.create("k", [b"changed"])
    with pytest.raises(ChecksumMismatch, match="the ledger recorded xxh3-128:"):
        verify_object(store, "k", checksum([b"original"]))
    with pytest.raises(ObjectMissing):
        verify_object(store, "other", checksum([b""]))
    with pytest.raises(FormatError, match="upgrade"):
        verify_object(store, "k", "sha3:00")


def _rows(schema: pa.Schema, count: int) -> pa.Table:
    values = {
        name: [None if name == "duplicate_of" else f"{name} {row}".encode() if name == "raw" else f"{name} {row % 3}"
               for row in range(count)]
        for name in schema.names
    }  # fmt: skip
    for name in {"row", "part", "tokens"} & set(schema.names):
        values[name] = list(range(count))  # type: ignore[assignment]
    values["fragment"] = [f"{row % 3:032x}" for row in range(count)]
    return pa.table(values, schema=schema)


SCHEMAS = [sidecars.documents_schema(), sidecars.verdicts_schema(), sidecars.quarantine_schema()]


@pytest.mark.parametrize("schema", SCHEMAS, ids=["documents", "verdicts", "quarantine"])
@pytest.mark.parametrize("count", [0, 1, 1000])
def test_a_sidecar_reads_by_parquet_alone_with_equal_bytes(schema: pa.Schema, count: int) -> None:
    table = _rows(schema, count)
    data = sidecars.table_to_parquet(table)
    assert pq.read_table(pa.BufferReader(data)).equals(table)
    assert sidecars.table_to_parquet(_rows(schema, count)) == data


@pytest.mark.parametrize("kind", [FileStore, _RemoteStore])
def test_columns_of_a_sidecar_are_read_alone(tmp_path: Path, kind: type[FileStore]) -> None:
    store = kind(tmp_path)
    table = _rows(sidecars.documents_schema(), 5)
    store.create("k", [sidecars.table_to_parquet(table)])
    assert sidecars.read_table(store, "k").equals(table)
    assert sidecars.read_table(store, "k", ["row"]).column_names == ["row"]


@pytest.mark.parametrize("kind", [FileStore, _RemoteStore])
def test_tables_that_are_written_one_behind_the_other_are_read_so(tmp_path: Path, kind: type[FileStore]) -> None:
    store = kind(tmp_path)
    schema = sidecars.documents_schema()
    for key, counts in (("none", [0]), ("three", [5, 1, 3])):
        tables = [_rows(schema, count) for count in counts]
        with open_draft(store) as draft:
            file = DraftFile(draft)
            sidecars.write_parquet(file, schema, iter(tables))
            assert file.digest == shard.content_hash(draft.pieces())
            draft.create(key)
        assert [table.num_rows for table in sidecars.read_row_groups(store, key, ["row", "id"])] == counts
        assert sidecars.read_table(store, key).equals(pa.concat_tables(tables))


def test_a_writer_that_fails_leaves_nothing_and_says_why(store: FileStore) -> None:
    schema = sidecars.documents_schema()

    def tables() -> Iterator[pa.Table]:
        yield _rows(schema, 3)
        raise OSError("the scratch file is gone")

    with open_draft(store) as draft, pytest.raises(OSError, match="the scratch file is gone"):
        sidecars.write_parquet(DraftFile(draft), schema, tables())
    assert list(store.list("")) == []


def test_a_sidecar_that_is_no_parquet_is_a_format_error(store: FileStore) -> None:
    store.create("k", [b"PAR1 no, it is not PAR1"])
    with pytest.raises(FormatError, match="'k' is not a readable Parquet file"):
        sidecars.read_table(store, "k")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("piece_start", np.array([1 << 62], np.int64)),
        ("piece_length", np.array([-1], np.int64)),
        ("piece_sequence", np.array([7], np.int64)),
        ("piece_document", np.array([-1], np.int64)),
        ("piece_start", np.array([0.5])),
        ("piece_start", np.array([[0]], np.int64)),
        ("piece_repeated", np.array([9], np.int64)),
        ("tokens", np.zeros(8, np.uint16)),
        ("tokens", np.zeros((1, 8), np.float64)),
        ("piece_start", None),
        ("tokens", None),
    ],
)
def test_pieces_that_lie_nowhere_are_refused(store: FileStore, name: str, value: np.ndarray | None) -> None:
    arrays = load(b"".join(_build([[1, 2, 3]]).parts))
    if value is None:
        del arrays[name]
    else:
        arrays[name] = value
    store.create("a.safetensors", [save(arrays)])
    with pytest.raises(FormatError, match="is not a token shard"):
        read_shard(store, "a.safetensors")


#: Places in 32 bits around every edge of two lines of eight tokens.
_EDGES = st.sampled_from([-(1 << 31), -1, 0, 1, 2, 7, 8, 9, (1 << 31) - 1])


@example([(0, 1, (1 << 31) - 1, 0, 0)])
@given(st.lists(st.tuples(_EDGES, _EDGES, _EDGES, _EDGES, _EDGES), min_size=1, max_size=3))
def test_pieces_are_refused_alike_in_32_and_64_bits(pieces: list[tuple[int, ...]]) -> None:
    said = []
    for kind in (np.int32, np.int64):
        columns = np.array(pieces, kind).T
        names = ("sequence", "start", "length", "document", "repeated")
        arrays = {f"piece_{name}": np.ascontiguousarray(column) for name, column in zip(names, columns, strict=True)}
        said.append(shard._misplaced({"tokens": np.zeros((2, 8), np.uint16), **arrays}))
    assert said[0] == said[1]


@pytest.mark.parametrize("parts", [[0, 1, 0, None, 7, 0], None])
def test_an_id_names_its_record_and_its_own_parts(parts: list[int | None] | None) -> None:
    names = ["a/0", "a/1", "a/b/0", "a/2", "a/b/c/7", "a/0/0"]
    columns: dict[str, Any] = {"id": pa.array(names)} | ({"part": pa.array(parts, pa.int32())} if parts else {})
    table = pa.table(columns)
    found = {name: np.flatnonzero(sidecars.rows_named(table, name)).tolist() for name in ("a", "a/b", "a/2", "a/0")}
    if parts is None:
        assert found == {"a": [], "a/b": [], "a/2": [3], "a/0": [0]}
    else:
        assert found == {"a": [0, 1], "a/b": [2], "a/2": [3], "a/0": [0, 5]}
