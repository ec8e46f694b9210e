"""`headrace dataset trace` and `rebuild`: where a record went, and whether a shard can be made again."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.cli.ui import Recipes, console, facts_page, place, safe, title
from headrace.client import EXIT_FAULT, CliError, UsageError
from headrace.store import counted
from headrace.store.datasets import Dataset
from headrace.store.ledger import ClosedShard
from headrace.store.shards import RecordName, read_shard, read_table, rows_named


def trace_record(uri: str, name: str, *, as_json: bool) -> int:
    """Say what became of the record of this id: file and ordinal, verdict, shard, sequences and offsets."""
    dataset = Dataset.open(uri)
    found = [fact for shard in dataset.state.shards for fact in _in_shard(dataset, shard, name)]
    recipes = Recipes.of(dataset.state)
    if not found:
        raise CliError(f"no record of {dataset.uri} has the id {name!r}: `headrace dataset show` says what there is")
    for fact in found:
        fact["recipe"] = recipes.place(fact["pipeline"])
        if fact.get("duplicate_of"):
            fact["kept_as"] = _kept_record(dataset, str(fact["duplicate_of"]))
    if as_json:
        print(json.dumps({"id": name, "records": found}))
        return 0
    out = console(sys.stdout)
    for fact in found:
        at = f" at the sink {fact['sink']}" if len(dataset.state.counts) > 1 else ""
        out.print(title(safe(name), f"{fact['verdict']}{at}", good=fact["verdict"] == "kept"))
        out.print(place(f"{fact['source']} record {fact['row']}"))
        out.print()
        out.print(facts_page([(key, safe(str(value))) for key, value in _rows(fact)]))
    return 0


def rebuild_shard(uri: str, shard: str, *, restore: bool, trust_code: bool, as_json: bool) -> int:
    """Make a shard again from its source and compare; exit code 1 if it is not the same."""
    from headrace.worker.rebuild import order, rebuild

    work = order(uri, shard)
    code = [f"runs {safe(line)}" for line in work.code()] + [f"reads {safe(line)}" for line in work.places()]
    if not trust_code:
        raise UsageError(
            f"{work.store.uri}: a rebuild runs code and reads places that its ledger names, with your rights; read "
            "which, and add --trust-code if you trust whoever wrote the dataset",
            code,
        )
    for line in code:
        print(line, file=sys.stderr)
    sys.stderr.flush()
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
        print(json.dumps(facts))
    else:
        out = console(sys.stdout)
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
            yield "edited by", ", ".join(json.loads(fact[key])["edited_by"])
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
    where |= {"pipeline": shard.closed.version}
    if "documents" in objects:
        documents = read_table(dataset.store, objects["documents"])
        for index in np.flatnonzero(rows_named(documents, name)):
            row = documents.slice(int(index), 1).to_pylist()[0]
            pieces = _pieces(dataset, objects.get("tokens"), int(index))
            since = [v for v, key, rows in dataset.state.retracted if key == objects.get("tokens") and index in rows]
            gone = {"retracted": min(since)} if since else {}
            yield {"verdict": "kept", **row, **where, **gone, "pieces": pieces}
    if "verdicts" in objects:
        verdicts = read_table(dataset.store, objects["verdicts"])
        for row in verdicts.filter(pa.array(rows_named(verdicts, name))).to_pylist():
            yield {**row, **where}


def _kept_record(dataset: Dataset, target: str) -> str | None:
    """The id of the record that a duplicate names; None where no shard keeps it."""
    try:
        name = RecordName.parse(target)
    except ValueError:
        return target
    for shard in dataset.state.shards:
        if not any(r.fragment == name.fragment and r.first <= name.row < r.end for r in shard.closed.ranges):
            continue
        for item in shard.closed.objects:
            if item.role == "documents":
                rows = read_table(dataset.store, item.key, ["id", "fragment", "row"])
                here = pc.and_(
                    pc.equal(rows.column("fragment"), pa.scalar(name.fragment.hex())),
                    pc.equal(rows.column("row"), pa.scalar(name.row)),
                )
                for identity in rows.filter(here).column("id").to_pylist():
                    return str(identity)
    return None


def _pieces(dataset: Dataset, key: str | None, document: int) -> list[dict[str, int]]:
    if key is None:
        return []
    arrays = read_shard(dataset.store, key)
    return [
        {name: int(arrays[f"piece_{name}"][piece]) for name in ("sequence", "start", "length")}
        for piece in np.flatnonzero(arrays["piece_document"] == document)
    ]
