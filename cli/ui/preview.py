"""What a preview shows: how many records were kept and removed, why, and some of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from rich.console import Group, RenderableType
from rich.text import Text

from headrace.cli.ui.page import ACCENT, FAINT, GOOD, html_of, title
from headrace.cli.ui.words import number, percent, safe
from headrace.stages.shipping import Preview, RemovedRecords, Sample
from headrace.store import counted

#: Reasons that are shown with samples.
REASONS_SHOWN = 20
#: Characters of an id: the end of one that is made of a long URI.
ID_SHOWN = 28


@dataclass(slots=True, repr=False)
class PreviewResult(Preview):
    """A preview of a pipeline; a notebook shows it as the page that `headrace run --limit` prints."""

    pipeline: str = ""

    @staticmethod
    def of(pipeline: str, preview: Preview) -> PreviewResult:
        """What a preview of the pipeline of that name counted."""
        return PreviewResult(**{item.name: getattr(preview, item.name) for item in fields(preview)}, pipeline=pipeline)

    def __repr__(self) -> str:
        return (
            f"<PreviewResult {self.pipeline!r}: {counted(self.records_read, 'record')}, {self.kept:,} kept, "
            f"{self.filtered:,} filtered, {self.duplicate:,} duplicate, {self.quarantined:,} quarantined, "
            f"{counted(self.tokens, 'token')}>"
        )

    def _repr_html_(self) -> str:
        return html_of(preview_page(self.pipeline, self))


def preview_page(name: str, result: Preview) -> RenderableType:
    """The page of a preview of the pipeline of that name."""
    share = percent(result.kept, result.records_read)
    tokens = f", {counted(result.tokens, 'token')}" if result.tokens else ""
    parts: list[RenderableType] = [
        title(name, f"preview of {counted(result.records_read, 'record')}; nothing is written"),
        Text(),
        Text.assemble(("  kept ", GOOD), f"{number(result.kept)}  ", (share + tokens, FAINT)),
        *sample_lines(result.samples),
    ]
    ranked = sorted(result.removed.items(), key=lambda item: (-item[1].count, item[0]))
    for key, item in ranked[:REASONS_SHOWN]:
        parts += _reason_lines(key, item, result.records_read)
    if len(ranked) > REASONS_SHOWN:
        more = counted(len(ranked) - REASONS_SHOWN, "more reason")
        parts.append(Text(f"  and {more}; `--json` gives all of them", style=FAINT))
    parts += [Text(f"  edited by {safe(stage)}  {number(count)}") for stage, count in sorted(result.edited.items())]
    parts += [Text(f"  counted {safe(name)}  {number(count)}") for name, count in sorted(result.counters.items())]
    return Group(*parts)


def _reason_lines(key: str, item: RemovedRecords, read: int) -> list[Text]:
    share = percent(item.count, read)
    share += f", {counted(item.parts, 'part')} of split records" if item.parts else ""
    line = Text.assemble(f"  {item.verdict} ", (safe(key), ACCENT), f"  {number(item.count)}  ", (share, FAINT))
    example = [Text(f"    for example {safe(item.example)}", style=FAINT)] if item.example else []
    return [Text(), line, *example, *sample_lines(item.samples)]


def sample_lines(samples: Sequence[Sample]) -> list[Text]:
    """A line a sample: its id, and as much of its text as fits behind it."""
    lines: list[Text] = []
    for sample in samples:
        text = safe(" ".join(sample.text.split()))
        name = sample.id if len(sample.id) <= ID_SHOWN else "…" + sample.id[1 - ID_SHOWN :]
        lines.append(Text.assemble(f"    {safe(name)}  ", (text, FAINT), no_wrap=True, overflow="ellipsis"))
    return lines
