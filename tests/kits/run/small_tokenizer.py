"""A tokenizer that is loaded in a moment, for runs in which tokens are not what is looked at.

The tables of a real one take most of the second that a run of a few records takes.
"""

import atexit
import functools
import json
import pathlib
import shutil
import tempfile

from headrace.stages.library import read_files
from headrace.stages.tokenizer.training import train_tokenizer

VOCABULARY = 2_000


@functools.cache
def small_tokenizer() -> str:
    """The path of its tokenizer.json, which is there until this process ends."""
    folder = tempfile.mkdtemp(prefix="headrace-tests-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    texts = ",".join(str(path) for path in sorted(pathlib.Path(json.__file__).parent.glob("*.py")))
    return train_tokenizer(read_files(texts), pathlib.Path(folder) / "tokenizer.json", vocab_size=VOCABULARY).path
