"""A tokenizer.json as gigatoken loads it soonest: without white space, and each merge a pair of words and not "a b".

gigatoken tries to read a merge as a pair before it takes it for a string, which is a tenth of the 0.3 s that it takes
for a vocabulary of 128,000 words; white space is another. The command that runs a pipeline has to parse the file
anyway, while the forkserver is importing what tasks need. So it writes the file anew, into one without a name, and the
forkserver loads that: it says the same, and whoever does not find it loads the file itself.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from headrace.stages.tokenizer.engine_choice import Choice

#: Between merges that are put together; a vocabulary of bytes has no word with it.
_BETWEEN = "\x7f"

#: Where the minified form of a tokenizer.json is, by the hash of the file; one at most.
_minified: dict[str, str] = {}


def minify(parsed: dict[str, Any]) -> bytes:
    """The same JSON, the merges of its model as pairs where they can be."""
    model = dict(parsed["model"])
    merges = _pairs(model.pop("merges", []))
    rest = {key: value for key, value in parsed.items() if key != "model"}
    return _with_member(rest, b"model", _with_member(model, b"merges", merges))


def is_for_gigatoken(parameters: Mapping[str, Any]) -> bool:
    """Whether a `tokenize` stage with these parameters loads the file into gigatoken."""
    return "choice" in parameters and Choice.from_dict(parameters["choice"]).is_gigatoken


def share(data: bytes) -> tuple[int, str]:
    """Put it where processes of this user find it while the descriptor is open; the descriptor, and the path."""
    descriptor = os.memfd_create("headrace tokenizer")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, f"/proc/{os.getpid()}/fd/{descriptor}"


def preload(path: str, sha256: str) -> None:
    """Note where the minified form of the file with this hash is, for `minified_of`."""
    _minified.clear()
    _minified[sha256] = path


def minified_of(sha256: str) -> bytes | None:
    """The terse form of the file with this hash, where there is one."""
    path = _minified.get(sha256)
    if path is None:
        return None
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall() or None
    except OSError:
        return None  # Whoever shared it has ended.


def _with_member(others: dict[str, Any], name: bytes, value: bytes) -> bytes:
    """The JSON of an object with one member more, which is JSON already."""
    text = orjson.dumps(others)[:-1]
    return b'%b%b"%b":%b}' % (text, b"," if others else b"", name, value)


def _pairs(merges: Sequence[Any]) -> bytes:
    """The JSON of the merges, as pairs if each is a string of two words.

    By replacing what is between them in one long string: to split each of them takes five times as long.
    """
    try:
        joined = _BETWEEN.join(merges)
    except TypeError:
        return orjson.dumps(merges)
    count = len(merges)
    once = list(map(str.count, merges, itertools.repeat(" "))).count(1) == count
    if not count or not once or joined.count(_BETWEEN) != count - 1:
        return orjson.dumps(merges)
    text = orjson.dumps(joined).replace(b" ", b'","').replace(_BETWEEN.encode(), b'"],["')
    return b"[[%b]]" % text
