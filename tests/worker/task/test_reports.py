"""What a task reports of its progress."""

import json
import socket
from pathlib import Path

import pytest

from headrace.pipeline.graph import Pipeline
from headrace.protos import control_pb2 as pb
from headrace.stages.library import read_jsonl, write_jsonl
from headrace.store.ledger.core.intervals import UNBOUNDED, Gap
from headrace.worker.task.batch.in_flight import InFlightPage
from headrace.worker.task.channel import Channel
from headrace.worker.task.core import messages
from headrace.worker.task.task import Task


@pytest.mark.parametrize(("batch_bytes", "ahead"), [(1 << 20, 0), (20, 1)])
def test_what_was_read_is_in_the_first_report_as_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_bytes: int, ahead: int
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    reader = read_jsonl(f"{tmp_path}/*.jsonl", batch_bytes=batch_bytes)
    pipeline = Pipeline.chain("p", f"file://{tmp_path}/out", reader, write_jsonl())
    order = pb.StartTask(
        pipeline_json=json.dumps(pipeline.to_dict()),
        stages=[stage.name for stage in pipeline.stages],
        version="v",
        epoch=1,
    )
    mine, theirs = socket.socketpair()
    with mine, theirs:
        task = Task(Channel(mine), pb.TaskCommand(task="p/read.0", attempt=1, start=order), InFlightPage.private())
        reports: list[pb.Progress] = []
        monkeypatch.setattr(task, "_say", lambda *, progress: reports.append(progress))
        assert task._chain.source is not None
        (fragment,) = [item for item in task._chain.source.list() if item is not None]
        task._do(messages.ReadAsked(fragment, [Gap(0, UNBOUNDED, 0)]))
        task._read()
        assert task._source.ahead == ahead
        task._source.halt()
    (report,) = reports
    assert [stage.records for stage in report.stages] == [2, 0]
    assert report.held_records == 2
