"""What a worker says when it comes, and what is said when it goes."""

from __future__ import annotations

from msgspec import Struct

from headrace.controller.core.plan import WorkerFacts


class RunningTask(Struct, frozen=True):
    """An attempt that a worker still runs, and what it was born with. `ready`: it has built its stages.

    `fenced`, `waits`: its stage that remembers lets nothing through, see `StartTask`. `linked`: it has had a link.
    `stages`: its chain; empty from a worker that does not tell.
    """

    task: str
    attempt: int
    version: str = ""
    epoch: int = 0
    ready: bool = False
    addresses: tuple[str, ...] = ()
    fenced: bool = False
    linked: bool = False
    stages: tuple[str, ...] = ()
    waits: bool = False


class RunningLink(Struct, frozen=True):
    """A link that stands, and the attempts that it joins."""

    link: str
    sender_attempt: int
    receiver_attempt: int
    generation: int = 0


class WorkerRegistered(Struct, frozen=True):
    """A worker opened its session. `tasks` and `links` are those that it still has, whoever had them made."""

    worker: str
    host: str
    cores: int
    memory_bytes: int
    pid: int = 0
    tasks: tuple[RunningTask, ...] = ()
    links: tuple[RunningLink, ...] = ()
    #: Equal for two workers of one host and network.
    host_id: str = ""
    #: Where its tasks can be reached; none without a certificate.
    addresses: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    #: Where other workers of its host bring memory; empty for nowhere.
    door: str = ""
    #: Where it relays for others; none: it does not.
    relay_addresses: tuple[str, ...] = ()
    #: What was measured on its host, by name.
    measured: tuple[tuple[str, float], ...] = ()
    #: It is about to end, and wants to hand on its tasks; what is answered to that bears the number.
    leaves: bool = False
    request: int = 0

    def facts(self) -> WorkerFacts:
        """What a plan needs to know of it."""
        return WorkerFacts(
            name=self.worker,
            cores=self.cores,
            host=self.host_id or self.host,
            labels=self.labels,
            addresses=self.addresses,
            memory_bytes=self.memory_bytes,
            door=bool(self.door),
            relays=bool(self.relay_addresses),
            measured=self.measured,
        )


class SpreadExpulsions(Struct, frozen=True):
    """Tell every worker who is expelled; and part at once with the member `cut`, as role/name, if one is named."""

    cut: str = ""


class WorkerLost(Struct, frozen=True):
    """A worker's session ended or went silent."""

    worker: str
    reason: str
