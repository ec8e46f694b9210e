"""The group `queue`: who shares a cluster, and by what weights, quotas and priorities."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.ui import ControllerOptions, Json, print_json

Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]


def add_to(app: typer.Typer, group: typer.Typer) -> None:
    """Give an application the group `queue`."""
    group.command("set")(set_queue)
    group.command("list")(list_queues)
    group.command("remove")(remove)
    app.add_typer(group, name="queue")


def set_queue(
    queue: Queue,
    weight: int = typer.Option(1, metavar="N", help="Its fair share beside other queues."),
    cores: int = typer.Option(0, metavar="N", help="Its quota: cores in use at most; 0: none."),
    priority: int = typer.Option(
        0, metavar="N", help="Takes cores from queues of lower priority: their runs seal and wait."
    ),
    *,
    on: ControllerOptions,
    json: Json = False,
) -> int:
    """Make a queue, or change it."""
    from headrace.client import check_numbers
    from headrace.protos import control_pb2 as pb

    check_numbers({"--weight": weight, "--cores": cores, "--priority": priority})
    asked = pb.QueueRequest(queue=queue, weight=weight, cores_max=cores, priority=priority)
    return _ask(asked, f"queue {queue} is set", on, as_json=json)


def list_queues(*, on: ControllerOptions, json: Json = False) -> int:
    """Show queues, their cores, and who waits in which place."""

    from headrace.cli.ui import FAINT, console, queues_table
    from headrace.client import Client
    from headrace.protos import codec

    with Client(on.at()) as client:
        reply = client.status()
    if json:
        return print_json({"queues": [codec.plain(item) for item in reply.queues]})
    out = console()
    if reply.queues:
        out.print(queues_table(reply))
    else:
        out.print("  no queue: make one with `headrace queue set`", style=FAINT)
    return 0


def remove(queue: Queue, *, on: ControllerOptions, json: Json = False) -> int:
    """Remove a queue in which nothing waits or runs."""
    from headrace.protos import control_pb2 as pb

    return _ask(pb.QueueRequest(queue=queue, remove=True), f"queue {queue} is removed", on, as_json=json)


def _ask(asked: object, words: str, on: ControllerOptions, *, as_json: bool) -> int:
    from json import dumps
    from typing import cast

    from headrace.cli.ui import safe
    from headrace.client import Client
    from headrace.protos import codec, control_pb2 as pb

    request = cast("pb.QueueRequest", asked)
    with Client(on.at()) as client:
        client.queue(request)
    print(dumps(codec.plain(request)) if as_json else safe(words))
    return 0
