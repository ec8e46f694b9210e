"""`headrace run`: a pipeline on this machine, from the pipeline file to the balance.

The worker is started first, then the controller, as processes that import what they need while this one does.
From then on this command is a client like any other: it applies, watches, and asks to stop.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import IO, TYPE_CHECKING, Any

from headrace.cli.ui import DeathBook, DeathRow, say
from headrace.client import (
    AGAIN,
    DEATH_S,
    EXIT_INTERRUPTED,
    START_S,
    CliError,
    Embedded,
    begun_or_new,
    seconds_since_start,
)
from headrace.daemon import SECOND_S, end_within, hear, restore
from headrace.stages.runtime import give_back
from headrace.stages.shipping import inherited_by
from headrace.stages.tokenizer import keep_parsed

if TYPE_CHECKING:
    from headrace.cli.ui import Progress, RunResult
    from headrace.client import Client, ControllerAt, RunOptions
    from headrace.pipeline import Pipeline
    from headrace.protos import control_pb2 as pb

#: Seconds without a word after which a controller counts as frozen.
SILENT_S = 10.0
#: Seconds between two looks at the signals and processes while nothing else happens.
TICK_S = 0.1
#: Characters of a pipeline file in which the names of loops to compile are looked for.
HINT_CHARACTERS_MAX = 1 << 20
#: The state of a run that has not read its ledger.
OPENING = "opening"


@dataclass(slots=True)
class Interrupts:
    """How often the user pressed Ctrl-C (or the process was sent SIGTERM), and what was made of it."""

    asked: int = 0
    obeyed: int = 0
    #: Whether nothing is there to be committed: the first one ends the command.
    ends: bool = False


def run_file(
    path: Path,
    given: list[str],
    make_options: Callable[[], RunOptions],
    *,
    base: tuple[str, str] = ("", ""),
    follow_links: bool = False,
    page: bool = False,
    as_json: bool,
) -> int:
    """Run a pipeline file, perhaps with a base and what of it is judged again; the exit code."""
    hint = text_of(path)

    def read() -> Pipeline:
        from headrace.client import load

        pipeline = load(path, given, follow_links=follow_links)
        if not any(base):
            return pipeline
        from headrace.client import with_base  # it reads a ledger, for which a run without a base need not wait

        return with_base(pipeline, *base)

    with catch_signals() as interrupts:
        report, interrupted = run_embedded(read, make_options, interrupts, hint=hint, page=page)
    show(report, as_json=as_json)
    return EXIT_INTERRUPTED if interrupted else 0


def text_of(path: Path) -> str:
    """The beginning of a pipeline file. Raises UsageError where there is none, with the example of its name."""
    if not path.is_file():
        from headrace.cli.commands.examples import example_like
        from headrace.client import UsageError, load_build

        if name := example_like(path):
            raise UsageError(f"{path} is not there; `headrace examples {name} --to {path}` writes it")
        load_build(path)
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(HINT_CHARACTERS_MAX)
    except OSError:
        return ""  # `load` says what is wrong with it


def run_embedded(
    read: Callable[[], Pipeline],
    make_options: Callable[[], RunOptions],
    interrupts: Interrupts,
    *,
    hint: str = "",
    page: bool = False,
    output: IO[str] | None = None,
    shown_by: Callable[[str], Progress] | None = None,
    elapsed_s: Callable[[], float] = seconds_since_start,
) -> tuple[RunResult, bool]:
    """Run the pipeline that `read` gives with a controller and a worker of its own.

    Progress goes to what `shown_by` makes of the pipeline's name, or to `output`, else to standard error. Loops that
    `hint`, a text, names are compiled from now on.

    The report, and whether the user ended it. Raises CliError where the run fails or a process dies.
    """
    from headrace.stages.library import Compiling

    interrupts.ends = True  # the code of a pipeline file may take its time, and a store may be silent
    with begun_or_new(page=page) as embedded, Compiling() as compiling:
        compiling.begin(hint)
        for line in compiling.news():
            say(f"headrace: {line}", output)
        with keep_parsed() as parsed:
            pipeline = read()
        compiling.begin(" ".join(stage.target for stage in pipeline.stages), certain=True)
        stages = [stage.to_dict() for stage in pipeline.stages]
        passed = pipeline.base.passed if pipeline.base is not None else ()
        embedded.preload(inherited_by(stages, pipeline.dataset, passed), parsed)
        # A vocabulary takes 30 MiB, of which a run that is under way needs nothing.
        parsed.clear()
        give_back()

        from headrace.cli.ui import progress_on
        from headrace.client import Client

        # The controller begins behind these imports: until then the worker's forkserver has a core to itself.
        with Client(embedded.address()) as client, _deaths_explained(embedded):
            if url := embedded.page():
                say(f"headrace: the page of this run, until it ends: {url}", output)
            client.wait_for_worker(START_S, embedded.check)
            options = make_options()
            applied_after_s = elapsed_s()
            warnings = client.apply(pipeline, options)
            book = DeathBook()
            with shown_by(pipeline.name) if shown_by else progress_on(output or sys.stderr, pipeline.name) as progress:
                for line in warnings:
                    progress.note(f"headrace: {line}")
                status = _watch_through_deaths(
                    client, pipeline, options, embedded, progress, interrupts, book, compiling.news
                )
            if status.state == "failed":
                embedded.check(within_s=DEATH_S if "worker" in status.failure else 0.0)
            interrupted = interrupts.asked > 0 and status.state != "completed"
            interrupts.ends = True
    if status.state == "failed":
        raise CliError(status.failure or "the run failed without a reason")
    first_s = applied_after_s + status.first_batch_s if status.first_batch_s > 0 else 0.0
    return _report(status, warnings, tuple(book.rows()), elapsed_s(), first_s), interrupted


def follow_run(
    at: ControllerAt, name: str, *, output: IO[str] | None = None, shown_by: Callable[[str], Progress] | None = None
) -> RunResult:
    """Show a pipeline that a controller has until it has ended; Ctrl-C leaves it as it is.

    Progress goes where `run_embedded` says; `seconds` are those of this call. Raises ControllerSilent, and CliError
    where the controller knows no such pipeline or the run fails.
    """
    from headrace.cli.ui import progress_on
    from headrace.client import Client, pipeline_of

    began_at = time.monotonic()
    with Client(at) as client:
        found = client.status(name)
        if pipeline_of(found, name) is None:
            known = ", ".join(item.pipeline for item in client.status().pipelines) or "none"
            raise CliError(f"the controller at {client.address} knows no pipeline {name!r}; it knows: {known}")
        book = DeathBook()
        with shown_by(name) if shown_by else progress_on(output or sys.stderr, name) as progress:
            status = watch_to_end(client, name, progress, Interrupts(), lambda: None, book=book)
    if status.state == "failed":
        raise CliError(status.failure or "the run failed without a reason")
    return _report(status, (), tuple(book.rows()), time.monotonic() - began_at, status.first_batch_s)


def _watch_through_deaths(
    client: Client,
    pipeline: Pipeline,
    options: RunOptions,
    embedded: Embedded,
    progress: Progress,
    interrupts: Interrupts,
    book: DeathBook,
    news: Callable[[], list[str]],
) -> pb.PipelineStatus:
    """Watch a run to its end; restart a dead or frozen controller, and apply the pipeline to it again.

    The worker's tasks run meanwhile, and the new controller adopts them.
    """
    from headrace.client import ControllerDied, ControllerSilent

    first: list[pb.PipelineStatus] = []

    def check() -> None:
        embedded.check()
        for line in news():
            progress.note(f"headrace: {line}")
        while embedded.worker_endings:
            book.saw("worker", "local", embedded.worker_endings.pop(0))

    while True:
        try:
            status = watch_to_end(client, pipeline.name, progress, interrupts, check, first=first, book=book)
            break
        except (ControllerDied, ControllerSilent) as error:
            # Whether it died and its worker with it is seen in a moment; a frozen one is killed.
            with contextlib.suppress(ControllerDied):
                embedded.check(within_s=0.2)
            ending = embedded.restart_controller(str(error).removesuffix(f"; {AGAIN}"))
            book.controller_died(ending)
            progress.note(f"headrace: the controller {ending}; it was restarted, and the run continues")
            client.connect(client.address)
            client.wait_for_worker(START_S, embedded.check)
            client.apply(pipeline, options)
            interrupts.obeyed = 0
    if first:
        # What this run found when it began, and not what it found when its controller was started again.
        status.records_resumed, status.first_batch_s = first[0].records_resumed, first[0].first_batch_s
        status.facts["bytes_resumed"] = first[0].facts.get("bytes_resumed", "0")
    return status


def watch_to_end(
    client: Client,
    name: str,
    progress: Progress,
    interrupts: Interrupts,
    check: Callable[[], None],
    *,
    first: list[pb.PipelineStatus] | None = None,
    book: DeathBook | None = None,
) -> pb.PipelineStatus:
    """Show a run until it has ended; its last status. `check` is called now and then and may raise.

    Where `interrupts.ends`, Ctrl-C ends the command until the run has opened, and asks for a stop from then on.
    What died is said as it comes, and noted in `book`. `first` gets the first status in which a batch was read, if it
    is empty. Raises ControllerSilent.
    """
    from headrace.client import ENDED, ControllerSilent, StreamBroke, pipeline_of

    updates = client.watch(name)
    heard_at = time.monotonic()
    book = book or DeathBook()
    while True:
        _obey(client, name, progress, interrupts)
        update: pb.StatusReply | StreamBroke
        try:
            update = updates.get(timeout=TICK_S)
            heard_at = time.monotonic()
        except Empty:
            check()
            if time.monotonic() < heard_at + SILENT_S:
                continue
            update = StreamBroke(ControllerSilent(f"the controller at {client.address} was silent for {SILENT_S} s"))
            heard_at = time.monotonic()
        if isinstance(update, StreamBroke):
            # With several controllers another one leads by now, or will soon.
            if len(client.addresses) == 1:
                raise update.error
            progress.note(f"headrace: {update.error}; looking for the leader")
            client.status(name)
            updates = client.watch(name)
            continue
        status = pipeline_of(update, name)
        if status is None:
            raise CliError(f"the controller knows no pipeline {name!r} any more")
        # Until then nothing is held that could be committed, and a silent store may keep the run from opening.
        interrupts.ends = interrupts.ends and status.state == OPENING
        progress.update(status)
        for line in book.take(status):
            progress.note(f"{name}: {line}")
        if first is not None and not first and status.first_batch_s > 0:
            first.append(status)
        if status.state in ENDED:
            return status


def _obey(client: Client, name: str, progress: Progress, interrupts: Interrupts) -> None:
    """The first Ctrl-C stops with what is held committed, the second at once."""
    asked = interrupts.asked  # once: a signal may come between two looks, and would be neither obeyed nor left to obey
    if asked <= interrupts.obeyed:
        return
    cancel = asked > 1
    interrupts.obeyed = asked
    word = "cancelling" if cancel else "stopping: sinks commit what they hold (Ctrl-C again: stop at once)"
    progress.note(f"headrace: {word}")
    client.stop(name, cancel=cancel)


@contextlib.contextmanager
def _deaths_explained(embedded: Embedded) -> Iterator[None]:
    """Report a connection that a death broke as that death."""
    from headrace.client import ControllerSilent

    try:
        yield
    except ControllerSilent as error:
        embedded.check(within_s=DEATH_S)
        raise CliError(f"the connection to the controller broke; {AGAIN}", [str(error)]) from error


@contextlib.contextmanager
def catch_signals() -> Iterator[Interrupts]:
    """Count SIGINT and SIGTERM instead of dying: the second leaves SECOND_S to end, a third ends at once.

    Signals that this process was started to ignore stay ignored.
    """
    interrupts = Interrupts()

    def count(_number: int, _frame: Any) -> None:
        interrupts.asked += 1
        if interrupts.asked > 1:
            end_within(SECOND_S)
        elif interrupts.ends:
            raise KeyboardInterrupt
        else:
            hear(count)

    before = hear(count)
    try:
        yield interrupts
    finally:
        restore(before)


def _report(
    status: pb.PipelineStatus,
    warnings: tuple[str, ...],
    deaths: tuple[DeathRow, ...],
    seconds: float,
    first_batch_s: float,
) -> RunResult:
    from headrace.cli.ui import Recipes, RunResult, input_bytes_read, passed_unseen, read_ledger, speeds
    from headrace.store.ledger import balance_of, without_hidden

    facts, ledger = dict(status.facts), without_hidden(read_ledger(status.dataset))
    return RunResult(
        pipeline=status.pipeline,
        dataset=status.dataset,
        state=status.state,
        pipeline_version=status.version,
        balance=balance_of(ledger),
        recipes=Recipes.of(ledger).to_json(),
        bytes_read=input_bytes_read(status),
        seconds=seconds,
        first_batch_s=first_batch_s,
        records_resumed=int(status.records_resumed),
        tokenizer_engine=facts.get("tokenizer_engine", ""),
        stages=speeds(status.stages),
        deaths=deaths,
        warnings=(*warnings, *status.notes, *passed_unseen(ledger)),
        facts=facts,
    )


def show(report: RunResult, *, as_json: bool) -> None:
    """The report on standard output."""
    if as_json:
        print(json.dumps(report.to_dict()))
        return
    from headrace.cli.ui import console, run_page

    console().print(run_page(report))
