"""`headrace dataset trace --checkpoint`: what a step read and which steps read a document, from a file of a trainer."""

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.commands.maintenance import checkpoints
from headrace.cli.commands.maintenance.checkpoints import where_now
from headrace.cli.main import invoke
from headrace.client.errors import CliError
from headrace.loader.loader import Loader, Source
from headrace.loader.trace import trace_document, trace_step
from tests.kits.host.silent import Silent
from tests.kits.loader.shards import write_dataset


@pytest.fixture
def state(tmp_path: Path) -> dict[str, Any]:
    """Of a loader that made three steps of four over two ranks."""
    uri = str(write_dataset(tmp_path / "data", sequences=(8, 8)))
    loader = Loader(uri, batch_size=2, rank=0, world_size=2)
    for _ in zip(range(3), loader, strict=False):
        pass
    loader.close()
    return loader.state_dict()


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert invoke(["dataset", "trace", *arguments]) == code
    found = capsys.readouterr()
    return found.err if code else found.out


def kept(tmp_path: Path, value: object) -> str:
    path = tmp_path / "checkpoint.json"
    path.write_text(json.dumps(value))
    return str(path)


def test_a_step_is_told_with_its_pass_ranks_and_whether_read(
    state: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    checkpoint = kept(tmp_path, state)
    first, *lines = said(capsys, "--checkpoint", checkpoint, "--step", "2").splitlines()
    assert first == "step 2 of pass 0, 2 rows a rank, 2 ranks: read"
    traced = trace_step(state, 2)
    assert lines[0::2] == [
        f"rank {row.rank} row {row.row}  position {row.position}  {row.shard}:{row.shard_row}" for row in traced.rows
    ]
    assert lines[1] == "  " + ", ".join(piece.document for piece in traced.rows[0].pieces)
    later = said(capsys, "--checkpoint", checkpoint, "--step", "5").splitlines()[0]
    assert later.endswith(
        "step 5 of pass 1, 2 rows a rank, 2 ranks: to come, as the journal stands: the checkpoint is before step 3"
    )


def test_a_document_is_said_with_the_steps_that_read_it(
    state: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    name = trace_step(state, 1).rows[0].pieces[0].document
    checkpoint = kept(tmp_path, state)
    lines = said(capsys, "--checkpoint", checkpoint, "--document", name).splitlines()
    uses = trace_document(state, name)
    assert lines == [
        f"pass {use.pass_} step {use.step}  rank {use.rank} row {use.row}  {'read' if use.taken else 'to come'}"
        for use in uses
    ]
    told = json.loads(said(capsys, "--checkpoint", checkpoint, "--document", name, "--json"))
    assert [use["step"] for use in told["uses"]] == [use.step for use in uses]


def test_the_state_is_found_wherever_a_trainer_keeps_it(
    state: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    behind = {**state, "position": 0, "step": 0, "worker": {"id": 0, "of": 2, "stride": 4}}
    expected = said(capsys, "--checkpoint", kept(tmp_path, state), "--step", "2")
    for value in (
        {"loader": state},
        {"loader": json.dumps(state)},
        {"model": [1], "data": {"workers": [behind, state]}},
    ):
        assert said(capsys, "--checkpoint", kept(tmp_path, value), "--step", "2") == expected
    if importlib.util.find_spec("torch"):
        import torch

        torch.save({"model": torch.zeros(3), "loader": state}, tmp_path / "checkpoint.pt")
        assert said(capsys, "--checkpoint", str(tmp_path / "checkpoint.pt"), "--step", "2") == expected


def test_a_checkpoint_with_states_of_two_loaders_is_refused(
    state: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    other = Loader(str(write_dataset(tmp_path / "validation", seed=1)), batch_size=2, seed=7).state_dict()
    checkpoint = kept(tmp_path, {"training": state, "validation": json.dumps(other)})
    refused = said(capsys, "--checkpoint", checkpoint, "--step", "0", code=1)
    assert "the states of 2 loaders lie in it" in refused
    assert f"of {state['uri']}, seed 0, at step 3; of {other['uri']}, seed 7, at step 0" in refused
    assert "give that of one alone, in a file as JSON" in refused


def test_a_dataset_that_moved_is_traced_where_it_lies_now(
    state: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    checkpoint = kept(tmp_path, state)
    expected = said(capsys, "--checkpoint", checkpoint, "--step", "2")
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    assert "no manifest.json" in said(capsys, "--checkpoint", checkpoint, "--step", "2", code=1)
    assert said(capsys, str(tmp_path / "elsewhere"), "--checkpoint", checkpoint, "--step", "2") == expected


@pytest.fixture
def mixture(tmp_path: Path) -> dict[str, Any]:
    """Of a loader of two datasets that made no step; the second one's name looks like more of the first's."""
    sources = [
        Source(str(write_dataset(tmp_path / name.partition("=")[0], sequences=(8,), seed=seed)), 0.5, name)
        for seed, name in enumerate(("web", "code=2"))
    ]
    return Loader(sources, batch_size=4).state_dict()


def test_a_mixture_says_the_source_of_each_row_and_wants_no_uri(
    mixture: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    checkpoint = kept(tmp_path, mixture)
    lines = said(capsys, "--checkpoint", checkpoint, "--step", "0").splitlines()[1::2]
    assert {line.split("  ")[2] for line in lines} == {"web", "code=2"}
    message = said(capsys, str(tmp_path / "web"), "--checkpoint", checkpoint, "--step", "0", code=1)
    assert "--moved NAME=URI" in message
    assert "web, code=2" in message


def test_datasets_of_a_mixture_that_moved_are_traced_where_each_lies_now(
    mixture: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    asked = ("--checkpoint", kept(tmp_path, mixture), "--step", "1")
    expected = said(capsys, *asked)
    document = trace_step(mixture, 1).rows[0].pieces[0].document
    steps = said(capsys, *asked[:2], "--document", document)
    (tmp_path / "web").rename(tmp_path / "a")
    assert "no manifest.json" in said(capsys, *asked, code=1)
    assert said(capsys, *asked, "--moved", f"web={tmp_path / 'a'}") == expected
    (tmp_path / "code").rename(tmp_path / "b")
    both = ("--moved", f"code=2={tmp_path / 'b'}", "--moved", f"web={tmp_path / 'a'}")
    assert said(capsys, *asked, *both) == expected
    assert said(capsys, *asked[:2], "--document", document, *both) == steps
    swapped = ("--moved", f"code=2={tmp_path / 'a'}", "--moved", f"web={tmp_path / 'b'}")
    assert "sources[0].layout_root" in said(capsys, *asked, *swapped, code=1)


def test_a_state_of_one_dataset_may_name_it_too(
    state: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    asked = ("--checkpoint", kept(tmp_path, state), "--step", "2")
    expected = said(capsys, *asked)
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    assert said(capsys, *asked, "--moved", f"{state['dataset']}={tmp_path / 'elsewhere'}") == expected


@pytest.mark.parametrize(
    ("moved", "uri", "message"),
    [
        (["books=/b"], "", "of the checkpoint, which has web, code=2, twin, twin"),
        (["/b"], "", "want NAME=URI"),
        (["web="], "", "want NAME=URI"),
        (["web=/b", "web=/c"], "", "said twice"),
        (["twin=/b"], "", "several datasets have this name"),
        ([], "/b", "is of a mixture"),
    ],
)
def test_what_does_not_say_which_dataset_moved_is_refused(moved: list[str], uri: str, message: str):
    listed = [("web", "/w"), ("code=2", "/c"), ("twin", "/t"), ("twin", "/u")]
    with pytest.raises(CliError, match=re.escape(message)):
        where_now(listed, uri, moved)
    assert where_now(listed, "", ["code=2=s3://b/c?endpoint=http://h"]) == [
        "/w", "s3://b/c?endpoint=http://h", "/t", "/u"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"not json", "neither JSON nor a checkpoint that torch.save wrote"),
        (b'{"model": 1}', "holds no state of a loader"),
        (b"[" * 100_000, "neither JSON nor"),
        (b"PK\x03\x04 and nothing more", "checkpoint"),
    ],
)
def test_a_file_that_holds_no_state_is_said_so_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes, message: str
):
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(data)
    line = said(capsys, "--checkpoint", str(path), "--step", "2", code=1)
    assert message in line
    assert line.count("\n") == 1
    assert len(line) < 400 + len(str(path))
    assert "weights_only" not in line
    missing = said(capsys, "--checkpoint", str(tmp_path / "none"), "--step", "2", code=1)
    assert "No such file" in missing


def test_a_state_as_json_is_read_to_a_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b" " * 101)
    monkeypatch.setattr(checkpoints, "STATE_BYTES_MAX", 100)
    assert "more than 100 bytes: no state" in said(capsys, "--checkpoint", str(path), "--step", "2", code=1)


def test_a_step_and_a_document_at_once_are_refused(capsys: pytest.CaptureFixture[str]):
    for arguments in (["--step", "1", "--document", "a"], [], ["data", "a", "--step", "1"]):
        assert invoke(["dataset", "trace", "--checkpoint", "x", *arguments]) == 2
    assert invoke(["dataset", "trace", "data", "a", "--step", "1"]) == 2
    assert "--checkpoint with --step N" in capsys.readouterr().err


def test_servers_that_a_checkpoint_names_are_not_asked_unless_they_are_trusted(
    state: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = state["uri"]
    silent = Silent()
    try:
        checkpoint = kept(tmp_path, {**state, "uri": silent.store("theirs")})
        told = said(capsys, "--checkpoint", checkpoint, "--step", "2", code=2)
        assert "names servers that would be asked with your keys; add --trust-uris" in told
        assert "s3://theirs/out" in told
        assert said(capsys, here, "--checkpoint", checkpoint, "--step", "2").startswith("step 2 of pass 0")
        assert not silent.asked.is_set()
    finally:
        silent.close()
