"""`headrace dataset split` on datasets of real runs: whole clusters are held out, and no near duplicate stays."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.client.errors import CliError
from headrace.loader import Loader
from headrace.store.datasets.dataset import Dataset
from tests.kits.run.command_server import ended
from tests.kits.run.kill import headrace
from tests.kits.run.small_tokenizer import small_tokenizer

DEADLINE_S = 300
VOCABULARY = [f"{first}{second}{number}" for first in "bdgklmnprst" for second in "aeiou" for number in range(50)]
CLUSTERS = 90
SHORT = [{"id": f"short-{number}", "text": "too short"} for number in range(9)]
PIPELINE = """
from headrace import Pipeline, dedup_keys, map_records, read_jsonl, tokenize, write_tokens


def long_enough(record):
    return record if len(record["text"]) > 40 else "too short"


def build(input: str, output: str, batch: int = 1 << 16, shard: int = 1 << 16) -> Pipeline:
    tokens = tokenize({tokenizer!r})
    write = write_tokens(tokens, seq_len=128, shard_bytes=shard)
    source = read_jsonl(input, batch_bytes=batch)
    return Pipeline.chain("keys", output, source, map_records(long_enough), dedup_keys(), tokens, write)
"""


def records() -> list[dict[str, Any]]:
    """Texts, of each third two further copies, one with a header and one with a footer."""
    chance = random.Random(5)
    found: list[dict[str, Any]] = []
    for number in range(CLUSTERS):
        text = " ".join(chance.choices(VOCABULARY, k=120))
        found.append({"id": f"{number}-text", "text": text})
        if number % 3 == 0:
            header, footer = (" ".join(chance.choices(VOCABULARY, k=25)) for _ in range(2))
            found.append({"id": f"{number}-header", "text": f"{header}\n{text}"})
            found.append({"id": f"{number}-footer", "text": f"{text}\n{footer}"})
    chance.shuffle(found)
    return found


def tell(place: Path, *arguments: str) -> Any:
    done = ended(headrace(*arguments, "--json"), cwd=place)
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout)


def run(place: Path, output: str, batch: int, shard: int) -> None:
    parameters = [f"input={place}/in.jsonl", f"output={output}", f"batch={batch}", f"shard={shard}"]
    tell(place, "run", "keys.py", *(word for parameter in parameters for word in ("-p", parameter)))


def shown(dataset: Path) -> list[str]:
    """The ids of the documents that a dataset shows."""
    import pyarrow.parquet as pq

    opened, found = Dataset.open(str(dataset)), list[str]()
    for shard in opened.shards:
        tokens, documents = shard.object("tokens"), shard.object("documents")
        assert tokens is not None
        assert documents is not None
        hidden = opened.retracted(tokens.key)
        ids = pq.read_table(dataset / documents.key).column("id").to_pylist()
        found += [name for place, name in enumerate(ids) if place not in hidden]
    return sorted(found)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("split")
    (place / "keys.py").write_text(PIPELINE.format(tokenizer=small_tokenizer()))
    (place / "in.jsonl").write_text("".join(json.dumps(record) + "\n" for record in [*records(), *SHORT]))
    run(place, "one", 1 << 16, 1 << 20)
    run(place, "two", 6_000, 1 << 12)
    run(place, "three", 1 << 16, 1 << 14)
    return place


@pytest.mark.slow
def test_two_layouts_are_split_alike_and_the_halves_are_the_whole(folder: Path) -> None:
    everything = sorted(record["id"] for record in records())
    held: list[list[str]] = []
    for name in ("one", "two"):
        assert tell(folder, "dataset", "split", name, f"{name}-held", "--share", "0.1", "--dry-run")["held_out"] is None
        answer = tell(folder, "dataset", "split", name, f"{name}-held", "--share", "0.1")
        training, out = shown(folder / name), shown(folder / f"{name}-held")
        assert sorted([*training, *out]) == everything
        assert (answer["records"], answer["training"], answer["dropped"]) == (len(out), len(training), 0)
        assert 0.08 * len(everything) < len(out) <= 0.1 * len(everything) + 1
        # Whole clusters: no number is on both sides.
        assert {name.partition("-")[0] for name in out}.isdisjoint(name.partition("-")[0] for name in training)
        held.append(out)
    assert held[0] == held[1]
    assert len(Dataset.open(str(folder / "one")).shards) < len(Dataset.open(str(folder / "two")).shards)


def test_the_judge_of_dedup_finds_no_pair_across_the_border(folder: Path) -> None:
    tell(folder, "dataset", "split", "two", "two-held", "--share", "0.1")
    for one, other in (("two-held", "two"), ("two", "two-held")):
        found = tell(folder, "dataset", "dedup", one, "--against", other, "--dry-run")["found"]
        assert {row["of_dataset"] for row in found} == {Dataset.open(str(folder / one)).uri}


def test_both_datasets_are_sound_and_a_held_out_shard_is_made_again(folder: Path) -> None:
    tell(folder, "dataset", "split", "two", "two-held", "--share", "0.1")
    for name in ("two", "two-held"):
        assert tell(folder, "dataset", "verify", name)["problems"] == []
    (traced,) = tell(folder, "dataset", "trace", "two-held", shown(folder / "two-held")[0])["records"]
    assert traced["verdict"] == "kept"
    for shard in Dataset.open(str(folder / "two-held")).shards:
        tokens = shard.object("tokens")
        assert tokens is not None
        again = tell(folder, "dataset", "rebuild", "--trust-code", "two-held", Path(tokens.key).name.partition(".")[0])
        assert (again["identical"], again["differing"]) == (True, [])


def test_a_split_takes_nothing_down_and_a_rollback_shows_the_records_again(folder: Path) -> None:
    shutil.copytree(folder / "three", folder / "whole")
    before = shown(folder / "whole")
    tell(folder, "dataset", "split", "whole", "whole-held", "--share", "0.1")
    receipt = tell(folder, "dataset", "purge", "whole")
    assert (receipt["rewritten"], receipt["documents"]) == (0, [])
    assert shown(folder / "whole") != before
    first = tell(folder, "dataset", "cat", "whole@1")["records"]
    assert sorted(one["id"] for one in first) == before, "an earlier version shows what it showed"
    tell(folder, "dataset", "rollback", "whole@1")
    assert shown(folder / "whole") == before


def test_a_loader_of_training_shows_no_held_out_token(folder: Path) -> None:
    tell(folder, "dataset", "split", "two", "two-held", "--share", "0.1")
    held, training = (stretches(folder / name) for name in ("two-held", "two"))
    assert len(held) > 1000
    assert held.isdisjoint(training)


class Killed(BaseException):
    """As a signal, in the middle of a command."""


@pytest.mark.parametrize("step", ["write_chosen", "publish_without", "commit_retraction", "write_manifest"])
def test_a_split_that_was_killed_is_ended_by_the_next(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from headrace.cli.commands.maintenance import maintenance, splitting

    module = maintenance if step == "commit_retraction" else splitting
    training, held = tmp_path / "training", tmp_path / "held"
    shutil.copytree(folder / "three", training)
    real, calls = getattr(module, step), list[int]()

    def dies(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) > (1 if step == "write_chosen" else 0):
            raise Killed
        return real(*arguments, **named)

    def split(share: float = 0.1) -> Any:
        answer = splitting.split_dataset(
            str(training), str(held), [], share=share, shard_bytes=1 << 10, dry_run=False, as_json=True
        )
        assert answer == 0
        return json.loads(capsys.readouterr().out)

    monkeypatch.setattr(module, step, dies)
    with pytest.raises(Killed):
        split()
    monkeypatch.setattr(module, step, real)
    assert split()["fresh"]
    assert not split()["fresh"]
    with pytest.raises(CliError, match=r"of share 0\.1, and the held-out split of share 0\.2 is asked for"):
        split(0.2)
    assert shown(held)
    assert sorted([*shown(held), *shown(training)]) == sorted(record["id"] for record in records())
    for dataset in (training, held):
        assert tell(folder, "dataset", "verify", str(dataset))["problems"] == []


def test_what_cannot_be_split_is_refused_by_name(folder: Path) -> None:
    refusals = [
        (("one", "one", "--share", "0.1"), "is given twice"),
        (("three", "one", "--share", "0.1"), "split into a new place"),
        (("three", "fresh", "--share", "0.001"), "ask for a larger one"),
        (("three", "fresh", "--share", "0.1", "--against", "three"), "is given twice"),
        (("three", "fresh", "--share", "0.1", "--against", "nothing"), "holds no dataset"),
    ]
    for arguments, words in refusals:
        done = ended(headrace("dataset", "split", *arguments), cwd=folder, timeout=300)
        assert done.returncode in (1, 2), arguments
        assert words in done.stderr
    assert not (folder / "fresh").exists()


def test_clusters_with_a_record_in_a_reference_stay_in_training(folder: Path) -> None:
    tell(folder, "dataset", "split", "one", "one-held", "--share", "0.1")
    found = tell(folder, "dataset", "split", "three", "none", "--against", "one", "--share", "0.5", "--dry-run")
    # All others stand in the reference.
    assert found["records"] == len(shown(folder / "one-held"))
    assert found["refused"] > 10


def stretches(dataset: Path) -> set[bytes]:
    """Each 24 tokens in a row that a loader gives, without padding."""
    found: set[bytes] = set()
    for batch in Loader(str(dataset), batch_size=1, last="pad"):
        for row in np.asarray(batch["tokens"]):
            windows = np.lib.stride_tricks.sliding_window_view(row, 24)
            found.update(window.tobytes() for window in windows[(windows != row[-1]).all(axis=1)])
    return found
