"""The scorecard of a dataset: what it holds and what was removed, as numbers, as Markdown and as one HTML page.

Everything is read from the ledger and the documents tables; no text is read.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.pipeline import recipe_difference
from headrace.stages.runtime import read_samples
from headrace.store import counted
from headrace.store.datasets import Dataset, Recipe, recipes_of
from headrace.store.ledger import Balance, balance_of, main_sink
from headrace.store.shards import SCORE_PREFIX, json_object, read_table

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
#: Languages and reasons that are shown one by one; the rest are summed.
ROWS_MAX = 20


@dataclass(frozen=True, slots=True)
class Facts:
    """What a scorecard tells."""

    dataset: str
    numbers: dict[str, float]
    #: Tokens of each kept document.
    tokens: npt.NDArray[np.int64]
    languages: dict[str, int]
    #: Records not kept, by `stage/reason`.
    reasons: dict[str, int]
    edited: dict[str, int]
    #: What stages counted besides, by `stage/name`.
    counters: dict[str, int] = field(default_factory=dict[str, int])
    title: str = ""
    version: int = 0
    #: Stages in the pipeline's order, and how many records each removed.
    stages: tuple[tuple[str, int], ...] = ()
    #: Numbers that stages wrote, by `<stage>.<name>`, of the documents that have them.
    scores: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict[str, Any])
    #: Id and beginning of some texts that were removed, by `stage/reason`.
    samples: dict[str, list[tuple[str, str]]] = field(default_factory=dict[str, Any])
    #: What of the input is open, in words; all numbers are of what is closed.
    still_open: str = ""
    #: Where several versions of the pipeline made the dataset: what each closed, and what changed, a line each.
    recipes: tuple[str, ...] = ()


def collect(uri: str) -> Facts:
    """Read what the scorecard tells, by the word of the sink that wrote the most tokens."""
    dataset = Dataset.open(uri)
    sink = main_sink(dataset.state.counts)
    balance = balance_of(dataset.state)
    recipes = recipes_of(dataset.state, sink)
    shards = [shard for shard in dataset.shards if shard.closed.sink == sink]
    scores: dict[str, list[Any]] = {}
    lengths: list[npt.NDArray[np.int64]] = [np.zeros(0, np.int64)]
    languages: Counter[str] = Counter()
    for shard in shards:
        documents = shard.object("documents")
        if documents is None:
            continue
        table: Any = read_table(dataset.store, documents.key)
        if "tokens" in table.schema.names:
            lengths.append(np.asarray(table.column("tokens").fill_null(0).to_numpy(), np.int64))
        languages.update(_languages(table))
        for name in table.schema.names:
            kind = table.schema.field(name).type
            if name.startswith(SCORE_PREFIX) and (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
                scores.setdefault(name.removeprefix(SCORE_PREFIX), []).append(table.column(name).drop_null().to_numpy())
    counts = balance.counts
    numbers = _numbers(balance, np.concatenate(lengths))
    numbers |= {f"language.{name}": count / sum(languages.values()) for name, count in languages.items() if name}
    reasons = {**counts.filtered_by, **counts.quarantined_by}
    ordered = {name: count for name, count in languages.most_common() if name}
    samples = {
        reason: [(row["id"], row["text"]) for row in rows] for reason, rows in read_samples(dataset, sink).items()
    }
    return Facts(
        dataset=dataset.uri,
        numbers=numbers,
        tokens=np.concatenate(lengths),
        languages=ordered,
        reasons=reasons,
        edited=dict(counts.edited),
        counters=dict(counts.counters),
        title=str(dataset.state.pipeline.get("name", "")),
        version=dataset.state.version,
        stages=tuple(_stages([recipe.pipeline for recipe in recipes], reasons)),
        scores={name: np.concatenate(found).astype(np.float64) for name, found in sorted(scores.items())},
        samples=samples,
        still_open=balance.open_words,
        recipes=tuple(_recipe_lines(recipes)),
    )


def _recipe_lines(recipes: Sequence[Recipe]) -> Iterator[str]:
    for index, recipe in enumerate(recipes) if len(recipes) > 1 else ():
        closed = counted(recipe.counts.records, "record")
        yield f"Recipe {index + 1} of {len(recipes)}, pipeline {recipe.version}, closed {closed}."
        lines = recipe_difference(recipes[index - 1].pipeline, recipe.pipeline) if index else []
        yield from lines[:ROWS_MAX]
        if len(lines) > ROWS_MAX:
            yield f"and {len(lines) - ROWS_MAX} more; `headrace dataset show --json` gives all of them"


def _stages(pipelines: Iterable[Mapping[str, Any]], reasons: dict[str, int]) -> Iterator[tuple[str, int]]:
    """The stages of all recipes, as each names those that none before it has, and what they removed."""
    names = [str(stage.get("name", "")) for pipeline in pipelines for stage in pipeline.get("stages", ())]
    for name in dict.fromkeys(names):
        yield name, sum(count for reason, count in reasons.items() if reason.startswith(f"{name}/"))


def _languages(table: Any) -> list[str]:
    """The language of each document: as a stage wrote it, else the field of the record's metadata."""
    for name in table.schema.names:
        if name.startswith(SCORE_PREFIX) and name.endswith(".language"):
            return [str(code or "") for code in table.column(name).to_pylist()]
    packed = table.column("metadata").to_pylist() if "metadata" in table.schema.names else [None] * table.num_rows
    return [str(json_object(entry, "metadata").get("language") or "") for entry in packed]


def _numbers(balance: Balance, tokens: npt.NDArray[np.int64]) -> dict[str, float]:
    numbers = balance.numbers()
    if len(tokens):
        numbers["tokens_mean"] = float(tokens.mean())
        for share, value in zip(QUANTILES, np.quantile(tokens, QUANTILES), strict=True):
            numbers[f"tokens_p{round(100 * share)}"] = float(value)
    return numbers


def to_markdown(facts: Facts) -> str:
    """The scorecard as Markdown."""
    lines = [f"# {_cell(facts.dataset)}", ""]
    if facts.still_open:
        lines += [f"Not complete: {_cell(facts.still_open)}. All numbers are of what is closed.", ""]
    lines += [f"- {_cell(line)}" for line in facts.recipes] + ([""] if facts.recipes else [])
    lines += ["| number | value |", "|---|---|"]
    plain = {name: value for name, value in facts.numbers.items() if "." not in name}
    lines += [f"| {name} | {shown(name, value)} |" for name, value in plain.items()]
    for heading, rows in tables(facts):
        lines += ["", f"## {heading}", "", "| | count |", "|---|---|"]
        lines += [f"| {_cell(name)} | {count:,} |" for name, count in rows]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return html.escape(text.replace("|", "\\|").replace("\n", " "))


def shown(name: str, value: float) -> str:
    """A number of the card as a person reads it."""
    return f"{value:.2%}" if name.endswith("_share") else f"{value:,.0f}"


def tables(facts: Facts) -> list[tuple[str, list[tuple[str, int]]]]:
    """Headings and rows, the largest first."""
    tables = {
        "Removed, by stage and reason": facts.reasons,
        "Languages": facts.languages,
        "Edited": facts.edited,
        "Counted by stages": facts.counters,
    }
    return [(heading, _longest(rows)) for heading, rows in tables.items() if rows]


def _longest(rows: dict[str, int]) -> list[tuple[str, int]]:
    ordered = sorted(rows.items(), key=lambda row: (-row[1], row[0]))
    rest = sum(count for _, count in ordered[ROWS_MAX:])
    return ordered[:ROWS_MAX] + ([(f"{len(ordered) - ROWS_MAX} more", rest)] if rest else [])
