"""The scorecard of a dataset: what it holds and what was removed, as numbers, as Markdown and as one HTML page.

Everything is read from the ledger and the documents tables; no text is read.
"""

from __future__ import annotations

import html
import tomllib
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from headrace.store.dataset import Dataset
from headrace.store.shards import SCORE_PREFIX, read_table

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
#: Languages and reasons that are shown one by one; the rest are summed.
ROWS_MAX = 20
_LIMITS = ("min", "max")


@dataclass(frozen=True, slots=True)
class Facts:
    """What a scorecard tells. `numbers` are what a gate may limit, by name."""

    dataset: str
    numbers: dict[str, float]
    #: Tokens of each kept document.
    tokens: npt.NDArray[np.int64]
    languages: dict[str, int]
    #: Records not kept, by `stage/reason`.
    reasons: dict[str, int]
    edited: dict[str, int]


@dataclass(frozen=True, slots=True)
class Broken:
    """A row of a gate file that the dataset does not meet."""

    name: str
    limit: str
    wanted: float
    found: float | None

    def __str__(self) -> str:
        """The row as a person reads it."""
        found = "it has none" if self.found is None else f"it is {self.found:g}"
        return f"{self.name}: {self.limit} {self.wanted:g}, and {found}"


def card(uri: str) -> tuple[str, str]:
    """The scorecard of the dataset at `uri` as Markdown and as a self-contained HTML page. Raises as Dataset.open."""
    facts = collect(uri)
    return to_markdown(facts), to_html(facts)


def gate(uri: str, path: str) -> list[Broken]:
    """The rows of the gate file that the dataset breaks.

    The file is TOML: a table for each number, with `min`, `max` or both: `[kept_share]` and `min = 0.2`. Raises
    ValueError where it is not, OSError where it cannot be read.
    """
    with open(path, "rb") as file:
        limits = tomllib.load(file)
    return check(collect(uri), limits)


def check(facts: Facts, limits: dict[str, Any]) -> list[Broken]:
    """The limits that the facts break; a number that the dataset does not have breaks its row."""
    broken: list[Broken] = []
    for name, row in limits.items():
        if not isinstance(row, dict) or not row or not all(key in _LIMITS for key in row):
            raise ValueError(f"gate {name!r}: give it a table with min, max or both, not {row!r}")
        found = facts.numbers.get(name)
        for limit, wanted in row.items():
            missed = found is None or (found < wanted if limit == "min" else found > wanted)
            if missed:
                broken.append(Broken(name, limit, float(wanted), found))
    return broken


def collect(uri: str) -> Facts:
    """Read what the scorecard tells."""
    dataset = Dataset.open(uri)
    lengths: list[npt.NDArray[np.int64]] = [np.zeros(0, np.int64)]
    languages: Counter[str] = Counter()
    for shard in dataset.shards:
        documents = shard.object("documents")
        if documents is None:
            continue
        table: Any = read_table(dataset.store, documents.key)
        if "tokens" in table.schema.names:
            lengths.append(table.column("tokens").to_numpy())
        languages.update(_languages(table))
    counts = dataset.balance().counts
    numbers = _numbers(counts, np.concatenate(lengths), dataset.describe().seq_len)
    numbers |= {f"language.{name}": count / sum(languages.values()) for name, count in languages.items() if name}
    reasons = {**counts.filtered_by, **counts.quarantined_by}
    numbers |= {f"removed.{name}": count / max(1, counts.records) for name, count in reasons.items()}
    ordered = {name: count for name, count in languages.most_common() if name}
    return Facts(dataset.uri, numbers, np.concatenate(lengths), ordered, reasons, dict(counts.edited))


def _languages(table: Any) -> list[str]:
    """The language of each document: as a stage wrote it, else the field of the record's metadata."""
    for name in table.schema.names:
        if name.startswith(SCORE_PREFIX) and name.endswith(".language"):
            return [str(code or "") for code in table.column(name).to_pylist()]
    packed = table.column("metadata").to_pylist()
    return [str((orjson.loads(entry) if entry else {}).get("language") or "") for entry in packed]


def _numbers(counts: Any, tokens: npt.NDArray[np.int64], seq_len: int | None) -> dict[str, float]:
    records = max(1, counts.records)
    numbers: dict[str, float] = {
        "records": counts.records,
        "kept": counts.kept,
        "kept_share": counts.kept / records,
        "filtered_share": counts.filtered / records,
        "duplicate_share": counts.duplicate / records,
        "quarantined_share": counts.quarantined / records,
        "tokens": counts.tokens,
        "sequences": counts.sequences,
    }
    if seq_len and counts.sequences:
        numbers["padding_share"] = counts.padding / (counts.sequences * seq_len)
    if len(tokens):
        numbers["tokens_mean"] = float(tokens.mean())
        for share, value in zip(QUANTILES, np.quantile(tokens, QUANTILES), strict=True):
            numbers[f"tokens_p{round(100 * share)}"] = float(value)
    return numbers


def to_markdown(facts: Facts) -> str:
    """The scorecard as Markdown."""
    lines = [f"# {_cell(facts.dataset)}", "", "| number | value |", "|---|---|"]
    plain = {name: value for name, value in facts.numbers.items() if "." not in name}
    lines += [f"| {name} | {_shown(name, value)} |" for name, value in plain.items()]
    for heading, rows in _tables(facts):
        lines += ["", f"## {heading}", "", "| | records |", "|---|---|"]
        lines += [f"| {_cell(name)} | {count:,} |" for name, count in rows]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return html.escape(text.replace("|", "\\|").replace("\n", " "))


def _shown(name: str, value: float) -> str:
    return f"{value:.2%}" if name.endswith("_share") else f"{value:,.0f}"


def _tables(facts: Facts) -> list[tuple[str, list[tuple[str, int]]]]:
    tables = {"Removed, by stage and reason": facts.reasons, "Languages": facts.languages, "Edited": facts.edited}
    return [(heading, _longest(rows)) for heading, rows in tables.items() if rows]


def _longest(rows: dict[str, int]) -> list[tuple[str, int]]:
    ordered = sorted(rows.items(), key=lambda row: (-row[1], row[0]))
    rest = sum(count for _, count in ordered[ROWS_MAX:])
    return ordered[:ROWS_MAX] + ([(f"{len(ordered) - ROWS_MAX} more", rest)] if rest else [])


_STYLE = """
:root{--ink:#1b2530;--soft:#66737f;--line:#e3e8ec;--water:#1f7a8c;--pale:#d5e9ec}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);max-width:60rem;margin:3rem auto;padding:0 1.5rem}
h1{font-size:1.5rem;margin:0;overflow-wrap:anywhere}h2{font-size:1.1rem;margin:2.5rem 0 .5rem}
p{color:var(--soft);margin:.2rem 0 2rem}
.numbers{display:grid;grid-template-columns:repeat(auto-fit,minmax(9rem,1fr));gap:1rem}
.numbers div{border-top:3px solid var(--water);padding:.4rem 0}
.numbers b{display:block;font-size:1.5rem;font-variant-numeric:tabular-nums}.numbers span{color:var(--soft)}
svg{width:100%;height:auto;display:block}text{font:12px system-ui,sans-serif;fill:var(--ink)}
.soft{fill:var(--soft)}.bar{fill:var(--water)}.back{fill:var(--pale)}.axis{stroke:var(--line)}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf2;--soft:#93a1ad;--line:#2b3742;--water:#5fb8c9;--pale:#203a42}
body{background:#11181e}}
"""


def to_html(facts: Facts) -> str:
    """The scorecard as one page that needs nothing else."""
    shown = ("records", "kept_share", "tokens", "tokens_p50", "sequences", "padding_share")
    names = {"kept_share": "kept", "tokens_p50": "tokens in the median document", "padding_share": "padding"}
    tiles = "".join(
        f"<div><b>{_shown(name, facts.numbers[name])}</b><span>{names.get(name, name)}</span></div>"
        for name in shown
        if name in facts.numbers
    )
    parts = [f'<div class="numbers">{tiles}</div>']
    if len(facts.tokens):
        parts.append("<h2>Tokens of a document</h2>" + _histogram(facts.tokens))
    parts += [f"<h2>{html.escape(heading)}</h2>{_bars(rows)}" for heading, rows in _tables(facts)]
    title = html.escape(facts.dataset)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f"<h1>{title}</h1><p>Scorecard, from the ledger and the documents tables</p>{''.join(parts)}</body></html>\n"
    )


def _histogram(tokens: npt.NDArray[np.int64]) -> str:
    """Documents by length, in steps of a quarter of a power of two."""
    steps = np.floor(4 * np.log2(np.maximum(tokens, 1))).astype(np.int64)
    low, high = int(steps.min()), int(steps.max())
    counts = np.bincount(steps - low, minlength=high - low + 1)
    width, height = 880 / len(counts), 180
    drawn = []
    for place, count in enumerate(counts.tolist()):
        tall = height * count / int(counts.max())
        first, last = 2 ** ((low + place) / 4), 2 ** ((low + place + 1) / 4)
        note = f"{first:,.0f} to {last:,.0f} tokens: {count:,} documents"
        drawn.append(
            f'<rect class="bar" x="{10 + place * width:.1f}" y="{200 - tall:.1f}" width="{max(width - 1, 0.5):.1f}" '
            f'height="{tall:.1f}"><title>{note}</title></rect>'
        )
    for power in range(-(-low // 4), high // 4 + 1):
        x = 10 + (4 * power - low) * width
        drawn.append(f'<text class="soft" x="{x:.1f}" y="216" text-anchor="middle">{2**power:,}</text>')
    return f'<svg viewBox="0 0 900 222" role="img"><path class="axis" d="M10 200H890"/>{"".join(drawn)}</svg>'


def _bars(rows: list[tuple[str, int]]) -> str:
    most = max(count for _, count in rows)
    drawn = []
    for place, (name, count) in enumerate(rows):
        y = 26 * place
        drawn.append(
            f'<text x="0" y="{y + 17}">{html.escape(name)}</text><rect class="back" x="430" y="{y + 4}" width="370" '
            f'height="18" rx="2"/><rect class="bar" x="430" y="{y + 4}" width="{370 * count / most:.1f}" height="18" '
            f'rx="2"/><text class="soft" x="810" y="{y + 17}">{count:,}</text>'
        )
    return f'<svg viewBox="0 0 900 {26 * len(rows) + 4}" role="img">{"".join(drawn)}</svg>'
