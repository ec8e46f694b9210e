"""What a task is lent by a ring it gives back when the last that refers to it is gone, and not before."""

import gc
import pathlib
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from headrace.pipeline.graph import Pipeline, Stage, StageKind
from headrace.stages.library import dedup, read_jsonl, redact_pii, tokenize, write_jsonl
from headrace.stages.runtime.batch import ROW, Batch, no_verdicts
from headrace.stages.runtime.build import build_stage, process_safely
from headrace.stages.runtime.errors import StageContractError
from headrace.stages.sinks.texts import DocumentSink, JsonlSink, TextSink
from headrace.stages.sinks.tokens import TokenSink
from headrace.store.open import open_store
from headrace.transport.core.errors import LinkAborted
from headrace.transport.core.frame import Frame
from headrace.transport.ring import RingOwner, RingReceiver, RingSender, create_ring
from headrace.worker.links.ends import Inbox
from headrace.worker.task.chain import Chain
from headrace.worker.task.codec import batch_to_frame, frame_to_batch
from tests.kits.run.small_tokenizer import small_tokenizer

WINDOW_BYTES = 1 << 16


class Link:
    """A ring with a small window, both of its ends here, and an inbox that reads it."""

    def __init__(self) -> None:
        self.handles = create_ring("link", 1 << 20, WINDOW_BYTES, soft_bytes=1 << 14)
        self.owner = RingOwner(self.handles)
        self.sender = RingSender(self.handles)
        self.closed: list[str] = []
        self.inbox = Inbox(self.closed.append, lambda _link, _reason: None)
        self.receiver = RingReceiver(self.handles)
        self.inbox.open("link", self.receiver)
        self.kept: list[Batch] = []

    def borrow(self, _link: str, frame: Frame) -> None:
        self.kept.append(frame_to_batch(frame, borrow=True))

    def borrow_and_drop(self, _link: str, frame: Frame) -> None:
        frame_to_batch(frame, borrow=True)


@pytest.fixture
def link() -> Iterator[Link]:
    made = Link()
    gc.disable()  # What is given back is given back by itself.
    yield made
    gc.enable()
    made.kept.clear()
    made.receiver.detach()
    made.sender.detach()
    made.owner.close()


def batch_of(number: int, rows: int = 50) -> Batch:
    texts = pa.array([f"{number}:{row}" * 5 for row in range(rows)])
    tokens = pa.array([[number, row] * 10 for row in range(rows)], pa.list_(pa.uint32()))
    columns = {ROW: pa.array(np.arange(rows)), "id": texts, "text": texts, "tokens": tokens}
    columns["metadata"] = pa.array([None if row % 3 else f'{{"row": {row}}}' for row in range(rows)], pa.string())
    return Batch(bytes(16), "file:///x", 0, rows, -1, -1, pa.RecordBatch.from_pydict(columns), no_verdicts())


def test_a_batch_that_is_dealt_with_is_given_back_at_once(link: Link) -> None:
    for number in range(100):
        assert link.sender.try_send(batch_to_frame(batch_of(number), 1))
        assert link.inbox.receive(link.borrow_and_drop)
        assert link.sender.credit_bytes() == WINDOW_BYTES
    assert not link.inbox.receive(link.borrow_and_drop)


def test_a_waiting_batch_is_read_in_place_and_given_back(link: Link) -> None:
    for number in range(20):
        assert link.sender.try_send(batch_to_frame(batch_of(number), 1))
        assert link.inbox.receive(link.borrow)
        assert link.receiver.statistics().in_flight_bytes > 0
        assert link.kept.pop().rows.equals(batch_of(number).rows)


def test_the_columns_of_a_batch_that_waits_are_not_written_over(link: Link) -> None:
    assert link.sender.try_send(batch_to_frame(batch_of(0), 1))
    assert link.inbox.receive(link.borrow)
    while link.sender.try_send(batch_to_frame(batch_of(1), 1)):
        pass
    column = link.kept.pop().rows.column("tokens").slice(1)
    assert column.equals(batch_of(0).rows.column("tokens").slice(1))


def test_a_stage_that_keeps_what_it_borrowed_ends_the_task(link: Link) -> None:
    assert link.sender.try_send(batch_to_frame(batch_of(0), 1))
    assert link.inbox.receive(link.borrow)
    with pytest.raises(StageContractError, match="keeps rows that it was lent"):
        link.inbox.receive(link.borrow)


def test_what_lies_in_a_cycle_is_found(link: Link) -> None:
    assert link.sender.try_send(batch_to_frame(batch_of(0), 1))
    assert link.inbox.receive(link.borrow)
    cycle: list[object] = [link.kept.pop()]
    cycle.append(cycle)
    del cycle
    assert not link.inbox.receive(link.borrow)
    assert link.sender.credit_bytes() == WINDOW_BYTES


def test_a_link_may_end_while_a_batch_of_it_waits(link: Link) -> None:
    assert link.sender.try_send(batch_to_frame(batch_of(0), 1))
    assert link.inbox.receive(link.borrow)
    link.inbox.close("link")
    link.receiver.detach()
    assert not link.inbox.receive(link.borrow)
    assert link.kept.pop().rows.equals(batch_of(0).rows)


def test_a_batch_of_a_sender_that_died_is_whole(link: Link) -> None:
    assert link.sender.try_send(batch_to_frame(batch_of(0), 1))
    assert link.inbox.receive(link.borrow)
    link.owner.abort("process 1 died")
    with pytest.raises(LinkAborted):
        link.sender.credit_bytes()
    assert link.kept.pop().rows.equals(batch_of(0).rows)
    assert not link.inbox.receive(link.borrow)
    assert link.closed == ["link"]


def test_columns_that_a_copy_may_refer_to_are_copied(link: Link) -> None:
    rows = batch_of(0).rows
    languages = pa.array(["en", "de"] * (rows.num_rows // 2)).dictionary_encode()
    rows = pa.RecordBatch.from_arrays([*rows.columns, languages], names=[*rows.schema.names, "language"])
    assert link.sender.try_send(batch_to_frame(batch_of(0).with_rows(rows), 1))
    assert link.inbox.receive(link.borrow)
    assert link.sender.credit_bytes() == WINDOW_BYTES
    assert link.kept.pop().rows.equals(rows)


@pytest.mark.parametrize("kind", ["tokens", "documents", "jsonl"])
def test_a_sink_keeps_nothing_that_it_borrowed(link: Link, tmp_path: pathlib.Path, kind: str) -> None:
    sink: TokenSink | TextSink = {
        "tokens": lambda: TokenSink("write", 64, 1 << 17, 0, None, "0" * 64),
        "documents": lambda: DocumentSink("write"),
        "jsonl": lambda: JsonlSink("write"),
    }[kind]()
    store = open_store(str(tmp_path))
    assert sink.borrows
    spilled: list[Batch] = []
    for number in range(20):
        assert link.sender.try_send(batch_to_frame(batch_of(number), 1))
        assert link.inbox.receive(
            lambda _, frame: spilled.append(sink.spill(frame_to_batch(frame, borrow=True), store))
        )
        assert link.sender.credit_bytes() == WINDOW_BYTES
    for number, batch in enumerate(spilled):
        assert batch.rows.column("id").equals(batch_of(number).rows.column("id"))


#: A sink of somebody who knows nothing of borrowing: what it has spilled is what it was given.
HOARD = """
from headrace.stages.sinks.texts import JsonlSink

class Hoard(JsonlSink):
    def spill(self, batch, store):
        return batch
"""


@pytest.mark.parametrize("target", ["headrace.stages.sinks.texts:JsonlSink", "hoard:Hoard"])
def test_a_sink_borrows_only_where_its_own_class_says_so(link: Link, tmp_path: pathlib.Path, target: str) -> None:
    read = Stage("read", StageKind.SOURCE, "headrace.stages.sources.jsonl:JsonlSource", {"input": [str(tmp_path)]})
    write = Stage("write", StageKind.SINK, target, after=("read",))
    chain = Chain(Pipeline("p", str(tmp_path), (read, write), modules={"hoard": HOARD}), ["write"])
    assert chain.borrows == (target != "hoard:Hoard")
    assert isinstance(chain.sink, TextSink)
    sink, store = chain.sink, open_store(str(tmp_path))
    spilled: list[Batch] = []
    for number in range(20):
        assert link.sender.try_send(batch_to_frame(batch_of(number), 1))
        assert link.inbox.receive(
            lambda _, frame: spilled.append(sink.spill(frame_to_batch(frame, borrow=chain.borrows), store))
        )
        assert link.sender.credit_bytes() == WINDOW_BYTES
    for number, batch in enumerate(spilled):
        assert batch.rows.column("id").equals(batch_of(number).rows.column("id"))


def test_no_stage_past_the_decider_gets_an_undecided_batch(tmp_path: pathlib.Path) -> None:
    keys, decider = dedup(near=False)
    whole = Pipeline.chain("p", str(tmp_path), read_jsonl(str(tmp_path)), keys, decider, redact_pii(), write_jsonl())
    aside = (write_jsonl(name="aside").fed_by(keys.name), write_jsonl(name="second").fed_by("pii"))
    pipeline = Pipeline("p", str(tmp_path), (*whole.stages, *aside))
    apart, fused = Chain(pipeline, ["read", keys.name]), Chain(pipeline, ["read", keys.name, "pii"])
    assert (apart.asks, apart.downstream, apart.direct) == (decider.name, ("pii", "aside"), ("aside",))
    assert (fused.asks, fused.downstream, fused.direct) == (decider.name, ("lines", "second"), ())


@pytest.mark.parametrize("broken", [False, True], ids=["as it comes", "with a record that raises"])
def test_the_tokenizer_keeps_nothing_that_it_borrowed(link: Link, broken: bool) -> None:
    stage = build_stage(tokenize(small_tokenizer()), {})
    assert stage.borrows
    texts = pa.array(
        [None if broken and row == 7 else f"def f_{row}(): return {row}" for row in range(50)], pa.string()
    )
    columns = {ROW: pa.array(np.arange(50)), "id": texts, "text": texts, "metadata": pa.nulls(50, pa.string())}
    batch = Batch(bytes(16), "file:///x", 0, 50, -1, -1, pa.RecordBatch.from_pydict(columns), no_verdicts())
    answers: list[Batch] = []
    for _ in range(5):
        assert link.sender.try_send(batch_to_frame(batch, 1))
        assert link.inbox.receive(
            lambda _, frame: answers.append(process_safely(stage, frame_to_batch(frame, borrow=True), "tokenize"))
        )
        answer = answers.pop()
        assert answer.rows.num_rows == 50 - broken
        del answer
    assert not link.inbox.receive(link.borrow)
    assert link.sender.credit_bytes() == WINDOW_BYTES
