"""Greetings that came before their receivers: none takes the place or the room of another node's."""

from headrace.cluster.certificates import Identity, Peer, Role
from headrace.transport.quic.dial import WAITING_MAX, WaitingHello, WaitingHellos

LINK, OTHER = b"link", b"other"


def hello(connection: int, node: str, until: float = 10.0) -> WaitingHello:
    return WaitingHello(connection, 0, b"ticket", Peer(Identity("test", Role.WORKER, node), node, node), until)


def test_each_node_has_room_of_its_own_on_whatever_connections() -> None:
    waiting = WaitingHellos()
    kept = [waiting.keep(b"%d" % number, hello(number % 3, "greedy")) for number in range(WAITING_MAX + 1)]
    assert kept == [True] * WAITING_MAX + [False]
    assert waiting.keep(LINK, hello(3, "near"))
    assert waiting.take(LINK) == [hello(3, "near")]


def test_all_that_wait_for_a_link_are_handed_out_in_order() -> None:
    waiting = WaitingHellos()
    came = [hello(connection, node) for connection, node in enumerate(("far", "near", "far"))]
    assert all(waiting.keep(LINK, item) for item in came)
    assert not waiting.keep(LINK, hello(1, "near")), "one on each connection"
    assert waiting.keep(OTHER, hello(1, "near"))
    assert waiting.take(LINK) == came
    assert waiting.take(LINK) == []


def test_what_waited_too_long_or_lost_its_connection_waits_no_more() -> None:
    waiting = WaitingHellos()
    came = [hello(1, "far", 10.0), hello(2, "near", 11.0), hello(3, "near", 12.0)]
    assert all(waiting.keep(LINK, item) for item in came)
    assert waiting.late(10.5) == came[:1]
    waiting.forget(2)
    assert waiting.take(LINK) == came[2:]
