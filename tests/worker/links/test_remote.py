"""A task's ends of links between workers: only the worker that is expected, with the very ticket, gets one."""

import socket
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from headrace.cluster.certificates import Credentials, Role, create_authority, create_node
from headrace.cluster.ticket import Ticket, encode_ticket
from headrace.daemon.private_folder import short_path
from headrace.protos import control_pb2 as pb
from headrace.transport.contract import Receiver, Sender
from headrace.transport.core.errors import LinkAborted, LinkRefusedError
from headrace.transport.core.frame import Frame, FrameKind
from headrace.transport.wait import wait_any
from headrace.worker.links.gate import VARIABLE as LINK_GATE
from headrace.worker.links.quic import Remote
from headrace.worker.membership.member import (
    join_address,
    own_addresses,
    parse_fib_trie,
    parse_if_inet6,
    split_address,
)

PATIENCE_S = 120.0
NOW = datetime.now(UTC)
AUTHORITY = create_authority("press", NOW)
KEY = b"k" * 32
TICKET = encode_ticket(Ticket(1, "run", "v", 1, "run/read.0->write.0#1", 1, 2), KEY)
FRAME = Frame(FrameKind.DATA, 1, bytes(16), 0, 1, b"", b"batch")


def remote(credentials: Credentials) -> Remote:
    return Remote(
        pb.Network(
            certificate=credentials.certificate_pem,
            key=credentials.key_pem,
            authority=credentials.authority_pem,
            addresses=["127.0.0.1"],
        )
    )


@pytest.fixture
def far() -> Iterator[Remote]:
    made = remote(create_node(AUTHORITY, Role.WORKER, "far", NOW))
    yield made
    made.close()


def expect(far: Remote, ticket: bytes = TICKET, generation: int = 1) -> Receiver:
    end = pb.LinkEnd(link="run/read.0->write.0", ticket=ticket, peer_worker="near", generation=generation)
    receiver: Receiver = far.attach(pb.OpenLink(link=end, transport="quic"))  # type: ignore[assignment]
    return receiver


def opening(
    far: Remote,
    *,
    credentials: Credentials | None = None,
    ticket: bytes = TICKET,
    peer: str = "far",
    generation: int = 1,
) -> str:
    """Open the link from another worker and send a frame; why it was cut, or an empty string."""
    near = remote(credentials or create_node(AUTHORITY, Role.WORKER, "near", NOW))
    end = pb.LinkEnd(
        link="run/read.0->write.0",
        sends=True,
        ticket=ticket,
        peer_worker=peer,
        addresses=far.addresses(),
        generation=generation,
    )
    try:
        sender: Sender = near.attach(pb.OpenLink(link=end, transport="quic"))  # type: ignore[assignment]
        deadline = time.monotonic() + PATIENCE_S
        while not sender.try_send(FRAME):
            assert time.monotonic() < deadline
            wait_any([sender], 0.1)
        while sender.statistics().in_flight_bytes:
            assert time.monotonic() < deadline
            wait_any([sender], 0.1)
            sender.credit_bytes()
    except LinkAborted as aborted:
        return aborted.reason
    finally:
        near.close()
    return ""


def receive(receiver: Receiver) -> bytes:
    deadline = time.monotonic() + PATIENCE_S
    while (received := receiver.try_receive()) is None:
        assert time.monotonic() < deadline
        wait_any([receiver], 0.1)
    body = bytes(received.frame.body)
    received.release()
    return body


def test_the_expected_worker_with_both_tickets_gets_the_link(far: Remote) -> None:
    receiver = expect(far)
    said: list[str] = []
    sending = threading.Thread(target=lambda: said.append(opening(far)))
    sending.start()
    assert receive(receiver) == b"batch"
    sending.join(PATIENCE_S)
    assert said == [""]


@pytest.mark.parametrize(
    ("ticket", "reason"),
    [
        (
            encode_ticket(Ticket(1, "run", "v", 1, "run/read.0->write.0#1", 9, 2), KEY),
            "says sender_attempt 9, this",
        ),
        (encode_ticket(Ticket(0, "run", "v", 1, "run/read.0->write.0#1", 1, 2), KEY), "says term 0, this end"),
        (TICKET[:-1] + bytes([TICKET[-1] ^ 1]), "the seal of the ticket is not that"),
        (b"", "0 bytes are no ticket"),
    ],
    ids=["another attempt", "an earlier term", "forged", "none"],
)
def test_a_link_without_the_ticket_of_both_is_refused_by_name(far: Remote, ticket: bytes, reason: str) -> None:
    expect(far)
    assert reason in opening(far, ticket=ticket)


def test_an_unexpected_worker_with_the_ticket_is_refused(far: Remote) -> None:
    expect(far)
    thief = create_node(AUTHORITY, Role.WORKER, "thief", NOW)
    assert "worker thief asks for a link that worker near has an end of" in opening(far, credentials=thief)


@pytest.mark.parametrize("role", [Role.CONTROLLER, Role.OPERATOR])
def test_only_workers_have_links(far: Remote, role: Role) -> None:
    expect(far)
    assert "is where only a worker may be" in opening(far, credentials=create_node(AUTHORITY, role, "near", NOW))


def test_a_sender_tells_its_ticket_to_the_named_worker_only(far: Remote) -> None:
    expect(far)
    assert '"far" answers where "elsewhere" should' in opening(far, peer="elsewhere")


def test_a_link_to_nowhere_is_refused_at_once(far: Remote) -> None:
    end = pb.LinkEnd(link="l", sends=True, ticket=TICKET, peer_worker="away")
    with pytest.raises(LinkRefusedError, match="nobody knows where worker away can be reached"):
        far.attach(pb.OpenLink(link=end, transport="quic"))


# -- addresses --


@pytest.mark.parametrize(("host", "text"), [("10.0.0.1", "10.0.0.1:7"), ("fd00::1", "[fd00::1]:7")])
def test_an_address_of_either_family_comes_back_as_it_was(host: str, text: str) -> None:
    assert join_address(host, 7) == text
    assert split_address(text) == (host, 7)


FIB_TRIE = """\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 10.77.0.0/24 2 0 2
        |-- 10.77.0.2
           /32 host LOCAL
        |-- 10.77.0.255
           /32 link BROADCAST
     |-- 127.0.0.1
        /32 host LOCAL
Local:
        |-- 10.77.0.2
           /32 host LOCAL
"""
IF_INET6 = """\
fe800000000000000000000000000001 02 40 20 80     eth0
fd000000000000000000000000000001 02 40 00 80     eth0
00000000000000000000000000000001 01 80 10 80       lo
"""


def test_the_kernels_tables_are_read_each_address_once() -> None:
    assert parse_fib_trie(FIB_TRIE) == ["10.77.0.2", "127.0.0.1"]
    assert parse_if_inet6(IF_INET6) == ["fd00::1"]
    assert parse_fib_trie("") == parse_if_inet6("") == []


def test_this_host_has_an_address() -> None:
    assert own_addresses()


def test_a_task_behind_a_gate_gives_the_gate_as_its_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with socket.socket(socket.AF_UNIX) as maker:
        maker.bind(short_path(tmp_path / "gates.sock"))
        maker.listen()
        maker.settimeout(PATIENCE_S)

        def answer() -> None:
            asking, _ = maker.accept()
            with asking:
                asking.sendall(b"%d\n" % (int(asking.recv(64)) ^ 1))

        answering = threading.Thread(target=answer)
        answering.start()
        monkeypatch.setenv(LINK_GATE, str(tmp_path / "gates.sock"))
        made = remote(create_node(AUTHORITY, Role.WORKER, "far", NOW))
        try:
            port = split_address(made.addresses()[0])[1]
            monkeypatch.delenv(LINK_GATE)
            assert made.addresses() == [f"127.0.0.1:{port ^ 1}"]
        finally:
            answering.join(PATIENCE_S)
            made.close()


@pytest.mark.parametrize(
    "text", ["", "x", "10.0.0.1", "a.name:7", "10.0.0.1:0", "10.0.0.1:65536", "[10.0.0.1]:7", "::1:7", "[fe80::1%x]:7"]
)
def test_what_is_no_address_in_numbers_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"port|address"):
        split_address(text)
