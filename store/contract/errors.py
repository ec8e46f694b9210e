"""The ways a store can fail; each message says what failed, where, and what to do about it."""

from __future__ import annotations

from headrace.pipeline import mask


class StoreError(Exception):
    """The base of every error that `headrace.store` raises for reasons outside its caller's code."""

    def __str__(self) -> str:
        """The message; it may quote a URI, whose secrets are hidden."""
        return mask(super().__str__())


class ObjectMissing(StoreError):  # noqa: N818 - named after what is so
    """No object stands under the key that was asked for."""

    def __init__(self, key: str, uri: str) -> None:
        self.key = key
        self.uri = uri
        super().__init__(f"{uri}: no object {key!r}; check the dataset's URI, or run `headrace dataset verify {uri}`")

    def __reduce__(self) -> tuple[type[ObjectMissing], tuple[str, str]]:
        return type(self), (self.key, self.uri)


class StoreUnavailable(StoreError):  # noqa: N818 - named after what is so
    """The store refused or failed an operation that would succeed on a healthy store; trying again may help."""


class StoreStalled(StoreUnavailable):
    """The store is full, or has stopped answering: waiting may be all that it takes.

    Whoever writes what must not be lost holds it, says so, and tries again for as long as it is alive.
    """


class StoreRefused(StoreError):  # noqa: N818 - named after what is so
    """The store understood an operation and will not do it, now or later: no such bucket, no such right."""


class FolderRefused(StoreRefused):
    """A listing came to a folder, "a/b/" below the store's own, that this user may not read."""

    def __init__(self, said: str, folder: str) -> None:
        self.said = said
        self.folder = folder
        super().__init__(said)

    def __reduce__(self) -> tuple[type[FolderRefused], tuple[str, str]]:
        return type(self), (self.said, self.folder)


class DatasetBusy(StoreError):  # noqa: N818 - named after what is so
    """Another process leads the dataset's log, so that nobody else may write into it."""


class ChecksumMismatch(StoreError):  # noqa: N818 - named after what is so
    """An object's bytes are not those that the ledger recorded."""

    def __init__(self, key: str, uri: str, expected: str, found: str) -> None:
        self.key = key
        self.uri = uri
        self.expected = expected
        self.found = found
        super().__init__(
            f"{uri}: object {key!r} has checksum {found}, the ledger recorded {expected}; "
            "the object was changed after it was written, restore it from a copy"
        )

    def __reduce__(self) -> tuple[type[ChecksumMismatch], tuple[str, str, str, str]]:
        return type(self), (self.key, self.uri, self.expected, self.found)


class InvalidUri(StoreError):  # noqa: N818 - named after what is so
    """A store's URI cannot be understood or opened."""


class NoDataset(InvalidUri):
    """At this URI stands no dataset: nothing, one that was removed, or the log of a cluster."""


class InvalidKey(StoreError):  # noqa: N818 - named after what is so
    """An object's key breaks the rules that all stores share (see `headrace.store.contract.objects.validate_key`)."""


class FormatError(StoreError):
    """Stored bytes or names do not follow the format of `docs/reference/format.md`."""
