"""The audit: rows of a gate, and what drifted from a baseline beyond chance."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.store import NoDataset
from headrace.store.datasets import Dataset
from headrace.store.files.store import FileStore
from headrace.store.history.address import version_named
from headrace.store.history.audit import (
    GATE_CHARACTERS_MAX,
    Broken,
    GateError,
    broken_rows,
    drifted,
    gate_of,
    parse_gate,
)
from headrace.store.ledger.core.entries import FragmentEnded, VersionPublished
from headrace.store.shards import Profile, Series, SeriesKind, samples_schema
from tests.kits.store.dataset_writer import FRAGMENT, Writer


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """Ten records, of which four are kept."""
    made = Writer(FileStore(tmp_path))
    fates: list[Any] = [1, 2, 3, 4, "filtered", "filtered", "filtered", "duplicate", "duplicate", "duplicate"]
    made.entry(made.shard(fates, 0))
    made.entry(FragmentEnded(FRAGMENT.id, 10), VersionPublished(1, "completed"))
    return Dataset.open(str(tmp_path))


@pytest.mark.parametrize(
    ("limits", "broken"),
    [
        ({"kept_share": {"min": 0.4}}, []),
        ({"kept_share": {"min": 0.5, "max": 0.9}}, ["kept_share: min 0.5, and it is 0.4"]),
        ({"duplicate_share": {"max": 0.005}}, ["duplicate_share: max 0.005, and it is 0.3"]),
        ({"language.fr": {"min": 0.1}}, ["language.fr: min 0.1, and it has none"]),
        ({"tokens_p50": {"min": 2, "max": 2}, "tokens_p100": {"max": 4}, "tokens_mean": {"max": 2.5}}, []),
        ({"drift": {}}, []),
    ],
)
def test_a_gate_names_the_row_that_is_broken(dataset: Dataset, limits: dict[str, Any], broken: list[str]) -> None:
    assert [str(row) for row in broken_rows(dataset, parse_gate(limits))] == broken


@pytest.mark.parametrize(
    "plain",
    [
        {"kept_share": 1},
        {"kept_share": {}},
        {"kept_share": {"most": 1}},
        {"kept_share": {"min": "1"}},
        {"kept_share": {"min": True}},
        {"kept_share": {"min": float("nan")}},
        {"kept_share": {"min": 10**400}},
        {"\ud800": {"min": 1}},
        {"drift": {"baseline": "\ud800"}},
        {"drift": 1},
        {"drift": {"base": 1}},
        {"drift": {"baseline": True}},
        {"drift": {"limits": {"length": "x"}}},
        {str(number): {"min": 1} for number in range(1001)},
    ],
)
def test_a_gate_that_is_none_is_refused(plain: dict[str, Any]) -> None:
    with pytest.raises(GateError, match="gate"):
        parse_gate(plain)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        "7",
        "[" * 10_000,
        '{"a":' * 10_000,
        '{"k":{"min":1e999}}',
        '{"k":{"min":' + "9" * 5000 + "}}",
        "\ud800",
    ],
)
def test_a_request_with_what_is_no_gate_is_refused(text: str) -> None:
    with pytest.raises(GateError, match="gate"):
        gate_of(text)


def test_a_request_holds_a_gate_of_so_many_characters() -> None:
    assert gate_of("") == {}
    text = '{"kept_share":{"min":0.5}}'
    assert gate_of(text.ljust(GATE_CHARACTERS_MAX)) == {"kept_share": {"min": 0.5}}
    with pytest.raises(GateError, match="the limit is 65536"):
        gate_of(text.ljust(GATE_CHARACTERS_MAX + 1))


def test_a_baseline_that_is_not_there_is_refused(dataset: Dataset) -> None:
    with pytest.raises(NoDataset, match="no version 7"):
        broken_rows(dataset, parse_gate({"drift": {"baseline": 7}}))
    for name in ("²", "9" * 5000):
        with pytest.raises(NoDataset):
            version_named(dataset.store, dataset.state, name)


def of(**series: dict[Any, int]) -> Profile:
    kinds = {"length": SeriesKind.NUMBERS, "content": SeriesKind.HASHES}
    return Profile(
        {name: Series(kinds.get(name, SeriesKind.NAMES), Counter(counts)) for name, counts in series.items()}
    )


EVEN = dict.fromkeys(range(1, 11), 1000)


@pytest.mark.parametrize(
    ("before", "after", "broken"),
    [
        (of(length=EVEN), of(length=EVEN), []),
        (of(length=EVEN), of(length={**EVEN, 1: 3000}), ["drift.length"]),
        (of(length=EVEN, language={"en": 9900, "de": 100}), of(length=EVEN, language={"en": 9700, "de": 300}), []),
        (
            of(length=EVEN, language={"en": 10000}),
            of(length=EVEN, language={"en": 9000, "de": 1000}),
            ["drift.language"],
        ),
        (of(length=EVEN, language={"en": 10000}), of(length=EVEN), ["drift.language"]),
        (of(length=EVEN, content={1: 9000, 2: 9000}), of(length=EVEN, content={1: 9000, 2: 9100}), []),
        (of(length=EVEN, content={1: 9000, 2: 9000}), of(length=EVEN, content={1: 9000, 3: 9000}), ["drift.content"]),
        (of(length={1: 499}), of(length={5: 9999}), []),
    ],
)
def test_what_is_further_than_its_limit_has_drifted(before: Profile, after: Profile, broken: list[str]) -> None:
    assert [row.name for row in drifted(before, after, {})] == broken


def test_a_limit_of_a_series_goes_before_the_limit_of_its_kind() -> None:
    before, after = of(length=EVEN), of(length={**EVEN, 1: 3000})
    assert drifted(before, after, {"length": 0.9}) == []
    assert [type(row) for row in drifted(before, after, {"length": 0.01})] == [Broken]


def test_drift_says_what_differs_most() -> None:
    before = of(length=EVEN, language={"en": 10000})
    after = of(length=EVEN, language={"en": 8000, "de": 2000})
    assert "en 100.0% before, 80.0% now" in str(drifted(before, after, {})[0])


def test_drift_is_measured_on_what_the_baseline_does_not_show(tmp_path: Path) -> None:
    made = Writer(FileStore(tmp_path))
    made.entry(made.shard([1] * 600, 0))
    made.entry(VersionPublished(1, "stopped", complete=False))
    made.entry(made.shard([40] * 600, 600))
    found = broken_rows(Dataset.open(str(tmp_path)), parse_gate({"drift": {}}))
    assert "such as 600, 900, 1199" in str(found[0])
    assert found[0].found is not None
    assert found[0].found > 0.8, "of all shards together half are as they were"
    assert "drift.length" in [row.name for row in found]
    made.entry(VersionPublished(2, "stopped", complete=False))
    assert "drift.length" in [row.name for row in broken_rows(Dataset.open(str(tmp_path)), parse_gate({"drift": {}}))]


def test_a_row_about_what_was_removed_shows_some_of_it(tmp_path: Path) -> None:
    made = Writer(FileStore(tmp_path))
    shard = made.shard([1, "filtered"], 0)
    rows = [{"id": "1", "fragment": FRAGMENT.id.hex(), "row": 1, "stage": "s", "reason": "r", "text": "x" * 99}]
    samples = made.table("samples", f"shards/1/{7:032x}.samples.parquet", samples_schema(), rows)
    made.entry(replace(shard, objects=(*shard.objects, samples)), VersionPublished(1, "completed"))
    gate = parse_gate({"removed.s/r": {"max": 0}, "kept_share": {"min": 1}, "records": {"max": 1}})
    said = {row.name: row.detail for row in broken_rows(Dataset.open(str(tmp_path)), gate)}
    assert said == {"removed.s/r": f"1 {'x' * 60!r}", "kept_share": f"1 {'x' * 60!r}", "records": ""}


def test_while_more_is_closed_numbers_that_grow_are_left_out(dataset: Dataset) -> None:
    gate = parse_gate({"records": {"min": 99}, "kept_share": {"min": 0.5}})
    assert [row.name for row in broken_rows(dataset, gate, final=False)] == ["kept_share"]
    assert [row.name for row in broken_rows(dataset, gate)] == ["records", "kept_share"]
