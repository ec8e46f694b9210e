"""Deduplication by URL in real runs: kept once, continued, audited, traced, made again, and decided offline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.store.datasets.dataset import Dataset
from tests.kits.run.command_server import ended
from tests.kits.run.kill import headrace
from tests.kits.run.small_tokenizer import small_tokenizer

DEADLINE_S = 300
PAGES = 60
PIPELINE = """
from headrace import Pipeline, dedup, dedup_keys, read_jsonl, tokenize, write_tokens


def build(input: str, output: str, decide: bool = True, batch: int = 2_000, shard: int = 1 << 10) -> Pipeline:
    tokens = tokenize({tokenizer!r})
    write = write_tokens(tokens, seq_len=64, shard_bytes=shard)
    options = {{"by": "url", "url_key": "page.url"}}
    stages = dedup(**options) if decide else (dedup_keys(**options),)
    return Pipeline.chain("urls", output, read_jsonl(input, batch_bytes=batch), *stages, tokens, write)
"""


def records(first: int) -> list[dict[str, Any]]:
    """Pages under two spellings each, and one record in five without a URL."""
    found: list[dict[str, Any]] = []
    for number in range(first, first + PAGES):
        spellings = [f"https://site.org/page/{number}?a=1&b=2", f"http://SITE.org/page/{number}/?b=2&a=1&utm_source=x"]
        for copy, url in enumerate(spellings):
            text = f"The text of page {number} as copy {copy} had it."
            found.append({"id": f"{number}-{copy}", "text": text, "page": {"url": url}})
        if number % 5 == 0:
            found.append({"id": f"none-{number}", "text": "The same text without any URL."})
    return found


def tell(place: Path, *arguments: str) -> Any:
    done = ended(headrace(*arguments, "--json"), cwd=place)
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout)


def run(place: Path, output: str, *parameters: str) -> Any:
    given = ("input=in/*.jsonl", f"output={output}", *parameters)
    return tell(place, "run", "urls.py", *(word for parameter in given for word in ("-p", parameter)))


def write(place: Path, name: str, first: int) -> None:
    lines = (json.dumps(record) + "\n" for record in records(first))
    (place / "in" / name).write_text("".join(lines))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset whose second run continued it, with pages of which the first had half."""
    place = tmp_path_factory.mktemp("urls")
    (place / "in").mkdir()
    (place / "urls.py").write_text(PIPELINE.format(tokenizer=small_tokenizer()))
    write(place, "0.jsonl", 0)
    assert run(place, "data")["balanced"]
    write(place, "1.jsonl", PAGES // 2)
    assert run(place, "data")["balanced"]
    return place


def test_of_each_url_one_record_is_kept_and_of_none_all(folder: Path) -> None:
    closed = [shard.closed.counts for shard in Dataset.open(str(folder / "data")).state.shards]
    pages, without = PAGES + PAGES // 2, 2 * (PAGES // 5)
    assert sum(counts.kept for counts in closed) == pages + without
    assert sum(counts.duplicate for counts in closed) == 4 * PAGES - pages
    assert tell(folder, "dataset", "verify", "data")["problems"] == []


def test_a_duplicate_by_url_is_traced_and_its_shard_made_again(folder: Path) -> None:
    (found,) = tell(folder, "dataset", "trace", "data", f"{PAGES - 1}-1")["records"][:1]
    assert (found["verdict"], found["reason"]) == ("duplicate", "equal URL")
    shard = next(
        shard
        for shard in Dataset.open(str(folder / "data")).state.shards
        if shard.closed.counts.duplicate and shard.closed.counts.kept
    )
    tokens = next(item.key for item in shard.closed.objects if item.role == "tokens")
    again = tell(folder, "dataset", "rebuild", "--trust-code", "data", Path(tokens).name.partition(".")[0])
    assert (again["identical"], again["differing"]) == (True, [])


@pytest.mark.slow
def test_offline_two_layouts_have_the_same_duplicates_by_url(folder: Path) -> None:
    answers = []
    for output, batch, shard in (("one", 1 << 16, 1 << 20), ("two", 1_000, 1 << 10)):
        run(folder, output, "decide=false", f"batch={batch}", f"shard={shard}")
        answers.append(tell(folder, "dataset", "dedup", output)["found"])
        assert tell(folder, "dataset", "verify", output)["problems"] == []
    one, two = ([(row["id"], row["duplicate_of"], row["reason"]) for row in answer] for answer in answers)
    assert one == two
    assert len(one) == 4 * PAGES - (PAGES + PAGES // 2)
    assert {reason for _, _, reason in one} == {"equal URL"}
