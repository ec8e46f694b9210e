"""The codec of frames. Invariant of the fuzzers: any bytes give a frame or a FrameError, and nothing else."""

import struct

import pytest
from hypothesis import example, given, strategies as st

from headrace.transport.core.errors import (
    FrameChecksumError,
    FrameCoverageError,
    FrameError,
    FrameKindError,
    FrameMagicError,
    FrameOversizeError,
    FrameTrailingError,
    FrameTruncatedError,
    FrameVersionError,
)
from headrace.transport.core.frame import (
    BODY_ALIGNMENT_BYTES,
    FRAME_LIMIT_BYTES,
    HEADER_BYTES,
    ChecksumCoverage,
    Frame,
    FrameKind,
    decode,
    encode,
    encode_parts,
    encoded_size,
    frame_size,
)
from tests.kits.transport.links import Later

U64 = st.integers(0, 2**64 - 1)
FRAMES = st.builds(
    Frame,
    kind=st.sampled_from(FrameKind),
    epoch=U64,
    fragment=st.binary(min_size=16, max_size=16),
    first=U64,
    count=U64,
    metadata=st.binary(max_size=200),
    body=st.binary(max_size=2000),
    flags=st.integers(0, 2**16 - 1),
    unwritten=st.none(),
)
SAMPLE = Frame(FrameKind.DATA, 3, b"0123456789abcdef", 10, 20, b"some metadata", b"the body of a batch")


@given(FRAMES, st.sampled_from(ChecksumCoverage))
def test_a_body_yet_unwritten_is_encoded_like_a_written_one(frame: Frame, coverage: ChecksumCoverage) -> None:
    unwritten = frame._replace(body=b"", unwritten=Later(bytes(frame.body)))
    assert encode(unwritten, coverage) == encode(frame, coverage)


@given(FRAMES)
def test_a_frame_survives_the_wire(frame: Frame) -> None:
    assert decode(encode(frame)) == frame


@given(FRAMES)
def test_the_size_is_known_before_encoding_and_from_the_header(frame: Frame) -> None:
    encoded = encode(frame)
    assert len(encoded) == encoded_size(frame) == frame_size(encoded[:HEADER_BYTES])


@given(st.binary(max_size=400))
@example(b"HRF1")
@example(b"HRF1\x01\x01" + b"\xff" * 100)
def test_any_bytes_give_a_frame_or_a_frame_error(data: bytes) -> None:
    try:
        frame = decode(data)
    except FrameError:
        return
    assert encode(frame) == data


@given(FRAMES, st.data())
def test_a_frame_with_one_flipped_bit_is_refused(frame: Frame, data: st.DataObject) -> None:
    encoded = bytearray(encode(frame))
    bit = data.draw(st.integers(0, len(encoded) * 8 - 1))
    encoded[bit // 8] ^= 1 << (bit % 8)
    with pytest.raises(FrameError):
        decode(encoded)


@given(FRAMES, st.data())
def test_a_frame_cut_short_is_refused(frame: Frame, data: st.DataObject) -> None:
    encoded = encode(frame)
    with pytest.raises(FrameTruncatedError):
        decode(encoded[: data.draw(st.integers(0, len(encoded) - 1))])


@given(FRAMES, U64, st.integers(0, 2**32 - 1))
def test_any_lengths_in_a_header_give_a_frame_error(frame: Frame, body_bytes: int, metadata_bytes: int) -> None:
    encoded = bytearray(encode(frame))
    struct.pack_into("<I4xQ", encoded, 48, metadata_bytes, body_bytes)
    if (metadata_bytes, body_bytes) != (len(frame.metadata), len(frame.body)):
        with pytest.raises(FrameError):
            decode(encoded)
        with pytest.raises(FrameError):
            decode(encoded, verify=True, limit_bytes=2**70)


def test_the_layout_on_the_wire_is_the_documented_one() -> None:
    encoded = encode(SAMPLE)
    assert encoded[:64] == (
        b"HRF1" + bytes([1, 1, 0, 0]) + struct.pack("<Q16sQQI4xQ", 3, b"0123456789abcdef", 10, 20, 13, 19)
    )
    assert encoded[72:85] == b"some metadata"
    assert encoded[85:128] == bytes(43)
    assert encoded[128:] == b"the body of a batch"
    assert encoded[64:72].hex() == CHECKSUM_OF_SAMPLE


#: Fixed: a change of it is a change of the format.
CHECKSUM_OF_SAMPLE = "e2e7ba94ebb681b3"


def test_a_foreign_magic_is_named() -> None:
    with pytest.raises(FrameMagicError, match="GET "):
        decode(b"GET / HTTP/1.1" + bytes(100))


def test_another_format_version_is_named() -> None:
    encoded = bytearray(encode(SAMPLE))
    encoded[4] = 9
    with pytest.raises(FrameVersionError, match="version 9"):
        decode(encoded)


def test_an_unknown_kind_with_a_good_checksum_is_named() -> None:
    encoded = bytearray(encode(SAMPLE))
    encoded[5] = 99
    with pytest.raises(FrameKindError, match="99"):
        decode(encoded, verify=False)


def test_a_wrong_checksum_is_named() -> None:
    encoded = bytearray(encode(SAMPLE))
    encoded[-1] ^= 1
    with pytest.raises(FrameChecksumError):
        decode(encoded)


def test_bytes_after_the_frame_are_refused() -> None:
    with pytest.raises(FrameTrailingError, match="2 bytes after"):
        decode(encode(SAMPLE) + b"xx")


def test_a_header_claiming_beyond_the_limit_is_refused_early() -> None:
    header = bytearray(encode(SAMPLE)[:HEADER_BYTES])
    struct.pack_into("<Q", header, 56, 2**63)
    with pytest.raises(FrameOversizeError):
        frame_size(header)
    with pytest.raises(FrameOversizeError):
        decode(header)


def test_the_limit_is_the_callers() -> None:
    encoded = encode(SAMPLE)
    assert decode(encoded, len(encoded)) == SAMPLE
    with pytest.raises(FrameOversizeError):
        decode(encoded, len(encoded) - 1)


def test_no_frame_over_the_limit_is_encoded() -> None:
    frame = Frame(FrameKind.DATA, 0, bytes(16), 0, 0, b"", bytes(FRAME_LIMIT_BYTES))
    with pytest.raises(FrameOversizeError):
        encode_parts(frame)


@pytest.mark.parametrize("field", [{"epoch": -1}, {"first": 2**64}, {"count": -5}, {"flags": 2**16}])
def test_a_field_out_of_range_is_refused(field: dict[str, int]) -> None:
    values = {"epoch": 0, "first": 0, "count": 0} | field
    with pytest.raises(FrameError, match="out of range"):
        encode(Frame(FrameKind.DATA, fragment=bytes(16), metadata=b"", body=b"", **values))


def test_a_fragment_of_another_length_is_refused() -> None:
    with pytest.raises(FrameError, match="15 bytes"):
        encode(Frame(FrameKind.DATA, 0, bytes(15), 0, 0, b"", b""))


def test_metadata_and_body_are_views_of_the_buffer() -> None:
    buffer = bytearray(encode(SAMPLE))
    frame = decode(buffer, verify=False)
    buffer[-1] = ord("!")
    assert bytes(frame.body) == b"the body of a batc!"
    assert isinstance(frame.metadata, memoryview)


@given(st.binary(max_size=300))
def test_the_body_starts_at_a_multiple_of_its_alignment(metadata: bytes) -> None:
    frame = Frame(FrameKind.DATA, 0, bytes(16), 0, 0, metadata, b"B")
    assert (encoded_size(frame) - 1) % BODY_ALIGNMENT_BYTES == 0


@pytest.mark.parametrize("length", range(2 * BODY_ALIGNMENT_BYTES))
def test_metadata_of_any_length_and_the_body_behind_it_keep_apart(length: int) -> None:
    frame = SAMPLE._replace(metadata=b"M" * length, body=b"B" * 3)
    encoded = encode(frame)
    assert decode(encoded) == frame
    gap = encoded_size(frame) - HEADER_BYTES - length - 3
    assert 0 <= gap < BODY_ALIGNMENT_BYTES


def test_a_buffer_of_any_item_type_can_be_a_body() -> None:
    body = memoryview(struct.pack("<4q", 1, -2, 3, -4)).cast("q")
    frame = Frame(FrameKind.DATA, 0, bytes(16), 0, 0, b"", body)
    assert bytes(decode(encode(frame)).body) == body.tobytes()


def encoded_without_body_checksum() -> bytearray:
    return bytearray(encode(SAMPLE, ChecksumCoverage.HEAD))


def test_a_frame_without_body_checksum_is_taken_on_trust_only() -> None:
    encoded = encoded_without_body_checksum()
    assert decode(encoded, trust_body=True) == SAMPLE
    with pytest.raises(FrameCoverageError, match="only shared memory"):
        decode(encoded)


def test_with_the_body_left_out_every_other_byte_is_still_covered() -> None:
    encoded = encoded_without_body_checksum()
    for at in range(len(encoded) - len(SAMPLE.body)):
        damaged = bytearray(encoded)
        damaged[at] ^= 1
        with pytest.raises(FrameError):
            decode(damaged, trust_body=True)


def test_an_unknown_coverage_is_named() -> None:
    encoded = bytearray(encode(SAMPLE))
    encoded[52] = 7
    with pytest.raises(FrameCoverageError, match="coverage 7"):
        decode(encoded)
