"""Pages for people: what a run did, what it removed, what a dataset holds. Text from records is shown escaped."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from headrace.cli.ui.recipes import Recipes
from headrace.cli.ui.words import MB, megabytes, number, padding, percent, safe, seconds
from headrace.store import counted
from headrace.store.ledger import Balance

if TYPE_CHECKING:
    # What only the end of a run needs, and no page of a dataset.
    from headrace.cli.ui.report import RunResult, StageSpeed

#: Reasons that the page shows for each verdict; the rest is summed up. `--json` has them all.
REASONS_SHOWN = 8

ACCENT = "cyan"
GOOD = "green"
BAD = "red"
FAINT = "dim"
#: Columns of a page; wider terminals keep the rest empty, so that numbers stay beside their names.
WIDTH_MAX = 96
#: Columns where there is no terminal: wide enough that no cell of a table is broken.
PIPE_WIDTH = 1000
#: Closed ranges, and lines of a difference, that a page shows; `--json` gives all of them.
RANGES_SHOWN = 40
DIFFERENCES_SHOWN = 20
#: Columns of the names of verdicts in a balance, at the least.
NAMES_MIN = 16


class SafeConsole(Console):
    """A console of which a terminal obeys nothing but its own styles, whatever the text is made of."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of what is shown, with what does not print in them as it is written in Python."""
        for segment in super().render(renderable, options):
            text = segment.text
            if segment.control or text.isprintable() or text == "\n":
                yield segment
            else:
                yield Segment("\n".join(map(safe, text.split("\n"))), segment.style)

    def print_below(self, part: RenderableType, **how: Any) -> None:
        """As `print`, below an empty line."""
        self.print()
        self.print(part, **how)


def console(stream: IO[str] | None = None, *, live: bool = False) -> SafeConsole:
    """A console for one of the standard streams, with tables no wider than a page.

    Lines of text are not broken, so that a URI or a command in them can be copied; those of a live page are.
    """
    made = SafeConsole(file=stream or sys.stdout, highlight=False, soft_wrap=not live)
    if made.is_terminal or "COLUMNS" in os.environ:
        made.width = min(made.width, WIDTH_MAX)
    else:
        made.width = PIPE_WIDTH
    return made


def html_of(page: RenderableType) -> str:
    """A page as a block of HTML, for notebooks."""
    made = Console(
        file=io.StringIO(), record=True, width=WIDTH_MAX, highlight=False, soft_wrap=True, force_jupyter=False
    )
    made.print(page)
    return made.export_html(inline_styles=True, code_format='<pre style="line-height: 1.3">{code}</pre>')


def run_page(report: RunResult) -> RenderableType:
    """The end of a run: title, balance, tokens, speed."""
    from headrace.cli.ui.deaths import death_lines

    parts: list[RenderableType] = [
        Text(),
        title(report.pipeline, f"{report.state} in {seconds(report.seconds)}", good=report.state == "completed"),
        place(report.dataset),
        Text(),
        balance_page(report.balance),
        Text(),
        facts_page(_run_facts(report)),
    ]
    if any(stage.records for stage in report.stages):
        parts += [Text(), stage_table(report.stages)]
    notes = [*_quarantine_note(report), *report.warnings]
    parts += [Text()] if notes or report.deaths else []
    parts += [Text(f"died  {safe(line)}", style="yellow") for line in death_lines(report.deaths)]
    parts += [Text(f"note  {safe(line)}", style="yellow") for line in notes]
    return Group(*parts)


def _quarantine_note(report: RunResult) -> list[str]:
    """Where what was quarantined can be seen; a run that kept nothing else says so."""
    counts = report.balance.counts
    if not counts.quarantined:
        return []
    look = f"`headrace dataset show {report.dataset} --quarantine` shows them and why"
    nothing = "" if counts.kept else "nothing was kept; "
    many = counted(counts.quarantined, "record is", "records are")
    return [f"{nothing}{many} quarantined: {look}"]


def title(name: str, rest: str, *, good: bool = True) -> Text:
    """The first line of a page."""
    mark = Text("● ", style=GOOD if good else "yellow")
    return Text.assemble(mark, (safe(name), "bold"), " ", (safe(rest), FAINT if good else "yellow"))


def place(uri: str) -> Text:
    """Where a dataset is."""
    return Text("  " + safe(uri), style=FAINT, overflow="fold")


class _BalancePage:
    """The balance at the width that there is: names are broken on a narrow terminal, and no number is."""

    def __init__(self, balance: Balance) -> None:
        self._balance = balance

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Padding(_balance_table(self._balance, options.max_width), (0, 0, 0, 2), expand=False)
        yield _verdict_line(self._balance)
        if words := self._balance.open_words:
            yield Text.assemble(("  open  ", "bold yellow"), (safe(words), "yellow"))


def balance_page(balance: Balance) -> RenderableType:
    """Closed = kept + filtered by reason + duplicate + quarantined, and what is open."""
    return _BalancePage(balance)


def _balance_table(balance: Balance, width: int) -> Table:
    counts = balance.counts
    table = Table.grid(padding=(0, 2))
    table.add_column(min_width=max(NAMES_MIN, min(46, width - 25)), overflow="fold")
    table.add_column(justify="right", min_width=11)
    table.add_column(justify="right", min_width=6)
    # Where nothing is open, all that was read is closed.
    whole = "read" if balance.complete else "closed"
    table.add_row(Text(whole, "bold"), Text(number(balance.records_closed), "bold"), "")
    rows: tuple[tuple[str, int, Mapping[str, int], str], ...] = (
        ("kept", counts.kept, {}, GOOD),
        ("filtered", counts.filtered, counts.filtered_by, ""),
        ("duplicate", counts.duplicate, {}, ""),
        ("quarantined", counts.quarantined, counts.quarantined_by, "yellow" if counts.quarantined else ""),
    )
    for name, value, reasons, style in rows:
        share = percent(value, balance.records_closed)
        table.add_row(Text(f"  {name}", style), Text(number(value), style), Text(share, FAINT))
        for reason, count in _ranked(reasons):
            table.add_row(Text(f"    {safe(reason)}", FAINT), Text(number(count), FAINT), "")
    _add_counters(table, counts.counters)
    return table


def _add_counters(table: Table, counters: Mapping[str, int]) -> None:
    """What stages counted besides: no part of the balance, and of several units, so that nothing is summed."""
    if not counters:
        return
    table.add_row(Text("counted by stages"), "", "")
    shown = sorted(counters.items())[:REASONS_SHOWN]
    for name, count in shown:
        table.add_row(Text(f"    {safe(name)}", FAINT), Text(number(count), FAINT), "")
    if more := len(counters) - len(shown):
        table.add_row(Text(f"    and {counted(more, 'counter')} more", FAINT), "", "")


def _verdict_line(balance: Balance) -> Text:
    if not balance.balanced:
        return Text(f"  ✗ NOT balanced  {balance.equation}; run `headrace dataset verify`", style=f"bold {BAD}")
    said = "balanced" if balance.complete else "balanced so far"
    line = Text.assemble((f"  ✓ {said}  ", f"bold {GOOD}"), (balance.equation, FAINT))
    if balance.fragments_dropped:
        line.append(f"  the rest of {counted(balance.fragments_dropped, 'fragment')} is given up", style="yellow")
    return line


def _ranked(reasons: Mapping[str, int]) -> list[tuple[str, int]]:
    """The commonest reasons, and the rest in one row."""
    ranked = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    if len(ranked) <= REASONS_SHOWN + 1:
        return ranked
    rest = ranked[REASONS_SHOWN:]
    return [*ranked[:REASONS_SHOWN], (counted(len(rest), "more reason"), sum(count for _, count in rest))]


def _run_facts(report: RunResult) -> list[tuple[str, str]]:
    balance, counts = report.balance, report.balance.counts
    speed = report.bytes_read / report.seconds / MB if report.seconds > 0 else 0.0
    packed = f"{number(counts.tokens)} in {counted(counts.sequences, 'sequence')}, {padding(balance)} padding"
    # A dataset of text alone has none.
    facts = [("tokens", packed)] if counts.sequences else []
    facts += [
        ("shards", f"{number(balance.shards)}, dataset version {balance.version}"),
        ("this run", f"{megabytes(report.bytes_read)} read in {seconds(report.seconds)}, {speed:.1f} MB/s"),
    ]
    if report.bytes_read == 0 and balance.complete:
        # A run whose input is empty has failed, and has no page.
        facts[-1] = ("this run", "nothing was open: the dataset was complete already")
    if len(report.recipes) > 1:
        said = f"{len(report.recipes)} made the dataset; `headrace dataset show` says which part each, and what changed"
        facts.append(("recipes", said))
    if report.records_resumed:
        resumed = counted(report.records_resumed, "record was", "records were")
        facts.append(("resumed", f"{resumed} closed before this run"))
    if report.first_batch_s > 0:
        facts.append(("first batch", f"after {report.first_batch_s:.2f} s"))
    if report.tokenizer_engine:
        facts.append(("tokenizer", f"engine {safe(report.tokenizer_engine)}"))
    return facts


def facts_page(facts: Sequence[tuple[str, str]]) -> RenderableType:
    """Names and what they are, in two columns."""
    table = Table.grid(padding=(0, 2))
    table.add_column(min_width=12, style=FAINT)
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(name, Text(safe(value)))
    return Padding(table, (0, 0, 0, 2), expand=False)


def stage_table(stages: Sequence[StageSpeed]) -> RenderableType:
    """Speed by stage: what one core gets through, and its share of the time of all cores."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=FAINT)
    table.add_column("stage", min_width=14, overflow="fold")
    for name in ("records", "removed", "MB/s a core", "work"):
        table.add_column(name, justify="right")
    whole = sum(stage.cpu_s for stage in stages)
    for stage in stages:
        table.add_row(
            Text(safe(stage.stage), ACCENT),
            number(stage.records),
            number(stage.dropped) if stage.dropped else "",
            f"{stage.mb_s:,.1f}" if stage.cpu_s > 0 else "",
            percent(stage.cpu_s, whole),
        )
    return Padding(table, (0, 0, 0, 2), expand=False)


def plain_table(headers: Sequence[str], rows: Sequence[Sequence[Any]], right: Sequence[int] = ()) -> RenderableType:
    """A table without lines; the columns of `right` are flush right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=FAINT)
    for index, header in enumerate(headers):
        table.add_column(header, justify="right" if index in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(safe(str(cell))) for cell in row))
    return Padding(table, (0, 0, 0, 2), expand=False)


def recipes_page(recipes: Recipes) -> RenderableType:
    """A row a recipe, and under it what changed; for a dataset of several."""
    rows = [
        (
            f"{index + 1} of {len(recipes)}",
            recipe.version,
            number(recipe.counts.records),
            number(recipe.counts.kept),
            number(recipe.counts.tokens),
            number(recipe.shards),
            "in force" if recipe.in_force else "",
        )
        for index, recipe in enumerate(recipes.made)
    ]
    names = ("recipe", "pipeline", "closed", "kept", "tokens", "shards", "")
    parts: list[RenderableType] = [plain_table(names, rows, right=(2, 3, 4, 5))]
    for index in range(1, len(recipes)):
        lines = recipes.difference(index) or ["nothing that the ledger knows of"]
        parts.append(Text(f"  changed from recipe {index} to {index + 1}:"))
        parts += [Text(f"    {safe(line)}") for line in lines[:DIFFERENCES_SHOWN]]
        if len(lines) > DIFFERENCES_SHOWN:
            parts.append(Text(f"    and {len(lines) - DIFFERENCES_SHOWN} more; `--json` gives all", style=FAINT))
    return Group(*parts)


def ranges_page(ranges: Sequence[Mapping[str, Any]]) -> RenderableType:
    """The first of them as a table."""
    rows = [
        (
            item["version"],
            f"{number(item['first'])} to {number(item['first'] + item['records'] - 1)}",
            item["uri"] + (f" from byte {number(item['start'])}" if item["start"] else ""),
        )
        for item in ranges[:RANGES_SHOWN]
    ]
    parts: list[RenderableType] = [plain_table(("closed by", "records", "of"), rows)]
    if len(ranges) > RANGES_SHOWN:
        parts.append(Text(f"  and {number(len(ranges) - RANGES_SHOWN)} more; `--json` gives all of them", style=FAINT))
    return Group(*parts)
