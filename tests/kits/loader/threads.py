"""The threads that a test starts, apart from those that tests before it left to end by themselves."""

from __future__ import annotations

import threading
from collections.abc import Callable


def watch_threads(name: str) -> Callable[[], list[threading.Thread]]:
    """A function that lists the living threads of this name that were started since."""
    before = set(threading.enumerate())
    return lambda: [one for one in threading.enumerate() if one.name == name and one not in before]
