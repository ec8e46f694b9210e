"""Credit: how many bytes a receiver lets a sender have in flight. Pure, and the same for all transports.

Both ends know the window from the start. A frame uses credit when it is sent and gives it back when the receiver
has released its memory and says so with a grant. Three rules:

1. In flight is at most the window, or one single frame. The second half keeps a frame larger than the window from
   waiting for ever: one frame is always allowed into an empty window.
2. A grant returns exactly what was released. Grants are batched: one is due when a quarter of the window has been
   released, or when nothing is held any more. So a sender is woken a few times a window and not once a frame, and
   no credit is withheld from a link at rest.
3. Who breaks a rule is refused with CreditError. What is in flight as the receiver sees it (held or not yet granted)
   is never more than as the sender sees it, so an honest sender is never taken for a fraud.

A receiver that keeps frames while it waits for further ones can stop the link: what it holds back is credit. It must
copy and release instead. Prior art: credit-based flow control in Apache Flink; HTTP/2 windows, without rule 1.
"""

from headrace.transport.core.errors import CreditError

#: A grant is due when this share of the window (one over this) has been released.
GRANT_FRACTION = 4


class CreditSender:
    """The sender's half: what may still be sent into a window of `window_bytes`."""

    __slots__ = ("in_flight_bytes", "window_bytes")

    def __init__(self, window_bytes: int) -> None:
        self.window_bytes = _checked_window(window_bytes)
        #: Bytes that were sent and not yet granted back.
        self.in_flight_bytes = 0

    @property
    def available(self) -> int:
        """Bytes of credit left. A frame larger than this may still go when nothing is in flight: ask `can_send`."""
        return max(0, self.window_bytes - self.in_flight_bytes)

    def can_send(self, size_bytes: int) -> bool:
        """Say whether a frame of `size_bytes` may be sent now."""
        in_flight = self.in_flight_bytes
        return in_flight == 0 or in_flight + size_bytes <= self.window_bytes

    def sent(self, size_bytes: int) -> None:
        """A frame of `size_bytes` was sent. Raises CreditError where `can_send` says no."""
        in_flight = self.in_flight_bytes + size_bytes
        # One comparison for a frame that may go and has a size: this is done for each frame.
        if not self.in_flight_bytes < in_flight <= self.window_bytes:
            _check_positive("sent", size_bytes)
            if self.in_flight_bytes:
                raise CreditError(
                    f"a frame of {size_bytes} bytes sent with {self.available} bytes of credit left "
                    f"(window {self.window_bytes}); ask can_send first"
                )
        self.in_flight_bytes = in_flight

    def granted(self, size_bytes: int) -> None:
        """The receiver granted `size_bytes` back. Raises CreditError for more than is in flight."""
        if not 0 < size_bytes <= self.in_flight_bytes:
            _check_positive("granted", size_bytes)
            raise CreditError(
                f"the receiver granted {size_bytes} bytes with only {self.in_flight_bytes} in flight; "
                "it counts wrongly, abort the link"
            )
        self.in_flight_bytes -= size_bytes


class CreditReceiver:
    """The receiver's half: what it holds, and when a grant is due."""

    __slots__ = ("held_bytes", "window_bytes", "withheld_bytes")

    def __init__(self, window_bytes: int) -> None:
        self.window_bytes = _checked_window(window_bytes)
        #: Bytes received and not yet released.
        self.held_bytes = 0
        #: Bytes released whose grant is not yet due: always less than a quarter of the window.
        self.withheld_bytes = 0

    def received(self, size_bytes: int) -> None:
        """A frame of `size_bytes` came in. Raises CreditError if the sender had no credit for it."""
        _check_positive("received", size_bytes)
        in_flight = self.held_bytes + self.withheld_bytes
        if in_flight and in_flight + size_bytes > self.window_bytes:
            raise CreditError(
                f"the sender sent {size_bytes} bytes with {in_flight} of a window of {self.window_bytes} in use; "
                "it sends without credit, abort the link"
            )
        self.held_bytes += size_bytes

    def released(self, size_bytes: int) -> int:
        """`size_bytes` of what is held were released. Return the grant to send now in bytes, 0 for none.

        Raises CreditError for more than is held.
        """
        _check_positive("released", size_bytes)
        if size_bytes > self.held_bytes:
            raise CreditError(f"{size_bytes} bytes released with only {self.held_bytes} held")
        self.held_bytes -= size_bytes
        self.withheld_bytes += size_bytes
        if self.held_bytes and self.withheld_bytes * GRANT_FRACTION < self.window_bytes:
            return 0
        grant_bytes, self.withheld_bytes = self.withheld_bytes, 0
        return grant_bytes


def _checked_window(window_bytes: int) -> int:
    if window_bytes < 1:
        raise CreditError(f"a window of {window_bytes} bytes: it needs at least 1")
    return window_bytes


def _check_positive(verb: str, size_bytes: int) -> None:
    if size_bytes < 1:
        raise CreditError(f"{size_bytes} bytes {verb}: a frame has at least 1")
