"""What a sink holds, when it seals, and what becomes of each proposal: the pure half of a sink.

A batch is gathered, then part of a shard that is being written, then of a proposal that waits for its answer, then
closed. Until it is closed it is held: this task has its records and a sweep says so. A shard is sealed when
the kept rows reach the target size, or the held bytes their limit, or the oldest batch its age, or when the controller
asks. So nothing stays open for want of kept rows. Where most of the very first records are quarantined it is sealed at
once: the ledger hears of it while little is read, and the run may be ended (controller/core/run/publishing.py).

Behind a dedup stage a sink asks before it writes: a duplicate's verdict holds only where the record that it names is
kept (controller/core/run/proposals.py). Verdicts whose record is not closed yet go with a later shard; those
whose record is gone are let go of, and their records read again. What an overlap leaves of a shard asks once more: the
record that a verdict names may have been cut out, and the ledger may have quarantined it. A number stands for one
content: what is left has a number of its own, so that no answer to the whole is taken for one to the rest.

A store that is full, or has stopped answering, stalls a shard: it is held, and written again after a while, without
end. Meanwhile no other is begun, the sink soon takes no batch, and the source stops for want of credit.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from msgspec import Struct

from headrace.store.ledger import Range
from headrace.worker.core import Doubt
from headrace.worker.task.core.ranges import Ranges

#: Seconds without an answer after which a proposal is made again; the same proposal gets the same answer.
PROPOSE_AGAIN_S = 2.0
#: Seconds before a shard that stalled is written again, doubled for each time in a row up to WRITE_AGAIN_S_MAX.
WRITE_AGAIN_S = 0.5
WRITE_AGAIN_S_MAX = 5.0
#: Seconds before verdicts that name a record which is still open are asked for again, where all is to be committed,
#: doubled for each time in a row up to NEEDS_AGAIN_S_MAX: what they wait for is mostly a shard that is being written.
NEEDS_AGAIN_S = 0.02
NEEDS_AGAIN_S_MAX = 0.2
#: Verdicts up to which that is so. More are asked for seldom from the beginning: the controller looks for each of them.
NEEDS_FEW = 10_000
#: What one of them counts as held, in bytes.
NEED_BYTES = 256
#: The share of `held_bytes_max` that verdicts may take which wait for the records that they name. Beyond it they are
#: let go of and read again: else no room would be left for those very records.
WAITING_SHARE = 0.5
#: All that a sink holds, in units of `held_bytes_max`: as much again may be written or proposed as may gather.
#: Beyond it the sink takes no batch, so a log that does not answer holds up the source and fills no memory.
HELD_TIMES_MAX = 2
#: Why a sink seals by itself.
BY_ITSELF = ("size", "age", "doubt")
#: What is spilled of all batches that are not closed, in units of the target size: room on a disk, and not memory.
SPILLED_TIMES_MAX = 4


class SealPolicy(Struct, frozen=True):
    """When a shard is sealed. `held_bytes_max` bounds all that gathers, `age_s` is the age of the oldest batch."""

    target_bytes: int = 32 << 20
    held_bytes_max: int = 128 << 20
    age_s: float = 30.0


class ShardState(Enum):
    """Where a shard of this sink stands."""

    ASKING = "asking"
    WRITING = "writing"
    STALLED = "stalled"
    PROPOSED = "proposed"
    CLOSED = "closed"
    #: What is left of it is another shard.
    CUT = "cut"


class ShardTurn(Enum):
    """What moves a shard."""

    ANSWERED = "needs answered"
    WRITTEN = "written"
    STORE_STALLED = "store stalled"
    WAITED = "waited"
    ACCEPTED = "accepted"
    OVERLAPS = "overlaps"


TRANSITIONS: dict[tuple[ShardState, ShardTurn], ShardState] = {
    (ShardState.ASKING, ShardTurn.ANSWERED): ShardState.WRITING,
    (ShardState.WRITING, ShardTurn.WRITTEN): ShardState.PROPOSED,
    (ShardState.WRITING, ShardTurn.STORE_STALLED): ShardState.STALLED,
    (ShardState.STALLED, ShardTurn.WAITED): ShardState.WRITING,
    (ShardState.PROPOSED, ShardTurn.ACCEPTED): ShardState.CLOSED,
    (ShardState.PROPOSED, ShardTurn.OVERLAPS): ShardState.CUT,
}


class OfShard(Struct, frozen=True):
    """What concerns one shard, by its number."""

    shard: int


class BatchGathered(Struct, frozen=True):
    """A batch arrived. `target_bytes` count towards the shard's size, `held_bytes` are what it occupies.

    `spilled_bytes` are in a scratch file on a disk, and not among those. `quarantined` of its records are that; it is
    asked for while the doubt lasts.
    """

    range: Range
    target_bytes: int
    held_bytes: int
    spilled_bytes: int = 0
    quarantined: int = 0


class SealAsked(Struct, frozen=True):
    """The controller wants what is gathered to be committed."""

    reason: str


class NeedsAnswered(OfShard, frozen=True):
    """Of a shard's duplicates, the records whose verdicts must wait, and those whose verdicts are void."""

    waiting: Collection[Range] = ()
    void: Collection[Range] = ()


class ShardWritten(OfShard, frozen=True):
    """The objects of a shard are durable."""


class ShardStalled(OfShard, frozen=True):
    """The store took no more of a shard, for a reason that may pass; for people, `why`."""

    why: str


class ShardAccepted(OfShard, frozen=True):
    """The ledger names the shard."""


class ShardOverlapped(OfShard, frozen=True):
    """Parts of the shard's ranges are closed already."""

    overlaps: tuple[Range, ...]


class SealTimePassed(Struct, frozen=True):
    """A timer has run out."""


class WriteShard(OfShard, frozen=True):
    """Write a shard of these ranges, in this order. A range may be a part of the batch that it came in."""

    ranges: Ranges
    reason: str


class AskNeeds(OfShard, frozen=True):
    """Ask which of the records that the duplicates of these batches name are kept, if there are any such."""

    ranges: Ranges


class ProposeShard(OfShard, frozen=True):
    """Propose a shard that is written."""


class LetGo(Struct, frozen=True):
    """Let go of verdicts that should wait and for which there is no room: they are open, and held by nobody."""

    ranges: Ranges


class RenewShard(OfShard, frozen=True):
    """What is left of a shard is the shard `into` from now on, which is asked for or written next."""

    into: int


class ReleaseShard(OfShard, frozen=True):
    """Let go of the batches of a shard."""


Event = (
    BatchGathered
    | SealAsked
    | NeedsAnswered
    | ShardWritten
    | ShardStalled
    | ShardAccepted
    | ShardOverlapped
    | SealTimePassed
)
Command = AskNeeds | WriteShard | ProposeShard | LetGo | RenewShard | ReleaseShard


@dataclass(slots=True)
class _Shard:
    number: int
    ranges: Ranges
    held_bytes: int
    spilled_bytes: int
    reason: str
    state: ShardState = ShardState.WRITING
    #: When it was proposed, or asked for, last.
    proposed_at: float = 0.0
    stalls: int = 0
    again_at: float = 0.0
    trouble: str = ""

    def turn(self, turn: ShardTurn) -> None:
        target = TRANSITIONS.get((self.state, turn))
        if target is None:
            raise ValueError(f"shard {self.number}: {self.state.value} on {turn.value!r}")
        self.state = target


class Gathering:
    """The state machine of one sink in one task."""

    def __init__(self, policy: SealPolicy, *, dependent: bool = False) -> None:
        self.policy = policy
        #: Whether batches may hold verdicts that name other records.
        self._dependent = dependent
        #: Not before this is a seal that was asked for taken up again, and how long that is from the last answer.
        self._again_at, self._again_s = 0.0, NEEDS_AGAIN_S
        #: What gathers, by fragment, and verdicts that wait for the records that they name.
        self._fresh: dict[bytes, list[Range]] = {}
        self._waiting = Ranges({})
        self._target = 0
        self._bytes = 0
        self._spilled = 0
        self._oldest: float | None = None
        self._seal: str = ""
        self._shards: dict[int, _Shard] = {}
        self._count = 0
        self.doubt = Doubt()

    @property
    def held_bytes(self) -> int:
        """Bytes in memory of all batches that are not closed."""
        return self._bytes + sum(shard.held_bytes for shard in self._shards.values())

    @property
    def accepts(self) -> bool:
        """Whether another batch may come: what gathers is below its limits, and so is all that is not closed yet."""
        if self._due_by_size() or self.held_bytes >= HELD_TIMES_MAX * self.policy.held_bytes_max:
            return False
        spilled = self._spilled + sum(shard.spilled_bytes for shard in self._shards.values())
        return spilled < SPILLED_TIMES_MAX * self.policy.target_bytes

    @property
    def trouble(self) -> str:
        """Why a shard waits for its store, until it is written; "" while none does."""
        return next((shard.trouble for shard in self._shards.values() if shard.trouble), "")

    def held(self, fragment: bytes | None = None) -> list[Range]:
        """Every range that this sink holds, for a sweep; or those of one fragment."""
        places = (self._waiting, *(shard.ranges for shard in self._shards.values()))
        if fragment is None:
            return [item for place in (Ranges(self._fresh), *places) for item in place]
        # Asked of each member of a merged batch: nothing of the other fragments is looked at.
        return [*self._fresh.get(fragment, ()), *(item for place in places for item in place.of_fragment(fragment))]

    def missing(self, item: Range) -> Collection[Range]:
        """What of a range this sink does not hold."""
        fresh = self._fresh.get(item.fragment, ())
        mine = [other for other in fresh if other.first < item.end and item.first < other.end]
        places = [Ranges.of(mine)] if mine else []
        shards = (shard.ranges for shard in self._shards.values())
        places += [place for place in (self._waiting, *shards) if len(place.within(item))]
        left: Collection[Range] = (item,)
        for place in places:
            left = Ranges.of(left).minus(place)
        return left

    @property
    def held_count(self) -> tuple[int, int]:
        """How many ranges it holds, and how many records."""
        places = (Ranges(self._fresh), self._waiting, *(shard.ranges for shard in self._shards.values()))
        return sum(map(len, places)), sum(place.records for place in places)

    def asks(self, shard: int) -> bool:
        """Whether a shard waits for the records that its duplicates name."""
        return shard in self._shards and self._shards[shard].state is ShardState.ASKING

    def wake_at(self) -> float | None:
        """When `handle(TimePassed())` is wanted next."""
        times: list[float] = []
        for shard in self._shards.values():
            if shard.state is ShardState.PROPOSED or shard.state is ShardState.ASKING:
                times.append(shard.proposed_at + PROPOSE_AGAIN_S)
            elif shard.state is ShardState.STALLED:
                times.append(shard.again_at)
        if self._seal and self._gathers and not self._writing():
            times.append(self._again_at)
        if self._oldest is not None and not self._writing():
            times.append(self._oldest + self.policy.age_s)
        return min(times, default=None)

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take one event; give the commands that follow from it."""
        commands: list[Command] = []
        match event:
            case BatchGathered():
                self._gather(event, now)
            case SealAsked():
                self._seal_all(event.reason)
            case NeedsAnswered():
                commands += self._answered(event, now)
            case ShardWritten():
                commands += self._written(event.shard, now)
            case ShardStalled():
                self._stall(event, now)
            case ShardAccepted():
                commands += self._accepted(event.shard)
            case ShardOverlapped():
                commands += self._overlapped(event, now)
            case SealTimePassed():
                commands += [*self._propose_again(now), *self._ask_again(now), *self._write_again(now)]
        return commands + self._seal_if_due(now)

    def _seal_all(self, reason: str) -> None:
        """Commit all that gathers, and soon what an overlap leaves waiting of a shard that is on its way."""
        self._again_s = NEEDS_AGAIN_S
        self._seal = reason if self._gathers or self._of_state(ShardState.ASKING) else ""
        for shard in self._shards.values():
            if shard.state is not ShardState.ASKING:
                shard.reason = reason

    def _gather(self, event: BatchGathered, now: float) -> None:
        self._fresh.setdefault(event.range.fragment, []).append(event.range)
        self._target += event.target_bytes
        self._bytes += event.held_bytes
        self._spilled += event.spilled_bytes
        self.doubt.note(event.range.count, event.quarantined)
        if self._oldest is None:
            self._oldest = now

    def _wait(self, verdicts: Ranges, now: float) -> None:
        """Verdicts gather again. None of them counts towards a shard's size."""
        self._waiting = self._waiting.plus(verdicts)
        self._bytes += NEED_BYTES * len(verdicts)
        self.doubt.note(len(verdicts), 0)
        if self._oldest is None and verdicts:
            self._oldest = now

    @property
    def _gathers(self) -> bool:
        return bool(self._fresh or self._waiting)

    def _due_by_size(self) -> bool:
        return self._target >= self.policy.target_bytes or self._bytes >= self.policy.held_bytes_max

    def _seal_if_due(self, now: float) -> list[Command]:
        if not self._gathers or self._writing():
            return []
        if self._seal and now < self._again_at:
            return []
        reason = self._seal
        if not reason and self._due_by_size():
            reason = "size"
        if not reason and self.doubt.due():
            reason = "doubt"
        if not reason and self._oldest is not None and now >= self._oldest + self.policy.age_s:
            reason = "age"
        if not reason:
            return []
        ranges = Ranges(self._fresh).plus(self._waiting).disjoint()
        shard = _Shard(self._count, ranges, self._bytes, self._spilled, reason)
        self._fresh, self._waiting, self._target, self._bytes, self._spilled = {}, Ranges({}), 0, 0, 0
        self._oldest, self._seal = None, ""
        return self._begin(shard, reason, now)

    def _begin(self, shard: _Shard, why: str, now: float) -> list[Command]:
        """A shard of a number that no other has had: ask what its duplicates name, or write it."""
        self._count += 1
        self._shards[shard.number] = shard
        if not self._dependent:
            return [WriteShard(shard.number, shard.ranges, why)]
        shard.state, shard.proposed_at = ShardState.ASKING, now
        return [AskNeeds(shard.number, shard.ranges)]

    def _answered(self, event: NeedsAnswered, now: float) -> list[Command]:
        shard = self._shards.get(event.shard)
        if shard is None or shard.state is not ShardState.ASKING:
            return []
        shard.turn(ShardTurn.ANSWERED)
        waiting, commands = Ranges.of(event.waiting), list[Command]()
        shard.ranges = shard.ranges.minus(waiting).minus(Ranges.of(event.void))
        committing = shard.reason not in BY_ITSELF
        if not committing and not self._seal:
            # They go with what gathers next, and must leave room for it.
            room = int(WAITING_SHARE * self.policy.held_bytes_max) // NEED_BYTES
            waiting, beyond = waiting.parted(room)
            commands += [LetGo(beyond)] if beyond else []
        elif committing and waiting:
            pause = self._again_s if len(waiting) <= NEEDS_FEW else NEEDS_AGAIN_S_MAX
            self._seal, self._again_at, self._again_s = shard.reason, now + pause, min(2 * pause, NEEDS_AGAIN_S_MAX)
        self._wait(waiting, now)
        if not self._gathers:
            self._seal = ""
        if shard.ranges:
            return [*commands, WriteShard(shard.number, shard.ranges, shard.reason)]
        del self._shards[shard.number]
        return [*commands, ReleaseShard(shard.number)]

    def _ask_again(self, now: float) -> list[Command]:
        late = [shard for shard in self._of_state(ShardState.ASKING) if now >= shard.proposed_at + PROPOSE_AGAIN_S]
        for shard in late:
            shard.proposed_at = now
        return [AskNeeds(shard.number, shard.ranges) for shard in late]

    def _writing(self) -> bool:
        busy = (ShardState.ASKING, ShardState.WRITING, ShardState.STALLED)
        return any(shard.state in busy for shard in self._shards.values())

    def _of_state(self, state: ShardState) -> list[_Shard]:
        return [shard for shard in self._shards.values() if shard.state is state]

    def _written(self, number: int, now: float) -> list[Command]:
        shard = self._shards[number]
        shard.turn(ShardTurn.WRITTEN)
        shard.proposed_at, shard.trouble, shard.stalls = now, "", 0
        return [ProposeShard(number)]

    def _stall(self, event: ShardStalled, now: float) -> None:
        shard = self._shards[event.shard]
        shard.turn(ShardTurn.STORE_STALLED)
        shard.again_at = now + min(WRITE_AGAIN_S_MAX, WRITE_AGAIN_S * 2.0 ** min(shard.stalls, 20))
        shard.trouble, shard.stalls = event.why, shard.stalls + 1

    def _write_again(self, now: float) -> list[Command]:
        due = [shard for shard in self._of_state(ShardState.STALLED) if now >= shard.again_at]
        for shard in due:
            shard.turn(ShardTurn.WAITED)
        return [WriteShard(shard.number, shard.ranges, "stall") for shard in due]

    def _accepted(self, number: int) -> list[Command]:
        shard = self._shards.get(number)
        if shard is None or shard.state is not ShardState.PROPOSED:
            return []
        shard.turn(ShardTurn.ACCEPTED)
        del self._shards[number]
        return [ReleaseShard(number)]

    def _overlapped(self, event: ShardOverlapped, now: float) -> list[Command]:
        shard = self._shards.get(event.shard)
        if shard is None or shard.state is not ShardState.PROPOSED:
            return []
        shard.turn(ShardTurn.OVERLAPS)
        del self._shards[shard.number]
        left = shard.ranges.minus(Ranges.of(event.overlaps))
        if not left:
            return [ReleaseShard(shard.number)]
        rest = _Shard(self._count, left, shard.held_bytes, shard.spilled_bytes, shard.reason)
        return [RenewShard(shard.number, rest.number), *self._begin(rest, "overlap", now)]

    def _propose_again(self, now: float) -> list[Command]:
        again: list[Command] = []
        for shard in self._of_state(ShardState.PROPOSED):
            if now >= shard.proposed_at + PROPOSE_AGAIN_S:
                shard.proposed_at = now
                again.append(ProposeShard(shard.number))
        return again
