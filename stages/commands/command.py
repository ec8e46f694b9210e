"""A stage that is any executable: records on its standard input and output, one process a task.

How rows are matched, in lines of JSON (`stages/commands/exchange.py`). Each record goes in as a line `{"__row", "id",
"text", "metadata"}` and comes out as one, in the same order; `__row` says which it is. A line that does not come out
is a record that the command filters. That the batch is through is known by a record that the command is known to give
back, sent once more behind the batch under a number of its own. Where no such line comes (nothing was kept yet, or
the command holds its output back until it has a block of it) its input is closed: what is missing at its end is
filtered, and the next batch gets a new process.

In Arrow IPC (there too) one stream goes in and one comes out, and each batch is answered by one batch,
which may be empty: so its end is seen without more ado.

How a failure is found. A batch at which the command dies, hangs or says what is no answer is given to new processes in
parts, until the record is alone; it is quarantined with the exit code and the end of standard error. A record at which
a command died is tried twice, since anybody may have killed it. Records that are missing from a batch during which the
command wrote to standard error are given to a process each, whose exit code tells what is filtered from what failed.
"""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from headrace.pipeline import PipelineError
from headrace.stages.commands.arrow_stream import ArrowStream
from headrace.stages.commands.exchange import ArrowExchange, Exchange, LineExchange
from headrace.stages.commands.process import CommandFailedError, CommandProcess, KeeperProcess
from headrace.stages.functions import pack_metadata, settle
from headrace.stages.runtime import Batch, StageContractError, Transform, quarantine, text_of
from headrace.stages.text import with_column

GAVE_NO_LINE = "command gave no line"
#: Seconds without output after which the input of a command is closed, if the end of the batch is not seen yet; or
#: this many times the longest pause that it has made before.
SILENCE_S = 1.0
SILENCE_TIMES = 4.0
#: Batches in a row that end only because the input is closed, before it is closed behind each batch at once.
CLOSES_MAX = 2
#: Records in a row that may fail, each alone, before it is the command's fault and not theirs.
FAILURES_MAX = 100


@dataclass(frozen=True, slots=True)
class _Span:
    """Rows of the batch that are given to the command together; `alone`: to a process that ends with them."""

    first: int
    end: int
    alone: bool = False
    #: Whether a failure is looked for in halves: else behind the last line that came.
    halve: bool = False


class Command(Transform):
    """Gives the records of each batch to an executable."""

    def __init__(
        self, name: str, arguments: list[str], seconds: float, succeeds: list[int], *, arrow: bool = False
    ) -> None:
        self.name = name
        self._arguments = arguments
        self._seconds = seconds
        self._succeeds = succeeds
        self._arrow = arrow
        self._process: CommandProcess | None = None
        #: Who starts it, and ends all that it has started.
        self._keeper: KeeperProcess | None = None
        #: What this process and this stage have told each other, if that is Arrow.
        self._stream = ArrowStream()
        #: A record that the command has given back, and the number of the next fence made of it.
        self._sample: dict[str, Any] | None = None
        self._fences = 0
        self._closes = 0
        self._silence_s = SILENCE_S
        self._failures = 0
        if shutil.which(arguments[0]) is None:
            raise PipelineError(
                f'stage "{name}": there is no executable {arguments[0]!r}; install it on every machine that runs it'
            )
        self._try()

    def delegated_cpu_s(self) -> float:
        """Seconds of processor time of the command, and of those that ran before it."""
        living = self._process.cpu_s if self._process is not None else 0.0
        return (self._keeper.cpu_s if self._keeper is not None else 0.0) + living

    def process(self, batch: Batch) -> Batch:
        """The batch with what the command gave back."""
        text_of(batch, self.name)
        count = batch.rows.num_rows
        if not count:
            return batch
        answers: dict[int, dict[str, Any]] = {}
        stories: dict[int, str] = {}
        spans = [_Span(0, count)]
        while spans:
            span = spans.pop()
            rows = batch.rows.slice(span.first, span.end - span.first)
            exchange = ArrowExchange(self.name, rows) if self._arrow else LineExchange(self.name, rows)
            try:
                self._exchange(exchange, alone=span.alone)
            except CommandFailedError as error:
                self._drop()
                if span.end - span.first > 1:
                    spans += _parts(span, exchange.answered, hung=error.hung)
                elif error.hung or span.halve:
                    stories[span.first] = str(error)
                    self._failed(error)
                else:
                    spans.append(replace(span, alone=True, halve=True))
                continue
            self._failures = 0
            if exchange.doubtful and not (span.alone and exchange.count == 1):
                # Of several records an exit code says nothing: jq gives that of the last.
                spans += [_Span(at, at + 1, alone=True) for at in exchange.missing(span.first)]
            answers |= {span.first + index: answer for index, answer in exchange.answers.items()}
        return self._settle(quarantine(batch, stories, self.name), answers, stories)

    def close(self) -> None:
        """End the process and its keeper."""
        self._drop()
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None

    def _settle(self, batch: Batch, answers: dict[int, dict[str, Any]], stories: dict[int, str]) -> Batch:
        """The batch, from which those with a story are gone, with the answers to the others in it."""
        before = [index for index in range(batch.rows.num_rows + len(stories)) if index not in stories]
        places = [place for place, index in enumerate(before) if index in answers]
        old = batch.rows.column("metadata").to_pylist()
        texts = [answers[before[place]]["text"] for place in places]
        metadata = [pack_metadata(answers[before[place]].get("metadata"), old[place]) for place in places]
        rows = batch.rows.take(pa.array(places, pa.int64()))
        rows = with_column(rows, "text", pa.array(texts, pa.string()))
        rows = with_column(rows, "metadata", pa.array(metadata, pa.string()))
        return settle(batch, rows, self.name, GAVE_NO_LINE)

    def _exchange(self, exchange: Exchange, *, alone: bool) -> None:
        """Give the records to the command and take its answers until all is known. Raises CommandFailedError."""
        if alone:
            self._drop()
        process = self._process = self._process or self._start()
        closing = alone or self._closes >= CLOSES_MAX
        said = process.errors_bytes
        exchange.stream = self._stream
        exchange.take(process.waiting())
        process.give(exchange.given())
        if closing:
            process.finish(exchange.last_words)
        elif exchange.wants_fence and self._sample is not None:
            process.give(exchange.fence(self._sample, self._next_fence()))
        moved_at, closed_at = time.monotonic(), 0.0
        while (closing or not exchange.fenced) and not process.ended:
            moved = process.turn(self._silence_s / 4, exchange.take)
            now = time.monotonic()
            pause = now - moved_at
            if moved:
                moved_at = now
            if not closing and exchange.wants_fence and (sample := exchange.sample()) is not None:
                self._sample = sample
                process.give(exchange.fence(sample, self._next_fence()))
            if moved and exchange.answers:
                self._learn(pause, now - closed_at if closed_at else None)
                closed_at = 0.0
            # Where this process stood still meanwhile, what has come since is an answer all the same.
            if not moved and pause >= self._seconds:
                raise CommandFailedError(f"command did not answer within {self._seconds:g} s", hung=True)
            if not closing and process.idle and not moved and pause >= self._silence_s:
                closing, closed_at = True, now
                self._closes += 1
                process.finish(exchange.last_words)
        if process.ended:
            self._ended(process, closing=closing)
            exchange.ended()
        else:
            self._closes = 0
            process.drain_errors()
        exchange.doubtful = process.errors_bytes > said and len(exchange.answers) < exchange.count

    def _learn(self, pause_s: float, after_close_s: float | None) -> None:
        """It answered after a pause; `after_close_s` since its input was closed for that, if it was."""
        if after_close_s is not None:
            if after_close_s < SILENCE_S / 2:
                return
            # The end of its input did not bring this answer: it is slow, and holds nothing back.
            self._closes -= 1
        self._silence_s = max(self._silence_s, min(SILENCE_TIMES * pause_s, self._seconds))

    def _ended(self, process: CommandProcess, *, closing: bool) -> None:
        """Its output is at its end: right only if its input was."""
        process.judge(self._seconds)
        self._drop()
        if not closing or process.refused:
            raise CommandFailedError("command ended by itself, before the end of its input")

    def _next_fence(self) -> int:
        self._fences += 1
        return -self._fences

    def _failed(self, error: CommandFailedError) -> None:
        self._failures += 1
        if self._failures >= FAILURES_MAX:
            raise StageContractError(
                f'stage "{self.name}": {self._arguments[0]} failed on {FAILURES_MAX} records in a row, '
                f"the last time: {error}; try it on one of them by hand{self._hint(error)}"
            )

    def _try(self) -> None:
        """Run the command on no input at all, which finds one that cannot work before the first record."""
        try:
            process = self._process = self._start()
            process.finish(self._stream.of_nothing() if self._arrow else b"")
            process.judge(self._seconds)
        except CommandFailedError as error:
            self.close()
            raise PipelineError(
                f'stage "{self.name}": {self._arguments[0]}, tried without input: {error}{self._hint(error)}'
            ) from error
        self._drop()

    def _hint(self, error: CommandFailedError) -> str:
        """What to declare where the exit code may be no failure, as that of grep is none."""
        if not error.code:
            return ""
        return f"; if {error.code} is no failure of it, declare succeeds={sorted({*self._succeeds, error.code})}"

    def _start(self) -> CommandProcess:
        self._stream = ArrowStream()
        if self._keeper is None or not self._keeper.lives:
            self._keeper = KeeperProcess(self._arguments)
        return CommandProcess(self._keeper, self._succeeds)

    def _drop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(CommandFailedError):  # its keeper died, and it with it
                process.kill()


def _parts(span: _Span, answered: int, *, hung: bool) -> list[_Span]:
    """Where to look for the record at which a command failed; the last is looked at first."""
    if hung and not span.halve:
        # It answers in order, so it hangs at the record behind its last answer, unless it holds answers back.
        next_one = span.first + answered + 1
        found = [_Span(next_one + 1, span.end, span.alone, halve=True), _Span(next_one, next_one + 1, alone=True)]
        found.append(_Span(span.first, next_one, span.alone))
        return [part for part in found if part.first < part.end and part.end <= span.end]
    middle = (span.first + span.end) // 2
    # One row alone has not been tried as such yet.
    halves = [(middle, span.end), (span.first, middle)]
    return [_Span(first, end, span.alone, halve=hung and end - first > 1) for first, end in halves]
