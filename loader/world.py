"""Which rank of how many this process is: what torch.distributed says, or what its launcher wrote into the environment.

Two ranks that read as if each were alone read the same rows, and no loss shows it. So where nobody passed `rank` and
`world_size` they are asked for here, and where somebody passed a world of one they are compared. Who says it, in order:

1. the default process group of torch.distributed, once it is initialised;
2. torchrun, Accelerate and whoever else writes both RANK and WORLD_SIZE;
3. srun and mpirun: they say which task this is of how many, and not whether the tasks train one model. Nothing is
   taken from them; several tasks are refused until the caller says what they are.

What is said in part, such as Lightning's WORLD_SIZE before its process group is there, is refused as well.
"""

import os
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from headrace.loader.arguments import whole
from headrace.loader.order import LoaderError

#: ranks of one job; above that a number in the environment is a mistake
RANKS_MAX: Final = 1 << 24

#: (who says it, its variable for the task, its variable for the number of tasks). SLURM_NTASKS is no such variable: in
#: a batch script, which is one process, it says how many tasks a step of it would have
_LAUNCHERS: Final = (
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("mpirun of Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("mpirun of MVAPICH2", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("mpirun of MPICH", "PMI_RANK", "PMI_SIZE"),
)
_REMEDY: Final = (
    "pass rank= and world_size= to the loader, or alone=True where this process is to read every row by itself"
)


@dataclass(frozen=True, slots=True)
class World:
    """Rank `rank` of `size` ranks that share the rows of each step."""

    rank: int
    size: int
    #: who says so
    by: str = "the caller"


ALONE: Final = World(0, 1, "nobody")


def told_world(environ: Mapping[str, str] | None = None) -> World:
    """What this process is said to be; `ALONE` where nobody says anything.

    Raises LoaderError, with what to pass, where it is said in part, in two ways, or by a launcher that does not say
    whether its tasks train together.
    """
    environ = os.environ if environ is None else environ
    group, torchrun = _of_process_group(), _of_torchrun(environ)
    if group is not None:
        larger = torchrun if isinstance(torchrun, World) else ALONE
        if group.size == 1 and larger.size > 1:
            raise LoaderError(
                f"torch.distributed has a process group of 1, but {larger.by} says rank {larger.rank} of "
                f"{larger.size}: {_REMEDY}"
            )
        return group
    if isinstance(torchrun, World):
        return torchrun
    if torchrun is not None:
        raise LoaderError(torchrun)
    tasks = _tasks(environ)
    if tasks:
        said = ", ".join(f"{one.by} says task {one.rank} of {one.size}" for one in tasks)
        raise LoaderError(
            f"{said}, and not whether these tasks train one model: initialise torch.distributed before the first "
            f"batch, or {_REMEDY}"
        )
    return ALONE


def check_given(given: World, environ: Mapping[str, str] | None = None) -> None:
    """Raise LoaderError where the caller passed a world of one and there is a larger one.

    Other numbers are the caller's to know: with tensor parallelism several ranks of a process group share rows.
    """
    if given.size > 1:
        return
    try:
        told = told_world(environ)
    except LoaderError as error:
        raise LoaderError(f"rank=0 and world_size=1 were passed to the loader; {error}") from error
    if told.size > 1:
        raise LoaderError(
            f"rank=0 and world_size=1 were passed to the loader, but {told.by} says rank {told.rank} of {told.size}, "
            f"and each would read the same rows: leave both out, or {_REMEDY}"
        )


def _of_process_group() -> World | None:
    # whoever initialised it has imported it, and nobody pays for the import otherwise
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return World(distributed.get_rank(), distributed.get_world_size(), "the process group of torch.distributed")


def _of_torchrun(environ: Mapping[str, str]) -> World | str | None:
    """What RANK and WORLD_SIZE say, or why they say nothing that can be used."""
    world = _pair(environ, "the environment (RANK, WORLD_SIZE)", "RANK", "WORLD_SIZE")
    if isinstance(world, str) and environ.get("WORLD_SIZE") == "1" and "RANK" not in environ:
        return ALONE
    return world


def _tasks(environ: Mapping[str, str]) -> list[World]:
    """What launchers say of several tasks; where one of them says nothing whole it says nothing."""
    found = [_pair(environ, by, rank, size) for by, rank, size in _LAUNCHERS]
    return [one for one in found if isinstance(one, World) and one.size > 1]


def _pair(environ: Mapping[str, str], by: str, rank: str, size: str) -> World | str | None:
    said = {name: environ[name] for name in (rank, size) if environ.get(name)}
    if not said:
        return None
    given = " and ".join(f"{name}={value[:40]}" for name, value in said.items())
    if len(said) == 1:
        (missing,) = {rank, size} - set(said)
        return (
            f"the environment says {given} and no {missing}: initialise torch.distributed before the first batch, or "
            f"{_REMEDY}"
        )
    numbers = [
        int(value) if value.isascii() and value.isdecimal() and len(value) < 10 else -1 for value in said.values()
    ]
    if not 0 <= numbers[0] < numbers[1] <= RANKS_MAX:
        return f"the environment says {given}, which is no rank below a number of ranks: {_REMEDY}"
    return World(numbers[0], numbers[1], by)


def given_world(rank: Any, size: Any, *, alone: bool) -> World | None:
    """What the caller passed; None where it is to be asked for. Raises TypeError, ValueError."""
    if (rank is None) != (size is None):
        raise ValueError(f"rank and world_size are passed both or neither, got rank={rank} and world_size={size}")
    if rank is None:
        return World(0, 1) if alone else None
    world = World(whole("rank", rank), whole("world_size", size, 1))
    if world.rank >= world.size:
        raise ValueError(f"rank must lie in [0, world_size), got rank {world.rank} of {world.size}")
    if alone and world.size > 1:
        raise ValueError(f"alone=True is a world of one, and {world.size} ranks were passed")
    return world


class RankPlace:
    """Which rank a loader is: as was passed, or asked for until its first batch is made, and from then on fixed."""

    __slots__ = ("_alone", "_given", "_is_settled", "_world")

    def __init__(self, given: World | None, *, alone: bool) -> None:
        self._given, self._alone = given, alone
        self._world = given or ALONE
        self._is_settled = False

    @property
    def is_told(self) -> bool:
        """Whether somebody has said which rank this is, or the first batch is made and nobody had."""
        return self._is_settled or self._world != ALONE

    def look(self) -> World:
        """What is known by now; a world of one where nothing is, or nothing that can be used."""
        if self._given is None and not self._is_settled:
            with suppress(LoaderError):
                self._world = told_world()
        return self._world

    def settle(self) -> World:
        """What holds from here on: a batch is about to be made. Raises LoaderError where that cannot be known."""
        if self._given is not None:
            if not self._alone:
                check_given(self._given)
        elif not self._is_settled:
            self._world = told_world()
        else:
            self._require_same()
        self._is_settled = True
        return self._world

    def arguments(self) -> dict[str, Any]:
        """What makes a loader of the same rank."""
        world = self.look()
        pair = (world.rank, world.size) if self.is_told else (None, None)
        return {"rank": pair[0], "world_size": pair[1], "alone": self._alone}

    def _require_same(self) -> None:
        told = ALONE
        with suppress(LoaderError):
            told = told_world()
        if told.size > 1 and (told.rank, told.size) != (self._world.rank, self._world.size):
            raise LoaderError(
                f"this loader has read as rank {self._world.rank} of {self._world.size}, and now {told.by} says rank "
                f"{told.rank} of {told.size}: make the loader anew and load its state, or {_REMEDY}"
            )


def host_ranks(asked: Collection[int] | None, world: World) -> tuple[int, ...] | None:
    """The ranks of this host: as was asked for, or as torchrun says. Raises ValueError for what cannot be."""
    if asked is None:
        return local_ranks_of(os.environ, world.rank, world.size)
    return checked_ranks(asked, world.rank, world.size)


def local_ranks_of(environ: Mapping[str, str], rank: int, world_size: int) -> tuple[int, ...] | None:
    """The ranks of this host by what torchrun tells its processes; None where it tells nothing of these ranks.

    A job whose loaders are numbered otherwise than its processes (ranks that share a batch, as with tensor
    parallelism) is not what torchrun speaks of.
    """
    try:
        told = {name: int(environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")}
    except (KeyError, ValueError):
        return None
    first = told["RANK"] - told["LOCAL_RANK"]
    end = first + told["LOCAL_WORLD_SIZE"]
    if (told["RANK"], told["WORLD_SIZE"]) != (rank, world_size) or not 0 <= first <= rank < end <= world_size:
        return None
    return tuple(range(first, end))


def checked_ranks(ranks: Collection[int], rank: int, world_size: int) -> tuple[int, ...]:
    """`ranks`, sorted. Raises ValueError unless they are ranks of the job, and `rank` is one of them."""
    chosen = tuple(sorted(set(ranks)))
    if rank not in chosen or chosen[0] < 0 or chosen[-1] >= world_size:
        raise ValueError(f"local_ranks are those of this host, {rank} among them, all below {world_size}: {chosen}")
    return chosen
