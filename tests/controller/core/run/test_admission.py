"""Which pipelines may go on with a dataset."""

from headrace.controller.core.run.opening import Admission, admit
from headrace.pipeline.graph import Pipeline, Stage, StageKind
from headrace.store.ledger.core.entries import Entry, EpochRaised, FragmentsListed, Led, PipelineApplied
from headrace.store.ledger.core.fold import LedgerState
from headrace.store.ledger.core.fragments import Range
from tests.kits.controller.core import closed, fragment, make_pipeline, proposal

A = fragment(0)


def ledger(pipeline: Pipeline, *, shards: bool) -> LedgerState:
    """A dataset that this pipeline has begun."""
    state = LedgerState()
    applied = PipelineApplied("v", pipeline.to_dict()), EpochRaised("created"), FragmentsListed((A,))
    state.apply(0, Entry(1, (Led(1, {}),)))
    state.apply(1, Entry(1, applied))
    if shards:
        state.apply(2, Entry(1, (closed(proposal([Range(A.id, 0, 4)])),)))
    return state


def with_sink(form: int) -> Pipeline:
    """Pipelines that differ in what their sink writes."""
    stages = Stage("read", StageKind.SOURCE, "m:read"), Stage("write", StageKind.SINK, "m:write", {"form": form})
    return Pipeline.chain("run", "file:///data", *stages)


def test_a_dataset_that_nobody_began_takes_any_pipeline() -> None:
    assert admit(make_pipeline(), LedgerState(), amend=False) == Admission()


def test_the_same_pipeline_goes_on() -> None:
    assert admit(make_pipeline(), ledger(make_pipeline(), shards=True), amend=False) == Admission()


def test_another_pipeline_is_refused_unless_it_amends() -> None:
    begun = ledger(make_pipeline(rule=1), shards=True)
    refused = admit(make_pipeline(rule=2), begun, amend=False)
    assert "was made by another pipeline" in refused.refusal
    assert [line.split(":")[0] for line in refused.differences] == ["keep.rule"]
    assert admit(make_pipeline(rule=2), begun, amend=True) == Admission()


def test_an_amendment_does_not_change_the_form_of_shards_that_are_there() -> None:
    answer = admit(with_sink(2), ledger(with_sink(1), shards=True), amend=True)
    assert "holds shards of another form" in answer.refusal
    assert [line.split(":")[0] for line in answer.differences] == ["write.form"]


def test_where_there_are_no_shards_yet_an_amendment_may_change_their_form() -> None:
    assert admit(with_sink(2), ledger(with_sink(1), shards=False), amend=True) == Admission()


def test_another_environment_alone_is_warned_of() -> None:
    answer = admit(make_pipeline(environment="2"), ledger(make_pipeline(environment="1"), shards=True), amend=False)
    assert answer == Admission(warnings=("environment differs: python: 1 -> 2",))
