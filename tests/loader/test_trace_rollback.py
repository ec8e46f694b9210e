"""A step read what its version showed, whatever deduplication or rollback came since: traces and receipts say that."""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.main import invoke
from headrace.loader.loader import Loader
from headrace.loader.trace import Trace, trace_document
from headrace.store.datasets.dataset import Dataset
from headrace.store.datasets.manifest import bring_forward
from headrace.store.files.store import FileStore
from headrace.store.ledger.core.entries import Change, FragmentEnded, Retracted, VersionPublished
from headrace.store.ledger.core.fold import DEDUPLICATION
from tests.kits.store.dataset_writer import FRAGMENT, Writer


def publish(writer: Writer, *changes: Change) -> None:
    writer.entry(*changes)
    dataset = Dataset.open(writer.store.uri)
    assert bring_forward(dataset.store, dataset.manifest())


def read(writer: Writer) -> dict[str, Any]:
    """The state behind one pass over the newest version."""
    loader = Loader(writer.store.uri, batch_size=1, seed=1)
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    return loader.state_dict()


@pytest.fixture
def states(tmp_path: Path) -> dict[int, dict[str, Any]]:
    """States by the version that they read: record 1 is deduplicated in 2, which 3 takes back and 4 restores."""
    writer = Writer(FileStore(tmp_path / "data"))
    closed = writer.shard([3, 5])
    publish(writer, closed, FragmentEnded(FRAGMENT.id, 2), VersionPublished(1, "completed"))
    found = {1: read(writer)}
    hidden = Retracted(2, ((closed.objects[0].key, (1,)),), ())
    for version, changes in enumerate(
        (
            (hidden, VersionPublished(2, DEDUPLICATION, 1)),
            (VersionPublished(3, "rollback", 1, restores=1),),
            (VersionPublished(4, "rollback", 1, restores=2),),
        ),
        2,
    ):
        publish(writer, *changes)
        found[version] = read(writer)
    return found


@pytest.mark.parametrize(("version", "is_read"), [(1, True), (2, False), (3, True), (4, False)])
def test_a_trace_knows_what_the_version_of_its_step_showed(
    states: dict[int, dict[str, Any]], version: int, is_read: bool
) -> None:
    state = states[version]
    assert any(use.taken for use in trace_document(state, "1")) is is_read
    pieces = [piece.document for step in range(2) for row in Trace(state).step(step).rows for piece in row.pieces]
    assert ("1" in pieces) is is_read
    assert "0" in pieces


def test_a_receipt_names_the_versions_that_showed_a_record_and_its_steps(
    states: dict[int, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = []
    for version, state in states.items():
        (tmp_path / f"{version}.json").write_text(json.dumps(state))
        given += ["--checkpoint", str(tmp_path / f"{version}.json")]
    data = str(tmp_path / "data")
    assert invoke(["dataset", "retract", data, "1"]) == 0
    capsys.readouterr()
    assert invoke(["dataset", "purge", data, *given, "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["documents"]
    assert one["shown_by"] == [1, 3]
    assert [version for version in states if one["steps"][str(tmp_path / f"{version}.json")]] == [1, 3]
