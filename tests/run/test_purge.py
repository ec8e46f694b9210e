"""Takedown: what was retracted is deleted byte by byte, nothing else is, and a checkpoint goes on where it was."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from headrace.cli.commands.maintenance.purge import _documents
from headrace.loader.loader import Loader
from headrace.store.datasets.dataset import Dataset
from headrace.store.datasets.shown import hidden_at
from headrace.store.files.store import FileStore
from headrace.store.ledger.core.entries import Retracted, VersionPublished
from headrace.store.ledger.core.fold import DEDUPLICATION, HELD_OUT_SPLIT, LedgerState
from tests.kits.run.command import DEADLINE_S, dataset_answer as answer, dataset_command as call
from tests.kits.run.command_server import ended
from tests.kits.run.kill import dies_behind, headrace
from tests.kits.run.small_tokenizer import small_tokenizer
from tests.kits.store.dataset_writer import Writer

PIPELINE = """
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import dedup, read_jsonl, tokenize, write_documents, write_jsonl, write_tokens


def build(input: str, output: str, tokenizer: str, sink: str) -> Pipeline:
    tokens = tokenize(tokenizer)
    ends = {
        "tokens": [*dedup(), tokens, write_tokens(tokens, seq_len=32)],
        "documents": [write_documents()],
        "lines": [write_jsonl()],
    }[sink]
    return Pipeline.chain("p", output, read_jsonl(input), *ends)
"""
SECRET = "moonbeam-4711"
SINKS = ("tokens", "documents", "lines")
SLOW = pytest.mark.slow
GONE = ("d3", "d11", "d19")


def run(home: Path, sink: str, *options: str) -> None:
    given = (f"sink={sink}", f"output={sink}", "input=in*.jsonl", f"tokenizer={small_tokenizer()}")
    command = headrace("run", "p.py", *(word for one in given for word in ("-p", one)), *options)
    done = ended(command, cwd=home)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a dataset of each sink: 24 records of three users, each with a text and a field of its own."""
    home = tmp_path_factory.mktemp("purge")
    (home / "p.py").write_text(PIPELINE)
    rows = []
    for number in range(24):
        user = "u1" if number % 8 == 3 else f"v{number % 2}"
        words = " ".join(f"{SECRET if user == 'u1' else 'word'}{number}x{place}" for place in range(12 + number))
        rows.append({"id": f"d{number}", "text": words, "user": user, "mail": f"{user}-{number}@{SECRET[:8]}.example"})
    for part in range(2):
        (home / f"in{part}.jsonl").write_text("\n".join(json.dumps(row) for row in rows[part::2]))
    for sink in SINKS:
        run(home, sink)
    return home


@pytest.fixture
def home(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "home")
    return tmp_path / "home"


def records(home: Path, address: str) -> dict[str, dict[str, Any]]:
    return {one["id"]: one for one in answer(home, "cat", address)["records"]}


def holding(dataset: Path, *needles: bytes) -> list[str]:
    """The objects that hold one of these, as they are stored or behind their compression."""
    import pyarrow.parquet as pq

    found = []
    for path in sorted(path for path in dataset.rglob("*") if path.is_file() and path.parent.name != "ledger"):
        data = path.read_bytes()
        if path.name.endswith(".parquet"):
            data += repr(pq.read_table(path).to_pydict()).encode()
        elif path.name.endswith(".zst"):
            with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as stream:
                data += stream.read()
        if any(needle in data for needle in needles):
            found.append(path.name)
    return found


def loader(home: Path) -> Loader:
    return Loader(str(home / "tokens"), batch_size=1, seed=5)


def rows_of(batches: list[Any]) -> list[list[int]]:
    return [row for batch in batches for row in np.asarray(batch["tokens"]).tolist()]


def test_a_purge_deletes_the_bytes_and_a_checkpoint_goes_on(home: Path) -> None:
    before = records(home, "tokens")
    files = {path.name for path in (home / "tokens").rglob("*") if path.is_file()}
    first = loader(home)
    iterator = iter(first)
    seen = [next(iterator) for _ in range(6)]
    state = first.state_dict()
    (home / "state.json").write_text(json.dumps(state))
    to_come = [next(iterator) for _ in range(6)]
    read = {name: answer(home, "trace", "--checkpoint", "state.json", "--document", name)["uses"] for name in GONE}
    done = answer(home, "retract", "tokens", "--where", 'user == "u1" and startswith(mail, "u1-")')
    assert (done["records"], done["documents"]) == (3, 3)
    mail = f"@{SECRET[:8]}.example".encode()
    assert holding(home / "tokens", b"u1-3" + mail), "a retraction hides; the field stands still"
    planned = answer(home, "purge", "tokens", "--dry-run")
    assert (planned["rewritten"] > 0, [one["erased"] for one in planned["documents"]]) == (True, [False] * 3)
    receipt = answer(home, "purge", "tokens", "--checkpoint", "state.json")
    assert [one["id"] for one in receipt["documents"]] == sorted(
        GONE, key=lambda name: (int(name[1:]) % 2, int(name[1:]))
    )
    for one in receipt["documents"]:
        assert (one["erased"], one["shown_by"]) == (True, [1])
        assert one["steps"]["state.json"] == sorted({use["step"] for use in read[one["id"]] if use["taken"]})
    assert any(one["steps"]["state.json"] for one in receipt["documents"])
    assert holding(home / "tokens", *(f"u1-{name[1:]}".encode() + mail for name in GONE)) == []
    left = {path.name for path in (home / "tokens").rglob("*") if path.is_file() and path.parent.name != "ledger"}
    assert {key.rpartition("/")[2] for key in receipt["deleted"]} >= files - left - {"manifest.json"} - {
        path for path in files if path.endswith(".msgpack")
    }
    assert call(home, "verify", "tokens").returncode == 0
    for address in ("tokens", "tokens@1"):
        after = records(home, address)
        assert after == {name: one for name, one in before.items() if name not in GONE}, "nothing else is removed"
    again = loader(home)
    again.load_state_dict(state)
    found, expected = rows_of([next(iter(again)) for _ in range(1)]), rows_of(to_come[:1])
    pad = json.loads((home / "tokens/manifest.json").read_text())["pad_id"]
    for row, was in zip(found, expected, strict=True):
        assert all(one in (other, pad) for one, other in zip(row, was, strict=True))
    assert len(seen) == 6
    assert answer(home, "purge", "tokens")["rewritten"] == 0
    assert "erased; versions that showed it: 1" in call(home, "purge", "tokens").stdout
    assert answer(home, "rollback", "tokens@1")["version"] > 2
    assert set(records(home, "tokens")) == set(before) - set(GONE)


@pytest.mark.parametrize("role", ["tokens", "documents"])
def test_what_is_damaged_is_not_written_anew_as_if_it_were_sound(home: Path, role: str) -> None:
    answer(home, "retract", "tokens", "d3")
    dataset = Dataset.open(str(home / "tokens"))
    objects = (next(item for item in shard.closed.objects if item.role == role) for shard in dataset.shards)
    for item in objects:
        path = home / "tokens" / item.key
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    done = call(home, "purge", "tokens")
    assert done.returncode == 1
    assert "checksum" in done.stderr
    assert Dataset.open(str(home / "tokens")).state.erased == {}


def test_no_token_of_an_erased_text_is_left_in_any_object(home: Path) -> None:
    from headrace.loader.dataset.dataset import open_dataset

    opened = open_dataset(str(home / "tokens"))
    (fact,) = answer(home, "trace", "tokens", "d11")["records"]
    shard = [entry.tokens for entry in opened.manifest.shards].index(fact["shard"])
    rows = opened.rows(shard, np.arange(opened.manifest.shards[shard].sequences))
    pieces = [rows[one["sequence"], one["start"] : one["start"] + one["length"]].tobytes() for one in fact["pieces"]]
    needles = [piece for piece in pieces if len(piece) > 16]
    assert needles
    assert holding(home / "tokens", *needles)
    answer(home, "retract", "tokens", *GONE)
    answer(home, "purge", "tokens")
    assert holding(home / "tokens", *needles) == []
    (fact,) = answer(home, "trace", "tokens", "d11")["records"]
    rebuilt = call(home, "rebuild", "tokens", fact["shard"], "--trust-code", "--restore")
    assert (rebuilt.returncode, "texts of this shard were erased" in rebuilt.stderr) == (1, True), rebuilt.stderr
    left = set(records(home, "tokens"))
    # Read again from another place: dedup has the keys and sketches of all, and the erased texts do not come back.
    (home / "in2.jsonl").write_text(json.dumps({"id": "late", "text": "a late record " * 9}))
    run(home, "tokens", "--amend")
    assert set(records(home, "tokens")) == left | {"late"}
    assert holding(home / "tokens", *needles) == []
    assert call(home, "verify", "tokens").returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("sink", ["documents", "lines"])
def test_a_dataset_of_text_loses_the_text_at_its_retraction(home: Path, sink: str) -> None:
    before = records(home, sink)
    assert holding(home / sink, SECRET.encode())
    done = answer(home, "retract", sink, "--where", "user == 'u1'")
    assert (done["documents"], done["version"]) == (3, 2)
    assert holding(home / sink, SECRET.encode(), b"u1-3@", b"u1-11@", b"u1-19@") == []
    left = {name: one for name, one in before.items() if name not in GONE}
    assert records(home, sink) == records(home, f"{sink}@1") == left
    assert call(home, "verify", sink).returncode == 0
    assert answer(home, "retract", sink, "d4")["documents"] == 1
    assert records(home, sink) == {name: one for name, one in left.items() if name != "d4"}
    assert holding(home / sink, before["d4"]["text"].encode()) == []
    assert [one["erased"] for one in answer(home, "purge", sink)["documents"]] == [True] * 4
    if sink == "documents":
        assert answer(home, "export", sink, "exported", "--format", "parquet")["documents"] == 20


def test_a_receipt_looks_at_the_records_that_were_taken_down_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(FileStore(tmp_path))
    closed = writer.shard([3] * 12)
    key = closed.objects[0].key
    writer.entry(closed, VersionPublished(1, "completed"))
    writer.entry(Retracted(2, ((key, (1, 10)),), ()), VersionPublished(2, DEDUPLICATION))
    writer.entry(VersionPublished(3, "rollback", 1, restores=1))
    for version in range(4, 14):
        writer.entry(Retracted(version, ((key, (version - 4,)),), ()), VersionPublished(version, "retraction"))
    writer.entry(Retracted(14, ((key, (2, 11)),), ()), VersionPublished(14, HELD_OUT_SPLIT))
    dataset = Dataset.open(writer.store.uri)
    hidden = {version: hidden_at(dataset.state, version)[key] for version in range(2, 15) if version != 3}
    shown = [[one for one in range(1, 15) if row not in hidden.get(one, ())] for row in range(10)]
    asked: list[int] = []
    hides = LedgerState.hides

    def counted(state: LedgerState, since: int, version: int) -> bool:
        asked.append(version)
        return hides(state, since, version)

    monkeypatch.setattr(LedgerState, "hides", counted)
    receipt = _documents(dataset, {})
    assert [(one["id"], one["shown_by"]) for one in receipt] == [(f"{row}", shown[row]) for row in range(10)]
    assert shown[1] == [1, 3, 4]
    assert len(asked) < 14, "versions are asked for row 1 alone, which a deduplication hid before"


#: What a takedown does to a store: objects and entries are created, the manifest is updated, old objects are deleted.
STEPS = [
    pytest.param("headrace.store.files.store:FileStore.create", marks=SLOW),
    pytest.param("headrace.store.files.store:FileStore.update", marks=SLOW),
    "headrace.store.files.store:FileStore.delete",
]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("sink", [pytest.param("tokens", marks=SLOW), "lines"])
def test_a_takedown_that_is_killed_anywhere_is_done_by_the_next_call(
    made: Path, tmp_path: Path, step: str, sink: str
) -> None:
    before = records(made, sink)
    number = 0
    while True:
        number += 1
        home = tmp_path / f"{number}"
        shutil.copytree(made, home)
        command = ["retract", sink, *GONE]
        if sink == "tokens":
            answer(home, *command)
            command = ["purge", sink]
        killed = subprocess.run(
            dies_behind(step, number, "dataset", *command), capture_output=True, cwd=home, timeout=DEADLINE_S
        )
        assert killed.returncode in (0, -9), killed.stderr
        shown = records(home, sink)
        assert set(before) - set(GONE) <= set(shown) <= set(before), "a reader finds a whole version at each moment"
        assert call(home, *command).returncode == 0
        assert records(home, sink) == {name: one for name, one in before.items() if name not in GONE}
        assert holding(home / sink, b"u1-3@", b"u1-11@", b"u1-19@") == []
        found = answer(home, "verify", sink)
        assert (found["sound"], found["unnamed"]) == (True, 0)
        if killed.returncode == 0:
            break
    assert number > 1


def test_what_is_no_expression_is_refused(home: Path) -> None:
    for text in ("user ==", "__import__('os').system('x')", "user", "1 if user else 2", "user == f'{id}'", "a" * 5000):
        done = call(home, "retract", "tokens", "--where", text)
        assert (done.returncode, "--where: " in done.stderr) == (2, True), done.stderr
    done = call(home, "retract", "tokens", "--where", "user == 'nobody'")
    assert (done.returncode, "none retracted" in done.stderr) == (1, True)


def test_an_expression_that_nothing_fulfils_is_told_beside_ids(home: Path) -> None:
    for user, said in (("nobody", True), ("u1", False)):
        done = call(home, "retract", "tokens", GONE[0], "--where", f"user == '{user}'")
        assert (done.returncode, "no kept record fulfils --where" in done.stderr) == (0, said), done.stderr


@pytest.mark.parametrize("kind", ["mds", *(pytest.param(kind, marks=SLOW) for kind in ("megatron", "parquet"))])
def test_an_export_is_written_anew_without_what_was_purged(home: Path, kind: str) -> None:
    answer(home, "export", "tokens", "out", "--format", kind)
    answer(home, "export", "tokens", "other", "--format", kind)
    (home / "other" / "notes.txt").write_text("mine")
    answer(home, "retract", "tokens", *GONE)
    answer(home, "export", "tokens", "clean", "--format", kind)
    planned = answer(home, "purge", "tokens", "--dry-run")
    assert [copy["state"][:5] for copy in planned["copies"]] == ["to do", "to do", "witho"]
    before = {path.name: path.read_bytes() for path in (home / "other").iterdir()}
    receipt = answer(home, "purge", "tokens")
    states = {Path(copy["place"]).name: copy["state"] for copy in receipt["copies"]}
    assert states["out"] == "written anew"
    assert states["other"] == "left alone: other holds 'notes.txt', which no export wrote"
    assert {path.name: path.read_bytes() for path in (home / "other").iterdir()} == before
    answer(home, "export", "tokens@1", "expected", "--format", kind)
    out, expected = ({p.name: p.read_bytes() for p in (home / name).iterdir()} for name in ("out", "expected"))
    assert out == expected
    assert out != {name: data for name, data in before.items() if name != "notes.txt"}
    assert not list(home.glob("out.purg*"))
    assert {copy["state"] for copy in answer(home, "purge", "tokens")["copies"] if copy["place"].endswith("/out")} == {
        "without it"
    }


@pytest.mark.parametrize("number", [pytest.param(1, marks=SLOW), 2, pytest.param(3, marks=SLOW)])
def test_the_next_call_ends_an_exchange_that_was_killed(home: Path, number: int) -> None:
    answer(home, "export", "tokens", "out", "--format", "parquet")
    answer(home, "retract", "tokens", *GONE)
    answer(home, "export", "tokens", "expected", "--format", "parquet")
    # Renames: of the finished export, of the old folder, of the new one.
    killed = subprocess.run(dies_behind_rename(number), capture_output=True, cwd=home, timeout=DEADLINE_S)
    assert killed.returncode == -9, killed.stderr
    assert call(home, "purge", "tokens").returncode == 0
    out, expected = ({p.name: p.read_bytes() for p in (home / name).iterdir()} for name in ("out", "expected"))
    assert out == expected
    assert not list(home.glob("out.purg*"))


def dies_behind_rename(number: int) -> list[str]:
    """`dataset purge tokens`, killed just behind the nth rename of a folder."""
    script = """
import os, signal, sys
from headrace.store.files import disk
from headrace.cli.main import invoke
rename, left = disk.rename, int(sys.argv[1])
def dying(source, target):
    global left
    rename(source, target)
    left -= os.path.isdir(target)
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
disk.rename = dying
sys.exit(invoke(["dataset", "purge", "tokens"]))
"""
    return [sys.executable, "-P", "-c", script, str(number)]
