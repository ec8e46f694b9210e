"""Ctrl-C at any moment: the first stops, the second cancels, and none is lost."""

from typing import Any, cast

from headrace.cli.client import Client
from headrace.cli.progress_lines import Progress
from headrace.cli.run import Interrupts, _obey


class Quiet:
    """A client and a progress that note what they are told."""

    def __init__(self) -> None:
        self.stops: list[bool] = []

    def stop(self, name: str, *, cancel: bool) -> None:
        self.stops.append(cancel)

    def note(self, line: str) -> None:
        pass


class Pressed:
    """Interrupts where Ctrl-C is pressed again behind the second look at how often it was pressed."""

    def __init__(self) -> None:
        self.obeyed, self._looks = 0, 0

    @property
    def asked(self) -> int:
        self._looks += 1
        return 1 if self._looks <= 2 else 2


def obeyed(interrupts: Interrupts, times: int) -> list[bool]:
    told = Quiet()
    for _ in range(times):
        _obey(cast("Client", told), "plain", cast("Progress", told), interrupts)
    return told.stops


def test_the_first_ctrl_c_stops_and_the_second_cancels() -> None:
    assert obeyed(Interrupts(), 2) == []
    assert obeyed(Interrupts(asked=1), 2) == [False]
    assert obeyed(Interrupts(asked=2), 2) == [True]


def test_a_ctrl_c_that_comes_while_the_first_is_obeyed_is_obeyed_next() -> None:
    assert obeyed(cast("Any", Pressed()), 4) == [False, True]
