"""A merged batch taken apart is, member by member, what each would have been alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from headrace.stages.runtime.batch import (
    FILTERED,
    ROW,
    Batch,
    BatchDraft,
    Columns,
    batch_of,
    join_verdicts,
    make_verdicts,
    ordinals_of,
)
from headrace.store.ledger.core.fragments import Fragment
from headrace.worker.task.batch.coverage import ConservationError, apart, fates, ranges_of

#: What becomes of a record at its source, and behind it: kept, edited, filtered.
FATES = st.sampled_from(["kept", "rejected", "dropped", "filtered"])
MEMBERS = st.lists(st.tuples(st.integers(0, 1000), st.lists(FATES, min_size=1, max_size=5)), min_size=1, max_size=6)


def drafts_of(members: list[tuple[int, list[str]]]) -> list[BatchDraft]:
    """A draft for each: the ordinal of its first record, and the fates of all."""
    found: list[BatchDraft] = []
    for number, (first, wanted) in enumerate(members):
        uri = f"file:///{number}"
        fragment = Fragment(number.to_bytes(16, "big"), "read", uri, "1", 0, -1, "jsonl/1", 10)
        columns = Columns(uri)
        for ordinal, fate in enumerate(wanted, first):
            if fate == "rejected":
                columns.reject(ordinal, None, "malformed JSON: here", b"raw")
            elif fate == "dropped":
                columns.drop(ordinal, None, "no text")
            else:
                columns.keep(ordinal, f"{fate}-{number}-{ordinal}", b"text", {"at": ordinal})
        found.append(BatchDraft(columns, fragment, "read", first, len(wanted), 10 * first, 10 * len(wanted)))
    return found


def filtered(batch: Batch) -> Batch:
    """The batch behind a stage that filters what is named so, and makes an edit a batch."""
    kept = np.array([not name.startswith("filtered") for name in batch.rows.column("id").to_pylist()], np.bool_)
    return replace(batch.keep(kept, "filter", ["too short"] * len(kept)), edits={"filter": 1})


def plain(batch: Batch) -> dict[str, Any]:
    name = (batch.fragment, batch.uri, batch.first, batch.count, batch.offset, batch.length)
    return {"name": name, "rows": batch.rows.to_pylist(), "verdicts": batch.verdicts.to_pylist()}


@given(MEMBERS)
def test_each_member_is_what_its_draft_gives_alone(members: list[tuple[int, list[str]]]) -> None:
    alone = [filtered(draft.batch()) for draft in drafts_of(members)]
    together = filtered(batch_of(drafts_of(members)))
    assert together.count == len(fates(together))
    assert [plain(part) for part in apart(together)] == [plain(batch) for batch in alone]
    assert np.concatenate([fates(part) for part in apart(together)]).tolist() == fates(together).tolist()


@given(MEMBERS)
def test_its_ranges_are_those_of_its_members(members: list[tuple[int, list[str]]]) -> None:
    expected = [ranges_of(draft.batch())[0] for draft in drafts_of(members)]
    assert list(ranges_of(batch_of(drafts_of(members)))) == expected


def test_edits_and_counters_are_counted_once() -> None:
    parts = apart(filtered(batch_of(drafts_of([(0, ["kept"]), (0, ["kept"])]))).counted("filter", "looks", 2))
    assert [part.edits for part in parts] == [{"filter": 1}, {}]
    assert [part.counters for part in parts] == [{"filter/looks": 2}, {}]


def test_a_record_that_a_stage_loses_in_a_joint_batch_is_missed() -> None:
    batch = batch_of(drafts_of([(5, ["kept", "kept"]), (7, ["kept"])]))
    with pytest.raises(ConservationError, match="record 2 has 0 fates"):
        fates(batch.with_rows(batch.rows.slice(0, 2)))


def test_a_verdict_of_one_member_is_none_of_another() -> None:
    batch = batch_of(drafts_of([(5, ["kept"]), (5, ["kept"])]))
    lost = batch.rows.slice(1, 1)
    reasons = ["for a reason"]
    verdict = make_verdicts(
        rows=lost.column(ROW), ids=lost.column("id"), stage="filter", verdict=FILTERED, reasons=reasons
    )
    first, second = apart(replace(batch, rows=batch.rows.slice(0, 1), verdicts=join_verdicts(batch.verdicts, verdict)))
    assert (first.rows.num_rows, first.verdicts.num_rows) == (1, 0)
    assert (second.rows.num_rows, ordinals_of(second.verdicts.column("row")).tolist()) == (0, [5])
