"""The readers of other people's formats, each in a folder of its own beside this environment.

They cannot live in the development environment: MosaicML's wants numpy below 2.2 and an older hub client than Hugging
Face's, which Headrace's own dependencies exclude. So each is installed once, without what it asks for and does not
need to read a local folder, and finds the rest (torch, numpy, pyarrow) here. The set-up of `make test` does that, by
`python tests/kits/inputs/readers.py`, into the environment's own folder; no test reaches for the network.
`HEADRACE_TEST_READERS` names another folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
from typing import Any

INSTALL_S_MAX = 300.0
READ_S_MAX = 120.0

#: MosaicML's package imports its image sets, and with them torchvision, before its reader: only the reader is wanted.
MOSAICML = """
import importlib.util, json, sys, types
package = types.ModuleType("streaming")
package.__path__ = list(importlib.util.find_spec("streaming").submodule_search_locations)
sys.modules["streaming"] = package
from streaming.base.dataset import StreamingDataset
read = StreamingDataset(local=sys.argv[1], shuffle=False, batch_size=1)
print(json.dumps([read[place]["tokens"].tolist() for place in range(len(read))]))
"""
MEGATRON = """
import json, sys
from megatron.core.datasets.indexed_dataset import IndexedDataset
read = IndexedDataset(sys.argv[1])
print(json.dumps([read[place].tolist() for place in range(len(read))]))
"""
DATASETS = """
import json, sys
from datasets import load_dataset
read = load_dataset(sys.argv[1], split="train", cache_dir=sys.argv[2])
print(json.dumps([[row["id"], list(row["input_ids"])] for row in read]))
"""

REQUIREMENTS = {
    "mosaicml": (
        *("mosaicml-streaming==0.13.0", "zstd==1.5.7.2", "Brotli==1.2.1", "python-snappy==0.7.3", "cramjam==2.14.0"),
        *("transformers==4.57.6", "huggingface-hub==0.36.2", "tokenizers==0.22.2", "regex==2026.11.15"),
        *("pillow==13.0.0", "catalogue==2.0.10"),
    ),
    "datasets": (
        *("datasets==5.2.0", "dill==0.4.1", "multiprocess==0.70.19", "pandas==3.1.1"),
        *("python-dateutil==4.0.0", "six==1.17.0"),
    ),
    "megatron": ("megatron-core==0.16.1",),
}


def read_with(reader: str, script: str, *arguments: str) -> Any:
    """What a script that has the reader prints last, as JSON."""
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=READ_S_MAX,
        env={**os.environ, "PYTHONPATH": str(_installed(reader)), "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def _installed(reader: str) -> pathlib.Path:
    folder = _folder(reader)
    assert folder.exists(), f"the reader {reader!r} is not in {folder}: install it with `python {__file__}`"
    return folder


def _folder(reader: str) -> pathlib.Path:
    digest = hashlib.sha256(repr((REQUIREMENTS[reader], sys.version_info[:2])).encode()).hexdigest()[:12]
    home = os.environ.get("HEADRACE_TEST_READERS") or pathlib.Path(sys.prefix) / "readers"
    return pathlib.Path(home) / f"{reader}-{digest}"


def install() -> None:
    """Install every reader that is not there yet; AssertionError with what the installer said if it fails."""
    for reader, wanted in REQUIREMENTS.items():
        folder = _folder(reader)
        if folder.exists():
            continue
        fresh = folder.with_name(f"{folder.name}.{os.getpid()}")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
        done = subprocess.run(
            [*pip, "--target", str(fresh), *wanted], capture_output=True, text=True, timeout=INSTALL_S_MAX
        )
        assert done.returncode == 0, f"the reader {reader!r} cannot be installed: {done.stderr}"
        try:
            fresh.rename(folder)
        except OSError:
            shutil.rmtree(fresh)  # another was faster


if __name__ == "__main__":
    install()
