"""A dataset that somebody else wrote: what it names is looked at before it is joined to a path, or run."""

import json
from pathlib import Path
from typing import Any

import msgpack
import pytest

from headrace.cli.main import invoke
from headrace.loader.cache.cache import ShardCache
from headrace.loader.dataset.dataset import open_dataset
from headrace.store.contract.errors import FormatError
from headrace.store.datasets.dataset import Dataset
from headrace.store.datasets.manifest import MANIFEST_KEY, bring_forward
from headrace.store.files.store import FileStore
from headrace.store.ledger.core.entries import (
    EntryError,
    FragmentEnded,
    PipelineApplied,
    Resigned,
    VersionPublished,
    decode_entry,
)
from headrace.store.ledger.core.fold import LedgerState
from headrace.store.ledger.snapshot import decode_snapshot, encode_snapshot
from headrace.worker.spool.spool import Spool
from tests.kits.store.dataset_writer import FATES, FRAGMENT, Writer

HASH = "0" * 32
#: What is no key, and what is no checksum, of an object of a shard.
KEYS = [
    *("../../victim", "/etc/passwd", "", "ledger/00000000000000000000.msgpack", "shards/1/a/b.safetensors"),
    *(f"shards/../{HASH}.safetensors", f"shards/1/{HASH}", f"shards/1/{HASH}.safetensors\n"),
    f"shards/1/{HASH}.safetensors/../x",
]
CHECKSUMS = ["xxh3-128:../../victim", f"md5:{HASH}", f"xxh3-128:{HASH}0", "xxh3-128:", f"xxh3-128:{HASH}\n", HASH]


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    """A dataset of one shard, with its manifest."""
    store = FileStore(tmp_path / "dataset")
    writer = Writer(store)
    writer.entry(writer.shard(FATES), FragmentEnded(FRAGMENT.id, len(FATES)), VersionPublished(1, "completed"))
    writer.entry(Resigned(1))
    bring_forward(store, Dataset.open(store.uri).manifest())
    return store


def rewrite(store: FileStore, **fields: Any) -> None:
    """Put these fields into the first shard of the manifest."""
    manifest = json.loads(store.get(MANIFEST_KEY))
    manifest["shards"][0] |= fields
    store.replace(MANIFEST_KEY, [json.dumps(manifest).encode()])


@pytest.mark.parametrize(("field", "value"), [
    *(("tokens", key) for key in KEYS), *(("documents", key) for key in KEYS[:2]),
    *(("checksum", checksum) for checksum in CHECKSUMS),
])  # fmt: skip
def test_a_manifest_with_another_key_or_checksum_is_refused(store: FileStore, field: str, value: str) -> None:
    rewrite(store, **{field: value})
    with pytest.raises(FormatError, match="is no key or checksum of a shard"):
        open_dataset(store.uri)


@pytest.mark.parametrize(("field", "value"), [("sequences", -1), ("sequences", 1 << 60), ("token_count", -5)])
def test_a_manifest_whose_counts_are_none_is_refused(store: FileStore, field: str, value: int) -> None:
    rewrite(store, **{field: value})
    with pytest.raises(FormatError, match="a shard's count is below 0 or above"):
        open_dataset(store.uri)


def test_a_cache_makes_no_file_of_a_checksum_that_is_none(store: FileStore, tmp_path: Path) -> None:
    cache = ShardCache(tmp_path / "cache")
    with pytest.raises(FormatError, match="files are named by such of xxh3-128"):
        cache.hold(store, f"shards/1/{HASH}.safetensors", "xxh3-128:../../../victim")
    assert not list(tmp_path.glob("victim*"))


def hostile(key: str, checksum: str) -> bytes:
    """An entry that closes an object of this key and checksum, made without our own encoder's types."""
    counts = [0, 0, 0, 0, {}, {}, {}, 0, 0, 0]
    return bytes(msgpack.packb([1, 1, [["Closed", ["write", "v", 0, [], [["tokens", key, checksum, 1]], counts]]]]))


def test_an_entry_of_a_good_object_is_read() -> None:
    assert len(decode_entry(hostile(f"shards/1/{HASH}.safetensors", f"xxh3-128:{HASH}")).changes) == 1


@pytest.mark.parametrize("key", KEYS)
def test_an_entry_that_names_another_key_is_refused(key: str) -> None:
    with pytest.raises(EntryError, match="keys look like shards/7/"):
        decode_entry(hostile(key, f"xxh3-128:{HASH}"))


@pytest.mark.parametrize("checksum", CHECKSUMS)
def test_an_entry_that_names_another_checksum_is_refused(checksum: str) -> None:
    with pytest.raises(EntryError, match="checksums like xxh3-128:"):
        decode_entry(hostile(f"shards/1/{HASH}.safetensors", checksum))


def test_a_snapshot_that_names_another_key_is_refused(store: FileStore) -> None:
    state = Dataset.open(store.uri).state
    good = encode_snapshot(state)
    assert isinstance(decode_snapshot(good), LedgerState)
    item = state.shards[0].closed.objects[0]
    object.__setattr__(item, "key", "../../victim")
    with pytest.raises(FormatError, match="keys look like shards/7/"):
        decode_snapshot(encode_snapshot(state))


def test_a_spool_deletes_nothing_but_segments_whatever_a_ledger_names(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    spool = Spool(folder, limit_bytes=1 << 20)
    (tmp_path / "victim.jsonl").write_text("here\n")
    spool.push(b'{"text": "one"}\n')
    spool.close()
    left = sorted(path.name for path in folder.iterdir())
    names = ["../victim.jsonl", "owner", "closed", "000000000001.commits", str(tmp_path / "victim.jsonl"), ".."]
    assert spool.release(names) == 0
    assert (tmp_path / "victim.jsonl").exists()
    assert sorted(path.name for path in folder.iterdir()) == left


def with_code(folder: Path, proof: Path) -> str:
    """A dataset whose ledger ships a module that leaves a trace when it is imported; the hash of its shard."""
    store = FileStore(folder)
    writer = Writer(store)
    evil = f"open({str(proof)!r}, 'w').close()\nclass Read:\n    pass\n"
    stages = [
        {"name": "read", "kind": "source", "target": "evil:Read\x1b[2J", "parameters": {}},
        {"name": "run", "kind": "transform", "target": "headrace.stages.commands.command:Command", "after": ["read"],
         "parameters": {"arguments": ["touch", str(proof)], "seconds": 1.0, "succeeds": [0]}},
        {"name": "write", "kind": "sink", "target": "headrace.stages.sinks.texts:WriteDocuments", "parameters": {},
         "after": ["run"]},
    ]  # fmt: skip
    pipeline = {"name": "theirs", "dataset": store.uri, "stages": stages, "modules": {"evil": evil}}
    writer.entry(PipelineApplied("v1", pipeline), writer.shard(FATES), VersionPublished(1, "completed"), Resigned(1))
    return "0" * 32


def test_a_rebuild_names_the_ledgers_code_and_runs_only_trusted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proof = tmp_path / "proof"
    shard = with_code(tmp_path / "dataset", proof)
    assert invoke(["dataset", "rebuild", str(tmp_path / "dataset"), shard]) == 2
    said = capsys.readouterr().err
    assert "--trust-code" in said
    assert "its text is in the ledger" in said
    assert f"reads {FRAGMENT.uri}" in said
    assert f"run: runs the program ['touch', '{proof}']" in said
    assert "\x1b[2J" not in said
    assert not proof.exists()


def test_a_rebuild_that_is_trusted_names_the_code_before_it_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proof = tmp_path / "proof"
    shard = with_code(tmp_path / "dataset", proof)
    invoke(["dataset", "rebuild", str(tmp_path / "dataset"), shard, "--trust-code"])
    assert "runs read: evil:Read" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["show"], ["verify"], ["ls"], ["trace"], ["gc"]])
def test_no_command_that_reads_a_dataset_runs_its_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    proof = tmp_path / "proof"
    with_code(tmp_path / "dataset", proof)
    invoke(["dataset", *command, str(tmp_path / "dataset"), *(["0"] if command == ["trace"] else [])])
    capsys.readouterr()
    assert not proof.exists()
