"""Markers on their way through one task."""

from headrace.worker.task.core.sweep import Sweeping


def test_a_source_is_due_when_it_is_asked() -> None:
    sweeping = Sweeping()
    assert sweeping.due() is None
    sweeping.asked(1)
    assert sweeping.due() == 1
    sweeping.passed(1)
    assert sweeping.due() is None


def test_a_task_waits_for_the_marker_on_each_input() -> None:
    sweeping = Sweeping()
    sweeping.opened("a")
    sweeping.opened("b")
    sweeping.asked(1)
    sweeping.arrived("a", 1)
    assert sweeping.due() is None
    sweeping.arrived("b", 1)
    assert sweeping.due() == 1


def test_a_marker_may_come_before_the_controller_asks() -> None:
    sweeping = Sweeping()
    sweeping.opened("a")
    sweeping.arrived("a", 2)
    assert sweeping.due() is None
    sweeping.asked(2)
    assert sweeping.due() == 2


def test_a_link_that_is_gone_is_waited_for_no_more() -> None:
    sweeping = Sweeping()
    sweeping.opened("a")
    sweeping.opened("b")
    sweeping.asked(1)
    sweeping.arrived("a", 1)
    sweeping.closed("b")
    assert sweeping.due() == 1
    sweeping.arrived("b", 1)
    sweeping.closed("b")


def test_a_link_that_is_made_anew_brings_its_own_marker() -> None:
    sweeping = Sweeping()
    sweeping.opened("a")
    sweeping.asked(1)
    sweeping.arrived("a", 1)
    sweeping.passed(1)
    sweeping.closed("a")
    sweeping.opened("a")
    sweeping.asked(2)
    assert sweeping.due() is None
    sweeping.arrived("a", 2)
    assert sweeping.due() == 2


def test_the_marker_of_an_abandoned_sweep_moves_nothing() -> None:
    sweeping = Sweeping()
    sweeping.opened("a")
    sweeping.asked(1)
    sweeping.asked(3, halt=True)
    sweeping.arrived("a", 1)
    assert sweeping.due() is None
    sweeping.asked(2)
    sweeping.arrived("a", 3)
    assert sweeping.due() == 3
    assert sweeping.halting
    sweeping.passed(3)
    sweeping.asked(4)
    assert not sweeping.halting
