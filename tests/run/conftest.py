"""What runs as a user would run it: real processes, real text, a real store."""

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

# The tests have no packages: this is how their modules find the kit beside them.
sys.path.insert(0, str(Path(__file__).parent))

from kill_kit import headrace

DEADLINE_S = 120.0
PIPELINE = '''"""Plain text to tokens, in shards so small that a short run has many ledger entries."""

from headrace.pipeline.graph import Pipeline
from headrace.stages.library import map_records, read_jsonl, tokenize, write_tokens


def has_many_lines(record):
    if record["text"].count("import") == 13:
        raise ValueError("thirteen imports")
    return record if record["text"].count("\\n") >= 10 else None


def build(input: str, output: str, tokenizer: str = "deepseek", seq_len: int = 512) -> Pipeline:
    tokens = tokenize(tokenizer)
    return Pipeline.chain(
        "small",
        output,
        read_jsonl(input, fragment_bytes=1 << 20, batch_bytes=1 << 16),
        map_records(has_many_lines),
        tokens,
        write_tokens(tokens, seq_len=seq_len, shard_bytes=1 << 17),
    )
'''
#: Bytes of text of the corpus that the tests run on.
CORPUS_BYTES = 12 << 20


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a pipeline file and a corpus: the interpreter's standard library, a module a record."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "small.py").write_text(PIPELINE)
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
    done = subprocess.run(
        run_command(home, "undisturbed"), capture_output=True, text=True, cwd=home, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["balanced"]
    return home / "undisturbed"


def run_command(home: Path, output: str, *arguments: str) -> list[str]:
    return headrace(
        "run", "small.py", "-p", f"input={home}/corpus/*.jsonl", "-p", f"output={output}", *arguments, "--json"
    )


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
