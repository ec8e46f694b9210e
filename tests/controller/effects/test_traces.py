"""The index of traces of a dataset that a run writes: made while it flows, whole at its end, and missed by nobody."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from headrace.controller.effects.traces import TraceIndexes
from headrace.daemon.effects import Effects
from headrace.store.datasets.dataset import Dataset, fold_ledger
from headrace.store.files.store import FileStore
from headrace.store.history.trace_index import shards_with
from tests.kits.store.dataset_writer import FATES, Writer

RECORDS = len(FATES)


@pytest.fixture
def made(tmp_path: Path) -> Writer:
    writer = Writer(FileStore(tmp_path))
    for number in range(3):
        writer.entry(writer.shard(FATES, number * RECORDS))
    return writer


def files(made: Writer) -> int:
    return len(list(made.store.list("trace/")))


def lived(made: Writer, live: Callable[[TraceIndexes, Effects], Coroutine[None, None, None]], most: int) -> None:
    async def whole() -> None:
        effects = Effects()
        await live(TraceIndexes(effects, flowing=most, ended=most), effects)

    asyncio.run(whole())


def test_the_end_of_a_run_has_its_records_indexed(made: Writer) -> None:
    async def live(traces: TraceIndexes, _effects: Effects) -> None:
        await traces.ended(made.store.uri, fold_ledger(made.store))

    lived(made, live, 3 * RECORDS + 1)
    assert files(made) == 0, "they are few"
    lived(made, live, 3 * RECORDS)
    dataset = Dataset.open(made.store.uri)
    assert [dataset.state.shards.index(shard) for shard in shards_with(dataset, str(RECORDS))] == [1]


def test_a_run_that_flows_has_one_index_written_at_a_time(made: Writer) -> None:
    async def live(traces: TraceIndexes, effects: Effects) -> None:
        ledger = fold_ledger(made.store)
        traces.closed(made.store.uri, ledger)
        made.entry(made.shard(FATES, 3 * RECORDS))
        traces.closed(made.store.uri, fold_ledger(made.store))
        assert len(asyncio.all_tasks()) == 2, "this one, and the first index"
        await traces.ended(made.store.uri, fold_ledger(made.store))
        await effects.settle(0)

    lived(made, live, RECORDS)
    dataset = Dataset.open(made.store.uri)
    assert [dataset.state.shards.index(shard) for shard in shards_with(dataset, str(3 * RECORDS))] == [3]


def test_a_process_that_fails_or_is_ended_costs_the_run_nothing(
    made: Writer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def live(traces: TraceIndexes, effects: Effects) -> None:
        ledger = fold_ledger(made.store)
        await traces.ended((tmp_path / "nowhere").as_uri(), ledger)
        traces.closed(made.store.uri, ledger)
        traces.close()
        await effects.settle(10)
        assert len(asyncio.all_tasks()) == 1

    lived(made, live, 1)
    assert "could not be written" in caplog.text
