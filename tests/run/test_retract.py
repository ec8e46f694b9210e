"""`headrace dataset retract`: from that version on nothing shows the record, and everything else stays where it was."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.loader.dataset.dataset import open_dataset
from headrace.stages.export.source import read_documents, token_shards
from headrace.store.datasets.dataset import Dataset
from tests.kits.run.command_server import ended
from tests.kits.run.dataset import fates
from tests.kits.run.kill import headrace


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    return ended(headrace("dataset", *arguments))


def answer(*arguments: str) -> dict[str, Any]:
    done = call(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_retracted_record_is_unseen_and_its_text_gone(undisturbed: Path, tmp_path: Path) -> None:
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
    assert "retracted     shown no more since version 2" in call("trace", str(dataset), ids[1]).stdout
    assert answer("show", str(dataset))["retracted"] == 1
    assert "1 document of those kept, shown no more" in call("show", str(dataset)).stdout
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


def test_an_id_or_source_that_is_not_there_retracts_nothing(undisturbed: Path, tmp_path: Path) -> None:
    dataset = tmp_path / "copy"
    shutil.copytree(undisturbed, dataset)
    documents = json.loads((dataset / "manifest.json").read_text())["shards"][0]["documents"]
    there = pq.read_table(dataset / documents).to_pylist()[0]
    for missing in ("nobody", "file:///nowhere"):
        more = ["--source", missing] if ":" in missing else [missing]
        done = call("retract", str(dataset), there["id"], "--source", there["source"], *more)
        assert done.returncode == 1
        assert f"'{missing}': none retracted" in done.stderr
    assert Dataset.open(str(dataset)).state.version == 1


@pytest.mark.slow
def test_all_that_was_read_from_one_source_is_retracted_and_nothing_else(undisturbed: Path, tmp_path: Path) -> None:
    dataset = tmp_path / "copy"
    shutil.copytree(undisturbed, dataset)
    shards = json.loads((dataset / "manifest.json").read_text())["shards"]
    tables = {shard["tokens"]: pq.read_table(dataset / shard["documents"]) for shard in shards}
    verdicts = pa.concat_tables([pq.read_table(dataset / shard["verdicts"]) for shard in shards])
    source = tables[shards[0]["tokens"]].column("source").to_pylist()[0]
    before = fates(dataset)
    done = answer("retract", str(dataset), "--source", source)
    rows = {
        key: [row for row, one in enumerate(table.column("source").to_pylist()) if one == source]
        for key, table in tables.items()
    }
    others = sum(len(table) for table in tables.values()) - sum(map(len, rows.values()))
    assert others, "the corpus has several files"
    assert done["documents"] == sum(map(len, rows.values()))
    assert done["records"] == done["documents"] + verdicts.column("source").to_pylist().count(source)
    retracted = json.loads((dataset / "manifest.json").read_text())["retracted"]
    told = {item["tokens"]: item["documents"] for item in retracted}
    assert told == {key: found for key, found in rows.items() if found}
    opened = Dataset.open(str(dataset))
    left = [read_documents(opened, shard).table.column("source").to_pylist() for shard in token_shards(opened)]
    assert sum(map(len, left)) == others
    assert not any(source in names for names in left)
    assert fates(dataset) == before, "the tokens stay where they lie"
    assert call("verify", str(dataset)).returncode == 0
    again = call("retract", str(dataset), "--source", "file:///nowhere")
    assert again.returncode == 1
    assert "none retracted" in again.stderr
