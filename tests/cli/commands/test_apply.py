"""What `headrace apply --wait` says at the end of a run."""

import json
from pathlib import Path

import pytest

from headrace.cli.commands.apply import show_end
from headrace.protos import control_pb2 as pb
from headrace.store.files.store import FileStore
from tests.kits.store.dataset_writer import Writer


@pytest.mark.parametrize("as_json", [False, True])
def test_the_notes_of_a_run_are_shown_at_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    writer = Writer(FileStore(tmp_path / "out"))
    writer.entry(writer.shard([3]))
    note = "sink other kept none of 1 record: 1 filtered"
    show_end(
        pb.PipelineStatus(pipeline="p", dataset=writer.store.uri, state="completed", notes=[note]), as_json=as_json
    )
    said = capsys.readouterr().out
    assert (json.loads(said)["notes"] == [note]) if as_json else f"note  {note}" in said
