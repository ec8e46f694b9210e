"""Coverage-guided fuzzing of a decoder, in a process of its own: `fuzz_decoders.py TARGET [options of libFuzzer]`.

Invariant: any bytes give a value or the module's own error; anything else ends the process with a crash. The target
`canary` breaks it behind a check of six bytes, one after the other: random bytes do not find it (once in 2**48), who
is led by coverage does in seconds. A fuzzer that does not find it proves nothing about the others.
"""

import sys
from collections.abc import Callable

import atheris

with atheris.instrument_imports(include=["headrace.transport"]):
    from headrace.transport import control, credit, errors, frame, stream_frames, ticket

KEY = b"k" * ticket.KEY_BYTES_MIN


def fuzz_frame(data: bytes) -> None:
    for trust_body in (False, True):
        for verify in (False, True):
            try:
                decoded = frame.decode(data, verify=verify, trust_body=trust_body)
            except errors.FrameError:
                continue
            assert len(decoded.metadata) + len(decoded.body) <= len(data)


def fuzz_control(data: bytes) -> None:
    # With a good checksum, which no fuzzer guesses.
    for message in (data, _with_checksum(data)):
        try:
            decoded = control.decode_control(message)
        except errors.FrameError:
            continue
        control.encode_control(decoded)


def fuzz_ticket(data: bytes) -> None:
    body = ticket.MAGIC + len(data).to_bytes(2, "little") + data if len(data) < 60_000 else data
    for candidate in (data, body + ticket._seal(body, KEY)):
        try:
            decoded = ticket.decode_ticket(candidate, KEY)
        except ticket.TicketError:
            continue
        assert ticket.decode_ticket(ticket.encode_ticket(decoded, KEY), KEY) == decoded


def fuzz_stream(data: bytes) -> None:
    admitted: list[int] = []
    assembler = stream_frames.FrameAssembler(10_000, admitted.append)
    try:
        frames = [raw for start in range(0, len(data), 7) for raw in assembler.feed(data[start : start + 7])]
    except errors.FrameError:
        return
    assert [raw.nbytes for raw in frames] == admitted[: len(frames)]
    assert max(admitted, default=0) <= 10_000


def fuzz_credit(data: bytes) -> None:
    """Two honest ends never break a rule, whatever the order of their verbs; a fraud is refused."""
    window = 1000
    sender, receiver = credit.CreditSender(window), credit.CreditReceiver(window)
    flying: list[int] = []
    held: list[int] = []
    for action in data:
        size = 1 + (action >> 2) * 30
        if action & 3 == 0 and sender.can_send(size):
            sender.sent(size)
            flying.append(size)
        elif action & 3 == 1 and flying:
            receiver.received(flying[0])
            held.append(flying.pop(0))
        elif action & 3 == 2 and held:
            grant = receiver.released(held.pop(size % len(held)))
            if grant:
                sender.granted(grant)
        elif action & 3 == 3:
            try:
                sender.granted(sender.in_flight_bytes + size)
            except errors.CreditError:
                continue
            raise AssertionError("a grant of what was never sent went through")
    assert sender.in_flight_bytes == sum(flying) + sum(held) + receiver.withheld_bytes


def fuzz_canary(data: bytes) -> None:
    _canary(data)


@atheris.instrument_func
def _canary(data: bytes) -> None:
    secret = b"HRF1\x01\x63"
    found = 0
    while found < len(secret) and len(data) > found:
        if data[found] != secret[found]:
            return
        found += 1
        _reached(found)
    if found == len(secret):
        raise RuntimeError("the canary sings")


@atheris.instrument_func
def _reached(found: int) -> None:
    """Give each byte of the secret a branch of its own, for the fuzzer to see that it is getting warmer."""
    if found == 1:
        return
    if found == 2:
        return
    if found == 3:
        return
    if found == 4:
        return
    if found == 5:
        return


def _with_checksum(data: bytes) -> bytes:
    if len(data) < frame.HEADER_BYTES:
        return data
    return data[:64] + frame._CHECKSUM.pack(frame._checksum(memoryview(data), len(data))) + data[frame.HEADER_BYTES :]


TARGETS: dict[str, Callable[[bytes], None]] = {
    name.removeprefix("fuzz_"): target for name, target in globals().items() if name.startswith("fuzz_")
}


if __name__ == "__main__":
    chosen = TARGETS[sys.argv[1]]
    atheris.Setup([sys.argv[0], *sys.argv[2:]], chosen)
    atheris.Fuzz()
