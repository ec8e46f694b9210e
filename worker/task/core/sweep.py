"""Markers on their way through one task: the pure half of a sweep (controller/core/run/input/intake.py says what it is
for).
"""

from __future__ import annotations


class Sweeping:
    """Which marker has come in on which input.

    A sweep is due when the controller has asked for it and every input has brought its marker. A source has no inputs
    and is asked alone. A marker of an abandoned sweep is lower than the one asked for and moves nothing.
    """

    def __init__(self) -> None:
        self._asked = 0
        self._halt = False
        self._done = 0
        self._inputs: dict[str, int] = {}

    def asked(self, sweep: int, *, halt: bool = False) -> None:
        """The controller asks for a sweep; `halt`: let go of what has not been sent."""
        if sweep > self._asked:
            self._asked, self._halt = sweep, halt

    def opened(self, link: str) -> None:
        """An input link stands."""
        self._inputs.setdefault(link, 0)

    def closed(self, link: str) -> None:
        """An input link is gone; nothing more comes on it."""
        self._inputs.pop(link, None)

    def arrived(self, link: str, sweep: int) -> None:
        """A marker came in, behind all that was sent before it on this link."""
        if link in self._inputs:
            self._inputs[link] = max(self._inputs[link], sweep)

    @property
    def halting(self) -> bool:
        """Whether the sweep that is due wants sources to let go of what they have not sent."""
        return self._halt

    def due(self) -> int | None:
        """The sweep to pass on and answer now."""
        if self._asked > self._done and all(seen >= self._asked for seen in self._inputs.values()):
            return self._asked
        return None

    def passed(self, sweep: int) -> None:
        """The marker was passed on and the answer given."""
        self._done = max(self._done, sweep)
