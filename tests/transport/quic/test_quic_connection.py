"""What Headrace uses of aioquic behind an underscore is where it was. A release that moves it fails here first."""

import inspect

import aioquic
from aioquic import tls
from aioquic.quic.connection import QuicConnection
from aioquic.quic.stream import QuicStream

from headrace.transport.quic.connection import BurstPacer, NodeConnection
from headrace.transport.quic.core import QuicCore, QuicSettings
from tests.kits.transport.quic import FAR, Cluster


def test_the_overridden_methods_exist_and_take_what_they_took() -> None:
    for name, arguments in {
        "_initialize": ["self", "peer_cid"],
        "_write_application": ["self", "builder", "network_path", "now"],
        "_stream_can_receive": ["self", "stream_id"],
        "_write_stream_limits": ["self", "builder", "space", "stream"],
        "_on_max_stream_data_delivery": ["self", "delivery", "stream"],
    }.items():
        assert list(inspect.signature(getattr(QuicConnection, name)).parameters) == arguments, aioquic.__version__


def test_the_fields_of_a_connection_are_there(cluster: Cluster) -> None:
    core = QuicCore(cluster.node("near"), QuicSettings())
    number = core.connect(FAR, 0.0)
    quic = core._connections[number].quic
    assert isinstance(quic, NodeConnection)
    assert isinstance(quic._loss._pacer, BurstPacer)
    assert quic._streams == {}
    assert quic._streams_queue == []
    assert (quic._probe_pending, quic._close_pending, quic._handshake_confirmed) == (False, False, False)
    assert quic._close_event is None
    assert quic.tls._peer_certificate is None


def test_the_fields_of_a_stream_are_there() -> None:
    stream = QuicStream(stream_id=0, max_stream_data_local=5, max_stream_data_remote=5)
    assert (stream.sender._buffer_start, stream.sender._buffer_stop) == (0, 0)
    assert (stream.max_stream_data_local, stream.max_stream_data_local_sent) == (5, 5)
    assert stream.receiver.starting_offset() == 0
    assert not stream.receiver.is_finished


def test_a_server_can_be_made_to_ask_for_a_certificate() -> None:
    context = tls.Context(is_client=False)
    assert context._request_client_certificate is False
