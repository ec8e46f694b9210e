"""The control protocol's words and the ledger's: one conversion each, for controller, worker and client.

A message came from another process: what takes it in checks it, and a conversion does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from headrace.daemon import Search
from headrace.protos import control_pb2 as pb
from headrace.store.ledger import Counts, Fragment, Gap, Range, StoredObject

if TYPE_CHECKING:
    from headrace.store.ledger import Balance

#: Records of fragments: each fragment with the ordinals of its records.
Records = tuple[tuple[bytes, tuple[int, ...]], ...]


def fragment_to(fragment: Fragment) -> pb.Fragment:
    """A fragment as a message."""
    f = fragment
    return pb.Fragment(
        id=f.id, stage=f.stage, uri=f.uri, version=f.version, start=f.start, end=f.end, reader=f.reader, size=f.size
    )


def fragment_from(message: pb.Fragment) -> Fragment:
    """The inverse of `fragment_to`."""
    m = message
    return Fragment(m.id, m.stage, m.uri, m.version, m.start, m.end, m.reader, m.size)


def gaps_to(gaps: Iterable[Gap]) -> list[pb.Gap]:
    """Gaps as messages."""
    return [pb.Gap(first=gap.first, end=gap.end, offset=gap.offset) for gap in gaps]


def gaps_from(messages: Iterable[pb.Gap]) -> tuple[Gap, ...]:
    """The inverse of `gaps_to`."""
    return tuple(Gap(item.first, item.end, item.offset) for item in messages)


def range_to(item: Range) -> pb.Range:
    """A range as a message, without bitmaps."""
    return pb.Range(fragment=item.fragment, first=item.first, count=item.count, offset=item.offset, length=item.length)


def range_from(message: pb.Range) -> Range:
    """A range without its bitmaps."""
    m = message
    return Range(m.fragment, m.first, m.count, m.offset, m.length)


def ranges_from(messages: Iterable[pb.Range]) -> tuple[Range, ...]:
    """Ranges without their bitmaps."""
    return tuple(map(range_from, messages))


def objects_to(objects: Iterable[StoredObject]) -> list[pb.StoredObject]:
    """Stored objects as messages."""
    return [pb.StoredObject(role=item.role, key=item.key, checksum=item.checksum, size=item.size) for item in objects]


def objects_from(messages: Iterable[pb.StoredObject]) -> tuple[StoredObject, ...]:
    """The inverse of `objects_to`."""
    return tuple(StoredObject(item.role, item.key, item.checksum, item.size) for item in messages)


def records_to(records: Iterable[tuple[bytes, Iterable[int]]]) -> list[pb.Records]:
    """Records as messages."""
    return [pb.Records(fragment=fragment, rows=rows) for fragment, rows in records]


def records_from(messages: Iterable[pb.Records]) -> Records:
    """The inverse of `records_to`."""
    return tuple((item.fragment, tuple(item.rows)) for item in messages)


def counts_to(counts: Counts) -> pb.Counts:
    """Counts as a message."""
    return pb.Counts(
        kept=counts.kept,
        filtered=counts.filtered,
        duplicate=counts.duplicate,
        quarantined=counts.quarantined,
        filtered_by=dict(counts.filtered_by),
        quarantined_by=dict(counts.quarantined_by),
        edited=dict(counts.edited),
        tokens=counts.tokens,
        sequences=counts.sequences,
        padding=counts.padding,
        counters=dict(counts.counters),
    )


def counts_from(message: pb.Counts | pb.Balance) -> Counts:
    """The inverse of `counts_to`; of a balance, the counts of all that is closed."""
    m = message
    return Counts(
        kept=m.kept,
        filtered=m.filtered,
        duplicate=m.duplicate,
        quarantined=m.quarantined,
        filtered_by=dict(m.filtered_by),
        quarantined_by=dict(m.quarantined_by),
        edited=dict(m.edited),
        tokens=m.tokens,
        sequences=m.sequences,
        padding=m.padding,
        counters=dict(m.counters),
    )


def balance_to(balance: Balance) -> pb.Balance:
    """A balance as a message, with the keys of `Balance.to_dict`."""
    return pb.Balance(**balance.to_dict(), seq_len=balance.seq_len)


def balance_from(message: pb.Balance) -> Balance:
    """The inverse of `balance_to`."""
    from headrace.store.ledger import Balance  # here, since a task has no use for what a balance is folded from

    m = message
    return Balance(
        counts=counts_from(m),
        records_open=m.records_open,
        fragments=m.fragments,
        fragments_open=m.fragments_open,
        fragments_unended=m.fragments_unended,
        fragments_dropped=m.fragments_dropped,
        open_at=tuple(m.open_at),
        shards=m.shards,
        version=m.version,
        seq_len=m.seq_len,
        balanced=m.balanced,
        complete=m.complete,
    )


def expulsions_to(expelled: Mapping[str, Iterable[str]]) -> pb.Expulsions:
    """The expelled members as a message, each with the keys that were let in under its name since."""
    return pb.Expulsions(members=[pb.Expelled(member=member, keys=keys) for member, keys in expelled.items()])


def expulsions_from(message: pb.Expulsions) -> dict[str, frozenset[str]]:
    """The inverse of `expulsions_to`."""
    return {item.member: frozenset(item.keys) for item in message.members}


def search_from(message: pb.LogSearch) -> Search:
    """The lines that a search of logs asks for."""
    m = message
    return Search(m.pipeline, m.stage, m.task, m.cause, m.level, m.since)


def plain(message: Message) -> dict[str, Any]:
    """A protobuf message as JSON: integers stay integers, bytes become hex, all fields are there.

    A balance that the message does not have is None: one of zeros would say that nothing was read.
    """
    found = {field.name: _plain(getattr(message, field.name)) for field in message.DESCRIPTOR.fields}
    if "balance" in found and not message.HasField("balance"):
        found["balance"] = None
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, (str, int, float)):
        return value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Message):
        return plain(value)
    if isinstance(value, Mapping):
        return {key: _plain(value[key]) for key in sorted(value)}
    return [_plain(item) for item in value]
