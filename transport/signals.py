"""The signals that end a process in order, which it hears unless whoever started it wished it not to."""

import signal

#: Ctrl-C, and what a service manager sends.
ENDING = (signal.SIGINT, signal.SIGTERM)


def heard() -> tuple[signal.Signals, ...]:
    """Those of ENDING that are not ignored.

    A shell without job control has what it starts in the background ignore Ctrl-C, which is meant for what runs before
    it; so does `trap '' TERM`. A handler of our own would undo that.
    """
    return tuple(number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN)
