"""When a run wants to be woken: never again and again at a moment that has passed."""

import pytest

from headrace.controller.core.messages.messages import TimePassed
from headrace.controller.core.run.states import WORKING, RunState
from tests.kits.controller.core import Stand


@pytest.mark.parametrize("state", [state for state in RunState if state not in WORKING])
def test_an_absent_worker_is_not_waited_for_after_the_work(state: RunState) -> None:
    stand = Stand()
    stand.join("one")
    started = stand.apply()
    assert started
    run = stand.run
    assert run.works is not None
    run._machine.state, run.works.in_force.adoption.rejoin_at = state, stand.now + 1.0
    stand.now += 2.0
    stand.tell(TimePassed())
    wake_at = run.wake_at()
    assert wake_at is None or wake_at > stand.now
