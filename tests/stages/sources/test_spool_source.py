"""The source of a spool: lists what is sealed, waits for more, ends when it is closed; and reads what was shed."""

from itertools import islice
from pathlib import Path

import pytest

from headrace.pipeline.errors import PipelineError
from headrace.stages.library import read_spool
from headrace.stages.runtime.batch import FILTERED
from headrace.stages.runtime.contract import Batch, FragmentEnd
from headrace.stages.runtime.errors import FragmentChanged, InputError
from headrace.stages.sources.spool import CLOSED, SpoolSource
from headrace.store.ledger.core.fragments import Fragment
from headrace.store.ledger.core.intervals import UNBOUNDED, Gap


def write(folder: Path, name: str, *lines: str) -> None:
    (folder / name).write_text("".join(f"{line}\n" for line in lines))


def name_of(fragment: Fragment | None) -> str | None:
    return fragment.uri.rpartition("/")[2] if fragment is not None else None


def test_a_listing_follows_sealed_segments_until_the_spool_closes(tmp_path: Path) -> None:
    listing = map(name_of, SpoolSource("read", str(tmp_path)).list())
    assert next(listing) is None, "nothing is there yet"
    write(tmp_path, "000000000002.jsonl", '{"text": "a"}')
    write(tmp_path, "000000000003.jsonl.open", '{"text": "b"}')
    assert list(islice(listing, 2)) == ["000000000002.jsonl", None]
    # An earlier number that is sealed later is not missed, and what was let go is not missed either.
    (tmp_path / "000000000002.jsonl").unlink()
    write(tmp_path, "000000000001.shed", '{"records": 2, "bytes": 9, "key": ""}')
    (tmp_path / "000000000003.jsonl.open").rename(tmp_path / "000000000003.jsonl")
    assert list(islice(listing, 3)) == ["000000000001.shed", "000000000003.jsonl", None]
    write(tmp_path, "000000000004.jsonl", '{"text": "c"}')
    (tmp_path / CLOSED).touch()
    assert list(listing) == ["000000000004.jsonl"]


def test_a_listing_that_begins_again_has_what_is_there(tmp_path: Path) -> None:
    write(tmp_path, "000000000001.jsonl", '{"text": "a"}')
    (tmp_path / CLOSED).touch()
    first, second = (list(SpoolSource("read", str(tmp_path)).list()) for _ in range(2))
    assert first == second


def shed(folder: Path, *counts: int) -> tuple[SpoolSource, Fragment]:
    write(folder, "000000000001.shed", *(f'{{"records": {count}, "bytes": 9, "key": "k"}}' for count in counts))
    source = SpoolSource("read", str(folder), batch_records=4)
    fragment = next(source.list())
    assert fragment is not None
    return source, fragment


def test_what_was_shed_is_filtered_record_by_record(tmp_path: Path) -> None:
    source, fragment = shed(tmp_path, 3, 7)
    *batches, end = source.read(fragment, (Gap(0, UNBOUNDED, 0),))
    assert end == FragmentEnd(10)
    assert [(batch.first, batch.count) for batch in batches if isinstance(batch, Batch)] == [(0, 4), (4, 4), (8, 2)]
    verdicts = [row for batch in batches if isinstance(batch, Batch) for row in batch.verdicts.to_pylist()]
    assert [row["row"] for row in verdicts] == list(range(10))
    assert {(row["stage"], row["verdict"]) for row in verdicts} == {("read", FILTERED)}
    assert all(row["reason"].startswith("shed") for row in verdicts)


def test_the_gaps_of_what_was_shed_are_read_alone(tmp_path: Path) -> None:
    source, fragment = shed(tmp_path, 10)
    items = list(source.read(fragment, (Gap(1, 3, -1), Gap(8, 10, -1))))
    assert [(item.first, item.count) for item in items if isinstance(item, Batch)] == [(1, 2), (8, 2)]
    assert len(items) == 2, "the end was not asked for"


def test_a_segment_that_is_not_what_was_listed_is_told(tmp_path: Path) -> None:
    source, fragment = shed(tmp_path, 10)
    write(tmp_path, "000000000001.shed", '{"records": 1}')
    with pytest.raises(FragmentChanged, match="has changed since it was listed"):
        list(source.read(fragment, (Gap(0, UNBOUNDED, 0),)))


def test_a_folder_that_is_not_there_is_told_with_what_to_do() -> None:
    with pytest.raises(InputError, match="start it there first"):
        next(SpoolSource("read", "/nowhere").list())


def test_wrong_parameters_name_the_stage() -> None:
    with pytest.raises(PipelineError, match='stage "pushed": folder'):
        read_spool("", name="pushed")
    with pytest.raises(PipelineError, match='stage "pushed": batch_records is 0'):
        read_spool("/data/spool", batch_records=0, name="pushed")
    assert read_spool("/data/spool").parameters["folder"] == "/data/spool"
