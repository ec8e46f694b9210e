"""Several sinks behind one dedup stage, in real runs: whatever dies, each sink has one of each text."""

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from headrace.store.datasets.dataset import Dataset
from headrace.store.shards.dedup_files import RecordName
from tests.kits.run.dedup import PIPELINE, Fate, epochs
from tests.kits.run.small_tokenizer import small_tokenizer
from tests.kits.store.duplicates import leaning_faults
from tests.run.test_dedup import BEGUN, LOST, Place, finish, tell, victim

#: All that is let through and raises nowhere goes to an archive and to a sample, and what is chosen to tokens.
BUILD = """
def build(input: str, output: str) -> Pipeline:
    tokens = tokenize({tokenizer!r})
    chain = Pipeline.chain(
        "small",
        output,
        read_jsonl(input, fragment_bytes=1 << 20, batch_bytes=1 << 15),
        map_records(pass_gate),
        *dedup(),
        map_records(curse),
        map_records(choose),
        tokens,
        write_tokens(tokens, seq_len=512, shard_bytes=1 << 15),
    )
    others = (write_jsonl(name=name, shard_bytes=1 << 17).fed_by("curse") for name in ("archive", "sample"))
    return Pipeline("small", output, (*chain.stages, *others))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("sinks of dedup"))
    head = PIPELINE.partition("\ndef build")[0].replace("write_tokens\n", "write_jsonl, write_tokens\n")
    (place.folder / "small.py").write_text((head + BUILD).format(gate=str(place.gate), tokenizer=small_tokenizer()))
    return place


def fates_at(dataset: Path) -> dict[str, dict[RecordName, Fate]]:
    """By sink the fate of each record; fails where one has two."""
    found: dict[str, dict[RecordName, Fate]] = {}
    for shard in Dataset.open(str(dataset)).state.shards:
        mine = found.setdefault(shard.closed.sink, {})
        for item in shard.closed.objects:
            for row in pq.read_table(dataset / item.key).to_pylist() if item.role in ("documents", "verdicts") else ():
                name = RecordName(bytes.fromhex(row["fragment"]), row["row"])
                assert name not in mine, f"{name} has two fates at {shard.closed.sink}"
                verdict, stage = row.get("verdict", "kept"), row.get("stage", "")
                mine[name] = Fate(row["id"], verdict, stage, shard.number, row.get("duplicate_of"))
    return found


def check(place: Place, output: str) -> dict[str, dict[RecordName, Fate]]:
    """Each sink has a fate for each record and one of each text; what a duplicate leans on stands at a sink."""
    found = fates_at(place.folder / output)
    assert sorted(found) == ["archive", "sample", "write"]
    standing: dict[RecordName, int] = {}
    for fates in found.values():
        assert sorted(fate.id for fate in fates.values()) == sorted(place.corpus)
        for name, fate in fates.items():
            if fate.verdict == "kept" or fate.stage == "choose":
                standing[name] = min(fate.entry, standing.get(name, fate.entry))
    texts = {" ".join(text.split()) for name, text in place.corpus.items() if name != "short"}
    for sink, fates in found.items():
        leaning = [
            (fate.entry, name, RecordName.parse(fate.duplicate_of or ""))
            for name, fate in fates.items()
            if fate.verdict == "duplicate"
        ]
        assert len(leaning) > 80
        assert list(leaning_faults(leaning, standing)) == []
        through = [fate for fate in fates.values() if fate.verdict == "kept" or fate.stage == "choose"]
        modules = Counter(fate.id.partition("-")[2] or fate.id for fate in through)
        assert max(modules.values()) == 1, f"{sink} has twice {modules.most_common(3)}"
        of = {name: fate.id for name, fate in fates.items()}
        held = {fate.id for fate in through} | {fate.id for name, fate in fates.items() if fate.verdict == "duplicate"}
        assert {" ".join(place.corpus[name].split()) for name in held} == texts, f"{sink} lacks a text"
        assert {of[target] for _, _, target in leaning} <= {fate.id for fate in through}, f"{sink} lacks what is named"
    assert found["archive"].keys() == found["sample"].keys()
    verify: Any = tell(place, "dataset", "verify", output)
    assert verify["problems"] == []
    return found


def killed(place: Place, output: str, *stages: str) -> dict[str, dict[RecordName, Fate]]:
    run = place.run(output, "--no-fuse")
    with place.held_up(run, output) as process:
        for stage in stages:
            os.kill(victim(run, stage), signal.SIGKILL)
    finish(process)
    assert not run.alive()
    return check(place, output)


@pytest.mark.slow
def test_a_sink_killed_beside_others_leaves_one_of_each_text_in_each(place: Place) -> None:
    found = killed(place, "killed", "archive")
    assert epochs(place.folder / "killed") == [BEGUN]
    # One dataset with three sinks is traced, shown and taken down as any other.
    _name, fate = next((name, fate) for name, fate in found["archive"].items() if fate.verdict == "duplicate")
    traced: Any = tell(place, "dataset", "trace", "killed", fate.id)
    assert sorted((record["sink"], record["verdict"]) for record in traced["records"]) == [
        (sink, "duplicate") for sink in ("archive", "sample", "write")
    ]
    shown: Any = tell(place, "dataset", "show", "killed", "--duplicates")
    assert shown["duplicates"]
    kept = found["archive"][RecordName.parse(fate.duplicate_of or "")].id
    tell(place, "dataset", "retract", "killed", kept)
    again: Any = tell(place, "dataset", "trace", "killed", kept)
    assert [record.get("retracted") for record in again["records"]] == [2, 2, 2]
    verify: Any = tell(place, "dataset", "verify", "killed")
    assert verify["problems"] == []


@pytest.mark.slow
@pytest.mark.parametrize("stages", [("write",), ("archive", "sample"), ("dedup", "archive")], ids=" and ".join)
def test_whichever_sinks_die_each_text_is_there_once(place: Place, stages: tuple[str, ...]) -> None:
    output = "-".join(stages)
    killed(place, output, *stages)
    assert epochs(place.folder / output) == ([BEGUN, LOST] if "dedup" in stages else [BEGUN])


@pytest.mark.slow
def test_a_run_killed_whole_goes_on_with_what_one_sink_had_kept(place: Place) -> None:
    run = place.run("resumed")
    with place.held_up(run, "resumed") as process:
        run.kill()
        process.communicate()
    finish(place.run("resumed").start())
    check(place, "resumed")
