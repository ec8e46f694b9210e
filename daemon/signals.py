"""The signals that end a process in order, and the second of two, which ends it whatever its threads do.

A handler in Python has its turn when the main thread takes one: never while a call of C holds the interpreter, and late
while it waits for what does not answer. So each handler is good for one signal (`SA_RESETHAND`): the kernel puts the
default in its place as it is delivered, without anybody's turn, and the next signal of that kind ends the process. Who
makes something of a second one too sets a handler again, and a limit for what it makes of it (`end_within`).

What a process has started ends with it: `headrace.daemon.child_processes`.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
from collections.abc import Callable, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import asyncio

#: Ctrl-C, and what a service manager sends.
ENDING = (signal.SIGINT, signal.SIGTERM)
#: Seconds that a process has to end once it was sent two signals; what it has started has `lifeline.END_S` more.
SECOND_S = 2.5
_SA_RESETHAND = 0x80000000
_SIGSET_BYTES = 128

Handler = Callable[[int, FrameType | None], Any]


class _Action(ctypes.Structure):
    """`struct sigaction` of the C library (sigaction(2)), as glibc and musl have it on 64-bit Linux."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_byte * _SIGSET_BYTES),
        ("flags", ctypes.c_uint),
        ("restorer", ctypes.c_void_p),
    )


def heard() -> tuple[signal.Signals, ...]:
    """Those of ENDING that are not ignored.

    A shell without job control has what it starts in the background ignore Ctrl-C, which is meant for what runs before
    it; so does `trap '' TERM`. A handler of our own would undo that.
    """
    return tuple(number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN)


def hear(handler: Handler) -> dict[signal.Signals, Any]:
    """Have a handler called at the next signal of each kind that is heard; the handlers before. On the main thread."""
    before = {number: signal.signal(number, handler) for number in heard()}
    for number in before:
        _once(number)
    return before


def restore(before: Mapping[signal.Signals, Any]) -> None:
    """Put back what `hear` has replaced. On the main thread."""
    for number, handler in before.items():
        signal.signal(number, handler)
        _once(number)


def hear_on(loop: asyncio.AbstractEventLoop, told: Callable[[], object]) -> None:
    """Have `told` called on a running loop at the first signal of each kind that is heard. On the main thread."""
    for number in heard():
        loop.add_signal_handler(number, told)
        _once(number)


def be_interrupted() -> None:
    """Have the first Ctrl-C raise KeyboardInterrupt, as Python does by itself, and the second end the process."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
        _once(signal.SIGINT)


def end_within(seconds: float) -> None:
    """Have the kernel end this process in so long, or sooner where it was told so, whatever its threads do.

    On the main thread, or set up there.
    """
    if 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= seconds:
        return
    with contextlib.suppress(ValueError):  # the main thread alone may set it, and has, where another asks
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _once(number: int) -> None:
    """Have the kernel forget the handler of a signal as it delivers one."""
    change = ctypes.CDLL(None, use_errno=True).sigaction
    action = _Action()
    if change(number, None, ctypes.byref(action)) == 0:
        action.flags |= _SA_RESETHAND
        change(number, ctypes.byref(action), None)
