"""Pipelines run from Python: on this machine, by a controller, or as a preview."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from functools import partial

from headrace.cli.commands import Interrupts, run_embedded
from headrace.cli.ui import Calls, RunProgress, RunResult
from headrace.client import Applied, Client, RunOptions, complete, controller_at, with_base
from headrace.pipeline import Pipeline
from headrace.stages.shipping import Preview, preview as run_preview


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
        lambda: with_base(complete(pipeline, {}), base, judge_again),
        lambda: options or RunOptions(),
        Interrupts(),
        output=None if progress is True else io.StringIO(),
        shown_by=None if isinstance(progress, bool) else partial(Calls, progress),
        elapsed_s=lambda: time.monotonic() - began_at,
    )[0]


def preview(pipeline: Pipeline, limit: int = 1000) -> Preview:
    """Run the first `limit` records in this process, and write nothing.

    The result counts verdicts by stage and reason, with samples. Raises PipelineError, InputError, StageContractError.
    """
    return run_preview(complete(pipeline, {}), limit)


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

    `controller` is an address (default: HEADRACE_CONTROLLER, then this user's controller on this host), `cluster` the
    folder of a cluster with mutual TLS (default: HEADRACE_CLUSTER). Raises ApplyRefused, ControllerSilent, UsageError,
    and PipelineError, InputError and StoreError for what the pipeline declares.
    """
    with Client(controller_at(controller, cluster)) as client:
        return client.apply_or_join(with_base(complete(pipeline, {}), base, judge_again), options or RunOptions())
