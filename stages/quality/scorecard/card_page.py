"""The scorecard as one HTML page that needs nothing else: no script, no font, no request. Record text is escaped."""

from __future__ import annotations

import html

import numpy as np
import numpy.typing as npt

from headrace.stages.quality.scorecard.measurement import Facts, collect, shown, tables, to_markdown

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


def card(uri: str) -> tuple[str, str]:
    """The scorecard of the dataset at `uri` as Markdown and as a self-contained HTML page. Raises as Dataset.open."""
    facts = collect(uri)
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
