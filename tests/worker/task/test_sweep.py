"""Markers on their way through one task."""

from headrace.worker.task.core.task import SweepMarkers


def test_a_source_is_due_when_it_is_asked() -> None:
    markers = SweepMarkers()
    assert markers.due() is None
    markers.asked(1)
    assert markers.due() == 1
    markers.passed(1)
    assert markers.due() is None


def test_a_task_waits_for_the_marker_on_each_input() -> None:
    markers = SweepMarkers()
    markers.opened("a")
    markers.opened("b")
    markers.asked(1)
    markers.arrived("a", 1)
    assert markers.due() is None
    markers.arrived("b", 1)
    assert markers.due() == 1


def test_a_marker_may_come_before_the_controller_asks() -> None:
    markers = SweepMarkers()
    markers.opened("a")
    markers.arrived("a", 2)
    assert markers.due() is None
    markers.asked(2)
    assert markers.due() == 2


def test_a_link_that_is_gone_is_waited_for_no_more() -> None:
    markers = SweepMarkers()
    markers.opened("a")
    markers.opened("b")
    markers.asked(1)
    markers.arrived("a", 1)
    markers.closed("b")
    assert markers.due() == 1
    markers.arrived("b", 1)
    markers.closed("b")


def test_a_link_that_is_made_anew_brings_its_own_marker() -> None:
    markers = SweepMarkers()
    markers.opened("a")
    markers.asked(1)
    markers.arrived("a", 1)
    markers.passed(1)
    markers.closed("a")
    markers.opened("a")
    markers.asked(2)
    assert markers.due() is None
    markers.arrived("a", 2)
    assert markers.due() == 2


def test_the_marker_of_an_abandoned_sweep_moves_nothing() -> None:
    markers = SweepMarkers()
    assert not markers.halting
    markers.opened("a")
    markers.asked(1)
    markers.asked(3, halt=True)
    markers.arrived("a", 1)
    assert markers.due() is None
    markers.asked(2)
    markers.arrived("a", 3)
    assert markers.due() == 3
    assert markers.halting
    markers.passed(3)
    markers.asked(4)
    assert not markers.halting
