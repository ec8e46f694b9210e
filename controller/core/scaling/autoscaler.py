"""Scaling by itself: when the replicas of a run are changed, and what was learned of it.

`handle(event, now)` is its door. It sees readings and gives commands; the model says what would be best, and this
machine decides whether that is worth a restart of tasks:

- It acts on what both the whole window and its later half say, and on gains above a band that widens with each
  decision of the last minutes: a cost that moves on is followed, noise is not.
- A gain has to pay for the restart, whose cost is learned, several times over before the input ends.
- What was predicted is compared with what was reached: predictions are trusted less where they promised too much, what
  did not help is not tried again until the workers are others, and what did harm is undone.
- Fewer tasks are wanted only behind a long delay, and never many fewer at once.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias, assert_never

from headrace.controller.core.scaling.model import ThroughputModel, model_of
from headrace.controller.core.scaling.readings import Reading, ReadingError, bytes_left, window_of
from headrace.controller.core.scaling.trial import trial

#: Seconds behind a change that are not measured, and that a window has at least and at most.
SETTLE_S, WINDOW_S_MIN, WINDOW_S_MAX = 3.0, 12.0, 60.0
#: Seconds that are enough for a gain of so much.
QUICK_S, QUICK_GAIN = 5.0, 1.0
#: Seconds in which tasks wait and cores idle, behind which more tasks are tried without a rate.
TRIAL_S = 0.5
#: Seconds between two readings, and where a trial may come next.
LOOK_S, LOOK_AT_TRIAL_S = 1.0, 0.1
#: The gain that is worth a change; by how much it grows with each decision of the last CALM_S seconds.
BAND, BAND_GROWTH, CALM_S = 0.08, 1.8, 900.0
#: What is reached is of no worth below this share of what was promised; it is blocked for BLOCK_S. Below HARM of the
#: rate before it is undone.
HELP_MIN, HARM, BLOCK_S = 0.1, 0.85, 1800.0
#: A change pays for its restart so many times before the input ends.
PAYS = 2.0
#: The cost of a restart, in seconds of flow, before one was seen; the weight of a new one.
RESTART_S, LEARN = 4.0, 0.5
#: Seconds in which a change that was asked for is made, and in which a person's own change is left alone.
MADE_S_MAX, PERSON_S = 300.0, 300.0
#: Fewer tasks: the share that has to be too many, for how long, and the largest share that goes at once.
SPARE_SHARE, SPARE_S, DOWN_SHARE_MAX, DOWN_KEEPS = 0.3, 600.0, 0.6, 0.97
#: More cores in use than a run may have, by this share, are given back.
OVER_SHARE = 0.2
#: A change of the limits by this share makes what was learned about blocks void.
LIMITS_SHARE = 0.1
#: The share by which a cost may be another and is the same still.
COST_SHARE = 0.2
#: Readings of a window; decisions that are remembered.
READINGS_MAX, DECISIONS_MAX = 256, 64


class ScalingMode(Enum):
    """What scaling may do to a run."""

    OFF = "off"
    ADVISE = "advise"
    ON = "on"


class ScalingState(Enum):
    """What scaling is at."""

    MEASURING = "measuring"
    ASKING = "asking"
    CHANGING = "changing"
    JUDGING = "judging"


class ScalingTurn(Enum):
    """What takes it from one state to another."""

    DECIDED = "decided"
    ACCEPTED = "accepted"
    REFUSED = "refused"
    MADE = "made"
    LATE = "late"
    JUDGED = "judged"
    DISTURBED = "disturbed"


TRANSITIONS: Mapping[tuple[ScalingState, ScalingTurn], ScalingState] = {
    (ScalingState.MEASURING, ScalingTurn.DECIDED): ScalingState.ASKING,
    (ScalingState.ASKING, ScalingTurn.ACCEPTED): ScalingState.CHANGING,
    (ScalingState.ASKING, ScalingTurn.REFUSED): ScalingState.MEASURING,
    (ScalingState.CHANGING, ScalingTurn.MADE): ScalingState.JUDGING,
    (ScalingState.CHANGING, ScalingTurn.LATE): ScalingState.MEASURING,
    (ScalingState.JUDGING, ScalingTurn.JUDGED): ScalingState.MEASURING,
    (ScalingState.JUDGING, ScalingTurn.DISTURBED): ScalingState.MEASURING,
}


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """A change with its reason, what was predicted of it, and what became of it. Replicas by first stage of a chain."""

    number: int
    kind: str
    reason: str
    before: Mapping[str, int]
    after: Mapping[str, int]
    records_s: float
    predicted_s: float
    got_s: float = 0.0
    outcome: str = ""

    def words(self) -> str:
        """For people."""
        parts = [
            f"{stage} {self.before.get(stage, 0)} -> {count}"
            for stage, count in self.after.items()
            if count != self.before.get(stage)
        ]
        promise = f"{self.records_s:,.0f} records/s, {self.predicted_s:,.0f} predicted"
        rates = promise if self.predicted_s else "no rate yet"
        got = f", {self.got_s:,.0f} reached" if self.got_s else ""
        end = f": {self.outcome}" if self.outcome else ""
        return f"{self.kind} {', '.join(parts)}: {self.reason}; {rates}{got}{end}"


@dataclass(frozen=True, slots=True)
class Measured:
    """A reading came. `flows`: the run is running and all of its tasks are ready.

    `apart` are pairs of groups, by their place, that equal numbers of tasks would fuse.
    """

    reading: Reading
    flows: bool = True
    apart: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True, slots=True)
class Answered:
    """The run takes the change that was asked for, or not: why."""

    accepted: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Rescale:
    """Have the groups of these stages so many tasks."""

    replicas: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Note:
    """Something was decided, or came to its end: for the log."""

    decision: ScalingDecision


ScalingEvent: TypeAlias = Measured | Answered
ScalingCommand: TypeAlias = Rescale | Note


class Autoscaler:
    """The scaling of one run."""

    def __init__(self, mode: ScalingMode) -> None:
        self.mode = mode
        self.state = ScalingState.MEASURING
        #: The newest decisions, each as it stands.
        self.decisions: deque[ScalingDecision] = deque(maxlen=DECISIONS_MAX)
        #: What a restart of tasks costs in seconds of flow: others read on meanwhile, where the run is not paused.
        self.restart_s = RESTART_S
        #: What predicted gains were worth so far.
        self.trust = 1.0
        self._window: deque[Reading] = deque(maxlen=READINGS_MAX)
        self._decided_at: list[float] = []
        self._number = 0
        self._asked_at, self._lost_s = -math.inf, 0.0
        #: The newest reading of a change, and the records that were read by then.
        self._seen_at = self._seen = 0.0
        #: Seconds of a group's tasks for a record, by first stage, when the newest change was decided.
        self._costs: Mapping[str, float] = {}
        #: Until when a person's change is left alone, and nothing is tried again; the cores at that time.
        self._quiet_until = self._blocked_until = -math.inf
        self._blocked_cores = 0.0
        self._spare_since = math.inf
        #: What was advised last; of a run that is scaled, nothing ever is.
        self._advised: Mapping[str, int] | None = None

    @property
    def look_s(self) -> float:
        """Seconds until the next reading is wanted."""
        fresh = not self._window or self._window[-1].at - self._window[0].at < SETTLE_S
        return LOOK_AT_TRIAL_S if fresh and self.state is ScalingState.MEASURING else LOOK_S

    def handle(self, event: ScalingEvent, now: float) -> list[ScalingCommand]:
        """Take one event; give the commands that follow from it."""
        match event:
            case Measured():
                return self._measured(event, now) if self.mode is not ScalingMode.OFF else []
            case Answered():
                return self._answered(event, now)
            case _:
                assert_never(event)

    # -- events --

    def _answered(self, event: Answered, now: float) -> list[ScalingCommand]:
        if self.state is not ScalingState.ASKING:
            return []
        if event.accepted:
            self._turn(ScalingTurn.ACCEPTED)
            return []
        self._turn(ScalingTurn.REFUSED)
        self._block(now)
        return [self._close(f"refused: {event.reason}")]

    def _measured(self, event: Measured, now: float) -> list[ScalingCommand]:
        reading = event.reading
        if self.state is ScalingState.ASKING:
            return []
        if self.state is ScalingState.CHANGING:
            return self._changing(event, now)
        if not event.flows:
            self._window.clear()
            return []
        if self._window and _signature(self._window[-1]) != _signature(reading):
            return self._disturbed(reading, now)
        self._window.append(reading)
        while len(self._window) > 2 and reading.at - self._window[1].at >= WINDOW_S_MAX:
            self._window.popleft()
        span = reading.at - self._window[0].at - SETTLE_S
        if self.state is ScalingState.JUDGING and self.decisions[-1].kind == "try":
            self._turn(ScalingTurn.JUDGED)
            return [self._close("done")]
        if self.state is ScalingState.JUDGING:
            return self._judge(reading, now) if span >= WINDOW_S_MIN else []
        if TRIAL_S - SETTLE_S <= span < QUICK_S and now >= max(self._quiet_until, self._blocked_until):
            return self._try(event, now)
        return self._decide(event, now, span) if span >= QUICK_S and now >= self._quiet_until else []

    def _changing(self, event: Measured, now: float) -> list[ScalingCommand]:
        """A change was asked for: it is made when the run flows with the tasks that were asked for."""
        made, read, passed_s = self.decisions[-1], _records_read(event.reading), now - self._seen_at
        counts = counts_of(event.reading)
        if made.records_s > 0:
            self._lost_s += max(0.0, passed_s - max(0.0, read - self._seen) / made.records_s)
        self._seen_at, self._seen = now, read
        if event.flows and all(counts.get(stage) == count for stage, count in made.after.items()):
            self.restart_s += LEARN * (self._lost_s - self.restart_s)
            self._window.clear()
            self._window.append(event.reading)
            self._turn(ScalingTurn.MADE)
            return []
        if now - self._asked_at < MADE_S_MAX:
            return []
        self._turn(ScalingTurn.LATE)
        self._block(now)
        self._window.clear()
        return [self._close(f"not made within {MADE_S_MAX:.0f} s")]

    def _disturbed(self, reading: Reading, now: float) -> list[ScalingCommand]:
        """Workers or tasks are others than before, and not by what was asked for here."""
        before = self._window[-1]
        if counts_of(before) != counts_of(reading):
            self._quiet_until = now + PERSON_S
        if abs(reading.limits.cores - self._blocked_cores) > LIMITS_SHARE * max(1.0, self._blocked_cores):
            self._blocked_until = -math.inf
            self._decided_at.clear()
        self._window.clear()
        self._window.append(reading)
        self._spare_since = math.inf
        if self.state is not ScalingState.JUDGING:
            return []
        self._turn(ScalingTurn.DISTURBED)
        return [self._close("not judged: workers or tasks changed meanwhile")]

    # -- decisions --

    def _try(self, event: Measured, now: float) -> list[ScalingCommand]:
        """More tasks where those that there are wait and cores idle, before there is a rate."""
        with contextlib.suppress(ReadingError):
            window_of(self._window[0], event.reading)
            return []  # There is one.
        before = [one for one in self._window if event.reading.at - one.at >= TRIAL_S]
        tried = trial(before[-1], event.reading, event.apart, PAYS * self.restart_s)
        if tried is None:
            return []
        now_has, target = tried
        return self._act("try", "tasks wait while cores idle", now_has, target, 0.0, now)

    def _decide(self, event: Measured, now: float, span: float) -> list[ScalingCommand]:
        """Whether other replicas are worth a change now. A gain that no noise makes is not waited for."""
        models = self._models()
        if models is None:
            return []
        whole, late = models
        solved = late.solved(event.apart, keeps=True)
        target, present = counts_of_model(solved), counts_of_model(late)
        if span >= WINDOW_S_MIN and min(_over(model) for model in models) > OVER_SHARE:
            return self._give_back(late, counts_of_model(late.solved(event.apart)), now)
        gain = min(_gain(model, target, self.trust) for model in (whole, late))
        clear = span >= WINDOW_S_MIN or gain >= QUICK_GAIN
        if clear and target != present and gain >= self.band(now) and self._pays(late, gain):
            why = f"bound by {late.measured.bottleneck}"
            return self._act("scale", why, late, target, late.measured.records_s * (1 + gain), now)
        return self._spare(late, counts_of_model(late.solved(event.apart)), now) if clear else []

    def _give_back(self, late: ThroughputModel, target: Mapping[str, int], now: float) -> list[ScalingCommand]:
        """Fewer tasks, at once, where a run uses more cores than it may."""
        present = counts_of_model(late)
        fewer = {stage: min(count, target.get(stage, count)) for stage, count in present.items()}
        if fewer == present:
            return []
        rate = late.with_replicas(fewer).predict().records_s
        return self._act("scale", f"it may use {late.limits.cores:g} cores", late, fewer, rate, now)

    def _spare(self, late: ThroughputModel, target: Mapping[str, int], now: float) -> list[ScalingCommand]:
        """Fewer tasks where many are too many for long."""
        present = counts_of_model(late)
        fewer = {stage: min(count, target.get(stage, count)) for stage, count in present.items()}
        least = {stage: math.ceil(count * (1 - DOWN_SHARE_MAX)) for stage, count in present.items()}
        fewer = {stage: max(count, least[stage]) for stage, count in fewer.items()}
        keeps = late.with_replicas(fewer).predict().records_s >= DOWN_KEEPS * late.measured.records_s
        if not keeps or sum(fewer.values()) > (1 - SPARE_SHARE) * sum(present.values()):
            self._spare_since = math.inf
            return []
        self._spare_since = min(self._spare_since, now)
        if now - self._spare_since < SPARE_S or not self._pays(late, BAND):
            return []
        self._spare_since = math.inf
        rate = late.with_replicas(fewer).predict().records_s
        return self._act("scale", "tasks are spare", late, fewer, rate, now)

    def _act(
        self, kind: str, reason: str, model: ThroughputModel, target: Mapping[str, int], predicted: float, now: float
    ) -> list[ScalingCommand]:
        before = counts_of_model(model)
        changed = {stage: count for stage, count in target.items() if count != before.get(stage)}
        rate = model.measured.records_s
        advises = self.mode is ScalingMode.ADVISE
        if changed == self._advised:
            return []
        self._number += 1
        decision = ScalingDecision(
            self._number, "advise" if advises else kind, reason, before, dict(target), rate, predicted
        )
        self.decisions.append(decision)
        if advises:
            self._advised = changed
            return [Note(decision)]
        self._asked_at, self._lost_s, self._costs = now, 0.0, costs_of(model)
        self._seen_at, self._seen = now, _records_read(self._window[-1])
        if kind != "try":
            self._decided_at.append(now)
        self._turn(ScalingTurn.DECIDED)
        return [Note(decision), Rescale(changed)]

    def _judge(self, reading: Reading, now: float) -> list[ScalingCommand]:
        """What a change brought, against what it promised."""
        models = self._models()
        if models is None:
            return []
        made, got = self.decisions[-1], models[0].measured.records_s
        self._turn(ScalingTurn.JUDGED)
        promised, helped = made.predicted_s - made.records_s, got - made.records_s
        if made.kind == "undo" or promised <= 0:
            return [self._close("the replicas before it" if made.kind == "undo" else "done", got)]
        if helped >= HELP_MIN * promised:
            self.trust += LEARN * (min(1.0, max(0.2, helped / promised)) - self.trust)
            return [self._close("helped", got)]
        if not self._costs_are_the_same(models[1]):
            return [self._close("not judged: costs changed meanwhile", got)]
        self._block(now, reading.limits.cores)
        if got >= HARM * made.records_s:
            return [self._close("did not help: not tried again for now", got)]
        closed = self._close("did harm: undone", got)
        return [closed, *self._act("undo", "the last change did harm", models[1], made.before, made.records_s, now)]

    def band(self, now: float) -> float:
        """The gain that is worth a change now."""
        if now < self._blocked_until:
            return math.inf
        recent = sum(now - at < CALM_S for at in self._decided_at)
        return BAND * BAND_GROWTH**recent

    def _pays(self, model: ThroughputModel, gain: float) -> bool:
        """Whether what is left is long enough for a gain to pay for a restart."""
        rate = model.measured.records_s * model.stored_bytes
        if rate <= 0:
            return True
        left_s = bytes_left(self._window[-1]) / rate
        return left_s - left_s / (1 + gain) >= PAYS * self.restart_s

    def _models(self) -> tuple[ThroughputModel, ThroughputModel] | None:
        """The model by the whole window, and by its later half; None where a window says nothing."""
        settled = [item for item in self._window if item.at >= self._window[0].at + SETTLE_S]
        if len(settled) < 2:
            # readings came late: they are too far apart to say anything of a half
            return None
        last = settled[-1]
        middle = min(settled[:-1], key=lambda item: abs(item.at - (settled[0].at + last.at) / 2))
        try:
            return model_of(last, window_of(settled[0], last)), model_of(last, window_of(middle, last))
        except ReadingError:
            return None

    def _costs_are_the_same(self, model: ThroughputModel) -> bool:
        """Whether a record costs each group what it did when the newest change was decided."""
        now = costs_of(model)
        whole = sum(now.values())
        return all(
            abs(cost - self._costs.get(stage, 0.0)) <= COST_SHARE * max(cost, self._costs.get(stage, 0.0))
            for stage, cost in now.items()
            if cost > COST_SHARE * whole
        )

    # -- its own --

    def _turn(self, turn: ScalingTurn) -> None:
        self.state = TRANSITIONS[self.state, turn]

    def _block(self, now: float, cores: float = 0.0) -> None:
        self._blocked_until = now + BLOCK_S
        self._blocked_cores = cores or (self._window[-1].limits.cores if self._window else 0.0)

    def _close(self, outcome: str, got: float = 0.0) -> Note:
        """The newest decision has come to its end."""
        self.decisions[-1] = replace(self.decisions[-1], outcome=outcome, got_s=got)
        return Note(self.decisions[-1])


def _records_read(reading: Reading) -> float:
    return sum(stage.records for stage in reading.stages if stage.stage in reading.sources)


def counts_of(reading: Reading) -> dict[str, int]:
    """Tasks by the first stage of their chain."""
    return {group.stages[0]: group.replicas for group in reading.groups}


def counts_of_model(model: ThroughputModel) -> dict[str, int]:
    """The same of a model, without groups that keep theirs."""
    return {group.stages[0]: group.replicas for group in model.groups if not group.fixed}


def costs_of(model: ThroughputModel) -> dict[str, float]:
    """Seconds of each group's tasks for a record of input, by first stage."""
    return {group.stages[0]: model.busy_s(group) for group in model.groups}


def _signature(reading: Reading) -> object:
    return reading.groups, reading.limits, reading.cores


def _over(model: ThroughputModel) -> float:
    """By which share the cores in use are more than the run may have; 0 or less if they are not."""
    used = model.measured.records_s * sum(cost.cpu_s for cost in model.costs.values())
    return used / model.limits.cores - 1 if model.limits.cores > 0 else 0.0


def _gain(model: ThroughputModel, target: Mapping[str, int], trust: float) -> float:
    """The share by which these replicas would be quicker, as far as predictions are trusted."""
    now = model.measured.records_s
    return (model.with_replicas(target).predict().records_s / now - 1) * trust if now > 0 else 0.0
