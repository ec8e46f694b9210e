"""Checks of a declaration's parameters, each naming stage, parameter and remedy, and progress of what takes long."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from headrace.pipeline import PipelineError

logger = logging.getLogger("headrace.stages")

_listener: ContextVar[Callable[[str], None] | None] = ContextVar("headrace_declaration", default=None)


@contextmanager
def progress_to(listener: Callable[[str], None]) -> Iterator[None]:
    """Inside, each line goes to `listener`."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def tell(line: str) -> None:
    """Give a line to the listener, or else to the log."""
    listener = _listener.get()
    if listener is None:
        logger.info(line)
    else:
        listener(line)


def check_integer(stage: str, parameter: str, value: Any, least: int, most: int) -> None:
    """Raise PipelineError unless `value` is an int in `[least, most]`."""
    if type(value) is not int or not least <= value <= most:
        raise PipelineError(f'stage "{stage}": {parameter} is {value!r}; it must be an integer from {least} to {most}')


def check_number(stage: str, parameter: str, value: Any, least: float, most: float) -> None:
    """Raise PipelineError unless `value` is a number in `[least, most]`."""
    if type(value) not in (int, float) or not least <= value <= most:
        raise PipelineError(f'stage "{stage}": {parameter} is {value!r}; it must be a number from {least} to {most}')


def check_text(stage: str, parameter: str, value: Any) -> None:
    """Raise PipelineError unless `value` is a string of at least one character."""
    if not isinstance(value, str) or not value.strip():
        raise PipelineError(f'stage "{stage}": {parameter} is {value!r}; it must be a string that is not empty')


def check_path(stage: str, parameter: str, value: Any) -> str:
    """A path, or a text that may name one, as text. Raises PipelineError as `check_text`."""
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    check_text(stage, parameter, text)
    return str(text)
