"""The commands of an operator: the state of a controller's pipelines, and changes to them.

They import what they need when they run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.ui import CanaryOptions, ControllerOptions, Json
from headrace.pipeline import Late

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.cli.commands.cluster import reconfigure
    from headrace.pipeline import Pipeline, Stage as PipelineStage
else:
    reconfigure = Late("headrace.cli.commands.cluster.reconfigure")

Name = Annotated[str, typer.Argument(metavar="PIPELINE", help="The pipeline's name.")]
Maybe = Annotated[str, typer.Argument(metavar="PIPELINE", help="One pipeline; default: all.")]
Stage = Annotated[str, typer.Argument(metavar="STAGE", help="The stage's name.")]
OldStage = Annotated[str, typer.Argument(metavar="NAME", help="The stage's name.")]
Wait = Annotated[bool, typer.Option("--wait", help="Return when it is done.")]


def add_to(app: typer.Typer) -> None:
    """Give an application these commands."""
    for command in (
        status,
        top,
        logs,
        cost,
        pause,
        resume,
        scale,
        move,
        relink,
        insert,
        replace,
        remove,
        drain,
        stop,
        cancel,
        clear,
    ):
        app.command()(command)
    app.command("what-if")(what_if)


def status(pipeline: Maybe = "", *, on: ControllerOptions, json: Json = False) -> int:
    """Show workers, pipelines, tasks and links."""
    from headrace.cli.commands import show_status

    return show_status(on.at(), pipeline, as_json=json)


def top(
    pipeline: Maybe = "",
    once: bool = typer.Option(False, "--once", help="Measure for a second, show the page once, and exit."),
    *,
    on: ControllerOptions,
    json: Json = False,
) -> int:
    """Show rates, credit and bottlenecks until Ctrl-C."""
    from headrace.cli.commands.cluster.top import show_top

    return show_top(on.at(), pipeline, once=once, as_json=json)


def logs(
    pipeline: str = typer.Option("", metavar="NAME", help="Lines about this pipeline."),
    stage: str = typer.Option("", metavar="NAME", help="Lines of this stage's tasks; needs --pipeline."),
    task: str = typer.Option("", metavar="NAME", help="Lines about this task, such as plain/read.0."),
    cause: str = typer.Option(
        "", metavar="NAME", help="All lines with this cause, on every node; a line ends with its cause."
    ),
    level: str = typer.Option("", metavar="LEVEL", help="Lowest level: debug, info, warning or error."),
    since: str = typer.Option(
        "", metavar="AGO|TIME", help="Lines of the last 30s, 10m, 2h or 1d, or since 2026-05-04T12:30."
    ),
    lines: int = typer.Option(500, min=1, metavar="N", help="Only the newest N lines."),
    follow: bool = typer.Option(False, "--follow", "-f", help="Continue with new lines until Ctrl-C."),
    *,
    on: ControllerOptions,
    json: Json = False,
) -> int:
    """Show log lines of controller, workers and tasks in time order."""
    from headrace.cli.commands.cluster.logs import search_for, show_logs
    from headrace.client import check_numbers

    check_numbers({"--lines": lines})
    search = search_for(pipeline, stage, task, cause, level, since, follow=follow)
    return show_logs(on.at(), search, lines_max=lines, as_json=json)


def what_if(
    pipeline: Name,
    cores: str = typer.Option("", "--cores", metavar="N|+N|-N", help="Cores of all workers together."),
    without: list[str] = typer.Option([], "--without", metavar="STAGE", help="Leave this stage out; repeatable."),
    replicas: list[str] = typer.Option([], "--replicas", metavar="STAGE=N", help="Tasks of a stage; repeatable."),
    speed: list[str] = typer.Option(
        [], "--speed", metavar="STAGE=TIMES", help="A stage so many times as fast; repeatable."
    ),
    nic: str = typer.Option("", "--nic", metavar="BITS", help="Network of a host, in bits a second: 25G."),
    store: str = typer.Option("", "--store", metavar="BYTES", help="Reads from the store, in bytes a second: 2G."),
    model_hosts: list[str] = typer.Option(
        [], "--model-hosts", metavar="STAGE=N", help="Requests that a stage's model serves at once; repeatable."
    ),
    over: float = typer.Option(10.0, "--over", min=1, max=3600, metavar="S", help="Seconds to measure."),
    price: float = typer.Option(0.0, "--price", min=0, metavar="PRICE", help="Price of a core for an hour."),
    *,
    on: ControllerOptions,
    json: Json = False,
) -> int:
    """Predict throughput, bottleneck, time and cost of a running pipeline after a change."""
    from headrace.cli.commands.cluster.what_if import WhatIfQuestion, show_what_if

    question = WhatIfQuestion(cores, without, replicas, speed, nic, store, model_hosts)
    return show_what_if(on.at(), pipeline, question, over_s=over, price=price, as_json=json)


def cost(
    by: str = typer.Option("pipeline", "--by", metavar="WHOM", help="What a row stands for: pipeline, user or queue."),
    prices: str = typer.Option(
        "", "--prices", metavar="FILE", help="A TOML file with core_hour, read_gb and currency."
    ),
    *,
    on: ControllerOptions,
    json: Json = False,
) -> int:
    """Show what pipelines used in core-hours and bytes, and what it costs."""
    from headrace.cli.commands.cluster.cost import show_cost

    return show_cost(on.at(), by=by, prices_file=prices, as_json=json)


def pause(pipeline: Name, *, on: ControllerOptions, wait: Wait = False, json: Json = False) -> int:
    """Pause a pipeline; its sinks commit what they hold first."""
    return reconfigure.pause(on.at(), pipeline, on=True, wait=wait, as_json=json)


def resume(pipeline: Name, *, on: ControllerOptions, wait: Wait = False, json: Json = False) -> int:
    """Resume a paused pipeline."""
    return reconfigure.pause(on.at(), pipeline, on=False, wait=wait, as_json=json)


def scale(
    pipeline: Name,
    stage: Stage,
    tasks: int = typer.Argument(metavar="N", min=1, help="Number of tasks."),
    *,
    on: ControllerOptions,
    wait: Wait = False,
    json: Json = False,
) -> int:
    """Change the number of tasks of a stage and the stages fused with it, while records flow."""
    from headrace.client import check_numbers
    from headrace.pipeline import REPLICAS_MAX

    check_numbers({"N": tasks}, REPLICAS_MAX)
    return reconfigure.replan(on.at(), pipeline, replicas={stage: tasks}, wait=wait, as_json=json)


def move(
    pipeline: Name,
    stage: Stage,
    place: str = typer.Argument(metavar="PLACE", help="A worker's name, or a label."),
    *,
    on: ControllerOptions,
    wait: Wait = False,
    json: Json = False,
) -> int:
    """Move a stage to a worker, or to workers with a label, while records flow."""
    return reconfigure.replan(on.at(), pipeline, places={stage: place}, wait=wait, as_json=json)


def relink(
    pipeline: Name,
    stage: Stage,
    transport: str = typer.Argument(metavar="ring|pipe|quic", help="Transport of the links into the stage."),
    *,
    on: ControllerOptions,
    wait: Wait = False,
    json: Json = False,
) -> int:
    """Change the transport of the links into a stage, while records flow."""
    return reconfigure.replan(on.at(), pipeline, transports={stage: transport}, wait=wait, as_json=json)


NewStage = Annotated[
    str,
    typer.Argument(
        metavar="STAGE",
        help="A library stage, such as 'gopher_quality(words_min=80)', or FILE.py:NAME of a pipeline file.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what starts and stops; change nothing.")]
Parameters = Annotated[
    list[str],
    typer.Option("-p", "--parameter", metavar="NAME=VALUE", help="A parameter of FILE.py's build(); repeatable."),
]


def insert(
    pipeline: Name,
    stage: NewStage,
    after: str = typer.Option("", "--after", metavar="NAME", help="The stage that it reads from."),
    before: str = typer.Option("", "--before", metavar="NAME", help="The stage that reads from it."),
    parameter: Parameters = [],  # noqa: B006 - typer copies it
    dry_run: DryRun = False,
    *,
    canary: CanaryOptions,
    on: ControllerOptions,
    json: Json = False,
) -> int:
    """Insert a stage into a running pipeline, without a pause."""
    from headrace.client import UsageError

    if not after and not before:
        raise UsageError("say where: --after NAME, --before NAME, or both")

    def edit(old: Pipeline, new: Sequence[PipelineStage]) -> Pipeline:
        return old.with_inserted(*new, after=after, before=before)

    return reconfigure.surgery(on.at(), pipeline, stage, parameter, edit, dry_run=dry_run, canary=canary, as_json=json)


def replace(
    pipeline: Name,
    name: OldStage,
    stage: NewStage,
    parameter: Parameters = [],  # noqa: B006 - typer copies it
    dry_run: DryRun = False,
    *,
    canary: CanaryOptions,
    on: ControllerOptions,
    json: Json = False,
) -> int:
    """Replace a stage of a running pipeline, without a pause."""

    def edit(old: Pipeline, new: Sequence[PipelineStage]) -> Pipeline:
        return old.with_replaced(name, *new)

    return reconfigure.surgery(on.at(), pipeline, stage, parameter, edit, dry_run=dry_run, canary=canary, as_json=json)


def remove(
    pipeline: Name,
    name: OldStage,
    dry_run: DryRun = False,
    *,
    canary: CanaryOptions,
    on: ControllerOptions,
    json: Json = False,
) -> int:
    """Remove a stage from a running pipeline, without a pause."""
    return reconfigure.surgery(
        on.at(), pipeline, "", [], lambda old, _: old.with_removed(name), dry_run=dry_run, canary=canary, as_json=json
    )


def drain(
    worker: str = typer.Argument(metavar="WORKER", help="The worker's name."),
    back: bool = typer.Option(False, "--back", help="Admit tasks to it again."),
    *,
    on: ControllerOptions,
    wait: Wait = False,
    json: Json = False,
) -> int:
    """Move all tasks off a worker, while records flow."""
    return reconfigure.drain(on.at(), worker, back=back, wait=wait, as_json=json)


def stop(
    pipeline: Name,
    *,
    on: ControllerOptions,
    now: bool = typer.Option(False, "--now", help="Same as `cancel`."),
    wait: Wait = False,
    json: Json = False,
) -> int:
    """Stop a pipeline; its sinks commit what they hold first."""
    return reconfigure.stop(on.at(), pipeline, cancel=now, wait=wait, as_json=json)


def cancel(pipeline: Name, *, on: ControllerOptions, wait: Wait = False, json: Json = False) -> int:
    """Stop a pipeline at once; the next run reads again what its sinks hold."""
    return reconfigure.stop(on.at(), pipeline, cancel=True, wait=wait, as_json=json)


def clear(
    pipeline: str = typer.Argument("", metavar="PIPELINE", help="An ended pipeline; default: every ended pipeline."),
    *,
    on: ControllerOptions,
    json: Json = False,
) -> int:
    """Remove ended pipelines from `status`; their datasets stay."""
    return reconfigure.clear(on.at(), pipeline, as_json=json)
