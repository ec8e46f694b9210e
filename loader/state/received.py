"""A batch on its way from a worker process to the training loop, which has received it once it looks into it.

Worker processes make batches ahead of the loop, and a `DataLoader` tells nobody which of them it has handed over. So a
batch travels with the state behind it (`Sent`), and arrives as a dict that says so when it is first read (`Arrived`):
from then on the process of the loop knows where that stands, whoever's `DataLoader` is between. What pins memory in a
thread of its own does not count as reading; a batch that is never looked into was not trained on.
"""

import os
import threading
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing import parent_process
from typing import Any, Protocol, TypeAlias

import torch

#: (token of its loader, how many states that had been told when the worker began, rows of the batch, the state behind)
Label: TypeAlias = tuple[str, int, int, Mapping[str, Any]]


class StateListener(Protocol):
    """Who is to know what the loop received."""

    def came(self, loads: int, rows: int, state: Mapping[str, Any]) -> None:
        """Take note of a batch of so many rows, behind which `state` stands; `loads` is of its label."""


_RECEIVERS: "weakref.WeakValueDictionary[str, StateListener]" = weakref.WeakValueDictionary()


def new_token() -> str:
    """A name that no other loader has, in any process."""
    return uuid.uuid4().hex


def listen(token: str, receiver: StateListener) -> None:
    """Tell `receiver`, as long as it lives, of the batches with this token that arrive in this process."""
    _RECEIVERS[token] = receiver


class Sent(dict[str, Any]):
    """A batch in the worker that made it."""

    __slots__ = ("_label",)

    def __init__(self, batch: Mapping[str, Any], label: Label) -> None:
        super().__init__(batch)
        self._label = label

    def __copy__(self) -> "Sent":
        return Sent(self, self._label)

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (dict(self), self._label)


def _arrived(batch: dict[str, Any], label: Label) -> dict[str, Any]:
    token, loads, rows, state = label

    def note() -> None:
        receiver = _RECEIVERS.get(token)
        if receiver is not None:
            receiver.came(loads, rows, state)

    return Arrived(batch, note)


class Arrived(dict[str, Any]):
    """A batch in the process of the loop. It tells once that it was looked into."""

    __slots__ = ("_note",)

    def __init__(self, batch: Iterable[Any] = (), note: Callable[[], None] | None = None, **fields: Any) -> None:
        super().__init__(batch, **fields)
        self._note = note

    def look(self) -> dict[str, Any]:
        """The batch, which counts as received from now on."""
        note, self._note = self._note, None
        if note is not None:
            note()
        return self

    def pin_memory(self) -> "Arrived":
        """The same in pinned memory, for a `DataLoader` that was asked for it; nobody has received it by that."""
        pinned = {
            name: value.pin_memory() if isinstance(value, torch.Tensor) else value for name, value in super().items()
        }
        return Arrived(pinned, self._note)

    # every way to read a dict; since `__iter__` is one of them, `dict(batch)` and `f(**batch)` come by `__getitem__`
    def __getitem__(self, name: str) -> Any:
        self.look()
        return super().__getitem__(name)

    def __iter__(self) -> Iterator[str]:
        self.look()
        return super().__iter__()

    def get(self, name: str, default: Any = None) -> Any:
        """See `dict.get`."""
        self.look()
        return super().get(name, default)

    def keys(self) -> Any:
        """See `dict.keys`."""
        self.look()
        return super().keys()

    def values(self) -> Any:
        """See `dict.values`."""
        self.look()
        return super().values()

    def items(self) -> Any:
        """See `dict.items`."""
        self.look()
        return super().items()

    def pop(self, *arguments: Any) -> Any:
        """See `dict.pop`."""
        self.look()
        return super().pop(*arguments)

    def popitem(self) -> tuple[str, Any]:
        """See `dict.popitem`."""
        self.look()
        return super().popitem()

    def copy(self) -> dict[str, Any]:
        """See `dict.copy`."""
        self.look()
        return dict(self)

    __copy__ = copy

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self.copy(),)


def end_with_parent() -> None:
    """Have this worker process end when the process that began it has ended.

    PyTorch compares the parent's process id with that at the worker's begin. A worker that begins after its parent's
    death sees no change, and lives on.
    """
    parent = parent_process()
    if parent is not None:

        def wait() -> None:
            # without a deadline on purpose: the training loop may take any time
            parent.join()
            os._exit(1)

        threading.Thread(target=wait, name="headrace parent", daemon=True).start()
