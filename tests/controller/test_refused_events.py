"""What is not believed is told at a bounded rate, however often it is said."""

import pytest

from headrace.controller.effects.lines import LINES_MAX, WINDOW_S
from headrace.controller.shell import RefusedEvents


def test_a_worker_that_lies_endlessly_gets_lines_and_a_number(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    doubts = RefusedEvents(lambda: now[0])
    for _ in range(1000):
        doubts.tell("liar", "a lie")
    doubts.tell("other", "a mistake")
    assert len(caplog.records) == LINES_MAX + 1, "one worker's lies hide no other's"
    now[0] = WINDOW_S
    doubts.tell("liar", "a lie")
    assert caplog.records[-1].getMessage() == f"not believed: a lie; {1000 - LINES_MAX} more were not told"
    doubts.forget("liar")
    assert "liar" not in doubts._told
