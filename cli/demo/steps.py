"""`headrace quickstart`: the main job on the text of this machine, then a model that learns from the shards."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.commands import catch_signals, run_embedded
from headrace.client import EXIT_INTERRUPTED, CliError, UsageError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from headrace.cli.demo.demo import TrainingResult
    from headrace.cli.ui import RunResult
    from headrace.client import RunOptions
    from headrace.pipeline import Pipeline

FOLDER = "quickstart"
#: The folder of its tokenizer, beside that.
TOKENIZER = "quickstart-tokenizer"
#: The filters of its pipeline whose loops are compiled first.
LOOPS = "gopher_quality, duplicate_lines"
#: Steps at both ends over which a loss is averaged before it is compared.
ENDS = 5
#: Columns of the curve.
CURVE_WIDTH = 56
#: Seconds between two lines where there is no terminal.
LINE_S = 5.0
_BARS = "▁▂▃▄▅▆▇█"


def quickstart(data: Path, *, fresh: bool, steps: int | None, as_json: bool) -> int:
    """Run the main job and train; the exit code."""
    try:
        dataset = data.expanduser() / FOLDER
    except RuntimeError as error:
        raise UsageError(f"--data {str(data)!r}: no home of that user is known here") from error
    if fresh:
        _remove(dataset)
    with catch_signals() as interrupts:
        report, interrupted = _ingest(dataset, interrupts)
    if not as_json:
        from headrace.cli.ui import console, run_page

        console().print(run_page(report))
    if interrupted:
        return EXIT_INTERRUPTED
    result = _train(report.dataset, steps, sys.stderr if as_json else sys.stdout)
    if as_json:
        print(json.dumps({**report.to_dict(), "training": _training(result)}))
    else:
        _goodbye(report)
    return 0


def _ingest(dataset: Path, interrupts: Any) -> tuple[RunResult, bool]:
    def read() -> Pipeline:
        from headrace.cli.host import quickstart_pipeline, trained_tokenizer
        from headrace.client import complete

        folder = dataset.with_name(TOKENIZER)
        if not (folder / "tokenizer.json").is_file():
            print("headrace: training a tokenizer on the standard library, once", file=sys.stderr, flush=True)
        tokenizer = trained_tokenizer(folder)
        return complete(quickstart_pipeline(str(dataset), tokenizer), {})

    def options() -> RunOptions:
        from headrace.client import RunOptions

        return RunOptions()

    try:
        return run_embedded(read, options, interrupts, hint=LOOPS)
    except CliError as error:
        if type(error).__name__ == "ApplyRefused":
            raise CliError(f"{error}; `headrace quickstart --fresh` begins again", error.details) from error
        raise


def _remove(dataset: Path) -> None:
    """Remove an earlier quickstart, and nothing that is not one."""
    if not dataset.exists():
        return
    if dataset.is_symlink() or not (dataset / "ledger").is_dir():
        raise CliError(
            f"{dataset} is no dataset, or a link to one: it is not removed; choose another folder with --data"
        )
    shutil.rmtree(dataset)


# ---- training ----


@dataclass(slots=True)
class Curve:
    """The losses so far, as a line that fits a terminal."""

    losses: list[float] = field(default_factory=list[float])

    def bars(self, width: int = CURVE_WIDTH) -> str:
        """Means of equal parts of the losses, each a bar between the lowest and the highest."""
        parts = min(width, len(self.losses))
        if not parts:
            return ""
        edges = [index * len(self.losses) // parts for index in range(parts + 1)]
        means = [mean(self.losses[start:end]) for start, end in itertools.pairwise(edges)]
        low, high = min(means), max(means)
        scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
        return "".join(_BARS[round((value - low) * scale)] for value in means)


def mean(values: list[float]) -> float:
    """The mean; 0 of nothing."""
    return sum(values) / len(values) if values else 0.0


def _train(dataset: str, steps: int | None, stream: Any) -> TrainingResult:
    from rich.text import Text

    from headrace.cli.demo.demo import train
    from headrace.cli.ui import console

    out = console(stream, live=True)
    out.print()
    curve = Curve()
    with _shown(out, curve) as on_step:
        result = train(dataset, steps, on_step)
    out.print(Text.assemble(("● ", "green"), ("training", "bold"), (f" {result.engine}", "dim")))
    out.print(Text(f"  {curve.bars()}", style="cyan"))
    first, last = mean(curve.losses[:ENDS]), mean(curve.losses[-ENDS:])
    speed = f"{len(curve.losses)} steps in {result.seconds:.1f} s, {result.tokens_s:,.0f} tokens/s"
    fell = ("✓ ", "bold green") if last < first else ("✗ ", "bold red")
    out.print(Text.assemble("  ", fell, f"loss {first:.2f} → {last:.2f}", (f"   {speed}", "dim")))
    return result


class _shown:  # noqa: N801 - used as a function
    """Shows a curve while it grows: live on a terminal, now and then a line elsewhere."""

    def __init__(self, out: Console, curve: Curve) -> None:
        self._out, self._curve = out, curve
        self._next_at = 0.0
        self._live: Any = None

    def __enter__(self) -> Callable[[int, float], None]:
        if self._out.is_terminal:
            from rich.live import Live

            self._live = Live(console=self._out, refresh_per_second=8, transient=True, get_renderable=self._page)
            self._live.start()
        return self._step

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def _step(self, step: int, loss: float) -> None:
        self._curve.losses.append(loss)
        now = time.monotonic()
        if self._live is None and now >= self._next_at:
            self._next_at = now + LINE_S
            self._out.print(f"training: step {step}, loss {mean(self._curve.losses[-ENDS:]):.2f}")

    def _page(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        losses = self._curve.losses
        rest = f"step {len(losses)}, loss {mean(losses[-ENDS:]):.2f}" if losses else "counting tokens"
        head = Text.assemble(("● ", "cyan"), ("training", "bold"), (f" {rest}", "dim"))
        return Group(head, Text(f"  {self._curve.bars()}", style="cyan"))


def _training(result: TrainingResult) -> dict[str, Any]:
    losses = list(result.losses)
    return {
        "engine": result.engine,
        "steps": len(losses),
        "first_loss": round(mean(losses[:ENDS]), 4),
        "last_loss": round(mean(losses[-ENDS:]), 4),
        "tokens_s": round(result.tokens_s, 1),
        "seconds": round(result.seconds, 3),
        "losses": [round(loss, 4) for loss in losses],
    }


def _goodbye(report: RunResult) -> None:
    from rich.text import Text

    from headrace.cli.ui import FAINT, console

    out = console()
    out.print_below(Text(f"  look at it:  headrace dataset show {report.dataset}", style=FAINT, overflow="fold"))
