"""The checker finds what chaos could do to a dataset: each of these planted faults must fail."""

import gzip
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.chaos.gates.impairments import Affected
from headrace.chaos.live.checks.checker import CheckResult, _same_fates, check_dataset, check_run, felt_on_network
from headrace.chaos.live.checks.evidence import Fate, Fates, compare, read_fates
from headrace.chaos.live.scenario.outcome import Fired, ScenarioOutcome
from headrace.chaos.live.scenario.scenario import Kind, Planned, Unit, draw
from headrace.chaos.live.scenario.scenario_file import scenario_of
from headrace.client.pipeline_file import load
from headrace.store.open import below, open_store
from tests.kits.inputs import files
from tests.kits.run.live import RECORDS, call, line
from tests.kits.store.s3_server import shared_server

FATES, ONCE, SOURCE, SOUND = range(4)


@pytest.fixture
def copy(reference: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(reference, tmp_path / "copy"))


def check(reference: Path, dataset: Path) -> list[CheckResult]:
    answer = {"records_read": RECORDS + 4, "balanced": True}
    return check_dataset(reference, dataset, answer, id_key="id", rebuilds=0, seed=0)[:4]


def change_manifest(dataset: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    manifest = json.loads((dataset / "manifest.json").read_text())
    change(manifest["shards"])
    (dataset / "manifest.json").write_text(json.dumps(manifest))


def test_a_dataset_agrees_with_itself_and_with_its_source(reference: Path, copy: Path) -> None:
    findings = check(reference, copy)
    assert [finding.passed for finding in findings] == [True] * 4
    assert findings[SOURCE].said == f"{RECORDS + 4} records in 4 files, {RECORDS} of them with an id of their own"


def test_records_that_are_open_are_told_and_not_called_lost(reference: Path, copy: Path) -> None:
    answer = {"records_read": RECORDS + 9, "records_open": 5, "balanced": True}
    (once,) = check_dataset(reference, copy, answer, id_key="id", rebuilds=0, seed=0)[ONCE : ONCE + 1]
    assert not once.passed
    assert once.said == f"lost 0, twice 0 of {RECORDS + 9} records that the run counted; 5 of them are open"


def test_a_lost_shard_is_found_by_fates_by_count_and_by_source(reference: Path, copy: Path) -> None:
    change_manifest(copy, lambda shards: shards.pop())
    findings = check(reference, copy)
    assert [findings[index].passed for index in (FATES, ONCE, SOURCE)] == [False] * 3
    assert "records lost" in findings[FATES].said


def test_a_shard_that_stands_there_twice_is_found(reference: Path, copy: Path) -> None:
    change_manifest(copy, lambda shards: shards.append(shards[0]))
    findings = check(reference, copy)
    assert findings[FATES].passed
    assert not findings[ONCE].passed
    assert "twice 0" not in findings[ONCE].said


def test_one_other_token_is_found_by_comparison_and_by_checksum(reference: Path, copy: Path) -> None:
    shard = json.loads((copy / "manifest.json").read_text())["shards"][0]["tokens"]
    data = bytearray((copy / shard).read_bytes())
    header = int.from_bytes(data[:8], "little")
    begin = json.loads(data[8 : 8 + header])["tokens"]["data_offsets"][0]
    data[8 + header + begin] ^= 1
    (copy / shard).write_bytes(data)
    findings = check(reference, copy)
    assert not findings[FATES].passed
    assert "records with another fate" in findings[FATES].said
    assert not findings[SOUND].passed
    assert shard in findings[SOUND].details[0]


def test_a_source_that_has_more_is_found(reference: Path, copy: Path, home: Path) -> None:
    path = home / "corpus" / "0.jsonl"
    text, times = path.read_text(), path.stat()
    try:
        path.write_text(text + '{"id": "late", "text": "one more"}\n')
        assert not check(reference, copy)[SOURCE].passed
    finally:
        path.write_text(text)
        # A fragment is named by its file's version too: the other tests are to find the file that they know.
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_an_input_that_changed_between_the_two_runs_is_said_to_have(reference: Path, copy: Path) -> None:
    before = Fates({("f", 0): Fate("kept", "a", 3, "x")}, [])
    finding = _same_fates(before, read_fates(copy))
    assert not finding.passed
    assert "the input changed between the two runs" in finding.said


def test_a_record_and_its_duplicate_may_swap_but_not_both_go() -> None:
    kept, duplicate = Fate("kept", "a", 3, "x"), Fate("duplicate", "a", 0, "dedup/exact")
    before = Fates({("f", 0): kept, ("f", 1): duplicate}, [])
    swapped = Fates({("f", 0): duplicate, ("f", 1): kept}, [])
    assert compare(before, swapped).lines() == []
    assert compare(before, swapped).swapped == 1
    assert compare(before, Fates({("f", 0): duplicate, ("f", 1): duplicate}, [])).lines()


def test_every_fate_names_a_fragment_and_a_row(reference: Path) -> None:
    fates = read_fates(reference)
    assert not fates.twice
    assert len(fates.found) == RECORDS + 4
    verdicts = [fate.verdict for fate in fates.found.values()]
    assert verdicts.count("quarantined") == 4 + RECORDS // 100
    assert verdicts.count("filtered") == RECORDS // 10


@pytest.mark.slow
def test_the_records_of_a_source_in_a_store_are_counted_too(home: Path, tmp_path: Path) -> None:
    uri = shared_server().uri()
    store = open_store(uri)
    lines = [line(number).encode() for number in range(40)]
    store.create("a.jsonl", [b"\n".join(lines[:20])])
    store.create("b.jsonl.gz", [gzip.compress(b"\n".join(lines[20:]))])
    path = tmp_path / "c.parquet"
    pq.write_table(pa.table({"id": ["p0", "p1"], "text": ["a", "b"]}), path)
    store.create("c.parquet", [path.read_bytes()])
    store.create(
        "d.jsonl.zst", [files.zstd(files.lines(files.RECORDS[first:last])) for first, last in ((0, 10), (10, 15))]
    )
    store.create("e.warc.gz", [files.members(files.warc(20))])
    store.create("f.warc", [files.warc(1)[2].replace(b"uuid:p0", b"uuid:f0")])
    store.create("g.txt", [b"one file, one record"])
    store.create("h.wet.zst", [files.zstd(b"".join(files.wet(20)))])
    source = below(uri, "*.*")
    done = call(home, "run", "mixed.py", "-p", f"input={source}", "-p", f"output={tmp_path}/out", "--json")
    assert done.returncode == 0, done.stderr
    pipeline = load(home / "mixed.py", (f"input={source}", f"output={tmp_path}/out"))

    def against_source() -> CheckResult:
        answer = json.loads(done.stdout)
        out = tmp_path / "out"
        return check_dataset(out, out, answer, id_key="id", rebuilds=0, seed=0, pipeline=pipeline)[SOURCE]

    assert against_source().passed, against_source().said
    assert against_source().said == "101 records in 8 files, 100 of them with an id of their own"
    store.replace("a.jsonl", [b"\n".join(lines[:19])])
    assert against_source().said == "the files hold 100 records, the dataset 101"
    assert against_source().details[0].endswith("a.jsonl: 19 records in the file, 20 in the dataset")
    # As many in all, but not of the same files.
    store.replace("h.wet.zst", [files.zstd(b"".join(files.wet(21)))])
    assert against_source().passed is False
    assert len(against_source().details) == 2
    store.replace("e.warc.gz", [files.members(files.warc(20))[:-9]])
    assert "e.warc.gz: Compressed file ended before" in against_source().said
    store.delete("a.jsonl")
    assert "is gone from" in against_source().said


def fired_at(kind: Kind, target: str, affected: dict[Affected, int]) -> Fired:
    planned = Planned(0, 0, kind, target, Unit.SECONDS, 0.0, 1.0, 0.0)
    return Fired(planned, 0.0, 0, (target,), 1.0, affected=Counter(affected))


def test_a_cut_that_met_no_datagram_proves_nothing_of_links() -> None:
    late = fired_at(Kind.DELAY, "links", {Affected.INSIDE: 9})
    cut = fired_at(Kind.PARTITION, "worker", {Affected.CONTROL: 3})
    (finding,) = felt_on_network([late, cut])
    assert finding.passed is None
    assert "link datagrams between workers by a fault of worker" in finding.said
    assert "spread = true" in finding.said
    cut.affected[Affected.BETWEEN] = 4
    (finding,) = felt_on_network([late, cut])
    assert finding.passed
    assert "worker: 4 link datagrams between workers, 3 pieces of control sessions" in finding.said


@pytest.mark.parametrize(("optional", "passes"), [(False, False), (True, True)])
def test_a_planned_fault_not_fired_is_named_unless_optional(optional: bool, passes: bool) -> None:
    table = {"kind": "kill", "target": "task", "after_commits": 2, "count": 3, "optional": optional}
    first, *waiting = draw(scenario_of({"fault": [table]}, "x.toml"), 0)
    fired = Fired(first, 0.0, 2, ("headrace task p/read.0",), 0.0)
    outcome = ScenarioOutcome((fired,), tuple(waiting), (), (), {}, (), 1.0)
    _, finding, _ = check_run(outcome)
    assert finding.passed is passes
    assert "1 of 3 planned" in finding.said
    assert [detail.partition(":")[2].split(",")[1].split(":")[0] for detail in finding.details] == [
        " firing 2", " firing 3",
    ]  # fmt: skip


def test_a_run_without_deeds_proves_nothing_even_if_all_optional() -> None:
    table = {"kind": "kill", "target": "task", "after_s": 5, "optional": True}
    outcome = ScenarioOutcome((), draw(scenario_of({"fault": [table]}, "x.toml"), 0), (), (), {}, (), 1.0)
    assert [finding.passed for finding in check_run(outcome)] == [True, False, True]


def test_a_run_in_which_nothing_was_done_proves_nothing() -> None:
    outcome = ScenarioOutcome((), (), (), (), {}, ("7 headrace worker local",), 1.0)
    assert [finding.passed for finding in check_run(outcome)] == [True, False, False]
