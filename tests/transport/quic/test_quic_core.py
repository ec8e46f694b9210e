"""Connections without sockets and without waiting: who is let in, and what a bad network does to who is in."""

from datetime import timedelta

import pytest
from aioquic.quic.configuration import QuicConfiguration

from headrace.cluster.certificates import Credentials, Role, create_node, verify
from headrace.transport.quic.core import (
    ConnectionEnded,
    PeerConnected,
    QuicCore,
    QuicSettings,
    StreamReceived,
)
from tests.kits.transport.quic import FAR, Cluster, Network


def network(near: Credentials, far: Credentials, cluster: Cluster) -> Network:
    return Network(QuicCore(near, QuicSettings()), QuicCore(far, QuicSettings()), cluster.now)


@pytest.fixture
def good(cluster: Cluster) -> Network:
    return network(cluster.node("near"), cluster.node("far"), cluster)


def connect(net: Network) -> int:
    connection = net.near.connect(FAR, net.now)
    net.run_until(lambda: all(any(isinstance(event, PeerConnected) for event in net.events[end]) for end in net.events))
    return connection


def data_of(net: Network, end: str) -> bytes:
    return b"".join(event.data for event in net.events[end] if isinstance(event, StreamReceived))


def ends(net: Network, end: str) -> list[ConnectionEnded]:
    return [event for event in net.events[end] if isinstance(event, ConnectionEnded)]


def refusal(near: Credentials, cluster: Cluster, core: type[QuicCore] = QuicCore) -> str:
    """Connect with these credentials, send at once, and return why the far end refused."""
    net = Network(core(near, QuicSettings()), QuicCore(cluster.node("far"), QuicSettings()), cluster.now)
    connection = net.near.connect(FAR, net.now)

    def step() -> bool:
        if any(isinstance(event, PeerConnected) for event in net.events["near"]) and not net.events["far"]:
            net.near.send(connection, 0, b"the first frame")
        return bool(ends(net, "far") and ends(net, "near"))

    net.run_until(step)
    assert [type(event) for event in net.events["far"]] == [ConnectionEnded], "something was let through"
    assert ends(net, "near")[0].refused
    return ends(net, "far")[0].reason


class CoreWithoutCertificate(QuicCore):
    def _configuration(self, *, is_client: bool) -> QuicConfiguration:
        configuration = super()._configuration(is_client=is_client)
        configuration.certificate = configuration.private_key = None
        return configuration


def test_two_nodes_of_a_cluster_learn_each_others_names(good: Network) -> None:
    connect(good)
    for end, other in (("near", "far"), ("far", "near")):
        (connected,) = [event for event in good.events[end] if isinstance(event, PeerConnected)]
        assert (connected.peer.identity.name, connected.peer.identity.role) == (other, Role.WORKER)


def test_an_empty_certificate_is_refused_before_the_first_frame(cluster: Cluster) -> None:
    assert "shows no certificate" in refusal(cluster.node("near"), cluster, CoreWithoutCertificate)


def test_a_self_signed_certificate_is_refused_before_the_first_frame(cluster: Cluster) -> None:
    foreign = create_node(Cluster("test").authority, Role.WORKER, "near", cluster.now)
    claimed = Credentials(foreign.certificate_pem, foreign.key_pem, cluster.authority.certificate_pem)
    assert "not issued by the authority" in refusal(claimed, cluster)


def test_the_certificate_of_an_authority_itself_is_refused(cluster: Cluster) -> None:
    own = Cluster("test").authority
    claimed = Credentials(own.certificate_pem, own.key_pem, cluster.authority.certificate_pem)
    assert "not issued by the authority" in refusal(claimed, cluster)


def test_an_expired_certificate_is_refused_before_the_first_frame(cluster: Cluster) -> None:
    assert "is in force from" in refusal(cluster.node("near", made=timedelta(days=-2)), cluster)


def test_a_certificate_of_the_wrong_role_is_refused_before_the_first_frame(cluster: Cluster) -> None:
    assert "operator/near is where only a controller or worker" in refusal(cluster.node("near", Role.OPERATOR), cluster)


def test_no_session_ticket_is_given_out_so_there_is_no_early_data(good: Network) -> None:
    connect(good)
    for core in (good.near, good.far):
        for entry in core._connections.values():
            assert entry.quic._session_ticket_handler is None
            assert entry.quic.configuration.session_ticket is None


def bad_network(good: Network) -> None:
    """Lose 3 %, send 3 % twice, and let a tenth of them be overtaken by what was sent up to 50 ms later."""

    def fate(data: bytes) -> list[float]:
        chance = good.random.random()
        if chance < 0.03:
            return []
        late = good.random.random() * 0.05 if good.random.random() < 0.1 else 0.0
        return [good.delay_s + late] * (2 if chance < 0.06 else 1)

    good.fate = fate


@pytest.mark.parametrize("seed", range(3))
def test_loss_reordering_and_duplication_leave_the_bytes_alone(good: Network, seed: int) -> None:
    good.random.seed(seed)
    bad_network(good)
    connection = connect(good)
    sent = good.random.randbytes(200_000)
    good.near.send(connection, good.near.open_stream(connection), sent, end=True)
    good.run_until(lambda: len(data_of(good, "far")) == len(sent))
    assert data_of(good, "far") == sent
    assert not ends(good, "near")
    assert not ends(good, "far")


def test_a_change_of_address_leaves_the_connection_as_it_is(good: Network) -> None:
    connection = connect(good)
    stream = good.near.open_stream(connection)
    good.near.send(connection, stream, b"before, ")
    good.run_until(lambda: data_of(good, "far") == b"before, ")
    good.near_address = ("10.9.9.9", 9)
    good.near.send(connection, stream, b"after")
    good.run_until(lambda: data_of(good, "far") == b"before, after")
    good.run_until(lambda: good.far.address_of(1) == ("10.9.9.9", 9))
    good.far.send(1, stream, b"back")
    good.run_until(lambda: data_of(good, "near") == b"back")
    assert not ends(good, "far")


def test_a_vanished_peer_is_known_gone_after_the_idle_timeout(good: Network) -> None:
    connect(good)
    start = good.now
    good.fate = lambda data: []
    good.run_until(lambda: bool(ends(good, "near") and ends(good, "far")))
    assert "Idle timeout" in ends(good, "near")[0].reason
    assert 9.0 < good.now - start < 25.0


def test_a_quiet_connection_lives_on(good: Network) -> None:
    connect(good)
    until = good.now + 120.0
    good.run_until(lambda: good.now > until, limit_s=130.0)
    assert not ends(good, "near")
    assert not ends(good, "far")


def test_a_handshake_that_does_not_end_is_dropped(cluster: Cluster) -> None:
    net = network(cluster.node("near"), cluster.node("far"), cluster)
    net.near.connect(FAR, net.now)
    (first,) = net.near.transmit(net.now)[:1]
    net.far.receive([(first[0], ("10.0.0.1", 1))], 0.0, net.utc)
    now = 0.0
    while net.far.connection_numbers():
        now = net.far.next_timer() or now
        net.far.tick(now)
        net.far.transmit(now)
    assert now <= QuicSettings().handshake_s
    assert "took too long" in net.far.events()[-1].reason  # type: ignore[union-attr]


def test_only_so_many_strangers_may_stand_without_showing_addresses(cluster: Cluster) -> None:
    far = QuicCore(cluster.node("far"), QuicSettings(handshakes_max=12))
    for number in range(10):
        near = QuicCore(cluster.node("near"), QuicSettings())
        near.connect(FAR, 0.0)
        far.receive([(data, ("10.0.0.1", number)) for data, _ in near.transmit(0.0)], 0.0, cluster.now)
    assert len(far.connection_numbers()) == 3


def test_bytes_that_are_no_packets_are_passed_over(good: Network) -> None:
    connect(good)
    junk = [good.random.randbytes(good.random.randrange(1500)) for _ in range(500)]
    good.far.receive([(data, ("6.6.6.6", 6)) for data in junk], good.now, good.utc)
    assert good.far.events() == []
    assert len(good.far.connection_numbers()) == 1


def test_a_byte_at_the_end_of_the_window_does_not_widen_it(good: Network) -> None:
    connection = connect(good)
    stream = good.near.open_stream(connection)
    quic = good.near._connections[connection].quic
    good.near.send(connection, stream, b"a")
    good.run_until(lambda: data_of(good, "far") == b"a")
    sender = quic._streams[stream].sender
    window = QuicSettings().stream_window_bytes
    # As if everything but the last byte of the window had been lost for good.
    sender._buffer_start = sender._buffer_stop = window - 1
    sender.write(b"z")
    good.near.send(connection, stream, b"")
    far = good.far._connections[1].quic
    good.run_until(lambda: far._streams[stream].receiver.highest_offset == window)
    until = good.now + 1.0
    good.run_until(lambda: good.now > until)
    assert far._streams[stream].max_stream_data_local < window + window // 4 + 2


def test_an_expelled_member_is_cut_off_at_once_and_refused(cluster: Cluster) -> None:
    net = Network(
        QuicCore(cluster.node("one"), QuicSettings()), QuicCore(cluster.node("far"), QuicSettings()), cluster.now
    )
    net.near.connect(FAR, net.now)
    net.run_until(lambda: any(isinstance(event, PeerConnected) for event in net.events["far"]))
    net.far.expel({"worker/two": ()})
    assert net.far.connection_numbers(), "another name is no matter"
    net.far.expel({"worker/one": ()})
    net.run_until(lambda: bool(ends(net, "near")))
    assert "worker 'one' was expelled from cluster" in ends(net, "near")[0].reason
    net.events["near"].clear()
    net.near.connect(FAR, net.now)
    net.run_until(lambda: bool(ends(net, "near")))
    assert ends(net, "near")[0].refused
    assert sum(isinstance(event, PeerConnected) for event in net.events["far"]) == 1


def test_a_member_let_in_again_with_its_key_stays(cluster: Cluster) -> None:
    own = cluster.node("one")
    net = Network(QuicCore(own, QuicSettings()), QuicCore(cluster.node("far"), QuicSettings()), cluster.now)
    key = verify(own.certificate(), own.authority(), {Role.WORKER}, cluster.now).key
    net.far.expel({"worker/one": (key,)})
    net.near.connect(FAR, net.now)
    net.run_until(lambda: any(isinstance(event, PeerConnected) for event in net.events["far"]))
    net.far.expel({"worker/one": (key,), "operator/one": ()})
    assert net.far.connection_numbers()
