"""Congestion control for links between nodes: aioquic's CUBIC, less two things that suit a browser better. Pure.

- A loss cuts the window to 0.7 of what it was. aioquic cuts to 0.7 of what was in flight, which is less wherever a
  sender is held up by its pacer or by its own thread (RFC 9438, section 4.6, allows either).
- Slow start ends with a loss. HyStart ends it when round trips grow, and those of a thread that takes in datagrams by
  the batch grow by the batch.
"""

from collections.abc import Iterable

from aioquic.quic.congestion.base import K_MINIMUM_WINDOW, register_congestion_control
from aioquic.quic.congestion.cubic import K_CUBIC_LOSS_REDUCTION_FACTOR, CubicCongestionControl
from aioquic.quic.packet_builder import QuicSentPacket

#: The name by which a configuration asks for it.
NODE_CUBIC = "headrace-cubic"


class NodeCubic(CubicCongestionControl):
    """CUBIC between nodes."""

    def on_packets_lost(self, *, now: float, packets: Iterable[QuicSentPacket]) -> None:
        """Cut the window, once for all losses of a round trip."""
        before, recovery = self.congestion_window, self._congestion_recovery_start_time
        super().on_packets_lost(now=now, packets=packets)
        if self._congestion_recovery_start_time != recovery:
            smallest = K_MINIMUM_WINDOW * self._max_datagram_size
            self.ssthresh = self.congestion_window = max(int(before * K_CUBIC_LOSS_REDUCTION_FACTOR), smallest)

    def on_rtt_measurement(self, *, now: float, rtt: float) -> None:  # noqa: ARG002 - the base class's signature
        """Remember the round trip."""
        self.rtt = rtt


register_congestion_control(NODE_CUBIC, NodeCubic)
