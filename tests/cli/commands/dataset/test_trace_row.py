"""`headrace dataset trace URI KEY:ROW`: the records that lie in a row of a shard, and where they come from."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.cli.main import invoke
from headrace.store.files.store import FileStore
from headrace.store.ledger.core.entries import Closed, FragmentEnded, VersionPublished
from headrace.store.shards import read_shard
from tests.kits.store.dataset_writer import FATES, FRAGMENT, Writer


@pytest.fixture
def written(tmp_path: Path) -> tuple[FileStore, Closed]:
    """A dataset of one shard, whose records 0, 2, 4 and 6 are kept."""
    writer = Writer(store := FileStore(tmp_path / "data"))
    shard = writer.shard(FATES)
    writer.entry(shard, FragmentEnded(FRAGMENT.id, len(FATES)), VersionPublished(1, "completed"))
    return store, shard


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert invoke(["dataset", "trace", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_each_sequence_names_the_records_whose_tokens_it_holds(
    written: tuple[FileStore, Closed], capsys: pytest.CaptureFixture[str]
) -> None:
    store, shard = written
    (key,) = (item.key for item in shard.objects if item.role == "tokens")
    arrays, kept = read_shard(store, key), [row for row, fate in enumerate(FATES) if isinstance(fate, int)]
    for row in range(len(arrays["tokens"])):
        found = told(capsys, store.uri, f"{key}:{row}")
        here = np.flatnonzero(arrays["piece_sequence"] == row)
        wanted = [
            (kept[int(arrays["piece_document"][at])], int(arrays["piece_start"][at]), int(arrays["piece_length"][at]))
            for at in here
        ]
        assert wanted
        assert [(record["row"], record["start"], record["length"]) for record in found["records"]] == wanted
        assert {record["source"] for record in found["records"]} == {FRAGMENT.uri}
        assert (found["shard"], found["row"], found["pipeline"]) == (key, row, "v1")
    assert invoke(["dataset", "trace", store.uri, f"{key}:0"]) == 0
    assert f"{FRAGMENT.uri} record " in capsys.readouterr().out


@pytest.mark.parametrize("row", ["99", "9" * 18, "9" * 5000, "-1", "x"])
def test_a_row_that_is_not_there_is_named(
    written: tuple[FileStore, Closed], row: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store, shard = written
    assert invoke(["dataset", "trace", store.uri, f"{shard.objects[0].key}:{row}"]) == 1
    said = capsys.readouterr().err
    assert "has no row" in said or "has the id" in said
