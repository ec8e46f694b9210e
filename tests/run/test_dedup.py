"""Deduplication in real runs: whatever dies, of several duplicates one is kept, and the others name it."""

import fcntl
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.stages.export.records import differences
from headrace.store.datasets.dataset import Dataset
from tests.kits.run.command import DEADLINE_S
from tests.kits.run.command_server import ended
from tests.kits.run.daemons import until
from tests.kits.run.dedup import PIPELINE, check, epochs, fates_of, write_corpus
from tests.kits.run.kill import Marked, headrace
from tests.kits.run.small_tokenizer import small_tokenizer


class Place:
    """A folder with a corpus, a pipeline, and a gate before the last record."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.gate = folder / "gate"
        self.gate.touch()
        self.corpus = write_corpus(folder / "corpus")
        (folder / "small.py").write_text(
            PIPELINE.format(gate=str(self.gate), tokenizer=small_tokenizer(), folder=str(folder / "index"))
        )

    def run(self, output: str, *options: str) -> Marked:
        parameters = ("-p", f"input={self.folder}/corpus/*.jsonl", "-p", f"output={output}", *options)
        return Marked(headrace("run", "small.py", *parameters, "--record-seconds", "600", "--json"), self.folder)

    @contextmanager
    def held_up(self, run: Marked, output: str) -> Iterator[subprocess.Popen[bytes]]:
        """A run that has closed two shards and cannot end before the block does."""
        with self.gate.open() as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            process = run.start()
            until(lambda: process.poll() is not None or closed_shards(self.folder / output) >= 2, "two closed shards")
            assert process.poll() is None
            yield process


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("dedup"))


@pytest.fixture(scope="module")
def plain(place: Place) -> Path:
    """The dataset of a run that nothing happened to."""
    finish(place.run("plain").start())
    return place.folder / "plain"


def closed_shards(dataset: Path) -> int:
    if not (dataset / "ledger").is_dir() or not os.listdir(dataset / "ledger"):
        return 0
    return len(Dataset.open(str(dataset)).state.shards)


def finish(process: subprocess.Popen[bytes]) -> dict[str, object]:
    out, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, errors.decode()
    answer: dict[str, object] = json.loads(out)
    assert answer["balanced"]
    return answer


def tell(place: Place, *arguments: str) -> object:
    done = ended(headrace(*arguments, "--json"), cwd=place.folder)
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout)


def victim(run: Marked, stage: str) -> int:
    """The process of a task that begins with this stage, or of that one replica of it."""
    for pid in sorted(run.alive()):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue  # it has ended meanwhile, as one does that was killed before this one
        if words.startswith((f"headrace task small/{stage}.", f"headrace task small/{stage} ")):
            return pid
    raise AssertionError(f"no task of {stage} is there")


BEGUN = "created"
LOST = "the dedup index begins anew"


@pytest.mark.parametrize(
    ("stages", "reasons", "options"),
    [
        pytest.param(("dedup",), [BEGUN, LOST], (), id="index", marks=pytest.mark.slow),
        pytest.param(("read",), [BEGUN], (), id="asking task", marks=pytest.mark.slow),
        pytest.param(("read", "dedup"), [BEGUN, LOST], (), id="index and asking task", marks=pytest.mark.slow),
        pytest.param(("read", "dedup-keys", "curse"), [BEGUN], ("--no-fuse",), id="source, asking task and sink"),
    ],
)
def test_tasks_killed_in_a_run_with_dedup_leave_one_of_each_text(
    place: Place, stages: tuple[str, ...], reasons: list[str], options: tuple[str, ...]
) -> None:
    output = "killed-" + "-".join(stages)
    run = place.run(output, *options)
    with place.held_up(run, output) as process:
        for stage in stages:
            os.kill(victim(run, stage), signal.SIGKILL)
    finish(process)
    verdicts = check(place.folder / output, place.corpus)
    assert verdicts["kept"] > 150
    assert verdicts["duplicate"] > 80
    assert epochs(place.folder / output) == reasons
    assert not run.alive()


PARTITIONS = ("-p", "partitions=2")


@pytest.mark.parametrize(
    "killed",
    [
        pytest.param(("dedup.1",), id="a partition", marks=pytest.mark.slow),
        pytest.param(("dedup.2", "dedup.1"), id="each partition", marks=pytest.mark.slow),
        pytest.param(("dedup.0",), id="decider", marks=pytest.mark.slow),
        pytest.param(("dedup.0", "dedup.1", "dedup.2", "read"), id="everything", marks=pytest.mark.slow),
    ],
)
def test_partitions_killed_in_a_run_leave_one_of_each_text(place: Place, killed: tuple[str, ...]) -> None:
    output = "parted-" + "-".join(killed)
    run = place.run(output, *PARTITIONS)
    with place.held_up(run, output) as process:
        for task in killed:
            os.kill(victim(run, task), signal.SIGKILL)
    finish(process)
    verdicts = check(place.folder / output, place.corpus)
    assert verdicts["kept"] > 150
    assert verdicts["duplicate"] > 80
    assert epochs(place.folder / output) == [BEGUN, LOST]
    assert not run.alive()


@pytest.mark.slow
def test_a_run_resumes_with_another_number_of_partitions(place: Place) -> None:
    run = place.run("parted", *PARTITIONS)
    with place.held_up(run, "parted") as process:
        run.kill()
        process.communicate()
    before = {name: fate for name, fate in fates_of(place.folder / "parted").items() if fate.verdict == "kept"}
    finish(place.run("parted", "-p", "partitions=3").start())
    check(place.folder / "parted", place.corpus)
    after = fates_of(place.folder / "parted")
    assert {name: after[name] for name in before} == before


def test_a_run_killed_whole_resumes_with_its_kept_index(place: Place) -> None:
    run = place.run("resumed")
    with place.held_up(run, "resumed") as process:
        run.kill()
        process.communicate()
    before = {name: fate for name, fate in fates_of(place.folder / "resumed").items() if fate.verdict == "kept"}
    assert before
    finish(place.run("resumed").start())
    check(place.folder / "resumed", place.corpus)
    after = fates_of(place.folder / "resumed")
    assert {name: after[name] for name in before} == before
    assert epochs(place.folder / "resumed") == [BEGUN, "the dedup index begins"]


@pytest.mark.slow
def test_a_deduplicated_dataset_is_audited_traced_and_made_again(place: Place, plain: Path) -> None:
    check(plain, place.corpus)
    audit = tell(place, "dataset", "verify", "plain")
    assert isinstance(audit, dict)
    assert audit["problems"] == []
    fates = fates_of(plain)
    name, fate = next((name, fate) for name, fate in fates.items() if fate.verdict == "duplicate")
    traced = tell(place, "dataset", "trace", "plain", fate.id)
    assert isinstance(traced, dict)
    (record,) = traced["records"]
    kept = {str(other): found.id for other, found in fates.items() if found.verdict == "kept"}
    assert (record["verdict"], record["kept_as"]) == ("duplicate", kept[record["duplicate_of"]])
    assert record["row"] == name.row
    state = Dataset.open(str(plain)).state
    shard = next(shard for shard in state.shards if shard.closed.counts.duplicate and shard.closed.counts.kept)
    tokens = next(item.key for item in shard.closed.objects if item.role == "tokens")
    again = tell(place, "dataset", "rebuild", "--trust-code", "plain", Path(tokens).name.partition(".")[0])
    assert isinstance(again, dict)
    assert (again["identical"], again["differing"]) == (True, [])


def test_duplicates_are_shown_beside_the_records_that_are_kept(place: Place, plain: Path) -> None:
    found: Any = tell(place, "dataset", "show", "plain", "--duplicates")
    assert {pair["reason"].partition(":")[0] for pair in found["duplicates"]} == {"equal text", "similar text"}
    kept = {fate.id for fate in fates_of(plain).values() if fate.verdict == "kept"}
    for pair in found["duplicates"]:
        assert pair["kept"] in kept
        assert pair["id"] not in kept
        same = [words for kind, words in differences(pair["kept_text"], pair["text"]) if kind == "same"]
        assert sum(map(len, same)) > 0


def test_a_compacted_dataset_has_the_keys_of_all_that_it_keeps(place: Place, plain: Path) -> None:
    tell(place, "dataset", "compact", "plain", "merged")
    audit = tell(place, "dataset", "verify", "merged")
    assert isinstance(audit, dict)
    assert audit["problems"] == []
    assert check(place.folder / "merged", place.corpus) == check(plain, place.corpus)
    answer = finish(place.run("merged").start())
    assert answer["bytes_read"] == 0


BRANCHED = '''"""All records go to an archive, and those that are kept to tokens."""

from headrace import Pipeline, dedup, read_jsonl, tokenize, write_jsonl, write_tokens


def build(input: str, output: str) -> Pipeline:
    tokens = tokenize({tokenizer!r})
    keys, decider = dedup(near=False)
    read = read_jsonl(input, fragment_bytes=1 << 18, batch_bytes=1 << 15)
    kept = Pipeline.chain("branched", output, read, keys, decider, tokens, write_tokens(tokens, seq_len=512))
    return Pipeline("branched", output, (*kept.stages, write_jsonl(name="archive").fed_by(keys.name)))
'''


@pytest.mark.parametrize("options", [(), ("--no-fuse",)], ids=["fused", "apart"])
def test_a_stage_before_dedup_may_feed_a_sink_of_all_records(place: Place, options: tuple[str, ...]) -> None:
    (place.folder / "branched.py").write_text(BRANCHED.format(tokenizer=small_tokenizer()))
    output = "-".join(("branched", *options))
    answer = tell(
        *(place, "run", "branched.py", "-p", f"input={place.folder}/corpus/*.jsonl", "-p", f"output={output}", *options)
    )
    assert isinstance(answer, dict)
    records = len(place.corpus)
    closed = {shard.closed.sink: shard.closed.counts for shard in Dataset.open(str(place.folder / output)).state.shards}
    assert set(closed) == {"write", "archive"}
    counts = Dataset.open(str(place.folder / output)).state.counts
    assert (counts["archive"].kept, counts["archive"].duplicate) == (records, 0)
    assert counts["write"].kept + counts["write"].duplicate == records
    assert counts["write"].duplicate > 50
    audit = tell(place, "dataset", "verify", output)
    assert isinstance(audit, dict)
    assert audit["problems"] == []
