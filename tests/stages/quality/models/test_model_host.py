"""What a process that holds a model, or one that asks it, may say."""

from __future__ import annotations

import socket
from typing import Any

import msgpack
import pytest

from headrace.stages.quality.models import model_host


def received(said: object) -> dict[str, Any] | None:
    data = msgpack.packb(said, use_bin_type=True)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        theirs.sendall(len(data).to_bytes(8, "little") + data)
        theirs.close()
        return model_host.receive(ours)


def test_a_message_is_an_object() -> None:
    assert received({"scores": [1]}) == {"scores": [1]}


@pytest.mark.parametrize("said", [[1], "text", None, {b"key": 1}, {"key": 1, b"other": 2}])
def test_what_is_no_object_breaks_the_connection(said: object) -> None:
    with pytest.raises(ConnectionError, match="that is no object"):
        received(said)
