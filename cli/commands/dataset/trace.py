"""`headrace dataset trace` and `rebuild`: from a record to its tokens, from a training step to its documents."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.cli.commands.maintenance import loader_state_in, sources_of
from headrace.cli.ui import Recipes, console, facts_page, place, print_json, safe, title
from headrace.client import EXIT_FAULT, CliError, UsageError
from headrace.store import counted
from headrace.store.datasets import Dataset
from headrace.store.history import open_at, shards_with, write_trace_index
from headrace.store.ledger import ClosedShard
from headrace.store.shards import RecordName, json_object, read_shard, read_table, rows_named

if TYPE_CHECKING:
    from headrace.loader.dataset import Source


#: Digits of the row of a shard that a person gives.
ROW_DIGITS_MAX = 18


def trace_record(uri: str, name: str, *, as_json: bool) -> int:
    """Say what became of the record of this id: file and ordinal, verdict, shard, sequences and offsets."""
    gc.disable()  # what is read stays until the command ends
    dataset = open_at(uri)
    gc.freeze()
    gc.enable()
    key, _, row = name.rpartition(":")
    shard = next((s for s in dataset.shards if key and any(key == item.key for item in s.closed.objects)), None)
    if shard is not None and row.isdecimal() and len(row) <= ROW_DIGITS_MAX:
        return _trace_row(dataset, shard, key, int(row), as_json=as_json)
    found = [fact for shard in shards_with(dataset, name) for fact in _in_shard(dataset, shard, name)]
    recipes = Recipes.of(dataset.state)
    if not found:
        raise CliError(f"no record of {dataset.uri} has the id {name!r}: `headrace dataset show` says what there is")
    for fact in found:
        fact["recipe"] = recipes.place(fact["pipeline"])
        if fact.get("duplicate_of"):
            fact["kept_as"] = _kept_record(dataset, str(fact["duplicate_of"]), fact["sink"])
    if as_json:
        return print_json({"id": name, "records": found})
    out = console()
    for fact in found:
        at = f" at the sink {fact['sink']}" if len(dataset.state.counts) > 1 else ""
        unshown = _unshown_words(fact)
        out.print(title(safe(name), f"{fact['verdict']}{at}{unshown}", good=fact["verdict"] == "kept" and not unshown))
        out.print(place(f"{fact['source']} record {fact['row']}"))
        out.print_below(facts_page([(key, safe(str(value))) for key, value in _rows(fact)]))
    return 0


def _trace_row(dataset: Dataset, shard: ClosedShard, key: str, row: int, *, as_json: bool) -> int:
    """Say which records lie in a row of a shard: a sequence of tokens, or a text."""
    tokens, documents = shard.object("tokens"), shard.object("documents")
    pieces = [(row, 0, 0)] if tokens is None else _in_sequence(dataset, tokens.key, row)
    table = read_table(dataset.store, documents.key, ["id", "source", "fragment", "row"]) if documents else None
    if table is None or not pieces or pieces[-1][0] >= table.num_rows:
        raise CliError(f"{key} of {dataset.uri} has no row {row}")
    recipe = Recipes.of(dataset.state).place(shard.closed.version)
    found = [
        {**table.slice(document, 1).to_pylist()[0], **({"start": start, "length": length} if tokens else {})}
        for document, start, length in pieces
    ]
    unshown = _unshown(dataset, shard)
    if as_json:
        facts = {"shard": key, "row": row, "pipeline": shard.closed.version, "recipe": recipe, "records": found}
        return print_json(facts | unshown)
    out, words = console(), _unshown_words(unshown)
    out.print(title(f"{key}:{row}", f"{counted(len(found), 'record')}, recipe {recipe}{words}", good=not words))
    for record in found:
        at = f", tokens {record['start']} to {record['start'] + record['length'] - 1}" if tokens else ""
        out.print(place(f"{record['id']}  {record['source']} record {record['row']}{at}"))
    return 0


def _unshown(dataset: Dataset, shard: ClosedShard) -> dict[str, int]:
    """The version that does not show a shard, since a rollback hides it or no version has it yet; else nothing."""
    newest = dataset.state.newest
    return {"not_shown_by": dataset.state.version} if newest and not newest.shows_entry(shard.number) else {}


def _unshown_words(fact: Mapping[str, Any]) -> str:
    return f", not shown by version {fact['not_shown_by']}" if "not_shown_by" in fact else ""


def _in_sequence(dataset: Dataset, key: str, row: int) -> list[tuple[int, int, int]]:
    """The documents of a sequence, each with where its tokens begin there, and how many."""
    arrays = read_shard(dataset.store, key)
    here = np.flatnonzero(arrays["piece_sequence"] == row)
    columns = (arrays[f"piece_{name}"][here].tolist() for name in ("document", "start", "length"))
    return list(zip(*columns, strict=True))


def index_traces(uri: str, *, as_json: bool) -> int:
    """Write the index of ids, of which what stands already is left as it is; the exit code."""
    dataset = Dataset.open(uri)
    written, files = write_trace_index(dataset)
    if as_json:
        return print_json({"dataset": dataset.uri, "files": files, "written": written})
    line = f"{counted(len(dataset.shards), 'shard')} in {counted(files, 'file')}, {written} written"
    console().print(title(dataset.uri, line))
    return 0


def rebuild_shard(uri: str, shard: str, *, restore: bool, trust_code: bool, as_json: bool) -> int:
    """Make a shard again from its source and compare; exit code 1 if it is not the same."""
    from pathlib import Path

    from headrace.client import MODULE, users_code
    from headrace.worker.rebuild import order, rebuild

    work = order(uri, shard)
    code = [f"runs {safe(line)}" for line in work.code()] + [f"reads {safe(line)}" for line in work.places()]
    if not trust_code:
        raise UsageError(
            f"{work.store.uri}: a rebuild runs code and reads places that its ledger names, with your rights; read "
            "which, and add --trust-code if you trust the writer of the dataset",
            code,
        )
    for line in code:
        print(line, file=sys.stderr)
    sys.stderr.flush()
    with users_code(Path(f"{MODULE}.py")):
        answer = rebuild(work, restore=restore)
    if as_json:
        facts = {
            "identical": answer.identical,
            "differing": answer.differing(),
            "restored": list(answer.restored),
            "fates": {fate: {"named": named, "made": made} for fate, (named, made) in answer.fates.items()},
            "named": {role: item.checksum for role, item in answer.named.items()},
            "made": {role: item.checksum for role, item in answer.made.items()},
        }
        print_json(facts)
    else:
        out = console()
        words = "byte for byte the same" if answer.identical else "not the same"
        first = answer.named.get("tokens") or next(iter(answer.named.values()))
        out.print(title(first.key, words, good=answer.identical))
        rows = [
            (role, "same" if role not in answer.differing() else f"differs: {item.checksum} is named")
            for role, item in answer.named.items()
        ]
        rows += [("put back", key) for key in answer.restored]
        rows += [(safe(fate), f"{made} now, {named} in the ledger") for fate, (named, made) in answer.fates.items()]
        out.print(facts_page(rows))
    return 0 if answer.identical else EXIT_FAULT


_ROWS = ("stage", "reason", "duplicate_of", "kept_as", "tokens", "lineage", "entry", "shard", "pipeline", "retracted")


def _rows(fact: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key in _ROWS:
        if fact.get(key) is None:
            continue
        if key == "lineage":
            yield "edited by", ", ".join(map(str, json_object(fact[key], key).get("edited_by") or ()))
        elif key == "pipeline":
            yield key, f"{fact[key]}, recipe {fact['recipe']}"
        elif key == "retracted":
            yield key, f"shown no more since version {fact[key]}"
        else:
            yield key, fact[key]
    for piece in fact.get("pieces", ())[:8]:
        yield (
            "piece",
            f"sequence {piece['sequence']}, tokens {piece['start']} to {piece['start'] + piece['length'] - 1}",
        )
    if len(fact.get("pieces", ())) > 8:
        yield "", f"and {counted(len(fact['pieces']) - 8, 'more piece')}"


def _in_shard(dataset: Dataset, shard: ClosedShard, name: str) -> Iterator[dict[str, Any]]:
    objects = {item.role: item.key for item in shard.closed.objects}
    where = {"sink": shard.closed.sink, "entry": shard.number, "shard": objects.get("tokens")}
    where |= {"pipeline": shard.closed.version, **_unshown(dataset, shard)}
    if "documents" in objects:
        documents = read_table(dataset.store, objects["documents"])
        for index in np.flatnonzero(rows_named(documents, name)):
            row = documents.slice(int(index), 1).to_pylist()[0]
            pieces = _pieces(dataset, objects.get("tokens"), int(index))
            state, known_by = dataset.state, objects.get("tokens", objects["documents"])
            hidden = [v for v, key, rows in state.retracted if key == known_by and index in rows]
            since = [version for version in hidden if state.hides(version, dataset.version)]
            gone = {"retracted": min(since)} if since else {}
            yield {"verdict": "kept", **row, **where, **gone, "pieces": pieces}
    if "verdicts" in objects:
        verdicts = read_table(dataset.store, objects["verdicts"])
        for row in verdicts.filter(pa.array(rows_named(verdicts, name))).to_pylist():
            yield {**row, **where}


def _kept_record(dataset: Dataset, target: str, sink: str) -> str | None:
    """The id of the record that a duplicate names; None where no shard keeps it."""
    # Here, since most traces need none of what it imports.
    from headrace.stages.export import find_kept

    try:
        found = find_kept(dataset, RecordName.parse(target), sink)
    except ValueError:
        return target
    documents = found[0].object("documents") if found is not None else None
    if found is None or documents is None:
        return None
    return str(read_table(dataset.store, documents.key, ["id"]).column("id")[found[1]].as_py())


def _pieces(dataset: Dataset, key: str | None, document: int) -> list[dict[str, int]]:
    if key is None:
        return []
    arrays = read_shard(dataset.store, key)
    return [
        {name: int(arrays[f"piece_{name}"][piece]) for name in ("sequence", "start", "length")}
        for piece in np.flatnonzero(arrays["piece_document"] == document)
    ]


def trace_checkpoint(
    path: str,
    uri: str,
    *,
    step: int | None,
    document: str,
    as_json: bool,
    moved: Sequence[str] = (),
    trusted: bool = False,
) -> int:
    """Say it from the loader's state in the file `path` alone.

    Where a dataset lies now, if it moved, `uri` says for a state of one, and `moved` ("name=URI") by their names.
    """
    state = loader_state_in(path)
    sources = sources_of(path, state, uri, moved, trusted=trusted)
    if step is not None:
        return _say_step(state, step, sources, as_json=as_json)
    return _say_document(state, document, sources, as_json=as_json)


def _say_step(state: dict[str, Any], step: int, sources: list[Source] | None, *, as_json: bool) -> int:
    from headrace.loader import trace_step

    try:
        found = trace_step(state, step, sources)
    except IndexError as error:
        raise CliError(str(error)) from error
    if as_json:
        return print_json(asdict(found))
    when = "read" if found.taken else f"to come, as the journal stands: the checkpoint is before step {state['step']}"
    shape = f"{counted(found.batch_size, 'row')} a rank, {counted(found.world_size, 'rank')}"
    print(f"step {step} of pass {found.pass_}, {shape}: {when}")
    names = {row.source for row in found.rows}
    for row in found.rows:
        where = f"{row.source}  {row.shard}" if len(names) > 1 else row.shard
        by = f"  by {safe(row.pipeline)}" if row.pipeline else ""
        print(f"rank {row.rank} row {row.row}  position {row.position}  {where}:{row.shard_row}{by}")
        print(f"  {', '.join(safe(piece.document) for piece in row.pieces) or '(no document)'}")
    return 0


def _say_document(state: dict[str, Any], document: str, sources: list[Source] | None, *, as_json: bool) -> int:
    from headrace.loader import trace_document

    uses = [asdict(use) for use in trace_document(state, document, sources)]
    if as_json:
        return print_json({"document": document, "uses": uses})
    for use in uses:
        when = "read" if use["taken"] else "to come"
        print(f"pass {use['pass_']} step {use['step']}  rank {use['rank']} row {use['row']}  {when}")
    if not uses:
        print(f"no step reads {safe(document)}")
    return 0
