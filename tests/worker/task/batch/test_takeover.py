"""Batches of a run with a base: what is open is judged, and what was passed is not."""

from dataclasses import replace

import numpy as np
import pyarrow as pa

from headrace.pipeline.base import Base
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import gopher_quality, language, read_jsonl, write_documents
from headrace.stages.runtime.batch import SOURCE_ROWS, Batch, no_verdicts
from headrace.stages.runtime.build import build_stage, load_target
from headrace.stages.runtime.contract import Transform
from headrace.stages.shipping.preload import DEFERRED, inherited_by
from headrace.worker.task.batch.takeover import Deferred, Passed, build_or_defer


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


def based(*passed: str) -> Pipeline:
    stages = gopher_quality(), language(["en"]), language(["en"], tag=True, name="tagged")
    pipeline = Pipeline.chain("p", "out", read_jsonl("in.jsonl"), *stages, write_documents())
    return replace(pipeline, base=Base("file:///old", 1, 1, "", {"v": {"read": ("read", *passed)}}))


def test_a_stage_that_the_base_has_passed_waits_for_a_record() -> None:
    pipeline = based("gopher-quality", "language", "tagged")
    made = {stage.name: build_or_defer(pipeline, stage) for stage in pipeline.stages}
    assert [name for name, stage in made.items() if isinstance(stage, Deferred)] == ["gopher-quality", "language"]
    plain = [stage.to_dict() for stage in pipeline.stages]
    assert pipeline.base is not None
    modules = [module for module, _ in inherited_by(plain, "file:///out", pipeline.base.passed)]
    assert "headrace.stages.quality.gopher" not in modules
    assert "headrace.stages.quality.models.language" in modules
    late, stage = made["gopher-quality"], pipeline.stage("gopher-quality")
    batch = make_batch("too short")
    assert late.process(batch) == build_stage(stage, {}).process(batch)


def test_a_stage_that_one_recipe_lacks_is_made_at_once() -> None:
    pipeline = based("language")
    assert not isinstance(build_or_defer(pipeline, pipeline.stage("gopher-quality")), Deferred)


def test_stages_that_wait_promise_what_their_classes_do() -> None:
    for target in DEFERRED:
        kind = load_target(target, "it")
        promised = kind.merges, kind.judges, kind.splits, kind.borrows
        assert promised == (Deferred.merges, Deferred.judges, Deferred.splits, Deferred.borrows)
        assert (kind.facts, kind.stand_behind) == (Transform.facts, Transform.stand_behind)
        assert kind.delegated_cpu_s is Transform.delegated_cpu_s
