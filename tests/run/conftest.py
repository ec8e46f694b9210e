"""What runs as a user would run it: real processes, real text, a real store."""

import json
import sysconfig
from pathlib import Path

import pytest

from tests.kits.run.command import pipeline, run_command
from tests.kits.run.command_server import ended

#: Bytes of text of the corpus that the tests run on.
CORPUS_BYTES = 12 << 20


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a pipeline file and a corpus: the interpreter's standard library, a module a record."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "small.py").write_text(pipeline())
    (folder / "corpus").mkdir()
    texts = _texts()
    for shard in range(4):
        lines = [json.dumps({"id": name, "text": text, "part": shard}) for name, text in texts[shard::4]]
        lines.insert(len(lines) // 2, '{"id": "broken", "text": ')
        (folder / "corpus" / f"{shard}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="session")
def undisturbed(home: Path) -> Path:
    """The dataset of a run that nothing happened to."""
    done = ended(run_command(home, "undisturbed"), cwd=home)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["balanced"]
    return home / "undisturbed"


def _texts() -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    size = 0
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        if "site-packages" in path.parts:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        found.append((str(path.relative_to(root)), text))
        size += len(text)
        if size >= CORPUS_BYTES:
            break
    return found
