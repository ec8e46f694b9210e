"""The memory of a ring: its layout, its making, and the handles by which it is passed on. `ring` has the theory.

A memfd holds a header page and then `capacity` bytes of records. The header is 64-bit words, native byte order:

    word    offset  written by  holds
       0         0  owner       magic "HRRING01"
       1         8  owner       layout version
       2        16  owner       generation
       3        24  owner       capacity in bytes
       4        32  owner       window in bytes
       5        40  owner       soft wrap point in bytes
      16       128  sender      head: the position up to which records are published
      24       192  receiver    tail: the position up to which they are released
      32       256  sender      1 while the sender wants to be woken
      40       320  receiver    1 while the receiver wants to be woken
      48       384  sender      state: open, closed, aborted
      56       448  receiver    state
      64       512  owner       state
      72       576  sender      process id of the sender, once it has attached
      73       584  receiver    process id of the receiver
             1024   sender      reason of its abort: length word, then UTF-8
             1536   receiver    the same
             2048   owner       the same

Each word that changes has exactly one writer and a cache line that it shares with no other writer's hot word.
"""

import fcntl
import mmap
import os
from array import array
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from headrace.transport import LinkAborted, LinkRefusedError
from headrace.transport.core import FRAME_LIMIT_BYTES, HEADER_BYTES

HEADER_PAGE_BYTES = 4096
#: Records start at multiples of this, so that the body of a frame is aligned for Arrow.
RECORD_ALIGNMENT_BYTES = 64
#: Room for the length before each frame: a whole unit, so that the frame is aligned too.
RECORD_PREFIX_BYTES = 64
#: A ring of this capacity takes the largest frame. Memory is used only where frames were written.
DEFAULT_CAPACITY_BYTES = FRAME_LIMIT_BYTES + HEADER_PAGE_BYTES
#: Where frames wrap while the receiver keeps up: what stays in a last-level cache beside the users' own memory
#: (1 MiB batches over two processes: 0.96 of memcpy with 4 MiB, 0.86 with 16).
DEFAULT_SOFT_BYTES = 4 << 20
DEFAULT_WINDOW_BYTES = 4 << 20
CAPACITY_LIMIT_BYTES = 1 << 40
REASON_LIMIT_BYTES = 480

_MAGIC = int.from_bytes(b"HRRING01", "little")
_LAYOUT_VERSION = 1
_WORD_MAGIC, _WORD_VERSION, _WORD_GENERATION, _WORD_CAPACITY, _WORD_WINDOW, _WORD_SOFT = range(6)
WORD_HEAD = 16
WORD_TAIL = 24
WORD_SENDER_WAITING = 32
WORD_RECEIVER_WAITING = 40


class RingState(Enum):
    """What an end, or the owner, has made of the ring; only the sender closes."""

    OPEN = 0
    CLOSED = 1
    ABORTED = 2


class Party(Enum):
    """Who writes to the header page: its state word, its reason's offset and its process id word."""

    SENDER = ("sender", 48, 1024, 72)
    RECEIVER = ("receiver", 56, 1536, 73)
    OWNER = ("owner", 64, 2048, 74)

    def __init__(self, label: str, state_word: int, reason_offset: int, pid_word: int) -> None:
        self.label = label
        self.state_word = state_word
        self.reason_offset = reason_offset
        self.pid_word = pid_word


@dataclass(frozen=True, slots=True)
class RingHandles:
    """All that is needed to attach to a ring: numbers, and three descriptors of this process.

    The descriptors belong to whoever holds the handles (`close_descriptors`); an end needs them while it lives.
    """

    name: str
    generation: int
    capacity_bytes: int
    window_bytes: int
    soft_bytes: int
    memory_fd: int
    #: The sender sleeps on this one.
    sender_fd: int
    #: The receiver sleeps on this one.
    receiver_fd: int

    def descriptors(self) -> tuple[int, int, int]:
        """Return the descriptors in the order that `with_descriptors` takes: for pass_fds or SCM_RIGHTS."""
        return self.memory_fd, self.sender_fd, self.receiver_fd

    def with_descriptors(self, memory_fd: int, sender_fd: int, receiver_fd: int) -> "RingHandles":
        """Return the same handles with the numbers that the descriptors have in this process."""
        return replace(self, memory_fd=memory_fd, sender_fd=sender_fd, receiver_fd=receiver_fd)

    def describe(self) -> dict[str, Any]:
        """Return plain data for a message or a command line; `from_description` reads it."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_description(cls, description: dict[str, Any]) -> "RingHandles":
        """Read what `describe` gave. Raises LinkRefusedError if it is something else."""
        try:
            name = str(description["name"])
            numbers = {field: int(description[field]) for field in cls.__dataclass_fields__ if field != "name"}
            return cls(name=name, **numbers)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise LinkRefusedError(f"no description of a ring ({error!r}): {description!r}") from error

    def close_descriptors(self) -> None:
        """Close the descriptors in this process. The memory goes when its last mapping does."""
        for descriptor in self.descriptors():
            with suppress(OSError):
                os.close(descriptor)


def create_ring(
    name: str,
    capacity_bytes: int = DEFAULT_CAPACITY_BYTES,
    window_bytes: int = DEFAULT_WINDOW_BYTES,
    generation: int = 1,
    *,
    soft_bytes: int = DEFAULT_SOFT_BYTES,
) -> RingHandles:
    """Make the memory of a ring and return its handles; the caller is its owner.

    `capacity_bytes` (a multiple of 64) is the room for records, `window_bytes` the credit, `generation` any number
    that differs from those of earlier rings of that name. Raises LinkRefusedError for sizes that cannot work and
    OSError where the kernel has no memfd or no descriptors left.
    """
    if capacity_bytes % RECORD_ALIGNMENT_BYTES or not _smallest_capacity() <= capacity_bytes <= CAPACITY_LIMIT_BYTES:
        raise LinkRefusedError(
            f'ring "{name}": capacity of {capacity_bytes} bytes; it must be a multiple of {RECORD_ALIGNMENT_BYTES} '
            f"from {_smallest_capacity()} to {CAPACITY_LIMIT_BYTES}"
        )
    if not 1 <= window_bytes <= capacity_bytes:
        raise LinkRefusedError(
            f'ring "{name}": window of {window_bytes} bytes; it must be from 1 to the capacity ({capacity_bytes})'
        )
    soft_bytes = min(soft_bytes, capacity_bytes)
    memory_fd = os.memfd_create(f"headrace:{name}"[:200], os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(memory_fd, HEADER_PAGE_BYTES + capacity_bytes)
    # Sealed, so that no peer can shrink it under a reader, which would be a SIGBUS.
    fcntl.fcntl(memory_fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    with mmap.mmap(memory_fd, HEADER_PAGE_BYTES) as page, memoryview(page) as view, view.cast("Q") as words:
        words[:6] = array("Q", (_MAGIC, _LAYOUT_VERSION, generation, capacity_bytes, window_bytes, soft_bytes))
    flags = os.EFD_CLOEXEC | os.EFD_NONBLOCK
    sender_fd, receiver_fd = os.eventfd(0, flags), os.eventfd(0, flags)
    return RingHandles(name, generation, capacity_bytes, window_bytes, soft_bytes, memory_fd, sender_fd, receiver_fd)


def _smallest_capacity() -> int:
    return RECORD_PREFIX_BYTES + -(-HEADER_BYTES // RECORD_ALIGNMENT_BYTES) * RECORD_ALIGNMENT_BYTES


class HeaderPage:
    """The mapped header page of a ring, as 64-bit words and reasons."""

    def __init__(self, handles: RingHandles) -> None:
        self._name = handles.name
        self._check_memory(handles)
        self._page = mmap.mmap(handles.memory_fd, HEADER_PAGE_BYTES)
        self._view = memoryview(self._page)
        self.words = self._view.cast("Q")
        self._check_layout(handles)

    def _check_memory(self, handles: RingHandles) -> None:
        expected = HEADER_PAGE_BYTES + handles.capacity_bytes
        actual = os.fstat(handles.memory_fd).st_size
        if actual != expected:
            raise LinkRefusedError(f'ring "{handles.name}": memory of {actual} bytes, the handles say {expected}')
        if not fcntl.fcntl(handles.memory_fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise LinkRefusedError(f'ring "{handles.name}": its memory can be shrunk by a peer; create_ring seals it')

    def _check_layout(self, handles: RingHandles) -> None:
        expected = {
            "magic": (_WORD_MAGIC, _MAGIC),
            "layout version": (_WORD_VERSION, _LAYOUT_VERSION),
            "generation": (_WORD_GENERATION, handles.generation),
            "capacity": (_WORD_CAPACITY, handles.capacity_bytes),
            "window": (_WORD_WINDOW, handles.window_bytes),
            "soft wrap point": (_WORD_SOFT, handles.soft_bytes),
        }
        for what, (word, value) in expected.items():
            if self.words[word] != value:
                raise LinkRefusedError(
                    f'ring "{handles.name}": {what} {self.words[word]} in memory, the handles say {value}; '
                    "they belong to another ring, ask the worker for new ones"
                )

    def claim(self, party: Party) -> None:
        """Take an end for this process. Raises LinkRefusedError if one has it, now or before: a ring has one life.

        It guards against a mistake and not against a race: there is no compare-and-swap here.
        """
        holder = self.words[party.pid_word]
        if holder:
            raise LinkRefusedError(
                f'ring "{self._name}": process {holder} has been its {party.label}; a new task needs a new ring'
            )
        self.words[party.pid_word] = os.getpid()

    def state(self, party: Party) -> int:
        """Return the value of the party's RingState, as found (a peer may have written anything)."""
        return self.words[party.state_word]

    def set_state(self, party: Party, state: RingState) -> None:
        """Publish the party's state."""
        self.words[party.state_word] = state.value

    def set_aborted(self, party: Party, reason: str) -> None:
        """Write the reason and then the state; the first reason stays."""
        if self.state(party) == RingState.ABORTED.value:
            return
        text = reason.encode("utf-8", "replace")[:REASON_LIMIT_BYTES]
        start = party.reason_offset + 8
        self._view[start : start + len(text)] = text
        self.words[party.reason_offset // 8] = len(text)
        self.set_state(party, RingState.ABORTED)

    def raise_aborted(self) -> None:
        """Raise LinkAborted with the story of the first party found to have aborted, the owner's first."""
        for party in (Party.OWNER, Party.SENDER, Party.RECEIVER):
            if self.state(party) == RingState.ABORTED.value:
                size = min(self.words[party.reason_offset // 8], REASON_LIMIT_BYTES)
                start = party.reason_offset + 8
                reason = bytes(self._view[start : start + size]).decode("utf-8", "replace")
                raise LinkAborted(self._name, party.label, reason)

    def unmap(self) -> None:
        """Drop the mapping."""
        self.words.release()
        self._view.release()
        self._page.close()


class RingOwner:
    """A worker's hold on a ring: it aborts on behalf of an end that died.

    Where the two ends are tasks of two workers, the receiver's has a hold too, and aborts as that `party`: each word of
    the header page is written by one side.
    """

    def __init__(self, handles: RingHandles, party: Party = Party.OWNER) -> None:
        self._handles, self._party = handles, party
        self._page = HeaderPage(handles)

    @property
    def ended(self) -> bool:
        """Whether anybody has aborted it."""
        return any(self._page.state(party) == RingState.ABORTED.value for party in Party)

    def abort(self, reason: str) -> None:
        """Cut the link: the next verb of either end raises LinkAborted with this reason. Both are woken."""
        self._page.set_aborted(self._party, reason)
        for descriptor in (self._handles.sender_fd, self._handles.receiver_fd):
            with suppress(BlockingIOError):
                os.eventfd_write(descriptor, 1)

    def close(self) -> None:
        """Unmap and close the descriptors; ends in other processes are not touched."""
        self._page.unmap()
        self._handles.close_descriptors()
