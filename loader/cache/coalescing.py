"""How much of a shard is asked for beside what is wanted of it: what lies between, or all of it. Pure.

A request costs time of its own: on a host as fast as its network the processor's, with a store far away the wait for
the first byte. Bytes that lie between two wanted ranges are therefore asked for with them where that costs less than
a second request. Whether it costs more in the end depends on who reads these bytes otherwise: nobody but this host,
so that they are fetched now or later in the pass; this host, but not before the cache has given them up; other hosts.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from headrace.loader.order import I64


@dataclass(frozen=True, slots=True)
class Coalescing:
    """What one request takes along."""

    #: bytes between two wanted ranges, at most
    gap_bytes: int
    #: of the cost of a shard by one request, when what is wanted of it costs so much all of it is asked for
    whole_share: float
    #: bytes whose transfer costs what a request does beside its bytes
    request_bytes: int = 0

    def takes_whole(self, requests: int, wanted_bytes: int, size: int) -> bool:
        """Whether a shard of `size` bytes is asked for, where so many requests would bring `wanted_bytes` of it."""
        return wanted_bytes + requests * self.request_bytes >= self.whole_share * (size + self.request_bytes)

    def takes_whole_for(self, rows: I64, row_bytes: int, sequences: int) -> bool:
        """The same for rows [k], sorted, of a shard of `sequences` rows that is not open: its head is a request too."""
        steps = np.diff(rows)
        is_joined = (steps - 1) * row_bytes <= self.gap_bytes
        covered = int(np.where(is_joined, steps, 1).sum()) + min(rows.size, 1)
        requests = 1 + min(rows.size, 1) + int(np.count_nonzero(~is_joined))
        return self.takes_whole(requests, covered * row_bytes, sequences * row_bytes)


def joined(first: I64, end: I64, gap: int) -> list[tuple[int, int]]:
    """Ranges first[k] to end[k], sorted by where they begin, as runs: those at most `gap` apart are one."""
    if not first.size:
        return []
    end = np.maximum.accumulate(end)
    cuts = np.flatnonzero(first[1:] - end[:-1] > gap)
    starts, stops = first[np.append(0, cuts + 1)], end[np.append(cuts, end.size - 1)]
    return list(zip(starts.tolist(), stops.tolist(), strict=True))


#: of what a request would buy here, each of the other hosts has the store read as much
AMONG_HOSTS: Final = Coalescing(256 << 10, 0.9)
#: for bytes that may have been evicted before they are read: it is only their time on the way that is saved
CROWDED: Final = Coalescing(2 << 20, 0.25)
#: for bytes that are read later in the pass, from a cache that keeps them until then. A request was measured to cost
#: two cores with a store on them as much processor time as 4 MiB; to a store 30 ms away, which gives a connection
#: 100 MB/s, it costs 3 MB of what the connection might have brought. So the first batch waits for at most four times
#: what it would by parts, and later ones for nothing
ROOMY: Final = Coalescing(4 << 20, 0.25, 4 << 20)
#: on a local disk, where what a run costs beside its bytes is one read; a block of the default order, of which a window
#: reads every row, is one run
ON_DISK: Final = Coalescing(128 << 10, 1.0)
