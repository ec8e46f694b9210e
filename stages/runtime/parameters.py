"""Checks of a declaration's parameters; each error names stage, parameter, value and remedy."""

from __future__ import annotations

from typing import Any

from headrace.pipeline import PipelineError


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
