"""`headrace dataset dedup` on datasets of real runs: the same answer whatever their layout, and versions without it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from headrace.store.datasets.dataset import Dataset
from tests.kits.run.command_server import ended
from tests.kits.run.kill import headrace
from tests.kits.run.small_tokenizer import small_tokenizer

DEADLINE_S = 300
VOCABULARY = [f"{first}{second}{number}" for first in "bdgklmnprst" for second in "aeiou" for number in range(50)]
TEXTS = 120
PIPELINE = """
from headrace import Pipeline, dedup_keys, read_jsonl, tokenize, write_tokens


def build(input: str, output: str, batch: int = 1 << 16, shard: int = 1 << 16) -> Pipeline:
    tokens = tokenize({tokenizer!r})
    write = write_tokens(tokens, seq_len=128, shard_bytes=shard)
    return Pipeline.chain("keys", output, read_jsonl(input, batch_bytes=batch), dedup_keys(), tokens, write)
"""


def records() -> list[dict[str, Any]]:
    """Texts, and of each third a longer and newer copy with a header, before or behind it."""
    chance = random.Random(3)
    found: list[dict[str, Any]] = []
    for number in range(TEXTS):
        text = " ".join(chance.choices(VOCABULARY, k=150))
        found.append({"id": f"text-{number}", "text": text, "metadata": {"date": "2024-01-01"}})
        if number % 3 == 0:
            copy = {
                "id": f"copy-{number}",
                "text": f"Ten words of a header\n{text}",
                "metadata": {"date": "2025-05-05"},
            }
            found.insert(chance.choice([len(found) - 1, len(found)]), copy)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("offline")
    (place / "keys.py").write_text(PIPELINE.format(tokenizer=small_tokenizer()))
    (place / "in.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records()))
    for output, batch, shard in (("one", 1 << 16, 1 << 16), ("two", 8_000, 1 << 13)):
        parameters = [f"input={place}/in.jsonl", f"output={output}", f"batch={batch}", f"shard={shard}"]
        tell(place, "run", "keys.py", *(word for parameter in parameters for word in ("-p", parameter)))
    return place


def tell(place: Path, *arguments: str) -> Any:
    done = ended(headrace(*arguments, "--json"), cwd=place)
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout)


def pairs(found: Any) -> list[tuple[str, str]]:
    return [(row["id"], row["duplicate_of"]) for row in found["found"]]


def test_the_layout_of_a_dataset_is_nothing_to_the_answer(folder: Path) -> None:
    assert len(Dataset.open(str(folder / "one")).shards) < len(Dataset.open(str(folder / "two")).shards)
    one, two = (pairs(tell(folder, "dataset", "dedup", name, "--dry-run")) for name in ("one", "two"))
    assert one == two
    assert {frozenset(pair) for pair in one} == {
        frozenset((f"text-{number}", f"copy-{number}")) for number in range(0, TEXTS, 3)
    }


@pytest.mark.parametrize("keep", ["longest", "newest"])
def test_the_rule_says_which_of_two_stays(folder: Path, keep: str) -> None:
    found = tell(folder, "dataset", "dedup", "one", "--keep", keep, "--dry-run")
    assert sorted(pairs(found)) == sorted((f"text-{number}", f"copy-{number}") for number in range(0, TEXTS, 3))


def test_without_the_field_of_the_rule_a_record_is_named(folder: Path) -> None:
    done = ended(headrace("dataset", "dedup", "one", "--keep", "best"), cwd=folder, timeout=300)
    assert done.returncode == 1
    assert "its metadata has None under 'score'" in done.stderr


def test_longest_is_refused_for_text(folder: Path) -> None:
    chain = (folder / "keys.py").read_text()
    chain = chain.replace("import Pipeline, dedup_keys", "import Pipeline, write_documents, dedup_keys")
    head, _, _ = chain.rpartition("dedup_keys()")
    (folder / "text.py").write_text(f"{head}dedup_keys(), write_documents())\n")
    tell(folder, "run", "text.py", "-p", f"input={folder}/in.jsonl", "-p", "output=text")
    done = ended(headrace("dataset", "dedup", "text", "--keep", "longest"), cwd=folder, timeout=300)
    assert done.returncode == 1
    assert "holds text, of which no tokens are counted" in done.stderr


def test_records_of_a_reference_stay_and_are_named(folder: Path) -> None:
    found = tell(folder, "dataset", "dedup", "two", "--against", "one", "--exact", "--dry-run")
    assert {row["of_dataset"] for row in found["found"]} == {Dataset.open(str(folder / "one")).uri}
    assert found["duplicates"] == len(records())


def test_a_dataset_without_keys_and_one_given_twice_are_refused(folder: Path) -> None:
    for arguments, words in ((("one", "one"), "is given twice"), (("nothing",), "holds no dataset")):
        done = ended(headrace("dataset", "dedup", *arguments), cwd=folder, timeout=300)
        assert done.returncode in (1, 2)
        assert words in done.stderr


def test_a_version_without_the_duplicates_is_published_and_sound(folder: Path) -> None:
    before = Dataset.open(str(folder / "two"))
    found = tell(folder, "dataset", "dedup", "two", "--out", "two.list")
    assert found["versions"] == {before.uri: before.state.version + 1}
    assert len((folder / "two.list").read_text().splitlines()) == found["duplicates"] == TEXTS // 3
    assert tell(folder, "dataset", "verify", "two")["problems"] == []
    shown = Dataset.open(str(folder / "two"))
    assert sum(len(rows) for _, _, rows in shown.state.retracted) == TEXTS // 3
    assert tell(folder, "dataset", "dedup", "two")["versions"] == {}


def test_what_two_sinks_keep_of_a_record_is_no_duplicate(folder: Path) -> None:
    more = (
        "    chain = Pipeline.chain({chain})\n"
        '    return Pipeline("keys", output, (*chain.stages, write_jsonl().fed_by("dedup-keys")))\n'
    )
    text = (
        (folder / "keys.py")
        .read_text()
        .replace("import Pipeline, dedup_keys", "import Pipeline, write_jsonl, dedup_keys")
    )
    head, _, chain = text.partition("    return Pipeline.chain(")
    (folder / "both.py").write_text(head + more.format(chain=chain.rstrip().removesuffix(")")))
    tell(folder, "run", "both.py", "-p", f"input={folder}/in.jsonl", "-p", "output=both")
    one, both = (tell(folder, "dataset", "dedup", name, "--dry-run") for name in ("one", "both"))
    assert sorted(pairs(both)) == sorted(2 * pairs(one)), "a duplicate goes from both"
