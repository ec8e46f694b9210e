"""What `headrace apply --wait` says at the end of a run."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from headrace.cli.commands import apply
from headrace.cli.commands.apply import show_end, show_status
from headrace.cli.commands.cluster.top import top_page
from headrace.client import ControllerAt
from headrace.protos import control_pb2 as pb
from headrace.store.files.store import FileStore
from tests.kits.client import ClientStandIn
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


class Later(ClientStandIn):
    """A client of a controller that began after the run, and has no figures of it."""

    def status(self, name: str) -> pb.StatusReply:
        note = "another controller led it"
        return pb.StatusReply(pipelines=[pb.PipelineStatus(pipeline="p", state="completed", notes=[note])])


def test_of_a_run_that_another_controller_led_no_figure_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(apply, "Client", Later)
    at = ControllerAt("127.0.0.1:1")
    assert show_status(at, "p", as_json=False) == 0
    page = capsys.readouterr().out
    assert "another controller led it" in page
    assert "0 records" not in page
    assert "fragments" not in page
    Console().print(top_page(Later(at).status("p"), {}, at.address, 80))
    assert "0 of 0" not in capsys.readouterr().out
