"""Who has proved nothing gives way: the oldest of the address that has most, and nobody else."""

from __future__ import annotations

from headrace.controller.effects.lines import LINES_MAX, WINDOW_S, LineBudget
from headrace.controller.membership.joining import Strangers


def test_the_oldest_of_the_address_with_most_gives_way() -> None:
    gone: list[str] = []
    strangers = Strangers(3)
    for address, name in (("b", "node"), ("a", "a1"), ("a", "a2"), ("a", "a3"), ("c", "c1")):
        strangers.come(address, lambda name=name: gone.append(name))  # type: ignore[misc]
    assert gone == ["a1", "a2"]
    assert len(strangers) == 3


def test_who_has_proved_itself_is_no_stranger_and_gives_way_to_nobody() -> None:
    gone: list[str] = []
    strangers = Strangers(1)
    node = strangers.come("a", lambda: gone.append("node"))
    strangers.go(node)
    for number in range(3):
        strangers.come("a", lambda number=number: gone.append(str(number)))  # type: ignore[misc]
    assert gone == ["0", "1"]
    strangers.go(node)
    assert len(strangers) == 1, "who went twice has gone once"


def test_a_flood_writes_a_bounded_number_of_lines_and_counts() -> None:
    told = LineBudget()
    lines = [told.line("sent away", 0.0) for _ in range(LINES_MAX + 5)]
    assert [line for line in lines if line] == ["sent away"] * LINES_MAX
    assert told.line("sent away", WINDOW_S) == "sent away; 5 more were not told"
