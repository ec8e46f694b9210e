"""Input that changes or vanishes while it is open halts its own fragment; what follows is chosen, and accounted for."""

import json
import os
from pathlib import Path

import pytest

from headrace.store.contract.objects import ObjectStore
from headrace.store.datasets.dataset import Dataset
from headrace.store.open import open_store
from tests.kits.run.command_server import ended
from tests.kits.run.kill import headrace
from tests.kits.store.s3_server import shared_server

RECORDS = 50
#: The third file's objects after it was changed hold so many records.
CHANGED = 2 * RECORDS
PIPELINE = """
import os

from headrace.pipeline.graph import Pipeline
from headrace.stages.library import map_records, read_jsonl, write_jsonl
from headrace.store.open import open_store


def meddle(record):
    deed, _, where = record["text"].partition(" ")
    if deed == "change":
        store = open_store(where)
        lines = store.get("2.jsonl")
        if lines.count(b"-again") == 0:
            store.replace("2.jsonl", [lines + lines.replace(b'", "', b'-again", "')])
    if deed == "touch":
        os.utime(where + "/2.jsonl")
    if deed == "remove":
        open_store(where).delete("2.jsonl")
    return record


def build(input: str, output: str) -> Pipeline:
    return Pipeline.chain("meddled", output, read_jsonl(input), map_records(meddle), write_jsonl())
"""


class Place:
    """Three files, of which the first has what is done to the third while it is open.

    The second may have been fetched by then, since a source looks one file ahead.
    """

    def __init__(self, folder: Path, deed: str, *, s3: bool = False) -> None:
        (folder / "meddled.py").write_text(PIPELINE)
        self.folder = folder
        self.output = str(folder / "out")
        uri = shared_server().uri(f"changed-{folder.name}-{deed}") if s3 else str(folder / "in")
        self.input = f"{uri.split('?')[0]}/*.jsonl{'?' + uri.split('?')[1] if s3 else ''}"
        self.store: ObjectStore = open_store(uri)
        for part in range(3):
            self.put(part, f"{deed} {uri}" if part == 0 else f"{part}-0")

    def put(self, part: int, first: str = "text") -> None:
        texts = [first, *(f"{part}-{index}" for index in range(1, RECORDS))]
        lines = [json.dumps({"id": f"{part}-{index}", "text": text}) for index, text in enumerate(texts)]
        self.store.replace(f"{part}.jsonl", [("\n".join(lines) + "\n").encode()])

    def run(self, *arguments: str) -> tuple[int, str]:
        """The exit code, and what it said on standard error."""
        parameters = ("-p", f"input={self.input}", "-p", f"output={self.output}", "--replicas", "1", *arguments)
        command = headrace("run", "meddled.py", *parameters, "--json")
        done = ended(command, cwd=self.folder)
        assert "Traceback" not in done.stderr
        return done.returncode, " ".join(done.stderr.split())

    def closed(self) -> dict[str, int]:
        """Records closed, by file; of several versions the sum."""
        found: dict[str, int] = {}
        for state in Dataset.open(self.output).state.fragments.values():
            name = Path(state.fragment.uri.split("?")[0]).name
            found[name] = found.get(name, 0) + state.of("lines").size
        return found

    def show(self) -> dict[str, object]:
        done = ended(headrace("dataset", "show", self.output, "--json"))
        assert done.returncode == 0, done.stderr
        shown: dict[str, object] = json.loads(done.stdout)
        verified = Dataset.open(self.output).verify()
        assert verified.sound, verified.problems
        assert shown["balanced"]
        return shown


@pytest.mark.parametrize(
    ("deed", "place"),
    [
        ("change", "file"),
        ("change", "s3"),
        *(pytest.param("remove", at, marks=pytest.mark.slow) for at in ("file", "s3")),
    ],
)
def test_an_object_that_changes_while_open_halts_alone(tmp_path: Path, deed: str, place: str) -> None:
    here = Place(tmp_path, deed, s3=place == "s3")
    code, said = here.run()
    assert code == 1
    for part in ("1 fragment stands open", "2.jsonl", "Put the old objects back", "--changed-input drop"):
        assert part in said
    assert here.closed() == {"0.jsonl": RECORDS, "2.jsonl": 0, "1.jsonl": RECORDS}
    # A later run finds it at its listing: what is new is read, and no other version of what stands open.
    here.put(3)
    code, said = here.run()
    assert code == 1
    assert "changed or vanished since it was listed" in said
    assert "2.jsonl" in said
    assert here.closed() == {"0.jsonl": RECORDS, "2.jsonl": 0, "1.jsonl": RECORDS, "3.jsonl": RECORDS}
    # Given up: the run ends in order, and what is there under that name is never read.
    assert here.run("--changed-input", "drop")[0] == 0
    assert here.run()[0] == 0
    assert here.closed()["2.jsonl"] == 0
    shown = here.show()
    assert (shown["fragments_dropped"], shown["complete"], shown["records_read"]) == (1, True, 3 * RECORDS)
    (given_up,) = shown["given_up"]  # type: ignore[misc]
    assert "2.jsonl" in given_up["uri"]
    assert given_up["records_closed"] == 0


@pytest.mark.parametrize("place", ["file", pytest.param("s3", marks=pytest.mark.slow)])
def test_a_changed_object_is_read_again_in_the_same_run_if_asked(tmp_path: Path, place: str) -> None:
    here = Place(tmp_path, "change", s3=place == "s3")
    code, said = here.run("--changed-input", "reread")
    assert code == 0, said
    assert here.closed() == {"0.jsonl": RECORDS, "2.jsonl": CHANGED, "1.jsonl": RECORDS}
    shown = here.show()
    assert (shown["fragments_dropped"], shown["complete"]) == (1, True)
    assert here.run()[0] == 0
    assert here.closed()["2.jsonl"] == CHANGED


def test_a_later_run_reads_what_has_changed_if_asked(tmp_path: Path) -> None:
    here = Place(tmp_path, "change")
    assert here.run()[0] == 1
    code, said = here.run("--changed-input", "reread")
    assert code == 0, said
    assert here.closed() == {"0.jsonl": RECORDS, "2.jsonl": CHANGED, "1.jsonl": RECORDS}
    assert here.show()["complete"]


def test_a_file_touched_before_it_is_read_is_read_next_time(tmp_path: Path) -> None:
    here = Place(tmp_path, "touch")
    code, said = here.run()
    assert code == 1
    assert "the same command compares first what was read of it" in said
    code, said = here.run()
    assert code == 0, said
    assert here.closed() == {"0.jsonl": RECORDS, "1.jsonl": RECORDS, "2.jsonl": RECORDS}


def test_other_bytes_in_the_place_of_a_touched_file_are_read(tmp_path: Path) -> None:
    place = Place(tmp_path, "none")
    assert place.run()[0] == 0
    os.utime(tmp_path / "in" / "2.jsonl")
    assert place.run()[0] == 0
    place.put(2, "other bytes")
    assert place.run("--changed-input", "reread")[0] == 0
    assert place.closed() == {"0.jsonl": RECORDS, "1.jsonl": RECORDS, "2.jsonl": 2 * RECORDS}


def test_an_unknown_choice_is_wrong_usage(tmp_path: Path) -> None:
    code, said = Place(tmp_path, "none").run("--changed-input", "guess")
    assert code == 2
    assert "halt, drop, reread" in said
