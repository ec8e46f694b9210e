"""What can go wrong on a link. Each message says who, what, how much and what to do."""

from headrace.cluster import PeerError


class TransportError(PeerError):
    """Base of everything that a link raises."""


class FrameError(TransportError):
    """Bytes that are no frame, or a frame that no link may carry."""


class FrameMagicError(FrameError):
    """The bytes do not begin with the magic of a frame."""


class FrameVersionError(FrameError):
    """The frame has a format version that this release does not know."""


class FrameKindError(FrameError):
    """The frame has a kind that this release does not know."""


class FrameChecksumError(FrameError):
    """The checksum in the header does not match the bytes."""


class FrameCoverageError(FrameError):
    """The checksum leaves the body out, on a medium where it must not."""


class FrameTruncatedError(FrameError):
    """There are fewer bytes than the header promises."""


class FrameTrailingError(FrameError):
    """There are more bytes than the header promises."""


class FrameOversizeError(FrameError):
    """The frame is larger than the limit in force."""


class CreditError(TransportError):
    """An end broke the rules of credit: it sent without it, or granted what was not in flight."""


class LinkClosed(TransportError):  # noqa: N818 - an orderly end is no error, only the end
    """The sender closed the link and everything it sent has been received."""


class LinkAborted(TransportError):  # noqa: N818 - named for the state of the link
    """An end, or the owner on behalf of a dead end, gave the link up.

    `by` is "sender", "receiver" or "owner"; `reason` is theirs, in words.
    """

    def __init__(self, link: str, by: str, reason: str) -> None:
        super().__init__(f'link "{link}": aborted by its {by}: {reason or "no reason given"}')
        self.link = link
        self.by = by
        self.reason = reason


class LinkRefusedError(TransportError):
    """The link cannot be opened: wrong generation, wrong size, or the end is taken."""


class LinkCorruptError(TransportError):
    """Shared memory holds a cursor or a length that no correct peer writes. Abort the link."""
