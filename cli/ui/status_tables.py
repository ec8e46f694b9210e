"""The tables of `headrace status`: workers, tasks and links. What is many and alike is a row with a count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import RenderableType

from headrace.cli.ui.page import plain_table
from headrace.cli.ui.words import number
from headrace.controller.core.plan import size
from headrace.protos import control_pb2 as pb

#: Tasks, and links, that have a row each; `--json` has all of them.
ROWS_MAX = 60


def workers_table(reply: pb.StatusReply) -> RenderableType:
    """The workers, each with what the tasks of all pipelines take of it; a column that says nothing is left out."""
    tasks = Counter(task.worker for item in reply.pipelines for task in item.tasks if task.state != "stopped")
    names = ("worker", "state", "tasks", "cores", "reserved", "host", "process", "labels", "addresses")
    rows = [
        (
            item.worker,
            item.state,
            number(tasks[item.worker]),
            item.cores,
            _reserved(item),
            item.host,
            item.pid,
            " ".join(item.labels),
            " ".join(item.addresses),
        )
        for item in sorted(reply.workers, key=lambda item: item.worker)
    ]
    shown = [index for index in range(len(names)) if any(row[index] != "" for row in rows)]
    right = [shown.index(index) for index in (2, 3, 6)]
    return plain_table([names[index] for index in shown], [[row[index] for index in shown] for row in rows], right)


def _reserved(worker: pb.WorkerStatus) -> str:
    parts = [f"{worker.cores_reserved:g} cores"] if worker.cores_reserved else []
    parts += [size(worker.memory_reserved_bytes)] if worker.memory_reserved_bytes else []
    return ", ".join(parts)


def queues_table(reply: pb.StatusReply) -> RenderableType:
    """A row a queue."""
    rows = [
        (
            item.queue,
            number(item.priority),
            number(item.weight),
            f"{item.cores}{f' of {item.cores_max}' if item.cores_max else ''}",
            f"{item.fair_share:.3g}",
            _few(item.granted),
            _few(item.waiting),
        )
        for item in reply.queues
    ]
    names = ("queue", "priority", "weight", "cores", "fair share", "has cores", "waits, the next first")
    return plain_table(names, rows, right=(1, 2, 3, 4))


#: Pipelines of a queue that a row names; the others are counted.
NAMED_MAX = 3


def _few(names: Sequence[str]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join([*names[:NAMED_MAX], *([f"{number(more)} more"] if more > 0 else [])])


def tasks_table(status: pb.PipelineStatus) -> RenderableType | None:
    """A row a task; of many tasks, a row for those of the same stages in the same state."""
    if len(status.tasks) > ROWS_MAX:
        alike = Counter((", ".join(task.stages), task.state) for task in status.tasks)
        restarts: Counter[tuple[str, str]] = Counter()
        for task in status.tasks:
            restarts[", ".join(task.stages), task.state] += task.restarts
        rows = [(*key, number(count), number(restarts[key])) for key, count in alike.items()]
        return plain_table(("stages", "state", "tasks", "restarts"), rows, right=(2, 3))
    each = [(task.task, ", ".join(task.stages), task.worker, task.state, task.restarts) for task in status.tasks]
    return plain_table(("task", "stages", "worker", "state", "restarts"), each, right=(4,)) if each else None


def links_table(status: pb.PipelineStatus) -> RenderableType | None:
    """A row a link; of many links, a row for those between the same stages, and one for each that is in trouble."""
    of, unknown = {task.task: task for task in status.tasks}, pb.TaskStatus()
    ends = [(item, of.get(item.sender, unknown), of.get(item.receiver, unknown)) for item in status.links]
    if len(ends) > ROWS_MAX:
        alike = Counter(
            (", ".join(sender.stages), _transport(item), ", ".join(receiver.stages), _trouble(item))
            for item, sender, receiver in ends
        )
        rows = [(*key[:3], number(count), key[3]) for key, count in alike.items()]
        return _table(("from", "transport", "to", "links", "trouble"), rows, right=(3,))
    each = [
        (item.link, sender.worker, _transport(item), receiver.worker, item.trouble) for item, sender, receiver in ends
    ]
    return _table(("link", "from", "transport", "to", "trouble"), each) if each else None


def _transport(link: pb.LinkStatus) -> str:
    """`ring`, or `quic via W` where a third worker relays."""
    return f"{link.transport} via {link.via}" if link.via else link.transport


def _trouble(link: pb.LinkStatus) -> str:
    return f"{link.link}: {link.trouble}" if link.trouble else ""


def _table(names: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> RenderableType:
    """A table whose last column is left out where it is empty."""
    used = len(names) if any(row[-1] for row in rows) else len(names) - 1
    return plain_table(names[:used], [row[:used] for row in rows], right)
