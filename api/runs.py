"""Pipelines run from Python: on this machine, by a controller, or as a preview."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from functools import partial

from headrace.cli.commands import Interrupts, follow_run, preview_ready, run_embedded
from headrace.cli.ui import Calls, PreviewResult, RunProgress, RunResult
from headrace.client import Applied, Client, RunOptions, UsageError, complete, controller_at, with_base
from headrace.pipeline import Pipeline, PipelineError
from headrace.stages.library import Compiling


def run(
    pipeline: Pipeline,
    options: RunOptions | None = None,
    *,
    progress: bool | Callable[[RunProgress], object] = True,
    base: str = "",
    judge_again: str = "",
) -> RunResult:
    """Run a pipeline on this machine to its end; the same call again continues where it stopped.

    Starts a controller and a worker and ends both. `base`, a dataset's URI@VERSION, and `judge_again` are --from and
    --judge-again. `progress` prints lines to standard error, or is called with a
    `RunProgress` as it changes; what it raises ends the run. Stage functions may be defined in a notebook, a script or
    a module. Ctrl-C ends the run; what its sinks hold is read again by the next. Raises PipelineError, InputError and
    StoreError for what the pipeline declares, CliError when the run fails, ProcessDied when the controller or the
    worker dies too often.
    """
    began_at = time.monotonic()
    return run_embedded(
        lambda: with_base(complete(_pipeline(pipeline), {}), base, judge_again),
        lambda: _options(options),
        Interrupts(),
        output=None if progress is True else io.StringIO(),
        shown_by=None if isinstance(progress, bool) else partial(Calls, progress),
        elapsed_s=lambda: time.monotonic() - began_at,
    )[0]


def preview(pipeline: Pipeline, limit: int = 1000, *, progress: bool = True) -> PreviewResult:
    """Run the first `limit` records in this process, and write nothing.

    The result counts verdicts by stage and reason, with samples; a notebook shows it as a page. `progress` says on
    standard error what is compiled first. Raises PipelineError, InputError, StageContractError.
    """
    if limit < 1:
        raise PipelineError(f"limit is {limit}; a preview is of 1 record at least")
    whole = complete(_pipeline(pipeline), {})
    with Compiling() as compiling:
        return PreviewResult.of(whole.name, preview_ready(whole, limit, compiling, told=progress))


def apply(
    pipeline: Pipeline,
    options: RunOptions | None = None,
    *,
    controller: str = "",
    cluster: str = "",
    base: str = "",
    judge_again: str = "",
) -> Applied:
    """Give a pipeline to a controller, and return once it runs; a pipeline that runs already is joined.

    `attach` waits for its end.
    `controller` is an address (default: HEADRACE_CONTROLLER, then this user's controller on this host), `cluster` the
    folder of a cluster with mutual TLS (default: HEADRACE_CLUSTER). Raises ApplyRefused, ControllerSilent, UsageError,
    and PipelineError, InputError and StoreError for what the pipeline declares.
    """
    with Client(controller_at(controller, cluster)) as client:
        return client.apply_or_join(with_base(complete(_pipeline(pipeline), {}), base, judge_again), _options(options))


def attach(
    pipeline: str | Pipeline | Applied,
    *,
    controller: str = "",
    cluster: str = "",
    progress: bool | Callable[[RunProgress], object] = True,
) -> RunResult:
    """Follow a pipeline that a controller has until it has ended; its result, with the seconds of this call.

    `pipeline` is its name, or what `apply` was given or returned; the rest is as in `apply` and `run`. Ctrl-C ends
    this call and leaves the pipeline running. Raises ControllerSilent, and CliError where the controller knows no such
    pipeline or the run fails.
    """
    if isinstance(pipeline, Applied):
        name = pipeline.pipeline
    else:
        name = pipeline if isinstance(pipeline, str) else _pipeline(pipeline).name
    return follow_run(
        controller_at(controller, cluster),
        name,
        output=None if progress is True else io.StringIO(),
        shown_by=None if isinstance(progress, bool) else partial(Calls, progress),
    )


def _pipeline(given: object) -> Pipeline:
    """What was given, if it is a pipeline. Raises PipelineError."""
    if isinstance(given, Pipeline):
        return given
    how = "import its build() and pass what it returns" if isinstance(given, str) else "pass what build() returns"
    raise PipelineError(f"{given!r} is no Pipeline: {how}, or one made by Pipeline.chain(name, dataset, *stages)")


def _options(given: object) -> RunOptions:
    """What was given, if it is options; the default for None. Raises UsageError."""
    if given is None or isinstance(given, RunOptions):
        return given or RunOptions()
    raise UsageError(f"options are {type(given).__name__}; give them as headrace.RunOptions(replicas=2, ...)")
