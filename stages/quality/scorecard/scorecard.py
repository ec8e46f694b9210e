"""The scorecard of a dataset: what it holds and what was removed, as numbers, as Markdown and as one HTML page.

Everything is read from the ledger and the documents tables; no text is read.

The page needs nothing else: no script, no font, no request. Record text is escaped.
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
from headrace.store.datasets import Recipe, as_shown, recipes_of
from headrace.store.history import open_at
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


def collect(address: str) -> Facts:
    """Read what the scorecard tells, by the word of the sink that wrote the most tokens."""
    dataset = as_shown(open_at(address))
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


#: Samples of a reason that the page holds, and characters of each.
SAMPLES_SHOWN = 3
SAMPLE_CHARACTERS = 300
#: Plots of scores on a page.
SCORES_MAX = 40
_BINS = 32
#: Scores beyond it are drawn there: differences of two are finite.
_FAR = 1e300
_TILES = {
    "records": "records closed",
    "kept_share": "kept",
    "tokens": "tokens",
    "tokens_p50": "tokens in the median document",
    "sequences": "sequences",
    "padding_share": "padding",
}

_STYLE = """
:root{color-scheme:light dark;--ink:#17212b;--soft:#5d6b78;--line:#dfe6ea;--page:#fbfcfc;--card:#fff;--water:#12788c;
--pale:#cfe6ea;--lost:#c9623f;--track:#eef2f4}
@media(prefers-color-scheme:dark){:root{--ink:#e4ebf0;--soft:#92a2af;--line:#26333d;--page:#0e151a;--card:#141d24;
--water:#4fb3c6;--pale:#1d3d46;--lost:#e08a68;--track:#1b262e}}
*{box-sizing:border-box}
body{font:16px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif;color:var(--ink);background:var(--page);margin:0}
main{max-width:62rem;margin:0 auto;padding:2.5rem 1.25rem 4rem}
h1{font-size:1.9rem;line-height:1.2;margin:0}h1 small{font-size:1rem;font-weight:400;color:var(--soft)}
h2{font-size:1.15rem;margin:0 0 .2rem}
p{color:var(--soft);margin:.2rem 0 1rem;font-size:.92rem}header p{overflow-wrap:anywhere}
section{background:var(--card);border:1px solid var(--line);border-radius:.7rem;padding:1.2rem 1.3rem;margin-top:1.1rem}
.numbers{display:flex;flex-wrap:wrap;gap:1.1rem 1.6rem}.numbers>*{flex:1 0 7rem}
.numbers b{display:block;font-size:1.6rem;line-height:1.2;font-variant-numeric:tabular-nums}
.numbers span{color:var(--soft);font-size:.88rem}
.row{display:grid;grid-template-columns:minmax(0,25rem) minmax(0,1fr) 8rem;gap:.2rem .9rem;align-items:center;
padding:.22rem 0;font-size:.92rem}
.row>:first-child{overflow-wrap:anywhere}
.row>:last-child{text-align:right;font-variant-numeric:tabular-nums;color:var(--soft);white-space:nowrap}
.track{background:var(--track);border-radius:.25rem;height:1.05rem;display:flex;overflow:hidden}
.track i{background:var(--water);min-width:2px}.track i.lost{background:var(--lost)}
.key i{display:inline-block;width:.8rem;height:.8rem;border-radius:.2rem;background:var(--water);
margin:0 .35rem 0 .9rem}.row em{font-style:normal;color:var(--soft)}
.key i:first-child{margin-left:0}.key i.lost{background:var(--lost)}
details>summary{cursor:pointer;list-style:none}details>summary::-webkit-details-marker{display:none}
summary .row>:first-child::before{content:"\\25B8";color:var(--soft);margin-right:.4rem}
details[open]>summary .row>:first-child::before{content:"\\25BE"}
blockquote{margin:.3rem 0 .7rem;padding:.5rem .8rem;border-left:3px solid var(--pale);font-size:.85rem;
overflow-wrap:anywhere;white-space:pre-line;max-height:11rem;overflow-y:auto}
blockquote cite{display:block;color:var(--soft);font-style:normal;font-size:.78rem}
svg{width:100%;height:auto;display:block;overflow:visible}svg text{font-size:12px;fill:var(--soft)}
.bar{fill:var(--water)}.bar:hover{fill:var(--lost)}.axis{stroke:var(--line)}
.mark{stroke:var(--lost);stroke-width:1.5;stroke-dasharray:4 3}svg text.note{fill:var(--lost)}
.plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(13rem,1fr));gap:1.2rem}
.plots figure{margin:0}.plots h3{font-size:.85rem;font-weight:600;margin:0;overflow-wrap:anywhere}
.plots div{display:flex;justify-content:space-between;color:var(--soft);font-size:.75rem}
@media(max-width:640px){main{padding:1.5rem .8rem 3rem}section{padding:1rem .9rem}h1{font-size:1.5rem}
.row{grid-template-columns:minmax(0,1fr) auto}.row .track{grid-column:1/-1;grid-row:2}
.numbers>*{flex-basis:40%}.numbers b{font-size:1.35rem}svg text{font-size:27px}}
"""

#: Under the headings of what is no share of a whole.
_NOTES = {
    "Edited": "Records of which a stage changed the text.",
    "Counted by stages": "What stages counted besides, under names of their own.",
}


def card(address: str) -> tuple[str, str]:
    """The scorecard of the dataset at an address as Markdown and as a self-contained HTML page. Raises as `open_at`."""
    facts = collect(address)
    return to_markdown(facts), to_html(facts)


def to_html(facts: Facts) -> str:
    """The scorecard as one page that needs nothing else."""
    name = html.escape(facts.title or facts.dataset)
    version = f" <small>version {facts.version}</small>" if facts.version else ""
    still = f"Not complete: {facts.still_open}. All numbers are of what is closed." if facts.still_open else ""
    parts = [
        f"<header><h1>{name}{version}</h1><p>{html.escape(facts.dataset)}</p><p>{html.escape(still)}</p></header>",
        _section("", "", f'<div class="numbers">{_tiles(facts)}</div>'),
    ]
    if facts.recipes:
        parts.append(_section("Recipes", "", "".join(f"<div>{html.escape(line)}</div>" for line in facts.recipes)))
    if any(lost for _, lost in facts.stages):
        key = '<span class="key"><i></i>go on <i class="lost"></i>removed here</span>'
        parts.append(_section("What each stage let through", key, _funnel(facts)))
    if len(facts.tokens):
        note = "Kept documents by length, on a scale of powers of two."
        parts.append(_section("Tokens of a document", note, _histogram(facts.tokens)))
    for heading, rows in tables(facts):
        removed = heading.startswith("Removed")
        note = "Open a reason to read some of what it removed." if removed and facts.samples else ""
        note = _NOTES.get(heading, note)
        body = _bars(rows, facts.samples if removed else {}, "lost" if removed else "", shares=heading not in _NOTES)
        parts.append(_section(heading, note, body))
    if facts.scores:
        note = "What stages measured and did not filter by; the middle 98 % of documents."
        parts.append(_section("Scores", note, _scores(facts.scores)))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{name}: scorecard</title>'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{_STYLE}</style></head>'
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _section(heading: str, note: str, body: str) -> str:
    title = f"<h2>{html.escape(heading)}</h2>" if heading else ""
    return f"<section>{title}{f'<p>{note}</p>' if note else ''}{body}</section>"


def _tiles(facts: Facts) -> str:
    known = [(name, label) for name, label in _TILES.items() if name in facts.numbers]
    return "".join(f"<div><b>{shown(name, facts.numbers[name])}</b><span>{label}</span></div>" for name, label in known)


def _row(name: str, track: str, value: str) -> str:
    stage, separator, reason = name.rpartition("/")
    label = (f"<em>{html.escape(stage)}</em> " if separator else "") + html.escape(reason)
    return f'<div class="row"><span>{label}</span><span class="track">{track}</span><span>{value}</span></div>'


def _part(count: int, whole: int, kind: str = "") -> str:
    return f'<i class="{kind}" style="width:{100 * count / whole:.2f}%"></i>' if count else ""


def _funnel(facts: Facts) -> str:
    """A row a stage that removed something: what goes on, and what was removed, of all records."""
    left = int(facts.numbers["records"])
    whole, kept = max(1, left), int(facts.numbers.get("kept", 0))
    rows = [_row("closed", _part(left, whole), f"{left:,}")]
    for name, lost in (*facts.stages, ("duplicates", int(facts.numbers.get("duplicate", 0)))):
        if lost > 0:
            left -= lost
            track = _part(left, whole) + _part(lost, whole, "lost")
            rows.append(_row(name, track, f"&minus;{lost:,} ({lost / whole:.1%})"))
    rows.append(_row("kept", _part(kept, whole), f"{kept:,} ({kept / whole:.1%})"))
    return "".join(rows)


def _bars(rows: list[tuple[str, int]], samples: dict[str, list[tuple[str, str]]], kind: str, *, shares: bool) -> str:
    most = max((count for _, count in rows), default=1) or 1
    whole = sum(count for _, count in rows) or 1
    drawn = []
    for name, count in rows:
        share = f" ({count / whole:.1%})" if shares else ""
        row = _row(name, _part(count, most, kind), f"{count:,}{share}")
        texts = samples.get(name, [])[:SAMPLES_SHOWN]
        quotes = "".join(_quote(identity, text) for identity, text in texts)
        drawn.append(f"<details><summary>{row}</summary>{quotes}</details>" if quotes else row)
    return "".join(drawn)


def _quote(identity: str, text: str) -> str:
    begun = text[:SAMPLE_CHARACTERS] + ("…" if len(text) > SAMPLE_CHARACTERS else "")
    lines = "\n".join(line for line in begun.splitlines() if line.strip())
    return f"<blockquote>{html.escape(lines)}<cite>{html.escape(identity)}</cite></blockquote>"


def _histogram(tokens: npt.NDArray[np.int64]) -> str:
    """Documents by length, in steps of a quarter of a power of two."""
    steps = np.floor(4 * np.log2(np.maximum(tokens, 1))).astype(np.int64)
    low, high = int(steps.min()), int(steps.max())
    counts = np.bincount(steps - low, minlength=high - low + 1)
    width, base, height = 880 / len(counts), 230, 195
    drawn = []
    for place, count in enumerate(counts.tolist()):
        tall = height * count / int(counts.max())
        first, last = 2 ** ((low + place) / 4), 2 ** ((low + place + 1) / 4)
        note = f"{first:,.0f} to {last:,.0f} tokens: {count:,} documents ({count / len(tokens):.1%})"
        drawn.append(
            f'<rect class="bar" x="{10 + place * width:.1f}" y="{base - tall:.1f}" width="{max(width - 1.5, 0.5):.1f}" '
            f'height="{tall:.1f}" rx="2"><title>{note}</title></rect>'
        )
    every = max(1, (high - low) // 40)
    for power in range(-(-low // 4), high // 4 + 1, every):
        x = 10 + (4 * power - low) * width
        drawn.append(f'<text x="{x:.1f}" y="{base + 24}" text-anchor="middle">{_short(2**power)}</text>')
    median = float(np.median(tokens))
    x = 10 + (4 * np.log2(max(median, 1)) - low) * width
    anchor, dx = ("end", -8) if x > 600 else ("start", 8)
    drawn.append(f'<path class="mark" d="M{x:.1f} 14V{base}"/>')
    drawn.append(f'<text class="note" x="{x + dx:.1f}" y="24" text-anchor="{anchor}">median {median:,.0f}</text>')
    axis = f'<path class="axis" d="M10 {base}H890"/>'
    return f'<svg viewBox="0 0 900 262" role="img" aria-label="documents by tokens">{axis}{"".join(drawn)}</svg>'


def _short(value: int) -> str:
    for size, letter in ((1 << 20, "M"), (1 << 10, "k")):
        if value >= size:
            return f"{value // size}{letter}"
    return str(value)


def _scores(scores: dict[str, npt.NDArray[np.float64]]) -> str:
    return f'<div class="plots">{"".join(_small(name, scores[name]) for name in list(scores)[:SCORES_MAX])}</div>'


def _small(name: str, values: npt.NDArray[np.float64]) -> str:
    """One score: its name, its distribution without the outer hundredths, and where that begins and ends."""
    sound = np.clip(values[np.isfinite(values)], -_FAR, _FAR)
    if not len(sound):
        return ""
    low, median, high = (float(value) for value in np.quantile(sound, (0.01, 0.5, 0.99)))
    counts, _ = np.histogram(np.clip(sound, low, high), bins=_BINS, range=(low, high if high > low else low + 1))
    tops = 60 * counts / max(1, int(counts.max()))
    bars = "".join(
        f'<rect class="bar" x="{place * 8}" y="{60 - top:.1f}" width="7" height="{top:.1f}"/>'
        for place, top in enumerate(tops.tolist())
    )
    ends = f"<div><span>{low:.3g}</span><span>median {median:.3g}</span><span>{high:.3g}</span></div>"
    label = html.escape(name)
    plot = f'<svg viewBox="0 0 256 62" role="img" aria-label="{label}">{bars}</svg>'
    return f"<figure><h3>{label}</h3>{plot}{ends}</figure>"
