"""What a worker says of its tasks to the next leader: an attempt, how far it is, and its links."""

from headrace.worker.core.supervisor import LiveTasks

SENDER, RECEIVER = ("run/read.0", 3), ("run/dedup.0", 4)


def living() -> LiveTasks:
    live = LiveTasks()
    live.started(*SENDER, "v", 7, ("read",))
    live.started(*RECEIVER, "v", 7, ("write",), fenced=True)
    return live


def test_an_attempt_is_told_as_it_was_started() -> None:
    told = {
        name: (entry.attempt, entry.version, entry.epoch, entry.fenced, entry.ready, entry.linked)
        for name, entry in living().tasks.items()
    }
    assert told == {SENDER[0]: (3, "v", 7, False, False, False), RECEIVER[0]: (4, "v", 7, True, False, False)}


def test_only_the_living_attempt_becomes_ready() -> None:
    live = living()
    live.ready(SENDER[0], SENDER[1] - 1, {})
    live.ready("run/other.0", 1, {})
    assert not live.tasks[SENDER[0]].ready
    live.ready(*SENDER, {"engine": "some"}, ("host:1",))
    entry = live.tasks[SENDER[0]]
    assert (entry.ready, entry.facts, entry.addresses) == (True, {"engine": "some"}, ("host:1",))


def test_a_link_is_told_of_by_the_end_that_lives_here() -> None:
    live = living()
    live.linked("elsewhere", ("run/read.1", 1), ("run/write.1", 1))
    live.linked("of an earlier attempt", (SENDER[0], SENDER[1] - 1), ("run/write.1", 1))
    assert (live.links, live.tasks[SENDER[0]].linked) == ({}, False)
    live.linked("link", SENDER, ("run/write.1", 1), 2)
    assert (live.tasks[SENDER[0]].linked, live.tasks[RECEIVER[0]].linked) == (True, False)
    assert (live.links["link"].sender, live.links["link"].receiver, live.links["link"].generation) == (
        SENDER,
        ("run/write.1", 1),
        2,
    )


def test_a_link_is_gone_when_that_making_is_cut() -> None:
    live = living()
    live.linked("link", SENDER, RECEIVER, 2)
    live.cut("link", 1)
    live.cut("other", 2)
    assert list(live.links) == ["link"]
    live.cut("link", 2)
    assert live.links == {}
    assert live.tasks[RECEIVER[0]].linked, "it has served, whatever became of the link"


def test_an_attempt_that_is_gone_takes_its_links_with_it() -> None:
    live = living()
    live.linked("link", SENDER, RECEIVER)
    live.linked("other", ("run/read.1", 1), RECEIVER)
    live.exited(SENDER[0], SENDER[1] - 1)
    assert set(live.tasks) == {SENDER[0], RECEIVER[0]}
    assert set(live.links) == {"link", "other"}
    live.exited(*SENDER)
    assert set(live.tasks) == {RECEIVER[0]}
    assert set(live.links) == {"other"}
