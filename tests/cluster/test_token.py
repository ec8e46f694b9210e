"""Join tokens and the messages of a join. Invariant of the fuzzers: any text or bytes give a value or a named error."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from headrace.cluster.certificates import Role
from headrace.cluster.join import (
    LENGTH,
    MESSAGE_LIMIT_BYTES,
    NODES_PER_TOKEN_MAX,
    PREFIX,
    Greeting,
    JoinAnswer,
    JoinRequest,
    JoinToken,
    JoinWireError,
    TokenError,
    TokenExpiredError,
    TokenForgedError,
    TokenMalformedError,
    body_length,
    check_token,
    decode_message,
    encode_message,
    encode_token,
    read_token,
)

KEY = b"k" * 32
NAMES = st.text("abcdefghij0123456789-", max_size=63)
TOKENS = st.builds(
    JoinToken,
    st.binary(min_size=32, max_size=32).map(bytes.hex),
    st.binary(min_size=16, max_size=16),
    st.sampled_from(Role),
    NAMES,
    st.integers(1, 2**40),
    st.lists(st.just("10.0.0.1:7420"), min_size=1, max_size=5).map(tuple),
    st.integers(1, NODES_PER_TOKEN_MAX),
)


@given(TOKENS)
def test_a_token_comes_back_as_it_was_until_its_time_is_over(token: JoinToken) -> None:
    text = encode_token(token, KEY)
    assert read_token(text) == token == check_token(text, KEY, token.expires_at - 1)
    with pytest.raises(TokenExpiredError):
        check_token(text, KEY, token.expires_at)


@pytest.mark.parametrize("nodes", [0, -1, NODES_PER_TOKEN_MAX + 1, 1 << 60, True, 1.0, "1", None])
def test_a_token_for_an_impossible_number_of_nodes_is_malformed(nodes: Any) -> None:
    made = JoinToken("ab" * 32, bytes(16), Role.WORKER, "w", 1, ("h:1",), nodes)
    with pytest.raises(TokenMalformedError, match="number of nodes"):
        read_token(encode_token(made, KEY))


def test_a_token_has_a_slot_of_its_own_for_each_node() -> None:
    made = JoinToken("ab" * 32, bytes(16), Role.WORKER, "w", 1, ("h:1",), 3)
    assert made.slots == ("00" * 16, "00" * 16 + ".1", "00" * 16 + ".2")


@given(TOKENS, st.data())
def test_a_token_with_one_character_changed_opens_nothing(token: JoinToken, data: st.DataObject) -> None:
    text = encode_token(token, KEY)
    index = data.draw(st.integers(len(PREFIX), len(text) - 2))
    other = data.draw(st.sampled_from([letter for letter in "ABCabc123-_" if letter != text[index]]))
    with pytest.raises(TokenError):
        check_token(text[:index] + other + text[index + 1 :], KEY, 0)


@given(st.one_of(st.text(max_size=200), st.text(max_size=200).map(lambda text: PREFIX + text)))
def test_any_text_is_refused_by_name(text: str) -> None:
    with pytest.raises((TokenMalformedError, TokenForgedError)):
        check_token(text, KEY, 0)
    with pytest.raises(TokenMalformedError):
        read_token(text)


@pytest.mark.parametrize(
    "message",
    [
        Greeting(b"pem", "1.0"),
        JoinRequest("hrj1.x", b"key", "1.0", 3, 2),
        JoinAnswer(b"cert", "one", ""),
        JoinAnswer(b"", "", "no"),
    ],
    ids=["greeting", "request", "answer", "refusal"],
)
def test_a_message_of_a_join_comes_back_as_it_was(message: Greeting | JoinRequest | JoinAnswer) -> None:
    data = encode_message(message)
    assert body_length(data[: LENGTH.size]) == len(data) - LENGTH.size
    assert decode_message(type(message), data[LENGTH.size :]) == message


@given(st.binary(max_size=200), st.sampled_from([Greeting, JoinRequest, JoinAnswer]))
def test_any_bytes_are_no_message_of_a_join(data: bytes, kind: type[Greeting]) -> None:
    with pytest.raises(JoinWireError):
        decode_message(kind, data)


def test_a_message_of_another_kind_or_too_large_is_refused() -> None:
    with pytest.raises(JoinWireError, match="no JoinAnswer of a join"):
        decode_message(JoinAnswer, encode_message(Greeting(b"", ""))[LENGTH.size :])
    with pytest.raises(JoinWireError, match="a message of"):
        body_length(LENGTH.pack(MESSAGE_LIMIT_BYTES + 1))
