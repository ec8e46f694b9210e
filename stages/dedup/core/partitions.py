"""What a decider and the partitions of its index say to each other: who holds these keys, and who is to hold them.

Each partition holds a range of the keys, by their highest bits. The decider asks all of them at once for the keys of a
batch, decides when all have answered, and asks for the next batch only then. A request also says which of the keys
asked for before were claimed since, and by whom, and which records were released. So a partition knows all that was
decided before it answers, and the verdicts are those of one index, whatever the number of partitions.

Requests are numbered. One whose answer may have been lost with its link is sent again; a partition applies it once and
gives the same answer. A partition that takes the place of a lost one is fenced, and says so; from then on the decider
lets nothing through.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]

NOBODY = -1
#: Keys that one request may ask for.
KEYS_MAX = 1 << 22
#: The number of the request; how many released records, claims and keys it has, and keys of whole texts among these.
_REQUEST = struct.Struct("<QIIII")
#: The number of the request; how many holders there are; whether the partition is fenced.
_ANSWER = struct.Struct("<QIB")
_FREE = 0xFFFFFFFF

Q = TypeVar("Q")
A = TypeVar("A")


def partitions_of(high: npt.NDArray[np.uint64], partitions: int) -> Numbers:
    """Which of so many partitions holds each key `[n]`, by its first 64 bits: equal ranges of the highest 32."""
    shift = np.uint64(32)
    return (((high >> shift) * np.uint64(partitions)) >> shift).astype(np.int64)


@dataclass(frozen=True, slots=True)
class PartitionRequest:
    """What a partition is told and asked.

    `released` are records that hold nothing any more; then the keys at `claimed` among those of the request before are
    given to records `numbers`, which rise. It is asked for keys: `keys` `[n, 2]`, each of a word `[n]`, 0 for the
    whole text.
    """

    number: int
    released: Numbers
    claimed: Numbers
    numbers: Numbers
    keys: npt.NDArray[np.uint64]
    words: Numbers

    def encode(self) -> bytes:
        """As bytes: of a band the first half of the key alone, of which the other is 0."""
        whole = self.keys[self.words == 0, 1]
        head = _REQUEST.pack(self.number, len(self.released), len(self.claimed), len(self.words), len(whole))
        columns = ((self.released, "<u4"), (self.claimed, "<u4"), (self.numbers, "<u4"), (self.words, "<u2"))
        parts = [head, *(column.astype(kind).tobytes() for column, kind in columns)]
        return b"".join([*parts, self.keys[:, 0].astype("<u8").tobytes(), whole.astype("<u8").tobytes()])

    @staticmethod
    def decode(data: bytes, words: int) -> PartitionRequest:
        """The request of a scheme of so many words. ValueError where bytes are none."""
        if len(data) < _REQUEST.size:
            raise ValueError(f"a request of {len(data)} bytes is none")
        number, released, claimed, asked, whole = _REQUEST.unpack_from(data)
        if max(released, claimed, asked) > KEYS_MAX or whole > asked:
            raise ValueError(f"a request for {asked} keys with {claimed} claims; the limit is {KEYS_MAX}")
        if len(data) != _REQUEST.size + 4 * (released + 2 * claimed) + 10 * asked + 8 * whole:
            raise ValueError(f"a request of {len(data)} bytes has another size than it says")
        columns: list[Any] = []
        at = _REQUEST.size
        for count, kind in ((released, "<u4"), (claimed, "<u4"), (claimed, "<u4"), (asked, "<u2"), (asked, "<u8")):
            columns.append(np.frombuffer(data, kind, count, at))
            at += columns[-1].nbytes
        of_word = columns[3].astype(np.int64)
        exact = of_word == 0
        if int(exact.sum()) != whole or (of_word == 1).any() or (of_word >= words).any():
            raise ValueError("a request for keys of words that a record does not have")
        numbers = columns[2].astype(np.int64)
        if (np.diff(numbers) < 0).any():
            raise ValueError("a request whose claims are in no order")
        keys = np.zeros((asked, 2), np.uint64)
        keys[:, 0] = columns[4]
        keys[exact, 1] = np.frombuffer(data, "<u8", whole, at)
        return PartitionRequest(
            number, columns[0].astype(np.int64), columns[1].astype(np.int64), numbers, keys, of_word
        )


def encode_answer(number: int, holders: Numbers | None) -> bytes:
    """The answer to a request: of each key the record that holds it, or NOBODY; None: the partition is fenced."""
    if holders is None:
        return _ANSWER.pack(number, 0, True)
    return (
        _ANSWER.pack(number, len(holders), False) + np.where(holders == NOBODY, _FREE, holders).astype("<u4").tobytes()
    )


def decode_answer(data: bytes) -> tuple[int, Numbers | None]:
    """The number of the request that bytes answer, and the answer. ValueError where they are none."""
    if len(data) < _ANSWER.size:
        raise ValueError(f"an answer of {len(data)} bytes is none")
    number, count, fenced = _ANSWER.unpack_from(data)
    if len(data) != _ANSWER.size + 4 * count or fenced > 1 or (fenced and count):
        raise ValueError(f"an answer of {len(data)} bytes has another size than it says")
    holders = np.frombuffer(data, "<u4", count, _ANSWER.size).astype(np.int64)
    return number, None if fenced else np.where(holders == _FREE, NOBODY, holders)


class OpenRequests(Generic[Q, A]):
    """The requests of a decider that are on their way: one a partition, all of one batch."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._requests: list[Q] = []
        self._answers: dict[int, A] = {}
        self.number = 0

    def ask(self, requests: list[Q]) -> None:
        """A request for each partition goes out. ValueError while others are unanswered."""
        if self.unanswered():
            raise ValueError(f"request {self.number} has no answer yet, and another follows")
        self._requests, self._answers = requests, {}
        self.number += 1

    def unanswered(self) -> list[tuple[int, Q]]:
        """The partitions that have not answered, each with its request."""
        return [(at, request) for at, request in enumerate(self._requests) if at not in self._answers]

    def answered(self, partition: int, number: int, answer: A) -> list[A] | None:
        """A partition answered; the answers in order when they are all there. A second answer is ignored."""
        if number != self.number or partition in self._answers or not self._requests:
            return None
        self._answers[partition] = answer
        if len(self._answers) < self._partitions:
            return None
        return [self._answers[at] for at in range(self._partitions)]


class ServedRequest(Generic[A]):
    """The last request that a partition has served, and its answer."""

    def __init__(self) -> None:
        self._number = 0
        self._answer: A | None = None

    def again(self, number: int) -> A | None:
        """The last answer, to a request that comes again; None where it is the next. ValueError for any other.

        One that lay in a link which was made anew may come behind a later one; it has its answer, and gets the last.
        """
        if 0 < number <= self._number:
            return self._answer
        if number != self._number + 1:
            raise ValueError(f"request {number} came behind request {self._number}")
        return None

    def served(self, number: int, answer: A) -> None:
        """The next request was served."""
        self._number, self._answer = number, answer
