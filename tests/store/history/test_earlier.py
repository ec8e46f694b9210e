"""What a base says of a range of records, and bases that are not believed."""

from pathlib import Path
from typing import Any

import pytest

from headrace.pipeline.base import Base
from headrace.store.files.store import FileStore
from headrace.store.history import earlier
from headrace.store.history.earlier import EarlierVerdicts, open_earlier
from headrace.store.ledger.core.entries import Closed, PipelineApplied, VersionPublished
from headrace.store.ledger.core.fragments import StoredObject
from headrace.store.shards import verdicts_schema
from tests.kits.store.dataset_writer import FRAGMENT, Fate, Writer

FATES: list[Fate] = [3, "filtered", 6, "quarantined", "duplicate"]
RECIPE = {"name": "books", "stages": [{"name": FRAGMENT.stage}, {"name": "s"}, {"name": "later"}]}


def base_of(made: Writer, stages: tuple[str, ...] = ("s",), *, again: bool = False) -> Base:
    return Base(made.store.uri, 1, made.number - 1, "x", {"v1": {FRAGMENT.stage: stages}}, again)


def written(folder: Path, *shards: Closed) -> Writer:
    return finished(Writer(FileStore(folder)), *shards)


def finished(made: Writer, *shards: Closed) -> Writer:
    made.entry(PipelineApplied("v1", RECIPE))
    for shard in shards:
        made.entry(shard)
    made.entry(VersionPublished(1, "completed"))
    return made


def two_shards(folder: Path) -> Writer:
    made = Writer(FileStore(folder))
    return finished(made, made.shard(FATES), made.shard(["filtered", 5], len(FATES)))


def said(verdicts: EarlierVerdicts, first: int, count: int) -> Any:
    found = verdicts.over(FRAGMENT.id, first, count)
    if found is None:
        return None
    raw = found.verdicts.column("raw").to_pylist()
    named = dict(
        zip(found.rows.tolist(), zip(found.verdicts.column("verdict").to_pylist(), raw, strict=True), strict=True)
    )
    return named, found.open.tolist(), sorted(found.passed)


def test_verdicts_of_unchanged_stages_are_taken_and_the_rest_has_passed(tmp_path: Path) -> None:
    made = two_shards(tmp_path)
    verdicts = EarlierVerdicts(base_of(made))
    lost = {1: ("filtered", None), 3: ("quarantined", b"?")}
    # No stage that remembers is ever unchanged: a duplicate at one is judged again.
    assert said(verdicts, 0, 7) == (lost | {5: ("filtered", None)}, [4], ["s"])
    assert said(verdicts, 1, 2) == ({1: ("filtered", None)}, [], ["s"])
    assert said(verdicts, 2, 1) == ({}, [], ["s"])
    assert said(verdicts, 4, 2) == ({5: ("filtered", None)}, [4], ["s"])
    assert said(verdicts, 6, 2) is None, "record 7 is not closed"
    assert said(verdicts, 7, 1) is None
    assert verdicts.over(b"another", 0, 1) is None
    again = EarlierVerdicts(base_of(made, again=True))
    assert said(again, 0, 5) == ({1: ("filtered", None)}, [3, 4], ["s"])
    later = EarlierVerdicts(base_of(made, ("other",)))
    assert said(later, 0, 5) == ({}, [], ["other"]), "what a later stage lost has passed the ones before"


def test_what_the_source_or_an_unknown_stage_lost_is_judged_again(tmp_path: Path) -> None:
    made = Writer(FileStore(tmp_path))
    shard = made.shard(FATES)
    recipe = {"name": "books", "stages": [{"name": "s"}]}
    made.entry(PipelineApplied("v1", recipe))
    made.entry(shard)
    made.entry(VersionPublished(1, "completed"))
    unknown = Base(made.store.uri, 1, made.number - 1, "", {"v1": {FRAGMENT.stage: ("other",)}})
    assert said(EarlierVerdicts(unknown), 0, 5)[1] == [], "s stands in the recipe, and behind the others"
    made.entry(PipelineApplied("v1", {"name": "books", "stages": [{"name": "else"}]}))
    assert said(EarlierVerdicts(unknown), 0, 5)[1] == [1, 3, 4]


def lying(made: Writer, shard: Closed, rows: list[dict[str, Any]], **changed: Any) -> Closed:
    """The shard with another table of verdicts, whose checksum the ledger has."""
    table = made.table("verdicts", f"shards/1/{99:032x}.verdicts.parquet", verdicts_schema(), rows)
    objects = tuple(table if item.role == "verdicts" else item for item in shard.objects)
    return Closed(shard.sink, shard.version, shard.epoch, shard.ranges, objects, shard.counts)


def row(number: int, **more: Any) -> dict[str, Any]:
    facts = {"id": str(number), "source": FRAGMENT.uri, "fragment": FRAGMENT.id.hex(), "row": number}
    return {**facts, "stage": "s", "verdict": "filtered", "reason": "r", **more}


@pytest.mark.parametrize(
    "rows",
    [
        [row(1), row(3)],
        [row(1), row(3), row(3)],
        [row(1), row(3), row(5)],
        [row(1), row(3), row(-1)],
        [row(1), row(3), row(4, fragment="no hex")],
        [row(1), row(3), row(4, fragment="ab" * 16)],
        [row(1), row(3), row(4, fragment=None)],
        [row(1), row(3), {**row(4), "row": None}],
    ],
    ids=["missing", "twice", "beyond", "negative", "no name", "another fragment", "no fragment", "no row"],
)
def test_a_table_that_contradicts_its_ledger_is_not_believed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, rows: list[dict[str, Any]]
) -> None:
    made = Writer(FileStore(tmp_path))
    finished(made, lying(made, made.shard(FATES), rows), made.shard(["filtered", 5], len(FATES)))
    verdicts = EarlierVerdicts(base_of(made))
    assert said(verdicts, 0, 5) is None
    assert said(verdicts, 4, 2) is None, "a range of which a part is not believed"
    assert said(verdicts, 5, 2) == ({5: ("filtered", None)}, [], ["s"]), "others are"
    assert caplog.text.count("judged again") == 1


@pytest.mark.parametrize("harm", ["bytes", "size", "gone", "long"])
def test_a_table_of_other_bytes_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str) -> None:
    made = two_shards(tmp_path)
    base = base_of(made)
    victim = tmp_path / f"shards/1/{0:032x}.verdicts.parquet"
    victim.chmod(0o644)
    data = victim.read_bytes()
    if harm == "long":
        monkeypatch.setattr(earlier, "TABLE_BYTES_MAX", len(data) - 1)
    elif harm == "gone":
        victim.unlink()
    else:
        victim.write_bytes(data[:-1] + b"x" if harm == "bytes" else data + b"x")
    assert said(EarlierVerdicts(base), 0, 5) is None


def test_a_base_that_is_gone_leaves_all_to_be_judged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = two_shards(tmp_path)
    moved = base_of(made)
    assert open_earlier(moved) is not None
    assert open_earlier(Base(moved.dataset, 1, moved.entry + 1, "", moved.recipes)) is None
    assert open_earlier(Base(moved.dataset, 2, moved.entry, "", moved.recipes)) is None
    assert open_earlier(Base(f"{moved.dataset}/nowhere", 1, 1, "", moved.recipes)) is None
    assert caplog.text.count("nothing is taken over") == 3


def test_parts_of_a_record_are_judged_again(tmp_path: Path) -> None:
    made = Writer(FileStore(tmp_path))
    rows = [row(1, part=0), row(1, part=1), row(3)]
    finished(made, lying(made, made.shard(FATES), rows))
    assert said(EarlierVerdicts(base_of(made)), 0, 5) == ({3: ("filtered", None)}, [1, 1], ["s"])


def test_few_tables_are_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(earlier, "TABLES_HELD", 1)
    verdicts = EarlierVerdicts(base_of(two_shards(tmp_path)))
    for _ in range(2):
        assert said(verdicts, 0, 7) is not None
        assert len(verdicts._held) == 1


def test_a_shard_without_a_table_is_believed_where_it_kept_all(tmp_path: Path) -> None:
    made = Writer(FileStore(tmp_path))
    whole, lost = made.shard([1, 2]), made.shard(["filtered"], 2)

    def bare(shard: Closed) -> Closed:
        objects: tuple[StoredObject, ...] = tuple(item for item in shard.objects if item.role != "verdicts")
        return Closed(shard.sink, shard.version, shard.epoch, shard.ranges, objects, shard.counts)

    finished(made, bare(whole), bare(lost))
    verdicts = EarlierVerdicts(base_of(made))
    assert said(verdicts, 0, 2) == ({}, [], ["s"])
    assert said(verdicts, 2, 1) is None


def test_a_range_of_two_recipes_has_passed_what_both_have(tmp_path: Path) -> None:
    made = Writer(FileStore(tmp_path))
    first, second = made.shard(FATES), made.shard([1, 2], len(FATES))
    other = Closed(second.sink, "v2", second.epoch, second.ranges, second.objects, second.counts)
    made.entry(PipelineApplied("v2", RECIPE))
    finished(made, first, other)
    paths = {"v1": {FRAGMENT.stage: ("s", "x")}, "v2": {FRAGMENT.stage: ("s", "y")}}
    verdicts = EarlierVerdicts(Base(made.store.uri, 1, made.number - 1, "", paths))
    assert [said(verdicts, at, 2)[2] for at in (0, 4, 5)] == [["s", "x"], ["s"], ["s", "y"]]
    only = EarlierVerdicts(Base(made.store.uri, 1, made.number - 1, "", {"v1": paths["v1"]}))
    assert said(only, 4, 2) is None, "a recipe that is not compared"
