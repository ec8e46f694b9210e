"""Which ranks run on this host: they share its cache, and what they read is fetched here and no more."""

import os
from collections.abc import Collection, Mapping

from headrace.loader.world import World


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
