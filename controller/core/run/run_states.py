"""The states of a run, and what moves it from one to the next."""

from __future__ import annotations

from enum import Enum


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
