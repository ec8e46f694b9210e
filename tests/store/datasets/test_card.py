"""The card of a dataset: it names the files that are shown, and never stands for a person's README.md."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from headrace.store.contract.objects import ObjectStore
from headrace.store.datasets import card
from headrace.store.datasets.card import (
    CARD_KEY,
    MARK,
    OWN,
    CardFate,
    card_of,
    clear_card,
    files_of,
    put_card,
    show_version,
)
from headrace.store.datasets.dataset import Dataset
from headrace.store.datasets.manifest import MANIFEST_KEY, bring_forward
from headrace.store.files.store import FileStore
from headrace.store.ledger.core.entries import Closed, VersionPublished
from headrace.store.ledger.core.fragments import StoredObject
from headrace.store.open import open_store
from tests.kits.store.dataset_writer import Writer
from tests.kits.store.s3_server import S3Server


def key_of(name: str) -> str:
    return f"shards/0/{name * 32}.documents.parquet"


def texts(writer: Writer, name: str, first: int, role: str = "documents") -> Closed:
    """A shard of a sink of text, of which the ledger's word is enough."""
    made = writer.shard([1, "filtered"], first=first)
    key = key_of(name) if role == "documents" else f"shards/0/{name * 32}.jsonl.zst"
    objects = (StoredObject(role, key, f"xxh3-128:{'0' * 32}", 9),)
    return Closed("books/sink", made.version, made.epoch, made.ranges, objects, made.counts)


@pytest.fixture(params=["file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "file":
        return FileStore(tmp_path / "a set")
    server: S3Server = request.getfixturevalue("s3_server")
    return open_store(server.uri())


@pytest.fixture
def writer(store: ObjectStore) -> Writer:
    writer = Writer(store)
    writer.entry(texts(writer, "a", 0))
    writer.entry(VersionPublished(1, "test", writer.number - 1, False))
    return writer


def published(store: ObjectStore) -> tuple[Dataset, int]:
    """The dataset by now, with its manifest, and the entry that this names."""
    dataset = Dataset.open(store.uri)
    manifest = dataset.manifest()
    bring_forward(store, manifest)
    return dataset, int(manifest["entry"])


def paths(store: ObjectStore) -> list[str]:
    lines = store.get(CARD_KEY).decode().partition("\n---\n")[0].splitlines()
    return [json.loads(line.strip().removeprefix("- ")) for line in lines if line.startswith("    - ")]


def test_a_card_names_the_files_of_the_version_alone(store: ObjectStore, writer: Writer) -> None:
    writer.entry(texts(writer, "b", 2))
    assert put_card(*published(store)) is CardFate.WRITTEN
    assert paths(store) == [key_of("a")]
    assert put_card(*published(store)) is CardFate.STANDS
    writer.entry(VersionPublished(2, "test", writer.number - 1, False))
    assert put_card(*published(store)) is CardFate.WRITTEN
    assert paths(store) == [key_of("a"), key_of("b")]
    assert '- config_name: "books_sink"\n  default: true\n' in store.get(CARD_KEY).decode()


def test_a_persons_readme_stays_and_the_writer_learns_it(store: ObjectStore, writer: Writer) -> None:
    store.create(CARD_KEY, [b"# My corpus\n"])
    assert put_card(*published(store)) is CardFate.OF_A_PERSON
    assert store.get(CARD_KEY) == b"# My corpus\n"


def test_a_version_is_published_where_its_card_cannot_be(tmp_path: Path) -> None:
    writer = Writer(FileStore(tmp_path))
    writer.entry(texts(writer, "a", 0), VersionPublished(1, "test", -1, False))
    (tmp_path / CARD_KEY).mkdir()
    dataset = Dataset.open(writer.store.uri)
    assert "its README.md could not be written" in show_version(dataset, dataset.manifest())
    assert writer.store.head(MANIFEST_KEY) is not None
    (tmp_path / CARD_KEY).rmdir()
    assert show_version(dataset, dataset.manifest()) == ""
    writer.store.replace(CARD_KEY, [b"mine"])
    assert "a README.md without our mark stands" in show_version(dataset, dataset.manifest())


def test_the_card_of_a_removed_dataset_names_nothing(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    clear_card(store)
    assert store.head(CARD_KEY) is None
    store.replace(CARD_KEY, [f"---\nconfigs:\n---\n{MARK}\n".encode()])
    clear_card(store)
    assert b"configs" not in store.get(CARD_KEY)
    store.replace(CARD_KEY, [b"mine"])
    clear_card(store)
    assert store.get(CARD_KEY) == b"mine"


def test_what_a_person_adds_below_the_line_stays(store: ObjectStore, writer: Writer) -> None:
    put_card(*published(store))
    store.replace(CARD_KEY, [store.get(CARD_KEY) + b"Ask Ann.\n"])
    writer.entry(texts(writer, "b", 2))
    writer.entry(VersionPublished(2, "test", writer.number - 1, False))
    assert put_card(*published(store)) is CardFate.WRITTEN
    assert store.get(CARD_KEY).endswith(f"{OWN}\nAsk Ann.\n".encode())
    assert len(paths(store)) == 2


def test_a_writer_that_wakes_late_leaves_the_newer_card(store: ObjectStore, writer: Writer) -> None:
    late, entry = published(store)
    writer.entry(texts(writer, "b", 2))
    writer.entry(VersionPublished(2, "test", writer.number - 1, False))
    put_card(*published(store))
    newer = store.get(CARD_KEY)
    assert put_card(late, entry) is CardFate.NEWER
    assert store.get(CARD_KEY) == newer


def test_a_card_is_not_written_beside_a_damaged_manifest(store: ObjectStore, writer: Writer) -> None:
    dataset, entry = published(store)
    store.replace(MANIFEST_KEY, [b"{"])
    assert put_card(dataset, entry) is CardFate.NEWER
    assert store.head(CARD_KEY) is None


def test_lines_are_named_and_tokens_and_empty_shards_are_not(tmp_path: Path) -> None:
    writer = Writer(FileStore(tmp_path))
    writer.entry(writer.shard([2]))
    writer.entry(VersionPublished(1, "test", writer.number - 1, False))
    dataset, entry = published(writer.store)
    assert files_of(dataset) == {}
    assert put_card(dataset, entry) is CardFate.WRITTEN
    (table,) = (item.key for shard in dataset.shards if (item := shard.object("documents")))
    assert paths(writer.store) == [table], "of tokens alone, the tables of their documents"
    assert "None\nhas text: " in writer.store.get(CARD_KEY).decode()
    none = writer.shard(["filtered"], first=3)
    named = StoredObject("documents", key_of("c"), f"xxh3-128:{'0' * 32}", 9)
    writer.entry(Closed("books/sink", none.version, none.epoch, none.ranges, (named,), none.counts))
    writer.entry(texts(writer, "d", 5, "lines"))
    writer.entry(VersionPublished(2, "test", writer.number - 1, False))
    assert files_of(published(writer.store)[0]) == {"books/sink": [f"shards/0/{'d' * 32}.jsonl.zst"]}


def test_a_card_of_too_many_files_names_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(FileStore(tmp_path))
    writer.entry(texts(writer, "a", 0), texts(writer, "b", 2))
    writer.entry(VersionPublished(1, "test", writer.number - 1, False))
    assert put_card(*published(writer.store)) is CardFate.WRITTEN
    monkeypatch.setattr(card, "CARD_FILES_MAX", 1)
    assert put_card(*published(writer.store)) is CardFate.WRITTEN
    assert paths(writer.store) == []
    assert MARK in writer.store.get(CARD_KEY).decode()


RUN = """
import sys
from headrace import Pipeline, read, run, tokenize, write_documents, write_jsonl, write_tokens
tokens = tokenize("deepseek")
sinks = dict(write_documents=[write_documents()], write_jsonl=[write_jsonl()])
sinks["write_tokens"] = [tokens, write_tokens(tokens)]
report = run(Pipeline.chain("texts", sys.argv[2], read(sys.argv[1]), *sinks["{sink}"]), progress=False)
assert report.state == "completed"
"""


def made(home: Path, sink: str) -> Path:
    """A dataset that a run wrote, in a folder with a blank in its name."""
    home.mkdir()
    corpus = home / "corpus.jsonl"
    records = [{"id": str(n), "text": f"Text number {n}: \u00e9.", "lang": "en"} for n in range(300)]
    corpus.write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))
    out = home / "a set"
    command = [sys.executable, "-c", RUN.format(sink=sink), str(corpus), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=home)
    assert done.returncode == 0, done.stderr
    return out


def test_a_run_publishes_the_card_of_its_documents(tmp_path: Path) -> None:
    out = made(tmp_path / "home", "write_documents")
    dataset = Dataset.open(str(out))
    assert (out / CARD_KEY).read_text() == card_of(dataset)
    (keys,) = files_of(dataset).values()
    assert keys
    assert all((out / key).is_file() for key in keys)


LOAD = """
import json, sys, datasets
found = datasets.load_dataset(sys.argv[1], split="train", cache_dir=sys.argv[2])
print(json.dumps(sorted(zip(found["id"], found["text" if "text" in found.features else "tokens"]))))
"""


@pytest.mark.trainers
@pytest.mark.parametrize("sink", ["write_documents", "write_jsonl", "write_tokens"])
def test_datasets_loads_a_folder_as_it_stands(tmp_path: Path, sink: str) -> None:
    pytest.importorskip("datasets", reason="make trainers installs it")
    out = made(tmp_path / "home", sink)
    shutil.copy(next((out / "shards").rglob("*.verdicts.parquet"), out / "manifest.json"), out / "shards" / "stray")
    command = [sys.executable, "-W", "ignore", "-c", LOAD, str(out), str(tmp_path / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    rows: Any = json.loads(done.stdout)
    if sink == "write_tokens":
        assert [name for name, count in rows if count > 3] == sorted(str(n) for n in range(300))
    else:
        assert rows == sorted([str(n), f"Text number {n}: \u00e9."] for n in range(300))
