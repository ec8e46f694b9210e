"""Batches of a run with a base: what is open is judged, and what was passed is not."""

import numpy as np
import pyarrow as pa

from headrace.stages.runtime.batch import Batch, no_verdicts
from headrace.stages.runtime.contract import Transform
from headrace.stages.runtime.records import SOURCE_ROWS
from headrace.worker.task.batch.takeover import Passed


class Short(Transform):
    """Filters texts of one character, and notes what it is given."""

    judges = True

    def __init__(self) -> None:
        self.given: list[str] = []

    def process(self, batch: Batch) -> Batch:
        texts = batch.rows.column("text").to_pylist()
        self.given += texts
        return batch.keep(np.array([len(text) > 1 for text in texts]), "short", ["short"] * len(texts))


class Longer(Short):
    """A class of somebody else."""


def make_batch(*texts: str) -> Batch:
    rows = [{"__row": row, "id": str(row), "text": text, "metadata": None} for row, text in enumerate(texts)]
    return Batch(b"f" * 16, "u", 0, len(texts), 0, 9, pa.RecordBatch.from_pylist(rows, SOURCE_ROWS), no_verdicts())


def test_only_what_is_open_is_judged() -> None:
    batch, judge = make_batch("a", "b", "cc", "d"), Short()
    passed = Passed(batch, frozenset({"short"}), np.array([1, 2, 9], np.int64))
    answer = passed.through(batch, judge, "short")
    assert judge.given == ["b", "cc"]
    assert answer.rows.column("text").to_pylist() == ["a", "cc", "d"]
    assert answer.verdicts.column("row").to_pylist() == [1]
    nothing = Passed(batch, frozenset({"short"}), np.zeros(0, np.int64))
    assert nothing.through(batch, judge, "short") is batch


def test_a_class_does_not_inherit_that_it_only_judges() -> None:
    assert (Transform.judges, Short.judges, Longer.judges) == (False, True, False)
