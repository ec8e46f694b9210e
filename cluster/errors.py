"""The base of errors that come from a peer."""


class PeerError(Exception):
    """A peer showed or sent what cannot be believed, or the link to it has failed."""
