"""The commands of an operator: what a controller's pipelines do, and what they are to do otherwise.

Like those of `main`, they import what they need when they run.
"""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli import ClusterFolder, ControllerAddress, Json

Name = Annotated[str, typer.Argument(metavar="PIPELINE", help="The pipeline's name.")]
Maybe = Annotated[str, typer.Argument(metavar="PIPELINE", help="One pipeline; else all.")]
Stage = Annotated[str, typer.Argument(metavar="STAGE", help="The stage's name.")]
Wait = Annotated[bool, typer.Option("--wait", help="Return when it has come true.")]


def add_to(app: typer.Typer) -> None:
    """Give an application these commands."""
    for command in (status, top, logs, pause, resume, scale, move, relink, drain, stop, cancel, clear):
        app.command()(command)


def status(
    pipeline: Maybe = "",
    controller: ControllerAddress = "",
    cluster: ClusterFolder = "",
    json: Json = False,
) -> int:
    """Show workers, pipelines, tasks and links."""
    from headrace.cli.commands.apply import show_status
    from headrace.client import controller_at

    return show_status(controller_at(controller, cluster), pipeline, as_json=json)


def top(
    pipeline: Maybe = "",
    once: Annotated[bool, typer.Option("--once", help="Show it once, after a second's look, and end.")] = False,
    controller: ControllerAddress = "",
    cluster: ClusterFolder = "",
    json: Json = False,
) -> int:
    """Show rates, credit, and who holds whom up, until Ctrl-C."""
    from headrace.cli.commands.top import show_top
    from headrace.client import controller_at

    return show_top(controller_at(controller, cluster), pipeline, once=once, as_json=json)


def logs(
    pipeline: Annotated[str, typer.Option(metavar="NAME", help="Lines about this pipeline.")] = "",
    stage: Annotated[
        str, typer.Option(metavar="NAME", help="Lines of the tasks of this stage; name the pipeline too.")
    ] = "",
    task: Annotated[str, typer.Option(metavar="NAME", help="Lines about this task, such as plain/read.0.")] = "",
    cause: Annotated[
        str,
        typer.Option(metavar="NAME", help="What a cause led to, on every node; it stands at the end of a line."),
    ] = "",
    level: Annotated[
        str, typer.Option(metavar="LEVEL", help="Lines of debug, info, warning or error, and of what is worse.")
    ] = "",
    since: Annotated[
        str, typer.Option(metavar="AGO|TIME", help="Lines since 30s, 10m, 2h or 1d ago, or 2026-05-04T12:30.")
    ] = "",
    lines: Annotated[int, typer.Option(min=1, metavar="N", help="The newest N lines of those.")] = 500,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")] = False,
    controller: ControllerAddress = "",
    cluster: ClusterFolder = "",
    json: Json = False,
) -> int:
    """Show what the controller, the workers and the tasks say, in the order of time."""
    from headrace.cli.commands.logs import search_for, show_logs
    from headrace.client import controller_at

    search = search_for(pipeline, stage, task, cause, level, since, follow=follow)
    return show_logs(controller_at(controller, cluster), search, lines_max=lines, as_json=json)


def pause(
    pipeline: Name,
    controller: ControllerAddress = "",
    cluster: ClusterFolder = "",
    wait: Wait = False,
    json: Json = False,
) -> int:
    """Have a pipeline stand still; what its sinks hold is committed first."""
    from headrace.cli.commands import reconfigure
    from headrace.client import controller_at

    return reconfigure.pause(controller_at(controller, cluster), pipeline, wait=wait, as_json=json)


def resume(
    pipeline: Name,
    controller: ControllerAddress = "",
    cluster: ClusterFolder = "",
    wait: Wait = False,
    json: Json = False,
) -> int:
    """Have a paused pipeline go on."""
    from headrace.cli.commands import reconfigure
    from headrace.client import controller_at

    return reconfigure.resume(controller_at(controller, cluster), pipeline, wait=wait, as_json=json)


def scale(
    pipeline: Name,
    stage: Stage,
    tasks: Annotated[int, typer.Argument(metavar="N", min=1, help="How many tasks it is to have.")],
    controller: ControllerAddress = "",
    cluster: ClusterFolder = "",
    wait: Wait = False,
    json: Json = False,
) -> int:
    """Give a stage, and those that are fused with it, another number of tasks."""
    from headrace.cli.commands import reconfigure
    from headrace.client import controller_at

    return reconfigure.scale(controller_at(controller, cluster), pipeline, stage, tasks, wait=wait, as_json=json)


def move(
    pipeline: Name,
    stage: Stage,
    place: Annotated[str, typer.Argument(metavar="PLACE", help="A worker's name, or a label.")],
    controller: ControllerAddress = "",
    cluster: ClusterFolder = "",
    wait: Wait = False,
    json: Json = False,
) -> int:
    """Bind a stage to a worker, or to those of a label."""
    from headrace.cli.commands import reconfigure
    from headrace.client import controller_at

    return reconfigure.move(controller_at(controller, cluster), pipeline, stage, place, wait=wait, as_json=json)


def relink(
    pipeline: Name,
    stage: Stage,
    transport: Annotated[
        str, typer.Argument(metavar="ring|pipe|quic", help="What is to join it to the one before it.")
    ],
    controller: ControllerAddress = "",
    cluster: ClusterFolder = "",
    wait: Wait = False,
    json: Json = False,
) -> int:
    """Join a stage to the one before it by another transport."""
    from headrace.cli.commands import reconfigure
    from headrace.client import controller_at

    return reconfigure.relink(controller_at(controller, cluster), pipeline, stage, transport, wait=wait, as_json=json)


def drain(
    worker: Annotated[str, typer.Argument(metavar="WORKER", help="The worker's name.")],
    back: Annotated[bool, typer.Option("--back", help="Let it have tasks again.")] = False,
    controller: ControllerAddress = "",
    cluster: ClusterFolder = "",
    wait: Wait = False,
    json: Json = False,
) -> int:
    """Take the tasks of every pipeline off a worker."""
    from headrace.cli.commands import reconfigure
    from headrace.client import controller_at

    return reconfigure.drain(controller_at(controller, cluster), worker, back=back, wait=wait, as_json=json)


def stop(
    pipeline: Name,
    controller: ControllerAddress = "",
    cluster: ClusterFolder = "",
    now: Annotated[bool, typer.Option("--now", help="As `cancel`.")] = False,
    wait: Wait = False,
    json: Json = False,
) -> int:
    """Stop a pipeline; what its sinks hold is committed first."""
    from headrace.cli.commands import reconfigure
    from headrace.client import controller_at

    return reconfigure.stop(controller_at(controller, cluster), pipeline, cancel=now, wait=wait, as_json=json)


def cancel(
    pipeline: Name,
    controller: ControllerAddress = "",
    cluster: ClusterFolder = "",
    wait: Wait = False,
    json: Json = False,
) -> int:
    """End a pipeline at once; what its sinks hold is read again by the next run."""
    from headrace.cli.commands import reconfigure
    from headrace.client import controller_at

    return reconfigure.stop(controller_at(controller, cluster), pipeline, cancel=True, wait=wait, as_json=json)


def clear(
    pipeline: Annotated[str, typer.Argument(metavar="PIPELINE", help="One that has ended; else all that have.")] = "",
    controller: ControllerAddress = "",
    cluster: ClusterFolder = "",
    json: Json = False,
) -> int:
    """Take pipelines that have ended out of `status`; their datasets stay as they are."""
    from headrace.cli.commands import reconfigure
    from headrace.client import controller_at

    return reconfigure.clear(controller_at(controller, cluster), pipeline, as_json=json)
