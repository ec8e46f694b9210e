"""What takes long while a pipeline is declared, told to whoever declares it; nothing here prints."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

logger = logging.getLogger("headrace.stages")

_listener: ContextVar[Callable[[str], None] | None] = ContextVar("headrace_declaration", default=None)


@contextmanager
def told_to(listener: Callable[[str], None]) -> Iterator[None]:
    """Inside, each line goes to `listener`."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def tell(line: str) -> None:
    """Tell a line to who listens; else to the log."""
    listener = _listener.get()
    if listener is None:
        logger.info(line)
    else:
        listener(line)
