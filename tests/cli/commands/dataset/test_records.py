"""`headrace dataset head`, `cat` and `sample` where no record can be shown."""

from pathlib import Path

import pytest

from headrace.cli.main import invoke
from headrace.store.files.store import FileStore
from headrace.store.ledger.core.entries import FragmentEnded, VersionPublished
from tests.kits.store.dataset_writer import FRAGMENT, Writer


@pytest.mark.parametrize("command", ["head", "cat", "sample"])
def test_a_tokenizer_that_is_not_there_leaves_no_half_of_json(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = Writer(FileStore(tmp_path / "data"))
    writer.entry(writer.shard([3, 5]), FragmentEnded(FRAGMENT.id, 2), VersionPublished(1, "completed"))
    assert invoke(["dataset", command, str(tmp_path / "data"), "--tokenizer", str(tmp_path / "t.json"), "--json"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert "no such file" in told.err
