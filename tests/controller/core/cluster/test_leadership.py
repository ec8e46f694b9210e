"""Leadership of a log: each transition, and what becomes of writes that nobody knows the end of."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from headrace.controller.core.log.leader import (
    BEAT_S,
    CHANGES_MAX,
    RETRY_S,
    RETRY_S_MAX,
    TAKEOVER_S,
    TRANSITIONS,
    UNREADABLE_S,
    WATCH_S,
    InvalidTransitionError,
    Leadership,
    LeaderState,
    LogLimits,
    Turn,
)
from headrace.controller.core.messages.log import (
    EntryFailed,
    EntryOvertaken,
    EntryRefused,
    EntryUnresolved,
    EntryWritten,
    LogRead,
    LogUnreadable,
    ReadLog,
    SnapshotWritten,
    TruncateLog,
    WriteEntry,
    WriteSnapshot,
)
from headrace.controller.core.messages.messages import TimePassed
from headrace.store.ledger.core.entries import Beat, Entry, EpochRaised, Led, PipelineApplied, Resigned
from headrace.store.ledger.core.fold import LedgerState
from tests.kits.controller.core import LOG

ME, OTHER = {"id": "me"}, {"id": "other"}
MINE = Entry(1, (Led(1, ME),))
THEIRS = Entry(1, (Led(1, OTHER),))


def fresh(*, standby: bool = False) -> Leadership[LedgerState]:
    return Leadership(LOG, ME, LedgerState(), standby=standby)


def empty_log_read() -> LogRead:
    return LogRead(LOG, (), after=-1)


def campaigning() -> Leadership[LedgerState]:
    leadership = fresh()
    assert leadership.handle(empty_log_read(), 0.0) == [WriteEntry(LOG, 0, MINE)]
    return leadership


def leading() -> Leadership[LedgerState]:
    leadership = campaigning()
    assert leadership.handle(EntryWritten(LOG, 0), 0.0) == []
    leadership.committed()
    return leadership


def watching(*, alive: bool | None = None, standby: bool = True) -> Leadership[LedgerState]:
    leadership = fresh(standby=standby)
    assert leadership.handle(LogRead(LOG, ((0, THEIRS),), leader_alive=alive, after=-1), 0.0) == []
    return leadership


def writing() -> Leadership[LedgerState]:
    leadership = leading()
    leadership.submit(PipelineApplied("v", {}))
    (write,) = leadership.flush(0.0)
    assert isinstance(write, WriteEntry)
    assert write.number == 1
    return leadership


def resigning() -> Leadership[LedgerState]:
    leadership = leading()
    leadership.resign()
    assert leadership.flush(0.0) == [WriteEntry(LOG, 1, Entry(1, (Resigned(1),)))]
    return leadership


def withdrawing() -> Leadership[LedgerState]:
    leadership = campaigning()
    leadership.resign()
    return leadership


Do = Callable[[Leadership[LedgerState]], object]
REFUSED = EntryRefused(LOG, 0, THEIRS)
OVERTAKEN = EntryOvertaken(LOG, 0)


def hear(event: object, now: float = 0.0) -> Do:
    return lambda leadership: leadership.handle(event, now)


def resign(leadership: Leadership[LedgerState]) -> None:
    leadership.resign()


def drop(leadership: Leadership[LedgerState]) -> None:
    leadership.drop_campaign()


ROWS: list[tuple[Callable[[], Leadership[LedgerState]], Do, LeaderState, Turn]] = [
    (fresh, hear(empty_log_read()), LeaderState.CAMPAIGNING, Turn.LOG_IS_FREE),
    (fresh, hear(LogRead(LOG, ((0, THEIRS),), after=-1)), LeaderState.WATCHING, Turn.LOG_IS_LED),
    (fresh, hear(LogRead(LOG, ((0, THEIRS),), leader_alive=True, after=-1)), LeaderState.DENIED, Turn.LEADER_IS_ALIVE),
    (fresh, resign, LeaderState.RESIGNED, Turn.RESIGN_ASKED),
    (
        watching,
        hear(LogRead(LOG, (), after=0), TAKEOVER_S),
        LeaderState.CAMPAIGNING,
        Turn.LOG_IS_FREE,
    ),
    (watching, hear(LogRead(LOG, (), after=0), WATCH_S), LeaderState.WATCHING, Turn.LOG_IS_LED),
    (
        lambda: watching(standby=False),
        hear(LogRead(LOG, (), leader_alive=True, after=0)),
        LeaderState.DENIED,
        Turn.LEADER_IS_ALIVE,
    ),
    (watching, resign, LeaderState.RESIGNED, Turn.RESIGN_ASKED),
    (campaigning, hear(EntryWritten(LOG, 0)), LeaderState.LEADING, Turn.LED_WRITTEN),
    (campaigning, hear(REFUSED), LeaderState.WATCHING, Turn.LED_REFUSED),
    (campaigning, hear(OVERTAKEN), LeaderState.READING, Turn.LED_OVERTAKEN),
    (withdrawing, hear(OVERTAKEN), LeaderState.RESIGNED, Turn.LED_OVERTAKEN),
    (campaigning, resign, LeaderState.WITHDRAWING, Turn.RESIGN_ASKED),
    (campaigning, drop, LeaderState.RESIGNED, Turn.CAMPAIGN_DROPPED),
    (withdrawing, hear(EntryWritten(LOG, 0)), LeaderState.RESIGNING, Turn.LED_WRITTEN),
    (withdrawing, hear(REFUSED), LeaderState.RESIGNED, Turn.LED_REFUSED),
    (writing, hear(EntryRefused(LOG, 1, Entry(2, (Led(2, OTHER),)))), LeaderState.DEPOSED, Turn.WRITE_REFUSED),
    (leading, resign, LeaderState.RESIGNING, Turn.RESIGN_ASKED),
    (resigning, hear(EntryWritten(LOG, 1)), LeaderState.RESIGNED, Turn.RESIGNATION_WRITTEN),
    (resigning, hear(EntryRefused(LOG, 1, Entry(2, (Led(2, OTHER),)))), LeaderState.DEPOSED, Turn.WRITE_REFUSED),
    (campaigning, hear(EntryFailed(LOG, 0, "no")), LeaderState.BROKEN, Turn.WRITE_FAILED),
    (withdrawing, hear(EntryFailed(LOG, 0, "no")), LeaderState.BROKEN, Turn.WRITE_FAILED),
    (writing, hear(EntryFailed(LOG, 1, "no")), LeaderState.BROKEN, Turn.WRITE_FAILED),
    (resigning, hear(EntryFailed(LOG, 1, "no")), LeaderState.BROKEN, Turn.WRITE_FAILED),
]


@pytest.mark.parametrize(("begin", "do", "state", "turn"), ROWS)
def test_each_turn_leads_where_the_table_says(
    begin: Callable[[], Leadership[LedgerState]], do: Do, state: LeaderState, turn: Turn
) -> None:
    leadership = begin()
    before = leadership.state
    do(leadership)
    assert leadership.state is state
    assert leadership.story()[-1] == f"{before.value} --{turn.value}--> {state.value}"


def test_every_row_of_the_table_has_a_test() -> None:
    assert {(begin().state, turn): state for begin, _, state, turn in ROWS} == TRANSITIONS


def test_a_log_that_cannot_be_written_says_why_and_wants_nothing_more() -> None:
    leadership = writing()
    leadership.handle(EntryFailed(LOG, 1, "the name is not UTF-8"), 0.0)
    assert leadership.why_not_leading() == f"the log of {LOG} cannot be written: the name is not UTF-8"
    assert (leadership.quiet, leadership.wake_at()) == (True, None)


def test_an_unreadable_log_is_looked_at_again_and_says_why() -> None:
    standby = watching()
    standby.handle(LogUnreadable(LOG, "a newer Headrace wrote it"), 0.0)
    assert standby.trouble(0.0) == (0.0, "a newer Headrace wrote it")
    assert standby.handle(TimePassed(), UNREADABLE_S) == [ReadLog(LOG, 0)]
    standby.handle(LogRead(LOG, (), after=0), UNREADABLE_S)
    assert standby.trouble(0.0) == (0.0, "")


def test_an_empty_log_is_led_at_once_even_by_a_standby() -> None:
    assert fresh(standby=True).handle(empty_log_read(), 0.0) == [WriteEntry(LOG, 0, MINE)]


def test_a_log_whose_leader_has_resigned_is_led_at_once() -> None:
    entries = ((0, THEIRS), (1, Entry(1, (Resigned(1),))))
    commands = fresh(standby=True).handle(LogRead(LOG, entries, after=-1), 0.0)
    assert commands == [WriteEntry(LOG, 2, Entry(2, (Led(2, ME),)))]


def test_a_dead_leader_is_succeeded_at_once() -> None:
    commands = fresh().handle(LogRead(LOG, ((0, THEIRS),), leader_alive=False, after=-1), 0.0)
    assert commands == [WriteEntry(LOG, 1, Entry(2, (Led(2, ME),)))]


def test_a_standby_looks_again_and_again_and_waits_for_silence() -> None:
    standby, now = watching(alive=True), 0.0
    while standby.state is LeaderState.WATCHING:
        wake_at = standby.wake_at()
        assert wake_at is not None
        now = wake_at
        assert standby.handle(TimePassed(), now) == [ReadLog(LOG, 0)]
        standby.handle(LogRead(LOG, (), leader_alive=True, after=0), now)
    assert TAKEOVER_S <= now < TAKEOVER_S + WATCH_S


def test_each_entry_of_the_leader_puts_the_standby_off() -> None:
    standby = watching()
    standby.handle(LogRead(LOG, ((1, Entry(1, (Beat(1),))),), after=0), 5.0)
    standby.handle(LogRead(LOG, (), after=1), TAKEOVER_S)
    assert standby.state is LeaderState.WATCHING
    standby.handle(LogRead(LOG, (), after=1), 5.0 + TAKEOVER_S)
    assert standby.state is LeaderState.CAMPAIGNING


def test_nothing_is_written_before_led_is_durable() -> None:
    leadership = campaigning()
    leadership.submit(PipelineApplied("v", {}))
    assert leadership.flush(0.0) == []
    assert leadership.term == 0
    (write,) = leadership.handle(EntryWritten(LOG, 0), 0.0)
    assert write == WriteEntry(LOG, 1, Entry(1, (PipelineApplied("v", {}),)))
    assert leadership.term == 1


def test_the_next_entry_waits_for_this_one_and_takes_the_queue() -> None:
    leadership = writing()
    leadership.submit(PipelineApplied("w", {}), PipelineApplied("x", {}))
    assert leadership.flush(1.0) == []
    leadership.handle(EntryUnresolved(LOG, 1, "timeout"), 1.0)
    assert leadership.flush(1.0) == []
    (again,) = leadership.handle(TimePassed(), 1.0 + RETRY_S)
    assert again == WriteEntry(LOG, 1, Entry(1, (PipelineApplied("v", {}),)))
    (following,) = leadership.handle(EntryWritten(LOG, 1), 2.0)
    assert following == WriteEntry(LOG, 2, Entry(1, (PipelineApplied("w", {}), PipelineApplied("x", {}))))


def drained(leadership: Leadership[LedgerState]) -> list[Entry]:
    """The entries that are written of all that is queued, one after the other."""
    written: list[Entry] = []
    commands = leadership.flush(0.0)
    while commands:
        (command,) = commands
        assert isinstance(command, WriteEntry)
        written.append(command.entry)
        commands = leadership.handle(EntryWritten(LOG, command.number), 0.0)
    return written


def test_changes_beyond_one_entry_go_into_the_next_in_order() -> None:
    leadership = leading()
    changes = [PipelineApplied(str(number), {}) for number in range(2 * CHANGES_MAX + 1)]
    for change in changes:
        leadership.submit(change)
    entries = drained(leadership)
    assert [len(entry.changes) for entry in entries] == [CHANGES_MAX, CHANGES_MAX, 1]
    assert [change for entry in entries for change in entry.changes] == changes
    assert leadership.quiet


def test_no_cut_parts_changes_that_belong_together() -> None:
    leadership = leading()
    for number in range(CHANGES_MAX - 1):
        leadership.submit(PipelineApplied(str(number), {}))
    pair = PipelineApplied("w", {}), EpochRaised("w")
    leadership.submit(*pair)
    leadership.submit(PipelineApplied("behind", {}))
    first, second = drained(leadership)
    assert len(first.changes) == CHANGES_MAX - 1
    assert second.changes == (*pair, PipelineApplied("behind", {}))


def test_changes_that_belong_together_are_one_entry_even_if_large() -> None:
    leadership = leading()
    many = [PipelineApplied(str(number), {}) for number in range(CHANGES_MAX + 1)]
    leadership.submit(*many)
    leadership.submit(PipelineApplied("behind", {}))
    assert [len(entry.changes) for entry in drained(leadership)] == [CHANGES_MAX + 1, 1]


def test_where_nothing_is_submitted_no_entry_is_written() -> None:
    leadership = leading()
    leadership.submit()
    assert leadership.flush(0.0) == []
    assert leadership.quiet


def test_a_write_that_was_unresolved_and_then_mine_goes_on() -> None:
    leadership = writing()
    leadership.handle(EntryUnresolved(LOG, 1, "timeout"), 0.0)
    leadership.handle(TimePassed(), RETRY_S)
    leadership.handle(EntryWritten(LOG, 1), 1.0)
    assert leadership.state is LeaderState.LEADING
    assert leadership.committed() == [(1, Entry(1, (PipelineApplied("v", {}),)))]


def test_a_write_that_was_unresolved_and_then_anothers_deposes() -> None:
    leadership = writing()
    leadership.handle(EntryUnresolved(LOG, 1, "timeout"), 0.0)
    leadership.handle(TimePassed(), RETRY_S)
    leadership.submit(PipelineApplied("never", {}))
    assert leadership.handle(EntryRefused(LOG, 1, Entry(2, (Led(2, OTHER),))), 1.0) == []
    assert leadership.state is LeaderState.DEPOSED
    assert leadership.ledger.leader == OTHER
    assert leadership.committed() == []
    assert leadership.quiet, "what was queued is nobody's any more"
    assert leadership.flush(2.0) == []
    assert leadership.why_not_leading().endswith("has stepped down")


def test_an_unresolved_write_is_tried_less_and_less_often() -> None:
    leadership, now, pauses = writing(), 0.0, []
    for _ in range(8):
        leadership.handle(EntryUnresolved(LOG, 1, "timeout"), now)
        wake_at = leadership.wake_at()
        assert wake_at is not None
        pauses.append(round(wake_at - now, 6))
        assert leadership.handle(TimePassed(), now) == []
        now = wake_at
        assert len(leadership.handle(TimePassed(), now)) == 1
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, RETRY_S_MAX, RETRY_S_MAX, RETRY_S_MAX]


def test_a_frozen_leader_wakes_finds_its_number_taken_and_is_deposed() -> None:
    leadership = leading()
    (beat,) = leadership.handle(TimePassed(), 3600.0)
    assert beat == WriteEntry(LOG, 1, Entry(1, (Beat(1),)))
    leadership.handle(EntryRefused(LOG, 1, Entry(2, (Led(2, OTHER),))), 3600.0)
    assert leadership.state is LeaderState.DEPOSED
    assert leadership.wake_at() is None


def test_a_campaign_that_was_dropped_leaves_nothing_to_wait_for() -> None:
    leadership = campaigning()
    leadership.drop_campaign()
    assert leadership.quiet
    assert leadership.wake_at() is None


@pytest.mark.parametrize(
    ("leader", "state"),
    [
        ({"id": "other", "cluster": "mine"}, LeaderState.CAMPAIGNING),
        ({"id": "other", "cluster": "theirs"}, LeaderState.WATCHING),
        ({"id": "other"}, LeaderState.WATCHING),
    ],
    ids=["this cluster", "another cluster", "a run by itself"],
)
def test_only_what_the_same_cluster_led_is_free_at_once(leader: dict[str, str], state: LeaderState) -> None:
    leadership = Leadership(LOG, ME, LedgerState(), standby=True, cluster="mine")
    leadership.handle(LogRead(LOG, ((0, Entry(1, (Led(1, leader),))),), after=-1), 0.0)
    assert leadership.state is state


def test_an_idle_leader_beats() -> None:
    leadership = leading()
    assert leadership.wake_at() == BEAT_S
    assert leadership.handle(TimePassed(), BEAT_S / 2) == []
    assert leadership.handle(TimePassed(), BEAT_S) == [WriteEntry(LOG, 1, Entry(1, (Beat(1),)))]


def test_withdrawing_while_its_led_is_written_resigns_the_log() -> None:
    leadership = withdrawing()
    assert leadership.handle(EntryWritten(LOG, 0), 0.0) == [WriteEntry(LOG, 1, Entry(1, (Resigned(1),)))]
    leadership.handle(EntryWritten(LOG, 1), 0.0)
    assert leadership.state is LeaderState.RESIGNED
    assert leadership.quiet


def test_an_answer_to_an_earlier_question_is_put_aside() -> None:
    reader, watcher = fresh(), watching()
    # An empty answer too: of the end of a log, and taken for the whole it would be a log that nobody leads.
    assert reader.handle(LogRead(LOG, (), after=22), 1.0) == []
    assert reader.state is LeaderState.READING
    assert watcher.handle(LogRead(LOG, ((5, Entry(1, (Beat(1),))),), after=4), 1.0) == []
    watcher.handle(LogRead(LOG, ((1, Entry(1, (Beat(1),))),), after=0), 1.0)
    assert watcher.ledger.number == 1


def test_news_of_another_number_moves_nothing() -> None:
    leadership = writing()
    for event in (EntryWritten(LOG, 7), EntryRefused(LOG, 7, THEIRS), EntryUnresolved(LOG, 7, "")):
        assert leadership.handle(event, 0.0) == []
    assert leadership.state is LeaderState.LEADING
    assert not leadership.quiet


def test_a_turn_unknown_to_the_table_errs_with_its_history() -> None:
    leadership = leading()
    leadership.state = LeaderState.DENIED
    leadership.submit(PipelineApplied("v", {}))
    with pytest.raises(InvalidTransitionError, match="denied on 'Led written' after"):
        leadership._turn(Turn.LED_WRITTEN)
    with pytest.raises(AssertionError, match="news"):
        leadership.handle(cast("Any", "news"), 0.0)


def test_two_snapshots_stay_and_the_entries_behind_the_older_one() -> None:
    leadership = Leadership(LOG, ME, LedgerState(), limits=LogLimits(snapshot_entries=2))
    commands = leadership.handle(empty_log_read(), 0.0)
    truncated: list[TruncateLog] = []
    for number in range(8):
        commands = leadership.handle(EntryWritten(LOG, number), 0.0)
        for command in list(commands):
            if isinstance(command, WriteSnapshot):
                commands += leadership.handle(SnapshotWritten(LOG, command.number), 0.0)
        truncated += [command for command in commands if isinstance(command, TruncateLog)]
        leadership.submit(PipelineApplied("v", {}))
        leadership.flush(0.0)
    assert [(command.upto, command.keep) for command in truncated] == [(1, {0}), (3, {0}), (5, {0})]
