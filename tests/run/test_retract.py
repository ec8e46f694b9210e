"""`headrace dataset retract`: from that version on nothing shows the record, and everything else stays where it was."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from conftest import DEADLINE_S
from kill_kit import headrace

from headrace.loader.dataset import open_dataset
from headrace.stages.export.source import read_documents, token_shards
from headrace.store.dataset import Dataset


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(headrace("dataset", *arguments), capture_output=True, text=True, timeout=DEADLINE_S)


def answer(*arguments: str) -> dict[str, Any]:
    done = call(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_retracted_record_is_shown_by_no_reader_and_its_text_is_gone(undisturbed: Path, tmp_path: Path) -> None:
    dataset = tmp_path / "copy"
    shutil.copytree(undisturbed, dataset)
    shard = json.loads((dataset / "manifest.json").read_text())["shards"][0]
    ids = pq.read_table(dataset / shard["documents"]).column("id").to_pylist()
    samples = next(iter(sorted(dataset.rglob("*.samples.parquet"))))
    sampled = pq.read_table(samples).column("id").to_pylist()[0]
    broken = next(iter(sorted((dataset / "quarantine").rglob("*.parquet"))))
    quarantined = pq.read_table(broken).column("id").to_pylist()[0]
    before = np.array(open_dataset(str(dataset)).rows(0, np.arange(shard["sequences"])))
    done = answer("retract", str(dataset), ids[1], sampled, quarantined)
    assert (done["records"], done["documents"], done["version"]) == (3, 1, 2)
    assert not samples.exists()
    assert not broken.exists()
    for path in dataset.rglob("*.samples.parquet"):
        assert sampled not in pq.read_table(path).column("id").to_pylist()
    raws = [row for path in (dataset / "quarantine").rglob("*.parquet") for row in pq.read_table(path).to_pylist()]
    assert [row["raw"] for row in raws if row["id"] == quarantined] == [None]
    assert sum(row["raw"] is None for row in raws) == 1
    after = np.array(open_dataset(str(dataset)).rows(0, np.arange(shard["sequences"])))
    (fact,) = answer("trace", str(dataset), ids[1])["records"]
    assert fact["retracted"] == 2
    hidden = np.zeros(before.shape, np.bool_)
    for piece in fact["pieces"]:
        hidden[piece["sequence"], piece["start"] : piece["start"] + piece["length"]] = True
    pad = json.loads((dataset / "manifest.json").read_text())["pad_id"]
    assert (after[hidden] == pad).all()
    assert np.array_equal(after[~hidden], before[~hidden])
    opened = Dataset.open(str(dataset))
    exported = read_documents(opened, token_shards(opened)[0])
    assert exported.table.column("id").to_pylist() == [ids[0], *ids[2:]]
    assert call("verify", str(dataset)).returncode == 0
    again = answer("retract", str(dataset), ids[1])
    assert (again["documents"], again["version"]) == (0, 2)


def test_an_id_that_is_not_there_retracts_nothing(undisturbed: Path, tmp_path: Path) -> None:
    dataset = tmp_path / "copy"
    shutil.copytree(undisturbed, dataset)
    done = call("retract", str(dataset), "nobody")
    assert done.returncode == 1
    assert "'nobody': none retracted" in done.stderr
    assert Dataset.open(str(dataset)).state.version == 1
