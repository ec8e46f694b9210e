"""Lines that many records have, in real runs: counted from a dataset of text, removed, audited and made again."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from headrace.store.datasets.dataset import Dataset
from tests.kits.run.command_server import ended
from tests.kits.run.kill import Marked, headrace
from tests.kits.run.small_tokenizer import small_tokenizer

DEADLINE_S = 300
RECORDS = 400
BANNERS = ["Accept all cookies of this site", "Sign up for the newsletter today"]
FIRST = """
from headrace import Pipeline, read_jsonl, write_documents


def build(input: str, output: str) -> Pipeline:
    return Pipeline.chain("first", output, read_jsonl(input, batch_bytes=4_000), write_documents(shard_bytes=1 << 14))
"""
SECOND = """
from headrace import Pipeline, dedup, dedup_lines, read_jsonl, tokenize, write_tokens


def build(input: str, output: str, index: str, batch: int = 4_000, shard: int = 1 << 12) -> Pipeline:
    tokens = tokenize({tokenizer!r})
    write = write_tokens(tokens, seq_len=128, shard_bytes=shard)
    source = read_jsonl(input, batch_bytes=batch)
    return Pipeline.chain("second", output, source, dedup_lines(index), *dedup(near=False), tokens, write)
"""


def records() -> list[dict[str, str]]:
    """Own lines between banners; one record in ten has banners alone."""
    chance = random.Random(2)
    found: list[dict[str, str]] = []
    for number in range(RECORDS):
        own = [f"This is line {line} of record {number}, which no other has." for line in range(3)]
        lines = [*own, *BANNERS] if number % 10 else list(BANNERS)
        chance.shuffle(lines)
        found.append({"id": f"record-{number}", "text": "\n".join(lines)})
    return found


def tell(place: Path, *arguments: str) -> Any:
    done = ended(headrace(*arguments, "--json"), cwd=place)
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout)


def parameters(**given: object) -> list[str]:
    return [word for name, value in given.items() for word in ("-p", f"{name}={value}")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("repeats")
    (place / "first.py").write_text(FIRST)
    (place / "second.py").write_text(SECOND.format(tokenizer=small_tokenizer()))
    (place / "in.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records()))
    tell(place, "run", "first.py", *parameters(input=place / "in.jsonl", output="text"))
    found = tell(place, "dataset", "repeats", "text", "--out", "lines.idx", "--records-min", "50")
    assert (found["records"], found["spans"]) == (RECORDS, len(BANNERS))
    tell(place, "run", "second.py", *second(place, "data"))
    return place


def second(place: Path, output: str, **more: object) -> list[str]:
    return parameters(input=place / "in.jsonl", output=output, index=place / "lines.idx", **more)


def fates(dataset: Path) -> dict[str, tuple[str, str, str | None]]:
    import pyarrow.parquet as pq

    found: dict[str, tuple[str, str, str | None]] = {}
    for shard in Dataset.open(str(dataset)).shards:
        for role in ("documents", "verdicts"):
            item = shard.object(role)
            assert item is not None
            for row in pq.read_table(dataset / item.key).to_pylist():
                assert row["id"] not in found
                found[row["id"]] = (row.get("verdict", "kept"), row.get("reason", ""), row.get("lineage"))
    return found


def test_banners_go_and_records_without_anything_else_are_filtered(folder: Path) -> None:
    found = fates(folder / "data")
    for place, record in enumerate(records()):
        verdict, reason, lineage = found[record["id"]]
        if place % 10 == 0:
            assert (verdict, reason) == ("filtered", "only repeated lines")
            continue
        assert (verdict, lineage is not None) == ("kept", True)
        ranges = json.loads(lineage or "")["removed"]["dedup-lines"]
        gone = "".join(record["text"].encode()[a:b].decode() for a, b in zip(ranges[::2], ranges[1::2], strict=True))
        assert sorted(line for line in gone.split("\n") if line) == sorted(BANNERS)


def test_the_dataset_is_sound_and_its_shards_are_made_again(folder: Path) -> None:
    assert tell(folder, "dataset", "verify", "data")["problems"] == []
    for shard in Dataset.open(str(folder / "data")).shards[:2]:
        tokens = shard.object("tokens")
        assert tokens is not None
        again = tell(folder, "dataset", "rebuild", "--trust-code", "data", Path(tokens.key).name.partition(".")[0])
        assert (again["identical"], again["differing"]) == (True, [])


@pytest.mark.slow
def test_other_batches_and_a_killed_run_give_the_same_records(folder: Path) -> None:
    run = Marked(headrace("run", "second.py", *second(folder, "again", batch=1_500), "--json"), folder)
    process = run.start()
    while process.poll() is None and not list((folder / "again").glob("shards/**/*.safetensors")):
        pass
    run.kill()
    process.communicate()
    assert process.returncode in (0, -signal.SIGKILL)
    tell(folder, "run", "second.py", *second(folder, "again", batch=1_500))
    assert fates(folder / "again") == fates(folder / "data")
    assert tell(folder, "dataset", "verify", "again")["problems"] == []


def test_lines_of_tokens_are_those_of_the_text(folder: Path) -> None:
    found = tell(folder, "dataset", "repeats", "data", "--out", "after.idx", "--records-min", "2")
    assert found["spans"] == 0
    # What is left of a record's own lines differs in two numbers: three words in a row are those of many.
    found = tell(folder, "dataset", "repeats", "text", "--out", "p.idx", "--unit", "passage", "--words-min", "3")
    assert (found["unit"], found["spans"] > 3) == ("passage", True)


def test_an_index_of_other_content_is_another_pipeline(folder: Path) -> None:
    tell(folder, "dataset", "repeats", "text", "--out", "other.idx", "--records-min", "2", "--words-min", "1")
    given = parameters(input=folder / "in.jsonl", output="data", index=folder / "other.idx")
    done = ended(headrace("run", "second.py", *given), cwd=folder, timeout=300)
    assert done.returncode != 0
    assert "pipeline" in done.stderr
