"""The states of a run, of its sweeps, of its opening and of its epoch, and what moves each to the next."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Generic, TypeVar

from headrace.controller.core.log import InvalidTransitionError

S = TypeVar("S", bound=Enum)
T = TypeVar("T", bound=Enum)


class Machine(Generic[S, T]):
    """A state that moves along a literal table."""

    def __init__(self, name: str, table: Mapping[tuple[S, T], S], state: S) -> None:
        self._name, self._table, self.state = name, table, state

    def turn(self, turn: T) -> None:
        """Move; InvalidTransitionError if the table has no such step."""
        target = self._table.get((self.state, turn))
        if target is None:
            raise InvalidTransitionError(f"{self._name}: {self.state.value} on {turn.value!r}")
        self.state = target

    def note(self, turn: T) -> None:
        """Move if the table has such a step; else the turn changes nothing."""
        self.state = self._table.get((self.state, turn), self.state)


class RunState(Enum):
    """Where a run stands."""

    OPENING = "opening"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    DRAINING = "draining"
    EMPTIED = "emptied"
    PUBLISHING = "publishing"
    COMPLETED = "completed"
    STOPPED = "stopped"
    CANCELLED = "cancelled"
    FAILED = "failed"


class RunTurn(Enum):
    """What moves a run."""

    PIPELINE_ACCEPTED = "pipeline accepted"
    PAUSE_ASKED = "pause asked"
    RESUME_ASKED = "resume asked"
    STOP_ASKED = "stop asked"
    CANCEL_ASKED = "cancel asked"
    ALL_CLOSED = "all closed"
    SINKS_EMPTY = "sinks empty"
    RESIGNED = "resigned"
    FAULT = "fault"


TRANSITIONS: dict[tuple[RunState, RunTurn], RunState] = {
    (RunState.OPENING, RunTurn.PIPELINE_ACCEPTED): RunState.RUNNING,
    (RunState.OPENING, RunTurn.FAULT): RunState.FAILED,
    (RunState.OPENING, RunTurn.CANCEL_ASKED): RunState.CANCELLED,
    (RunState.RUNNING, RunTurn.STOP_ASKED): RunState.DRAINING,
    (RunState.RUNNING, RunTurn.CANCEL_ASKED): RunState.CANCELLED,
    (RunState.RUNNING, RunTurn.ALL_CLOSED): RunState.PUBLISHING,
    (RunState.RUNNING, RunTurn.FAULT): RunState.FAILED,
    (RunState.RUNNING, RunTurn.PAUSE_ASKED): RunState.PAUSING,
    (RunState.PAUSING, RunTurn.SINKS_EMPTY): RunState.PAUSED,
    (RunState.PAUSING, RunTurn.STOP_ASKED): RunState.DRAINING,
    (RunState.PAUSING, RunTurn.CANCEL_ASKED): RunState.CANCELLED,
    (RunState.PAUSING, RunTurn.ALL_CLOSED): RunState.PUBLISHING,
    (RunState.PAUSING, RunTurn.FAULT): RunState.FAILED,
    (RunState.PAUSED, RunTurn.RESUME_ASKED): RunState.RUNNING,
    (RunState.PAUSED, RunTurn.STOP_ASKED): RunState.DRAINING,
    (RunState.PAUSED, RunTurn.CANCEL_ASKED): RunState.CANCELLED,
    (RunState.PAUSED, RunTurn.ALL_CLOSED): RunState.PUBLISHING,
    (RunState.PAUSED, RunTurn.FAULT): RunState.FAILED,
    (RunState.DRAINING, RunTurn.CANCEL_ASKED): RunState.CANCELLED,
    (RunState.DRAINING, RunTurn.SINKS_EMPTY): RunState.EMPTIED,
    (RunState.EMPTIED, RunTurn.RESIGNED): RunState.STOPPED,
    (RunState.EMPTIED, RunTurn.CANCEL_ASKED): RunState.CANCELLED,
    (RunState.EMPTIED, RunTurn.FAULT): RunState.FAILED,
    (RunState.DRAINING, RunTurn.ALL_CLOSED): RunState.PUBLISHING,
    (RunState.DRAINING, RunTurn.FAULT): RunState.FAILED,
    (RunState.PUBLISHING, RunTurn.RESIGNED): RunState.COMPLETED,
    (RunState.PUBLISHING, RunTurn.CANCEL_ASKED): RunState.CANCELLED,
    (RunState.PUBLISHING, RunTurn.FAULT): RunState.FAILED,
}

ENDED = (RunState.COMPLETED, RunState.STOPPED, RunState.CANCELLED, RunState.FAILED)
#: Its sinks are empty, and it publishes.
ENDING = (RunState.PUBLISHING, RunState.EMPTIED)
#: The run has tasks that work.
WORKING = (RunState.RUNNING, RunState.PAUSING, RunState.PAUSED, RunState.DRAINING)


class OpeningState(Enum):
    """How far a run is that has no tasks yet."""

    READING = "reading"
    #: Its pipeline is on its way to the log.
    APPLYING = "applying"
    APPLIED = "applied"
    #: Workers that an earlier leader had may come back before the run is planned.
    AWAITING = "awaiting workers"
    WAITED = "waited"


class OpeningTurn(Enum):
    """What moves it."""

    SUBMITTED = "pipeline submitted"
    DURABLE = "pipeline durable"
    WORKERS_AWAY = "workers away"
    WORKERS_BACK = "workers back"
    TIME_OVER = "time over"


OPENING_TRANSITIONS: dict[tuple[OpeningState, OpeningTurn], OpeningState] = {
    (OpeningState.READING, OpeningTurn.SUBMITTED): OpeningState.APPLYING,
    (OpeningState.READING, OpeningTurn.DURABLE): OpeningState.APPLIED,
    (OpeningState.APPLYING, OpeningTurn.DURABLE): OpeningState.APPLIED,
    (OpeningState.APPLIED, OpeningTurn.WORKERS_AWAY): OpeningState.AWAITING,
    (OpeningState.AWAITING, OpeningTurn.WORKERS_BACK): OpeningState.APPLIED,
    (OpeningState.AWAITING, OpeningTurn.TIME_OVER): OpeningState.WAITED,
}


class EpochState(Enum):
    """Whether proposals of the dataset's epoch are judged."""

    CURRENT = "current"
    #: The next epoch is on its way to the log, or its tasks are not started yet.
    RAISING = "raising"


class EpochTurn(Enum):
    """What moves it."""

    SUBMITTED = "raise submitted"
    TAKEN_UP = "taken up"


EPOCH_TRANSITIONS: dict[tuple[EpochState, EpochTurn], EpochState] = {
    (EpochState.CURRENT, EpochTurn.SUBMITTED): EpochState.RAISING,
    (EpochState.RAISING, EpochTurn.TAKEN_UP): EpochState.CURRENT,
}


class AmendState(Enum):
    """How far a change of the graph is."""

    IN_FORCE = "in force"
    #: The tasks of the next version start beside those of the one in force.
    WARMING = "warming"
    #: Input goes to the next version; the tasks of the one in force send what they have read, and their sinks seal.
    HANDING_OVER = "handing over"
    #: All that those in force had is closed, and the epoch of the next tasks is on its way to the dataset's log.
    SUCCEEDING = "raising the next epoch"
    #: All of the version in force is closed, and the next one is on its way to the cluster's log.
    RECORDING = "recording"
    #: And to the dataset's.
    APPLYING = "applying"


class AmendTurn(Enum):
    """What moves it."""

    ASKED = "asked"
    FENCED = "epoch raised"
    READY = "next tasks ready"
    FAILED = "failed"
    LEFT = "old tasks empty"
    EMPTIED = "old epoch empty"
    RECORDED = "recorded"
    DURABLE = "version durable"


AMEND_TRANSITIONS: dict[tuple[AmendState, AmendTurn], AmendState] = {
    (AmendState.IN_FORCE, AmendTurn.ASKED): AmendState.WARMING,
    (AmendState.WARMING, AmendTurn.READY): AmendState.HANDING_OVER,
    (AmendState.WARMING, AmendTurn.FAILED): AmendState.IN_FORCE,
    (AmendState.HANDING_OVER, AmendTurn.FAILED): AmendState.IN_FORCE,
    (AmendState.HANDING_OVER, AmendTurn.LEFT): AmendState.RECORDING,
    (AmendState.HANDING_OVER, AmendTurn.EMPTIED): AmendState.SUCCEEDING,
    (AmendState.SUCCEEDING, AmendTurn.FENCED): AmendState.RECORDING,
    (AmendState.RECORDING, AmendTurn.RECORDED): AmendState.APPLYING,
    (AmendState.APPLYING, AmendTurn.DURABLE): AmendState.IN_FORCE,
}


class SweepState(Enum):
    """What is known of the records between sources and sinks."""

    FLOWING = "flowing"
    MISSING = "missing"
    SWEEPING = "sweeping"
    #: Another sweep follows this one.
    OUTDATED = "outdated"
    #: All input had been read when this sweep began.
    FINAL = "final"
    SETTLED = "settled"
    HALTING = "halting"
    HALT_SWEEP = "halt sweep"
    #: A loss during the sweep: another one follows.
    HALT_OUTDATED = "halt outdated"
    HALTED = "halted"


class SweepTurn(Enum):
    """What changes it."""

    #: An attempt died or a link was cut: the sweep in progress cannot end.
    LOST = "records lost"
    #: Open records are in no queue: the sweep in progress may have passed them.
    MISSED = "records missed"
    #: A fragment was handed out, or a sink let verdicts go.
    MORE = "more on its way"
    BEGAN = "sweep began"
    BEGAN_LAST = "last sweep began"
    SWEPT = "swept"
    SWEPT_CLEAN = "swept clean"
    HALT_ASKED = "halt asked"
    RESUMED = "resumed"


SWEEP_TRANSITIONS: dict[tuple[SweepState, SweepTurn], SweepState] = {
    (SweepState.FLOWING, SweepTurn.BEGAN_LAST): SweepState.FINAL,
    (SweepState.FLOWING, SweepTurn.LOST): SweepState.MISSING,
    (SweepState.FLOWING, SweepTurn.MISSED): SweepState.MISSING,
    (SweepState.FLOWING, SweepTurn.HALT_ASKED): SweepState.HALTING,
    (SweepState.MISSING, SweepTurn.BEGAN): SweepState.SWEEPING,
    (SweepState.MISSING, SweepTurn.BEGAN_LAST): SweepState.FINAL,
    (SweepState.MISSING, SweepTurn.HALT_ASKED): SweepState.HALTING,
    (SweepState.SWEEPING, SweepTurn.SWEPT): SweepState.FLOWING,
    (SweepState.SWEEPING, SweepTurn.LOST): SweepState.MISSING,
    (SweepState.SWEEPING, SweepTurn.MISSED): SweepState.OUTDATED,
    (SweepState.SWEEPING, SweepTurn.HALT_ASKED): SweepState.HALTING,
    (SweepState.OUTDATED, SweepTurn.SWEPT): SweepState.MISSING,
    (SweepState.OUTDATED, SweepTurn.LOST): SweepState.MISSING,
    (SweepState.OUTDATED, SweepTurn.HALT_ASKED): SweepState.HALTING,
    (SweepState.FINAL, SweepTurn.SWEPT): SweepState.FLOWING,
    (SweepState.FINAL, SweepTurn.SWEPT_CLEAN): SweepState.SETTLED,
    (SweepState.FINAL, SweepTurn.LOST): SweepState.MISSING,
    (SweepState.FINAL, SweepTurn.MISSED): SweepState.OUTDATED,
    (SweepState.FINAL, SweepTurn.MORE): SweepState.SWEEPING,
    (SweepState.FINAL, SweepTurn.HALT_ASKED): SweepState.HALTING,
    (SweepState.SETTLED, SweepTurn.LOST): SweepState.MISSING,
    (SweepState.SETTLED, SweepTurn.MISSED): SweepState.MISSING,
    (SweepState.SETTLED, SweepTurn.MORE): SweepState.FLOWING,
    (SweepState.SETTLED, SweepTurn.HALT_ASKED): SweepState.HALTING,
    (SweepState.HALTING, SweepTurn.BEGAN): SweepState.HALT_SWEEP,
    (SweepState.HALT_SWEEP, SweepTurn.SWEPT): SweepState.HALTED,
    (SweepState.HALT_SWEEP, SweepTurn.LOST): SweepState.HALTING,
    (SweepState.HALT_SWEEP, SweepTurn.MISSED): SweepState.HALT_OUTDATED,
    (SweepState.HALT_SWEEP, SweepTurn.MORE): SweepState.HALT_OUTDATED,
    (SweepState.HALT_SWEEP, SweepTurn.HALT_ASKED): SweepState.HALTING,
    (SweepState.HALT_OUTDATED, SweepTurn.SWEPT): SweepState.HALTING,
    (SweepState.HALT_OUTDATED, SweepTurn.LOST): SweepState.HALTING,
    (SweepState.HALT_OUTDATED, SweepTurn.HALT_ASKED): SweepState.HALTING,
    (SweepState.HALTED, SweepTurn.LOST): SweepState.HALTING,
    (SweepState.HALTED, SweepTurn.MISSED): SweepState.HALTING,
    (SweepState.HALTED, SweepTurn.MORE): SweepState.HALTING,
    (SweepState.HALTED, SweepTurn.HALT_ASKED): SweepState.HALTING,
    (SweepState.HALTED, SweepTurn.RESUMED): SweepState.FLOWING,
}
