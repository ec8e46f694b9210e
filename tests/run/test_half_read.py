"""A file that changes while half of it is read: the same command compares what was read, and reads on or halts."""

import json
from pathlib import Path

from headrace.store.datasets.dataset import Dataset
from tests.kits.run.command_server import ended
from tests.kits.run.kill import headrace

RECORDS, DEED_AT = 3000, 1500
PIPELINE = """
import os
from pathlib import Path

from headrace.pipeline.graph import Pipeline
from headrace.stages.library import map_records, read_jsonl, write_jsonl


def meddle(record):
    deed, _, where = record["text"].rstrip(".").partition(" ")
    if where and not os.path.exists(where + "/done"):
        Path(where, "done").touch()
        if deed == "other":
            with open(where + "/0.jsonl", "r+b") as file:
                head = file.read(100)
                file.seek(0)
                file.write(head.replace(b'"0-0"', b'"9-0"'))
        os.utime(where + "/0.jsonl", ns=(0, 0))
    return record


def build(input: str, output: str) -> Pipeline:
    return Pipeline.chain("half", output, read_jsonl(input, batch_records=100), map_records(meddle), write_jsonl())
"""


class Place:
    """One file, of which a record in the middle has what is done to the file when it is read."""

    def __init__(self, folder: Path, deed: str) -> None:
        (folder / "half.py").write_text(PIPELINE)
        self.folder, self.output = folder, str(folder / "out")
        texts = [f"{deed} {folder / 'in'}" if index == DEED_AT else "." * 1000 for index in range(RECORDS)]
        lines = [json.dumps({"id": f"0-{index}", "text": text}) for index, text in enumerate(texts)]
        (folder / "in").mkdir()
        (folder / "in" / "0.jsonl").write_text("\n".join(lines) + "\n")

    def run(self, *arguments: str) -> tuple[int, str]:
        """The exit code, and what it said."""
        parameters = ("-p", "input=in", "-p", f"output={self.output}", "--replicas", "1", *arguments)
        done = ended(headrace("run", "half.py", *parameters, "--json"), cwd=self.folder)
        assert "Traceback" not in done.stderr
        return done.returncode, " ".join((done.stderr + done.stdout).split())

    def closed(self) -> int:
        dataset = Dataset.open(self.output)
        assert dataset.verify().sound
        (state,) = dataset.state.fragments.values()
        return state.of("lines").size


def test_a_file_that_is_touched_while_half_read_is_read_on(tmp_path: Path) -> None:
    here = Place(tmp_path, "touch")
    code, said = here.run()
    assert code == 1
    assert "the same command compares first what was read of it" in said
    assert 0 < here.closed() < RECORDS
    code, said = here.run()
    assert code == 0, said
    assert "1 object stands in another version with the bytes that were read" in said
    assert here.closed() == RECORDS


def test_a_half_read_file_with_other_bytes_halts_until_somebody_chooses(tmp_path: Path) -> None:
    here = Place(tmp_path, "other")
    assert here.run()[0] == 1
    half = here.closed()
    code, said = here.run()
    assert (code, here.closed()) == (1, half)
    assert "it holds other bytes than when it was read" in said
    assert here.run("--changed-input", "drop")[0] == 0
    assert here.closed() == half
