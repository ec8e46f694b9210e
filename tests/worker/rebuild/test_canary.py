"""Two versions of a pipeline judge the same fragments, and each record that they judge otherwise is shown."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.client import load
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import dedup
from headrace.stages.runtime import build_stage
from headrace.store.datasets.dataset import fold_ledger
from headrace.store.files.store import FileStore
from headrace.store.ledger.core.entries import Entry, FragmentsListed, Led, PipelineApplied, encode_entry
from headrace.store.ledger.core.fragments import Fragment
from headrace.store.ledger.log import Log
from headrace.worker.rebuild.canary import (
    SAMPLES_MAX,
    Canary,
    CanaryError,
    ChangedSample,
    chosen,
    compare_versions,
    judge,
    note_changes,
)

FILE = """
import os
import signal

from headrace.pipeline.graph import Pipeline
from headrace.stages.library import map_records, read_jsonl, write_jsonl


def rule(record):
    RULE
    return record


def build(input: str, output: str) -> Pipeline:
    return Pipeline.chain("small", output, read_jsonl(input), map_records(rule), write_jsonl())
"""
LONG = "if len(record['text']) < 7: return None"
#: Ten records a file: "word 0" to "word 9", and ids that say which.
FILES = 3


def a_pipeline(home: Path, rule: str) -> Pipeline:
    (home / "rules.py").write_text(FILE.replace("RULE", rule))
    return load(home / "rules.py", [f"input={home}/in-*.jsonl", f"output={home}/out"], follow_links=False)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for number in range(FILES):
        rows = [{"id": f"{number}-{row}", "text": f"word {10 * number + row}"} for row in range(10)]
        (tmp_path / f"in-{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def fragments_of(pipeline: Pipeline) -> list[Fragment]:
    return [item for item in build_stage(pipeline.stages[0], pipeline.modules).list() if item is not None]


def between(home: Path, before: str, after: str, records_max: int = 1000) -> Canary:
    """What becomes otherwise of all records, by two rules, judged in this process."""
    old, new = a_pipeline(home, before), a_pipeline(home, after)
    fragments = fragments_of(old)
    was, now = (judge(one, fragments, "lines", records_max) for one in (old, new))
    found = Canary(len(fragments), len(fragments), len(was.fates))
    note_changes(was, now, fragments, found)
    return found


def test_a_version_and_itself_judge_alike(home: Path) -> None:
    assert not between(home, LONG, LONG).changed


def test_a_record_that_is_filtered_now_is_named_with_its_text(home: Path) -> None:
    found = between(home, "pass", LONG)
    (kind,) = found.changed
    assert (kind[0], found.changed[kind], found.records) == ("kept", 10, 30)
    assert kind[1].startswith("filtered rule/")
    assert [one.text for one in found.samples[kind]] == ["word 0", "word 1", "word 2"]
    assert [one.id for one in found.samples[kind]] == ["0-0", "0-1", "0-2"]
    assert len(found.samples[kind]) == SAMPLES_MAX
    assert between(home, LONG, "pass").changed == {(kind[1], "kept"): 10}


def test_a_record_whose_text_is_another_is_shown_before_and_after(home: Path) -> None:
    edit = "if record['text'] == 'word 12': return {**record, 'text': 'WORD'}"
    found = between(home, "pass", edit)
    assert found.changed == {("kept", "kept, other text"): 1}
    (one,) = found.samples["kept", "kept, other text"]
    assert one == ChangedSample("1-2", one.source, 2, "word 12", "WORD")


def test_a_record_that_no_stage_can_process_is_a_difference(home: Path) -> None:
    found = between(home, "pass", "if record['text'] == 'word 3': raise ValueError('three')")
    (kind,) = found.changed
    assert kind[1].startswith("quarantined rule/")


def test_no_more_records_are_judged_than_the_limit(home: Path) -> None:
    assert between(home, "pass", LONG, records_max=4).records == 4


def named(number: int) -> Fragment:
    return Fragment.named("read", f"file:///{number}", "1", start=0, end=-1, reader="jsonl", size=9)


def test_a_canary_of_more_input_chooses_the_same_fragments() -> None:
    few, many = [named(number) for number in range(500)], [named(number) for number in range(1000)]
    first = chosen(few, 0.02)
    assert set(first) == set(chosen(many, 0.02)) & set(few)
    assert chosen(few[::-1], 0.02) == first
    assert 1 < len(first) < 30


def test_a_canary_has_one_fragment_at_least() -> None:
    assert len(chosen([named(1), named(2)], 1e-9)) == 1
    assert not chosen([], 1.0)
    assert len(chosen([named(1), named(2)], 1.0)) == 2


def a_ledger(home: Path, pipeline: Pipeline, fragments: list[Fragment]) -> None:
    log = Log(FileStore(home / "out"))
    begun = (Led(1, {}), PipelineApplied(pipeline.version(), pipeline.to_dict()), FragmentsListed(tuple(fragments)))
    log.append(0, encode_entry(Entry(1, begun)))


def test_a_record_that_kills_its_process_ends_only_the_canary(home: Path) -> None:
    good = a_pipeline(home, "pass")
    bad = a_pipeline(home, "os.kill(os.getpid(), signal.SIGKILL)")
    a_ledger(home, good, fragments_of(good))
    before = sorted(home.rglob("*"))
    with pytest.raises(CanaryError, match="the version asked for ended by signal 9"):
        compare_versions(fold_ledger(FileStore(home / "out")), good, bad, 1.0)
    assert sorted(home.rglob("*")) == before, "a canary writes nothing"


def test_what_a_version_prints_is_not_on_standard_output(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    plain = a_pipeline(home, "print('judged')")
    a_ledger(home, plain, fragments_of(plain))
    compare_versions(fold_ledger(FileStore(home / "out")), plain, plain, 1.0)
    said = capfd.readouterr()
    assert (said.out, "judged" in said.err) == ("", True)


def test_what_remembers_has_no_canary(home: Path) -> None:
    plain = a_pipeline(home, "pass")
    remembering = replace(plain, stages=(plain.stages[0], *dedup(), *plain.stages[1:]))
    a_ledger(home, plain, fragments_of(plain))
    state = fold_ledger(FileStore(home / "out"))
    with pytest.raises(CanaryError, match="remembers what it has seen"):
        compare_versions(state, plain, remembering, 1.0)
    with pytest.raises(CanaryError, match="no input yet"):
        compare_versions(replace(state, fragments={}), plain, plain, 1.0)
