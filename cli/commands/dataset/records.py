"""`headrace dataset head`, `cat` and `sample`: records as text, for people and pipes."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable
from itertools import chain, islice

from headrace.cli.ui import safe
from headrace.client import CliError
from headrace.stages.export import ShownRecord, first_records, named_records, sampled_records
from headrace.store import counted
from headrace.store.datasets import Dataset
from headrace.store.history import open_at
from headrace.store.shards import json_object

#: Characters that text keeps; every other control character is shown as its number.
_KEPT = ("\n", "\t")


def show_first(uri: str, count: int, *, characters: int, tokenizer: str, as_json: bool) -> int:
    """Print the first records of a dataset; the exit code."""
    dataset = open_at(uri).of_version()
    return _print(dataset, first_records(dataset, count, tokenizer), characters, as_json=as_json)


def show_records(uri: str, ids: Collection[str], *, characters: int, tokenizer: str, as_json: bool) -> int:
    """Print the records of these ids, or all; the exit code."""
    dataset = open_at(uri).of_version()
    if not ids:
        return _print(dataset, first_records(dataset, None, tokenizer), characters, as_json=as_json)
    found = list(named_records(dataset, ids, tokenizer))
    known = {name for one in found for name in (one.id, one.whole)}
    if missing := [name for name in ids if name not in known]:
        raise CliError(f"{dataset.uri} keeps no record {missing[0]!r}: `headrace dataset trace` says what became of it")
    return _print(dataset, found, characters, as_json=as_json)


def show_sample(uri: str, count: int, seed: int, *, characters: int, tokenizer: str, as_json: bool) -> int:
    """Print some records of a dataset, drawn by a seed; the exit code."""
    dataset = open_at(uri).of_version()
    return _print(dataset, sampled_records(dataset, count, seed, tokenizer), characters, as_json=as_json)


def harmless(text: str) -> str:
    """Text whose lines and tabs stand, without what else a terminal would obey."""
    return "".join(char if char in _KEPT or char.isprintable() else safe(char) for char in text)


def _print(dataset: Dataset, records: Iterable[ShownRecord], characters: int, *, as_json: bool) -> int:
    """Print the records one by one, each at most so many characters (0: all), so that a pipe may end it."""
    write, left = sys.stdout.write, iter(records)
    # What fails at once, such as the search for the tokenizer, fails before half a JSON object is out.
    first = list(islice(left, 1))
    if as_json:
        write(f'{{"dataset": {json.dumps(dataset.uri)}, "version": {dataset.version}, "records": [')
    for place, one in enumerate(chain(first, left)):
        text = one.text[: characters or None]
        cut = len(one.text) - len(text)
        if as_json:
            metadata = None if one.metadata is None else json_object(one.metadata, "metadata")
            row = {"id": one.id, "source": one.source, "row": one.row, "tokens": one.tokens, "metadata": metadata}
            write(("," if place else "") + json.dumps({**row, "text": text, "cut": cut}))
            continue
        size = "" if one.tokens is None else f", {counted(one.tokens, 'token')}"
        write(f"== {safe(one.id)}  {safe(one.source)} record {one.row}{size}\n{harmless(text)}\n")
        write(f"-- and {counted(cut, 'character')} more: --characters 0 shows all\n" if cut else "")
    write("]}\n" if as_json else "")
    sys.stdout.flush()
    return 0
