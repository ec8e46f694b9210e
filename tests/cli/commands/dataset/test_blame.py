"""`headrace dataset blame`: a loader's own steps, losses of people, and what stands out."""

import json
from pathlib import Path

import pytest

from headrace.cli.commands.dataset.blame import BlameQuestion, blame_dataset, diagnose, said_of
from headrace.client import CliError, UsageError
from headrace.loader import Loader
from headrace.loader.order import Cut, Grew, LastBatch, Recut, Revised, Reweighted, Skipped
from tests.kits.loader.shards import write_dataset

SPIKES = {30, 31, 60}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset, a state of a loader that has read it, and losses that jump at three steps."""
    folder = tmp_path_factory.mktemp("blame")
    write_dataset(folder / "data", sequences=(300, 100), seed=4)
    loader = Loader(str(folder / "data"), batch_size=4, alone=True, prefetch=0)
    for _ in loader:
        pass
    loader.close()
    (folder / "loader.json").write_text(json.dumps(loader.state_dict()))
    rows = [f"{step},{3.0 + step % 5 / 100 + (step in SPIKES)}" for step in range(loader.step)]
    (folder / "loss.csv").write_text("\n".join(["step,loss", *rows, ""]))
    return folder


def ask(place: Path, losses: str = "loss.csv", **more: object) -> BlameQuestion:
    return BlameQuestion(str(place / "data"), str(place / "loader.json"), str(place / losses), **more)  # type: ignore[arg-type]


def test_spikes_are_found_with_the_documents_that_they_read(place: Path) -> None:
    found = diagnose(ask(place, before=0))
    assert [(spike.first, spike.last) for spike in found.spikes] == [(30, 31), (60, 60)]
    assert {one["step"] for one in found.documents} == SPIKES
    assert any("texts cannot be shown" in note for note in found.notes)
    assert any("loader.skip(240, 4)" in line for line in found.proposals)


def test_the_answer_is_one_object_or_a_page(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert blame_dataset(ask(place), as_json=True) == 0
    assert len(json.loads(capsys.readouterr().out)["spikes"]) == 2
    assert blame_dataset(ask(place), as_json=False) == 0
    assert "2 spikes" in capsys.readouterr().out


def test_steps_that_are_counted_otherwise_are_moved(place: Path) -> None:
    text = (place / "loss.csv").read_text().splitlines()
    moved = [text[0], *(f"{int(line.partition(',')[0]) + 100},{line.partition(',')[2]}" for line in text[1:])]
    (place / "moved.csv").write_text("\n".join(moved))
    with pytest.raises(CliError, match="--offset"):
        diagnose(ask(place, "moved.csv"))
    assert [spike.first for spike in diagnose(ask(place, "moved.csv", offset=100)).spikes] == [30, 60]


def test_losses_without_spikes_need_no_checkpoint(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "calm.csv").write_text("\n".join(["step,loss", *(f"{step},2.0" for step in range(50))]))
    blame_dataset(BlameQuestion("", str(place / "missing"), str(place / "calm.csv")), as_json=False)
    assert "no loss stands out" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("data", "said"),
    [(b"epoch,accuracy\n1,2\n", "no column of steps"), (b"\xff\xfe\x00", "UTF-8"), (b"step,loss\n1,x\n", "line 2")],
)
def test_a_file_without_losses_is_said_in_a_line(place: Path, data: bytes, said: str) -> None:
    (place / "bad.csv").write_bytes(data)
    with pytest.raises(CliError, match=said):
        diagnose(ask(place, "bad.csv"))
    with pytest.raises(CliError, match="cannot read"):
        diagnose(ask(place, "none.csv"))


def test_a_checkpoint_that_names_servers_is_not_followed(place: Path) -> None:
    state = json.loads((place / "loader.json").read_text())
    (place / "theirs.json").write_text(json.dumps({**state, "uri": "s3://theirs/data"}))
    with pytest.raises(UsageError, match="servers"):
        diagnose(BlameQuestion("", str(place / "theirs.json"), str(place / "loss.csv")))


def test_a_change_of_the_world_near_a_spike_is_named(place: Path) -> None:
    loader = Loader(str(place / "data"), batch_size=4, alone=True, prefetch=0)
    for number, _ in enumerate(loader, 1):
        if number == 25:
            break
    wide = Loader(str(place / "data"), batch_size=8, alone=True, prefetch=0)
    wide.load_state_dict(loader.state_dict())
    for _ in wide:
        pass
    (place / "wide.json").write_text(json.dumps(wide.state_dict()))
    found = diagnose(BlameQuestion(str(place / "data"), str(place / "wide.json"), str(place / "loss.csv")))
    assert [(one["spike"], one["step"], one["change"]) for one in found.changes] == [
        (0, 25, "the world is of 1 ranks with 8 sequences each")
    ]


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (Recut(0, 0, Cut(2, 8, LastBatch.DROP)), "8 ranks"),
        (Revised(0, (3, 4)), "version 3, 4"),
        (Reweighted(0, (0.5, 0.25)), "0.5, 0.25"),
        (Skipped(0, 40), "40 positions"),
        (Grew(0, 1, 5, "ab"), "source 1"),
    ],
)
def test_each_change_of_a_journal_has_words(event: object, said: str) -> None:
    assert said in said_of(event)  # type: ignore[arg-type]
