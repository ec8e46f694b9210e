"""A folder with pipeline and corpus, and the dataset that a run without faults makes of them."""

from pathlib import Path

import pytest

from tests.kits.run.live import RECORDS, call, inputs, line, pipeline


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chaos")
    (folder / "small.py").write_text(pipeline())
    (folder / "mixed.py").write_text(pipeline().replace("read_jsonl", "read"))
    (folder / "corpus").mkdir()
    for part in range(4):
        lines = [line(number) for number in range(part, RECORDS, 4)]
        lines.insert(len(lines) // 2, '{"id": "broken", "text": ')
        (folder / "corpus" / f"{part}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="session")
def reference(home: Path) -> Path:
    done = call(home, "run", "small.py", *inputs(home), "-p", "output=reference", "--json")
    assert done.returncode == 0, done.stderr
    return home / "reference"
