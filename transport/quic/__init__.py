"""Links between hosts over QUIC."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.transport.quic.core import Address as Address, QuicSettings as QuicSettings
    from headrace.transport.quic.endpoint import QuicEndpoint as QuicEndpoint
    from headrace.transport.quic.links import QuicSender as QuicSender
    from headrace.transport.quic.relay import Relay as Relay
    from headrace.transport.quic.stream_frames import FrameAssembler as FrameAssembler
    from headrace.transport.quic.udp import every_address as every_address
else:
    __getattr__ = door(__name__)
