"""Two dedup stages in one pipeline, in real runs: whatever dies, one of each text is kept, and names lead to it."""

import json
import os
import signal
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headrace.store.datasets.dataset import Dataset
from headrace.store.shards.dedup_files import RecordName
from tests.kits.run.dedup import PIPELINE, epochs, fates_of
from tests.kits.run.small_tokenizer import small_tokenizer
from tests.kits.store.duplicates import leaning_faults
from tests.run.test_dedup import BEGUN, LOST, Place, finish, tell, victim

#: First equal texts, then a filter, then similar ones, and what raises behind both.
BUILD = """
def build(input: str, output: str) -> Pipeline:
    tokens = tokenize({tokenizer!r})
    return Pipeline.chain(
        "small",
        output,
        read_jsonl(input, fragment_bytes=1 << 20, batch_bytes=1 << 15),
        map_records(pass_gate),
        *dedup(near=False, name="exact"),
        map_records(choose),
        *dedup(folder={folder!r}),
        map_records(curse),
        tokens,
        write_tokens(tokens, seq_len=512, shard_bytes=1 << 15),
    )
"""


def module_of(name: str) -> str:
    return name.partition("-")[2] or name


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("stages of dedup"))
    # Copies of what is similar to another text: the first stage names a record that the second drops.
    copies = {f"twin-{module_of(name)}": text for name, text in place.corpus.items() if name.startswith("near-")}
    lines = [json.dumps({"id": name, "text": text}) for name, text in copies.items()]
    (place.folder / "corpus" / "0twins.jsonl").write_text("\n".join(lines) + "\n")
    place.corpus |= copies
    head = PIPELINE.partition("\ndef build")[0]
    folder = str(place.folder / "index")
    text = (head + BUILD).format(gate=str(place.gate), tokenizer=small_tokenizer(), folder=folder)
    (place.folder / "small.py").write_text(text)
    return place


def check(place: Place, output: str) -> Counter[str]:
    """One of each module is kept; what a stage called a duplicate names a record that passed it and was decided."""
    fates = fates_of(place.folder / output)
    assert sorted(fate.id for fate in fates.values()) == sorted(place.corpus)
    kept = {name: fate.entry for name, fate in fates.items() if fate.verdict == "kept"}
    modules = Counter(module_of(fates[name].id) for name in kept)
    assert max(modules.values()) == 1, f"kept twice: {[module for module, count in modules.items() if count > 1]}"
    behind = {name: fate.entry for name, fate in fates.items() if fate.stage in ("choose", "dedup")}
    for stage, standing in (("exact", kept | behind), ("dedup", kept)):
        leaning = [
            (fate.entry, name, RecordName.parse(fate.duplicate_of or ""))
            for name, fate in fates.items()
            if (fate.verdict, fate.stage) == ("duplicate", stage)
        ]
        assert len(leaning) > 20
        assert list(leaning_faults(leaning, standing)) == []
        if stage == "exact":
            texts = [[place.corpus[fates[one].id].split() for one in pair] for _, *pair in leaning]
            assert all(one == other for one, other in texts)
    for fate in fates.values():
        chosen = fate.id != "short" and zlib.crc32(module_of(fate.id).encode()) % 16
        wanted = {"quarantined"} if fate.id.startswith("cursed") and chosen else {"kept" if chosen else "filtered"}
        assert fate.verdict in {*wanted, "duplicate"}, fate
    return Counter(f"{fate.verdict} by {fate.stage}" for fate in fates.values())


@pytest.mark.parametrize(
    ("killed", "reasons"),
    [
        pytest.param((), [BEGUN], id="none", marks=pytest.mark.slow),
        pytest.param(("exact",), [BEGUN, LOST], id="first index", marks=pytest.mark.slow),
        pytest.param(("dedup",), [BEGUN, LOST], id="second index", marks=pytest.mark.slow),
        pytest.param(("dedup-keys",), [BEGUN], id="second asking task", marks=pytest.mark.slow),
        pytest.param(("exact", "dedup", "dedup-keys", "read"), [BEGUN, LOST], id="all", marks=pytest.mark.slow),
    ],
)
def test_two_dedup_stages_leave_one_of_each_text_whatever_dies(
    place: Place, killed: tuple[str, ...], reasons: list[str]
) -> None:
    output = "-".join(("stages", *killed))
    run = place.run(output)
    with place.held_up(run, output) as process:
        for task in killed:
            os.kill(victim(run, task), signal.SIGKILL)
    finish(process)
    check(place, output)
    assert epochs(place.folder / output) == reasons
    assert not run.alive()
    audit: Any = tell(place, "dataset", "verify", output)
    assert audit["problems"] == []


@pytest.mark.slow
def test_a_dataset_of_two_dedup_stages_is_made_again_and_merged(place: Place) -> None:
    finish(place.run("plain").start())
    found = check(place, "plain")
    state = Dataset.open(str(place.folder / "plain")).state
    shard = next(shard for shard in state.shards if shard.closed.counts.duplicate and shard.closed.counts.kept)
    assert {"keys", "keys-1", "sketches-1"} <= {item.role for item in shard.closed.objects}
    tokens = next(item.key for item in shard.closed.objects if item.role == "tokens")
    again: Any = tell(place, "dataset", "rebuild", "--trust-code", "plain", Path(tokens).name.partition(".")[0])
    assert (again["identical"], again["differing"]) == (True, [])
    fates = fates_of(place.folder / "plain")
    leads = {str(name): fate for name, fate in fates.items()}
    chained = [
        fate for fate in fates.values() if fate.stage == "exact" and leads[fate.duplicate_of or ""].stage == "dedup"
    ]
    assert chained
    traced: Any = tell(place, "dataset", "trace", "plain", chained[0].id)
    (record,) = traced["records"]
    assert leads[leads[record["duplicate_of"]].duplicate_of or ""].id == record["kept_as"]
    tell(place, "dataset", "compact", "plain", "merged")
    audit: Any = tell(place, "dataset", "verify", "merged")
    assert audit["problems"] == []
    assert check(place, "merged") == found
    offline: Any = tell(place, "dataset", "dedup", "merged", "--exact", "--dry-run")
    assert offline["duplicates"] == 0
    assert finish(place.run("merged").start())["bytes_read"] == 0
