"""Tickets. Invariant of the fuzzers: any bytes give a ticket or a TicketError, and only its key opens one."""

from dataclasses import replace

import msgpack
import pytest
from hypothesis import given, strategies as st

from headrace.cluster.ticket import (
    MAGIC,
    TICKET_LIMIT_BYTES,
    Ticket,
    TicketError,
    TicketForgedError,
    TicketMalformedError,
    TicketMismatchError,
    _seal as seal,
    decode_ticket,
    encode_ticket,
    match_ticket,
)

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
SAMPLE = Ticket(3, "web", "0123abcd", 7, "tokenize.0->pack.1", 11, 12)
U64 = st.integers(0, 2**64 - 1)
NAMES = st.text(st.characters(codec="utf-8"), max_size=32)
TICKETS = st.builds(Ticket, U64, NAMES, NAMES, U64, NAMES, U64, U64)


@given(TICKETS)
def test_a_ticket_comes_back_as_it_was(ticket: Ticket) -> None:
    encoded = encode_ticket(ticket, KEY)
    assert decode_ticket(encoded, KEY) == ticket
    assert len(encoded) <= TICKET_LIMIT_BYTES


@given(st.binary(max_size=TICKET_LIMIT_BYTES + 10))
def test_any_bytes_are_refused_by_name(data: bytes) -> None:
    with pytest.raises(TicketError):
        decode_ticket(data, KEY)


@given(st.binary(max_size=200))
def test_any_claims_under_a_good_seal_are_refused_by_name(claims: bytes) -> None:
    body = MAGIC + len(claims).to_bytes(2, "little") + claims
    with pytest.raises(TicketMalformedError):
        decode_ticket(body + seal(body, KEY), KEY)


@pytest.mark.parametrize(
    "claims",
    [
        [],
        [1] * 7,
        [-1, "p", "v", 1, "l", 1, 1],
        [True, "p", "v", 1, "l", 1, 1],
        [1, "x" * 300, "v", 1, "l", 1, 1],
        {"a": 1},
    ],
)
def test_claims_of_the_wrong_kind_are_refused(claims: object) -> None:
    packed = msgpack.packb(claims)
    body = MAGIC + len(packed).to_bytes(2, "little") + packed
    with pytest.raises(TicketMalformedError):
        decode_ticket(body + seal(body, KEY), KEY)


def test_a_ticket_with_one_flipped_bit_is_refused() -> None:
    encoded = encode_ticket(SAMPLE, KEY)
    for at in range(len(encoded)):
        for bit in range(8):
            damaged = bytearray(encoded)
            damaged[at] ^= 1 << bit
            with pytest.raises(TicketError):
                decode_ticket(bytes(damaged), KEY)


def test_another_clusters_key_makes_no_ticket_of_ours() -> None:
    with pytest.raises(TicketForgedError):
        decode_ticket(encode_ticket(SAMPLE, OTHER_KEY), KEY)


def test_a_short_key_is_refused() -> None:
    with pytest.raises(ValueError, match="31 bytes"):
        encode_ticket(SAMPLE, b"k" * 31)


@pytest.mark.parametrize(
    "change",
    [
        {"term": 4},
        {"pipeline": "x"},
        {"version": "x"},
        {"epoch": 8},
        {"link": "x"},
        {"sender_attempt": 1},
        {"receiver_attempt": 1},
    ],
)
def test_a_ticket_for_anything_else_is_refused_with_what_differs(change: dict[str, object]) -> None:
    other = encode_ticket(replace(SAMPLE, **change), KEY)  # type: ignore[arg-type]
    with pytest.raises(TicketMismatchError, match=next(iter(change))):
        match_ticket(other, encode_ticket(SAMPLE, KEY))


@given(st.integers(2**64))
def test_a_number_out_of_range_makes_no_ticket(number: int) -> None:
    with pytest.raises(TicketMalformedError, match="epoch"):
        replace(SAMPLE, epoch=number)


def test_an_end_accepts_its_ticket_and_says_how_another_differs() -> None:
    ours = encode_ticket(SAMPLE, KEY)
    match_ticket(ours, ours)
    with pytest.raises(TicketMismatchError, match="the ticket says sender_attempt 99, this end was told"):
        match_ticket(encode_ticket(replace(SAMPLE, sender_attempt=99), KEY), ours)
    with pytest.raises(TicketForgedError, match="the seal of the ticket is not that"):
        match_ticket(encode_ticket(SAMPLE, OTHER_KEY), ours)
    with pytest.raises(TicketMalformedError):
        match_ticket(b"", ours)
