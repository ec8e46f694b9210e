"""What two ends of a link say to each other beside the data."""

import pytest

from headrace.transport.core.errors import FrameError
from headrace.transport.core.frame import (
    REASON_LIMIT_BYTES,
    Aborted,
    Control,
    Finished,
    Frame,
    FrameKind,
    Granted,
    Welcomed,
    decode,
    decode_control,
    encode,
    encode_control,
)


@pytest.mark.parametrize("said", [Granted(1), Granted(1 << 40), Aborted(7, "why"), Finished(0), Welcomed(1 << 20, 99)])
def test_what_is_said_is_heard(said: Control) -> None:
    assert decode_control(encode_control(said)) == said


def test_a_reason_is_cut_and_what_has_no_count_says_none() -> None:
    heard = decode_control(encode_control(Aborted(0, "x" * 2 * REASON_LIMIT_BYTES)))
    assert heard == Aborted(0, "x" * REASON_LIMIT_BYTES)
    told = decode(encode_control(Finished(3)), 4096)
    assert (told.epoch, told.count) == (0, 0)


@pytest.mark.parametrize("kind", [FrameKind.GRANT, FrameKind.DATA])
def test_a_grant_of_nothing_and_what_is_no_control_message_are_refused(kind: FrameKind) -> None:
    with pytest.raises(FrameError):
        decode_control(encode(Frame(kind, 0, bytes(16), 0, 0, b"", b"")))
