"""What numba and LLVM are asked for by name, loaded when a loop is compiled and not before.

A process whose loops are machine code already loads no compiler, and an installation that has them needs none.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cached_property
from typing import Any


class _Later:
    """A module that is imported when something of it is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


# What they say of their own types is not what they take.
ir: Any = _Later("llvmlite.ir")
types: Any = _Later("numba.types")


class _Intrinsic:
    """What numba takes for an intrinsic in a loop that it compiles."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.__doc__, self.__name__ = function.__doc__, function.__name__

    @cached_property
    def _made(self) -> Any:
        from numba import extending

        return extending.intrinsic(self._function)

    @cached_property
    def _numba_type_(self) -> Any:
        from numba.core import registry

        made: Any = self._made
        context: Any = registry.cpu_target.typing_context
        context.refresh()
        return context.resolve_value_type(made)


def intrinsic(function: Callable[..., Any]) -> Any:
    """A function that gives the types of a call and what generates its code: numba's `intrinsic`, later."""
    return _Intrinsic(function)
