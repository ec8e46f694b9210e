"""A listing of a source: whose page it is."""

from headrace.controller.core.messages import messages as m
from headrace.controller.core.plan.plans import TaskPlan
from headrace.controller.core.run.input.listing import Listing
from headrace.controller.core.run.tasks.task_table import RunTask, TaskPhase
from headrace.store.ledger.core.fold import LedgerState
from tests.kits.controller.core import of


def page(task: str, listing: int) -> m.SourceListed:
    return m.SourceListed(task, 1, "read", (), last=True, listing=listing)


def test_a_page_is_of_the_task_and_listing_that_were_asked() -> None:
    listing = Listing(LedgerState(), ("read",), ("write",))
    assert not listing.expects(page("run/read.0", 1)), "nobody was asked"
    task = RunTask(TaskPlan("run/read.0", ("read",), "w1", 0), TaskPhase.READY)
    (ask,) = of(m.ListSource, listing.ask([task]))
    assert listing.expects(page("run/read.0", ask.listing))
    assert not listing.expects(page("run/read.1", ask.listing))
    assert not listing.expects(page("run/read.0", ask.listing + 1))
