"""Datasets that somebody else wrote wrong on purpose: whatever looks at one ends with an answer, or a line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

from headrace.cli.commands.dataset import history
from headrace.cli.commands.dataset.page import FACT_BYTES_MAX, QUARANTINE_MAX, TEXT_MAX, DatasetPage, facts_of
from headrace.cli.main import invoke
from headrace.store import NUMBER_MAX
from headrace.store.contract.objects import WHOLE_BYTES_MAX
from headrace.store.datasets.dataset import Dataset
from headrace.store.files.store import FileStore
from headrace.store.ledger.core import fold
from headrace.store.ledger.core.entries import Closed, FragmentEnded, PipelineApplied, VersionPublished
from headrace.store.shards.sidecars import (
    documents_schema,
    quarantine_schema,
    samples_schema,
    table_to_parquet,
    verdicts_schema,
)
from tests.kits.store.dataset_writer import FATES, FRAGMENT, Writer

NAME = FRAGMENT.id.hex()


def published(writer: Writer, closed: Closed, **version: Any) -> None:
    """The shard, its end, and a version that shows it."""
    writer.entry(closed, FragmentEnded(FRAGMENT.id, len(FATES)))
    writer.entry(replace(VersionPublished(1, "completed"), **version))


def applied(**fields: Any) -> Callable[[Writer, Closed], None]:
    """A pipeline of these fields behind a sound version."""

    def write(writer: Writer, closed: Closed) -> None:
        published(writer, closed)
        writer.entry(PipelineApplied("v2", {"name": "x", **fields}))

    return write


def stage(**fields: Any) -> Callable[[Writer, Closed], None]:
    return applied(stages=[{"name": "write", "kind": "sink", "parameters": {}, "identity": {}, **fields}])


def counted(**counts: Any) -> Callable[[Writer, Closed], None]:
    return lambda writer, closed: published(writer, replace(closed, counts=replace(closed.counts, **counts)))


def overflowing(writer: Writer, closed: Closed) -> None:
    """Two shards whose counts are numbers, and whose sum is none."""
    counts = replace(closed.counts, tokens=NUMBER_MAX, padding=NUMBER_MAX)
    published(writer, replace(closed, counts=counts))
    again = replace(
        closed, ranges=(), objects=(), counts=replace(counts, kept=0, filtered=0, duplicate=0, quarantined=0)
    )
    writer.entry(again, VersionPublished(2, "completed"))


def of_role(*roles: tuple[str, str]) -> Callable[[Writer, Closed], None]:
    """A shard whose objects have each the role of another."""
    others = dict(roles)
    return lambda writer, closed: published(
        writer, replace(closed, objects=tuple(replace(o, role=others.get(o.role, o.role)) for o in closed.objects))
    )


def table_of(role: str, schema: pa.Schema, **columns: Any) -> Callable[[Writer, Closed], None]:
    """A shard whose table of a role is this one."""
    row = {"id": ["5"], "source": ["u"], "fragment": [NAME], "row": [5], "part": [None]}
    row |= {name: ["filtered" if name == "verdict" else "r"] for name in schema.names if name not in row}
    row |= {name: [1] for name in row if name == "tokens"} | {"metadata": ["{}"]} | columns
    table = pa.Table.from_pydict({name: row[name] for name in schema.names}, schema=schema)
    return with_table(role, table)


def with_table(role: str, table: pa.Table) -> Callable[[Writer, Closed], None]:
    folder = "quarantine" if role == "quarantine" else "shards"
    ending = ".parquet" if role == "quarantine" else f".{role}.parquet"

    def write(writer: Writer, closed: Closed) -> None:
        made = writer.object(role, f"{folder}/1/{99:032x}{ending}", [table_to_parquet(table, has_ids=False)])
        objects = {item.role: item for item in closed.objects} | {role: made}
        published(writer, replace(closed, objects=tuple(objects.values())))

    return write


SCORES = pa.table({"id": ["0"] * 3, "tokens": [1] * 3, "score.a": [1.7e308, -1.7e308, float("nan")]})
LISTS: dict[str, Callable[[Writer, Closed], None]] = {
    "stages that are a number": applied(stages=5),
    "stages that are numbers": applied(stages=[1, 2]),
    "parameters that are a list": stage(parameters=[1]),
    "an identity that is a number": stage(identity=7),
    "a length in words": stage(parameters={"seq_len": "many"}),
    "a length that is no number": stage(parameters={"seq_len": float("nan")}),
    "bytes": stage(parameters={"seq_len": 4, "key": b"\xff"}),
    "a name that is a list": applied(name=["x"]),
    "sums beyond 64 bits": overflowing,
    "fewer than none": counted(kept=9, filtered=-6),
    "a moment beyond calendars": lambda writer, closed: published(writer, closed, at=NUMBER_MAX),
    "tables of other roles": of_role(("documents", "samples"), ("verdicts", "quarantine")),
    "tokens without documents": lambda writer, closed: published(writer, replace(closed, objects=closed.objects[:1])),
    "samples that are documents": with_table("samples", pa.table({"id": ["a"], "fragment": [NAME], "row": [1]})),
    "samples of nulls": table_of("samples", samples_schema(), id=[None], stage=[None], reason=[None], text=[None]),
    "a sample of a duplicate that nobody has": table_of("samples", samples_schema(), verdict=["duplicate"], row=[99]),
    "a duplicate of no record": table_of("verdicts", verdicts_schema(), duplicate_of=["zz#q"]),
    "quarantine without bytes": with_table("quarantine", pa.table({"id": ["a"], "fragment": [NAME], "row": [1]})),
    "metadata that is no JSON": table_of("documents", documents_schema(), metadata=["{"]),
    "metadata that is a list": table_of("documents", documents_schema(), metadata=["[1]"]),
    "scores at the ends of numbers": with_table("documents", SCORES),
    "fewer documents than pieces": table_of("documents", documents_schema()),
}
VERBS = (["show", "--samples", "--quarantine"], ["show", "--duplicates"], ["page", "--json"], ["log", "--json"], ["ls"])
VERBS += (["head"], ["export", "--format", "parquet"])


@pytest.fixture
def hostile(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    writer = Writer(FileStore(tmp_path / "data"))
    LISTS[request.param](writer, writer.shard(FATES))
    return writer.store.uri


@pytest.mark.parametrize("hostile", LISTS, indirect=True)
def test_whatever_looks_at_a_hostile_dataset_ends_in_a_line(
    hostile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for verb, *options in VERBS:
        if verb == "export":
            options = [str(tmp_path / "exported"), *options]
        assert invoke(["dataset", verb, hostile, *options]) in (0, 1, 2)
        said = capsys.readouterr().err
        assert not said or said.startswith("headrace: "), said


@pytest.mark.parametrize("hostile", LISTS, indirect=True)
def test_no_page_of_a_hostile_dataset_dies(hostile: str) -> None:
    from headrace.stages.quality.scorecard import card
    from headrace.store import StoreError
    from headrace.store.ledger import EntryError

    try:
        facts = {**facts_of(Dataset.open(hostile)), "card": card(hostile)[0]}
    except (StoreError, EntryError):
        return
    assert orjson.loads(DatasetPage(facts).whole())["dataset"]["dataset"] == hostile


def test_a_sound_dataset_beside_hostile_ones_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("stages that are a number", "bytes"):
        writer = Writer(FileStore(tmp_path / name.replace(" ", "-")))
        LISTS[name](writer, writer.shard(FATES))
    writer = Writer(FileStore(tmp_path / "sound"))
    published(writer, writer.shard(FATES))
    invoke(["dataset", "ls", str(tmp_path)])
    assert "/sound" in capsys.readouterr().out


def shown(facts: dict[str, Any]) -> dict[str, Any]:
    return orjson.loads(DatasetPage(facts).whole())["dataset"]


def test_a_page_shows_the_first_of_what_it_has_no_room_for(tmp_path: Path) -> None:
    """Texts of three bytes a character: a hundred quarantined records are more than a row of the page holds."""
    many = QUARANTINE_MAX
    table = pa.Table.from_pydict(
        {
            "id": [str(row) for row in range(many)], "source": ["u"] * many, "fragment": [NAME] * many,
            "row": list(range(many)), "part": [None] * many, "stage": ["s"] * many, "reason": ["r"] * many,
            "raw": [("水" * TEXT_MAX).encode()] * many,
        },
        schema=quarantine_schema(),
    )  # fmt: skip
    writer = Writer(FileStore(tmp_path / "data"))
    with_table("quarantine", table)(writer, writer.shard(FATES))
    found = shown(facts_of(Dataset.open(writer.store.uri)))
    assert 50 < len(found["quarantine"]) < many
    assert f"of quarantine the first {len(found['quarantine'])} of {many} are shown" in found["words"]


@pytest.mark.parametrize(
    "facts",
    [
        {"id": "x" * 9_000_000},
        {"filtered_by": {f"s/{number}": 1 for number in range(100_000)}},
        {"samples": {"s/" + "r" * 1_000_000: [{"id": "i" * 1_000_000, "text": None}]}},
        {"bytes": 1 << 70, "retracted": -(1 << 70)},
        {"recipes": [{"stages": [{"parameters": {"text": "水" * 400_000}}]}] * 40},
        {"card": "水" * 100_000},
        {"inputs": [{"uri": "\udcff" * 1000}] * 1000, "card": "\udcff" * 100_000},
    ],
    ids=["a text", "reasons", "a reason", "numbers", "recipes", "a card", "no UTF-8"],
)
def test_no_fact_is_too_long_for_a_page(facts: dict[str, Any]) -> None:
    found = shown(facts)
    for name in facts:
        assert found[name], name
        assert len(orjson.dumps(found[name])) <= FACT_BYTES_MAX


def test_a_ledger_entry_of_holes_takes_no_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = Writer(FileStore(tmp_path / "data"))
    with (tmp_path / "data" / writer.log.key(writer.number)).open("wb") as file:
        file.truncate(WHOLE_BYTES_MAX + 1)
    assert invoke(["dataset", "show", writer.store.uri]) == 1
    assert "more than 1,073,741,824 bytes" in capsys.readouterr().err


def test_a_rollback_that_no_reader_would_take_is_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "ROLLBACKS_MAX", 1)
    monkeypatch.setattr(history, "ROLLBACKS_MAX", 1)
    writer = Writer(FileStore(tmp_path / "data"))
    published(writer, writer.shard(FATES))
    writer.entry(VersionPublished(2, "grown"))
    writer.entry(VersionPublished(3, "rollback", shows=2, restores=1))
    writer.entry(VersionPublished(4, "grown"))
    assert invoke(["dataset", "rollback", f"{writer.store.uri}@3"]) == 1
    assert "version 3 restores others 1 deep" in capsys.readouterr().err
    assert Dataset.open(writer.store.uri).version == 4
    assert invoke(["dataset", "rollback", f"{writer.store.uri}@1"]) == 0
    assert Dataset.open(writer.store.uri).version == 5
