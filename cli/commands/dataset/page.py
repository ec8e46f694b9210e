"""`headrace dataset page`: a dataset in a browser: card, verdicts, samples, versions, lineage."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from typing import Any

from headrace.cli.ui import print_json
from headrace.client import CliError, UsageError
from headrace.daemon import AddressError, Nook, hear_on
from headrace.page import QuestionRefused, serve_page
from headrace.page.core import ROW_BYTES_MAX, Board, written
from headrace.stages.export import duplicate_pairs
from headrace.stages.quality.scorecard import card
from headrace.stages.runtime import reason_class
from headrace.store.datasets import Dataset, as_shown, count_retracted, recipes_of
from headrace.store.history import history_of, open_at, read_tags, split_address
from headrace.store.ledger import LedgerState, balance_of, main_sink
from headrace.store.shards import read_table

#: Shards of which samples and quarantine are read: the newest.
SHARDS_MAX = 64
#: Samples of one reason, quarantined records, duplicates, inputs, versions and fragments given up that are shown.
SAMPLES_MAX, QUARANTINE_MAX, DUPLICATES_MAX, INPUTS_MAX, VERSIONS_MAX, GIVEN_UP_MAX = 8, 100, 20, 50, 200, 50
REASONS_MAX = 200
#: Characters of a record and of a card, and of any other text.
TEXT_MAX, CARD_MAX = 1000, 100_000
#: Bytes of one fact as JSON; of a longer one as many items are shown as fit, the first ones.
FACT_BYTES_MAX = ROW_BYTES_MAX - 1024
#: Numbers that every browser reads exactly; larger ones are shown as near as it can.
EXACT_MAX = 1 << 53
#: Lists and objects within each other; what lies deeper is not shown.
NESTING_MAX = 16


def show_page(uri: str, listen: str, *, as_json: bool) -> int:
    """Serve the page of a dataset until Ctrl-C, or print what it shows; the exit code."""
    dataset, history = open_at(uri), Dataset.open(split_address(uri)[0]).state
    facts = facts_of(dataset, history)
    if as_json:
        return print_json(facts)
    facts["card"] = card(uri)[0][:CARD_MAX]
    try:
        return asyncio.run(_serve(facts, listen))
    except AddressError as error:
        raise UsageError(f"--listen {error}") from error
    except OSError as error:
        raise CliError(f"cannot serve the page on {listen}: {error}; choose another address with --listen") from error


async def _serve(facts: dict[str, Any], listen: str) -> int:
    told = asyncio.Event()
    hear_on(asyncio.get_running_loop(), told.set)
    nook = Nook("page")
    try:
        server = await serve_page(DatasetPage(facts), listen, nook.path / "page.url")
        print(f"{facts['dataset']}, until Ctrl-C: {server.address.url}", flush=True)
        await told.wait()
        await server.close()
    finally:
        nook.close()
    return 0


class DatasetPage:
    """The source of a page that does not change."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        board = Board()
        board.put("about", "page", {"kind": "dataset"})
        cut: list[str] = []
        for name, value in facts.items():
            shown = _begun(value) if name == "card" else _fitting(value)
            board.put("dataset", name, shown)
            if isinstance(value, dict | list) and len(shown) < len(value):
                cut.append(f"of {name} the first {len(shown):,} of {len(value):,} are shown")
        if cut:
            board.put("dataset", "words", _fitting([*facts.get("words", ()), *cut]))
        self._whole = board.whole()

    def whole(self) -> bytes:
        """All of it."""
        return self._whole

    def change(self) -> bytes:
        """Nothing."""
        return b""

    async def answer(self, question: str, given: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Nothing is asked."""
        raise QuestionRefused("that is not answered here")


def facts_of(dataset: Dataset, history: LedgerState | None = None) -> dict[str, Any]:
    """What the page shows, without the card; bounded, however large the dataset is.

    `history`: the whole ledger of a dataset as an earlier version shows it, by which each version shows what it has.
    """
    whole, dataset = dataset, as_shown(dataset)
    state = dataset.state
    sink = main_sink(state.counts)
    balance, described = balance_of(state), dataset.describe()
    tags = read_tags(dataset.store)
    history = history or whole.state
    versions = [one for one in history_of(history, main_sink(history.counts)) if one.version <= state.version]
    inputs = sorted((item for version in versions for item in version.inputs), key=lambda item: -item.records)
    quarantine = list(islice(_quarantine(dataset, sink), QUARANTINE_MAX))
    given_up = (item for item in state.fragments.values() if item.dropped is not None)
    return {
        "dataset": dataset.uri,
        "pipeline": str(state.pipeline.get("name", "")),
        "pipeline_version": described.pipeline_version,
        "tokenizer": described.tokenizer,
        "seq_len": described.seq_len,
        **balance.to_dict(),
        "records_closed": balance.records_closed,
        "words": list(whole.completeness().words),
        "bytes": sum(item.size for shard in dataset.shards for item in shard.closed.objects),
        "retracted": count_retracted(state, dataset.version, dataset.of_main_sink(dataset.shards)),
        "ledger_entries": state.number + 1,
        "term": state.term,
        "given_up": [
            {"uri": item.fragment.uri, "reason": item.dropped.reason if item.dropped else ""}
            for item in islice(given_up, GIVEN_UP_MAX)
        ],
        "samples": _samples(dataset, sink),
        "quarantine": quarantine,
        "quarantine_more": balance.counts.quarantined if len(quarantine) < balance.counts.quarantined else 0,
        "duplicates": [
            {name: _cut(value) for name, value in asdict(pair).items()}
            for pair in islice(duplicate_pairs(dataset, sink), DUPLICATES_MAX)
        ]
        if balance.counts.duplicate and len(dataset.shards) <= SHARDS_MAX
        else [],
        "versions": [
            {
                **{name: getattr(version, name) for name in ("version", "at", "reason", "restores", "complete")},
                **{name: getattr(version, name) for name in ("kept", "filtered", "duplicate", "quarantined")},
                "tokens": version.tokens,
                "shards": version.shards,
                "tags": sorted(name for name, tag in tags.items() if tag.version == version.version),
            }
            for version in versions[-VERSIONS_MAX:]
        ],
        "objects": versions[-1].objects if versions else 0,
        "inputs": [{"uri": item.uri, "records": item.records} for item in inputs[:INPUTS_MAX]],
        "inputs_more": max(0, len(inputs) - INPUTS_MAX),
        "recipes": [
            {
                "pipeline_version": recipe.version,
                "in_force": recipe.in_force,
                "stages": [
                    {name: stage.get(name) for name in ("name", "kind", "target", "parameters")}
                    for stage in recipe.pipeline.get("stages", ())
                ],
            }
            for recipe in recipes_of(state, sink)
        ],
    }


def _samples(dataset: Dataset, sink: str) -> dict[str, list[dict[str, Any]]]:
    """Samples of filtered records by stage and reason, of the newest shards."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in _rows(dataset, sink, "samples"):
        if row["verdict"] != "filtered":
            continue
        name = f"{row['stage']}/{reason_class(row['reason'])}"
        if name not in found and len(found) >= REASONS_MAX:
            continue
        rows = found.setdefault(name, [])
        if len(rows) < SAMPLES_MAX:
            rows.append({"id": row["id"], "reason": _cut(row["reason"]), "text": _cut(row["text"])})
    return found


def _quarantine(dataset: Dataset, sink: str) -> Iterator[dict[str, Any]]:
    for row in _rows(dataset, sink, "quarantine"):
        raw = row.get("raw")
        text = None if raw is None else bytes(raw[: 4 * TEXT_MAX]).decode("utf-8", "replace")
        yield {"id": row["id"], "stage": row["stage"], "reason": _cut(row["reason"]), "raw": _cut(text)}


def _rows(dataset: Dataset, sink: str, role: str) -> Iterator[dict[str, Any]]:
    """Rows of a sidecar of the newest shards of a sink."""
    shards = [shard for shard in dataset.shards if shard.closed.sink == sink][-SHARDS_MAX:]
    for shard in reversed(shards):
        item = shard.object(role)
        if item is not None:
            yield from read_table(dataset.store, item.key).to_pylist()


def _fitting(value: Any) -> Any:
    """What a page has room for of a fact, as JSON has it."""
    shown = _plain(value)
    if not isinstance(shown, dict | list) or len(written(shown)) <= FACT_BYTES_MAX:
        return shown
    items, left = list(shown.items()) if isinstance(shown, dict) else shown, FACT_BYTES_MAX
    for number, item in enumerate(items):
        left -= len(written(item)) + 1
        if left < 0:
            items = items[:number]
            break
    return dict(items) if isinstance(shown, dict) else items


def _begun(card: str) -> str:
    """As much of a card as a page has room for."""
    while len(written(card)) > FACT_BYTES_MAX:
        card = card[: len(card) // 2]
    return card


def _plain(value: Any, depth: int = 0) -> Any:
    """A value whose texts are cut and whose numbers a browser knows: a ledger may hold what it likes."""
    if isinstance(value, Mapping | list | tuple) and depth >= NESTING_MAX:
        return "…"
    if isinstance(value, Mapping):
        return {_cut(str(name)): _plain(item, depth + 1) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, int) and abs(value) > EXACT_MAX:
        return float(value)
    return _cut(value)


def _cut(text: Any) -> Any:
    return f"{text[:TEXT_MAX]}…" if isinstance(text, str) and len(text) > TEXT_MAX else text
