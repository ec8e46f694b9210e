"""`headrace dataset compact` and `rm`: larger shards of the same records, and a dataset that is no more."""

import json
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.commands.maintenance import maintenance
from headrace.cli.main import invoke
from headrace.store.contract.errors import InvalidUri
from headrace.store.datasets.dataset import Dataset
from headrace.store.ledger.core.entries import Closed, EpochRaised, Removed
from headrace.store.ledger.core.fold import FoldError, LedgerState
from headrace.store.ledger.core.fragments import Counts, Range
from headrace.store.open import open_store
from tests.kits.run.command import DEADLINE_S, run_command
from tests.kits.run.command_server import ended
from tests.kits.run.dataset import fates
from tests.kits.run.kill import Marked, count_entries, dies_behind, headrace, kill_after_entries
from tests.kits.store.s3_server import shared_server


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any], str]:
    """A command in this process: its exit code, its answer, and what it complained of."""
    code = invoke(["dataset", *arguments, "--json"])
    said = capsys.readouterr()
    return code, json.loads(said.out) if said.out else {}, said.err


def files(dataset: Path) -> dict[str, bytes]:
    return {str(path.relative_to(dataset)): path.read_bytes() for path in dataset.rglob("*") if path.is_file()}


def one_of(dataset: Path, verdict: str) -> str:
    """The id of a record with this verdict."""
    return next(fate[1] for fate in fates(dataset).values() if fate[0] == verdict)


def fetched(uri: str, into: Path) -> Path:
    """The dataset as files, for readers that know no S3."""
    store = open_store(uri)
    for info in store.list(""):
        path = into / info.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(store.get(info.key))
    return into


def test_the_same_records_in_fewer_shards_leave_the_old_dataset(
    home: Path, undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, large = files(undisturbed), tmp_path / "large"
    code, said, _ = call(capsys, "compact", str(undisturbed), str(large), "--shard-mib", "1")
    assert code == 0
    assert said["fresh"]
    assert said["shards"] * 4 < said["shards_before"]
    assert said["padding"] < said["padding_before"]
    assert files(undisturbed) == before
    assert fates(large) == fates(undisturbed)
    assert call(capsys, "verify", str(large))[1]["sound"]
    manifest = json.loads((large / "manifest.json").read_text())
    assert manifest["pipeline"] == json.loads(before["manifest.json"])["pipeline"]
    # A merged shard is the one that the sink would have written: it can be made again from the source.
    shard = Path(manifest["shards"][0]["tokens"]).name.split(".")[0]
    done = ended(headrace("dataset", "rebuild", "--trust-code", str(large), shard), cwd=home)
    assert done.returncode == 0, done.stderr + done.stdout
    assert [line.split()[-1] for line in done.stdout.splitlines() if "profile" in line] == ["same"]
    code, said, _ = call(capsys, "compact", str(undisturbed), str(large), "--shard-mib", "1")
    assert (code, said["fresh"]) == (0, False)


def test_a_run_goes_on_with_a_compacted_dataset(
    home: Path, undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    large = tmp_path / "large"
    assert call(capsys, "compact", str(undisturbed), str(large), "--shard-mib", "8")[0] == 0
    entries = count_entries(large / "ledger")
    done = ended(run_command(home, str(large)), cwd=home)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["records_resumed"] == json.loads(done.stdout)["records_read"]
    assert count_entries(large / "ledger") > entries


def test_killed_anywhere_it_goes_on_and_closes_each_record_once(
    home: Path, undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    large = tmp_path / "large"
    again = ("dataset", "compact", str(undisturbed), str(large), "--shard-mib", "1")
    # Behind its second entry; within the objects of a shard; and behind an entry that closes one.
    for method, calls in (
        ("ledger.log:Log.append", 2),
        ("files.store:FileStore.create", 6),
        ("ledger.log:Log.append", 3),
    ):
        command = dies_behind(f"headrace.store.{method}", calls, *again)
        killed = subprocess.run(command, capture_output=True, text=True, cwd=home, timeout=DEADLINE_S)
        assert killed.returncode == -signal.SIGKILL, f"it was over before {method} {calls}: {killed.stderr}"
    code, said, _ = call(capsys, "compact", str(undisturbed), str(large), "--shard-mib", "1")
    assert (code, said["fresh"]) == (0, True)
    assert fates(large) == fates(undisturbed)
    call(capsys, "gc", str(large))
    assert call(capsys, "verify", str(large))[1]["unnamed"] == 0


@pytest.mark.slow
def test_a_retracted_record_stays_hidden_and_its_text_does_not_come_back(
    undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, large = tmp_path / "old", tmp_path / "large"
    shutil.copytree(undisturbed, old)
    ids = [fate[1] for fate in fates(old).values() if fate[0] == "kept"][:3]
    broken = next(fate[1] for fate in fates(old).values() if fate[0] == "quarantined")
    assert call(capsys, "retract", str(old), *ids, broken)[0] == 0
    assert call(capsys, "compact", str(old), str(large), "--shard-mib", "1")[0] == 0
    for name in ids:
        (fact,) = call(capsys, "trace", str(large), name)[1]["records"]
        assert fact["retracted"] == 1
    shown = call(capsys, "show", str(large), "--quarantine")[1]["quarantine"]
    assert [row["raw"] for row in shown if row["id"] == broken] == [None]
    assert call(capsys, "verify", str(large))[1]["sound"]


def retract(dataset: Path, *names: str) -> None:
    done = ended(headrace("dataset", "retract", str(dataset), *names))
    assert done.returncode == 0


def shows_nothing_of(capsys: pytest.CaptureFixture[str], dataset: Path, kept: str, broken: str) -> bool:
    """Whether a kept record is hidden, and the bytes of a quarantined one are gone."""
    (fact,) = call(capsys, "trace", str(dataset), kept)[1]["records"]
    quarantine = call(capsys, "show", str(dataset), "--quarantine")[1]["quarantine"]
    sound = call(capsys, "verify", str(dataset))[1]["sound"]
    return sound and "retracted" in fact and [row["raw"] for row in quarantine if row["id"] == broken] == [None]


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before the last look", "between the last look and the entry"])
def test_a_retraction_in_the_meantime_is_made_in_the_new_dataset_too(
    undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    old, large = tmp_path / "old", tmp_path / "large"
    shutil.copytree(undisturbed, old)
    kept, broken = one_of(old, "kept"), one_of(old, "quarantined")
    name = "_settled" if moment.startswith("between") else "_publish"
    inner, calls = getattr(maintenance, name), []

    def retracting(*arguments: Any, **named: Any) -> Any:
        if not calls:
            calls.append(moment)
            retract(old, kept, broken)
        return inner(*arguments, **named)

    monkeypatch.setattr(maintenance, name, retracting)
    code, _, complaint = call(capsys, "compact", str(old), str(large), "--shard-mib", "1")
    assert (code, complaint) == (0, "")
    assert shows_nothing_of(capsys, large, kept, broken)


@pytest.mark.slow
def test_a_retraction_behind_a_compaction_is_made_by_the_next(
    undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, large = tmp_path / "old", tmp_path / "large"
    shutil.copytree(undisturbed, old)
    kept, broken = one_of(old, "kept"), one_of(old, "quarantined")
    compact = ("compact", str(old), str(large), "--shard-mib", "1")
    assert call(capsys, *compact)[0] == 0
    retract(old, kept, broken)
    assert call(capsys, *compact)[1]["version"] == 2
    assert shows_nothing_of(capsys, large, kept, broken)
    assert call(capsys, *compact)[1]["version"] == 2


def test_another_dataset_is_not_compacted_into(
    home: Path, undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    done = ended([*run_command(home, str(other)), "-p", "seq_len=128"], cwd=home)  # fmt: skip
    assert done.returncode == 0, done.stderr
    before = files(other / "shards")
    code, _, complaint = call(capsys, "compact", str(undisturbed), str(other))
    assert code == 1
    assert "compact into a new place" in complaint
    assert files(other / "shards") == before
    assert call(capsys, "compact", str(other), str(other))[0] == 2


@pytest.mark.slow
def test_a_dataset_on_s3_is_compacted_there_and_removed(
    undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = shared_server()
    small, large = server.uri("small"), server.uri("large")
    assert call(capsys, "compact", str(undisturbed), small, "--shard-mib", "1")[0] == 0
    assert call(capsys, "compact", small, large, "--shard-mib", "8")[0] == 0
    assert fates(fetched(large, tmp_path / "large")) == fates(undisturbed)
    assert call(capsys, "rm", large, "--yes")[0] == 0
    left = [info.key for info in open_store(large).list("") if not info.key.startswith("ledger/")]
    assert left == ["README.md", "manifest.json"]
    assert b"This dataset was removed." in open_store(large).get("README.md")
    assert json.loads(open_store(large).get("manifest.json"))["removed"]
    with pytest.raises(InvalidUri, match="it was removed"):
        Dataset.open(large)
    assert Dataset.open(small).state.version == 1


def test_a_removed_dataset_is_gone_and_another_may_begin_in_its_place(
    home: Path, undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = tmp_path / "copy"
    shutil.copytree(undisturbed, dataset)
    code, _, complaint = call(capsys, "rm", str(dataset))
    assert code == 2
    assert "add --yes" in complaint
    assert files(dataset) == files(undisturbed)
    assert call(capsys, "rm", str(dataset), "--yes")[0] == 0
    assert {name.split("/")[0] for name in files(dataset)} == {".tmp", "README.md", "ledger", "manifest.json"}
    assert call(capsys, "show", str(dataset))[0] == 1
    assert call(capsys, "ls", str(tmp_path))[1]["datasets"] == []
    assert call(capsys, "rm", str(dataset), "--yes")[0] == 0
    done = ended(run_command(home, str(dataset)), cwd=home)
    assert done.returncode == 0, done.stderr
    assert fates(dataset) == fates(undisturbed)


def test_a_dataset_that_a_run_writes_is_not_removed(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = tmp_path / "written"
    run = Marked(run_command(home, str(dataset)), home)
    codes: list[int] = []

    def look() -> int:
        entries = count_entries(dataset / "ledger")
        if entries >= 4 and not codes:
            codes.append(call(capsys, "rm", str(dataset), "--yes")[0])
        return entries if codes else 0

    assert kill_after_entries(run, look, 4, 0.0)
    assert codes == [1]
    assert not Dataset.open(str(dataset)).state.removed


def test_who_wakes_after_a_removal_can_close_nothing() -> None:
    ledger = LedgerState()
    ledger._change(3, EpochRaised("created"))
    with pytest.raises(FoldError, match="does not raise the epoch"):
        ledger._change(4, Removed("removal"))
    ledger._change(5, EpochRaised("removal"))
    ledger._change(5, Removed("removal"))
    late = Closed("write", "v", 3, (Range(b"f", 0, 1),), (), Counts(kept=1))
    with pytest.raises(FoldError, match="fenced off by 5"):
        ledger._change(6, late)
    assert ledger.removed


def test_a_damaged_shard_is_not_merged_as_if_it_were_sound(
    undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = tmp_path / "old"
    shutil.copytree(undisturbed, old)
    item = next(item for item in Dataset.open(str(old)).shards[0].closed.objects if item.role == "tokens")
    data = bytearray((old / item.key).read_bytes())
    data[len(data) // 2] ^= 1
    (old / item.key).write_bytes(data)
    code, _, complaint = call(capsys, "compact", str(old), str(tmp_path / "large"))
    assert code == 1
    assert "checksum" in complaint
