"""Where the dataset of the run with faults is made: a folder of this machine, or a prefix of an S3 store by a gate."""

from __future__ import annotations

import contextlib
import pathlib
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.chaos.gates import S3Proxy
from headrace.client import UsageError
from headrace.store import below, open_store


@dataclass(frozen=True, slots=True)
class Place:
    """`uri` is the run's output, `root` the place of a cluster's log, `direct` the URI without the gate."""

    uri: str
    root: str
    direct: str
    gate: S3Proxy | None = None

    def fetch(self, folder: pathlib.Path) -> pathlib.Path:
        """The dataset as files; from a store they are copied into `folder`."""
        if self.gate is None:
            return pathlib.Path(self.direct)
        store = open_store(self.direct)
        for info in store.list(""):
            path = folder / info.key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(store.get(info.key))
        return folder

    def remove(self) -> None:
        """Delete what lies in a store; a folder goes with its parent."""
        if self.gate is None:
            return
        for uri in (self.direct, self._around(self.root)):
            store = open_store(uri)
            for key in [info.key for info in store.list("")]:
                store.delete(key)

    def _around(self, uri: str) -> str:
        """The same by the way around the gate."""
        parts = urllib.parse.urlsplit(uri)
        return urllib.parse.urlunsplit(parts._replace(query=urllib.parse.urlsplit(self.direct).query))


@contextlib.contextmanager
def place_for(store: str, folder: pathlib.Path, seed: int) -> Iterator[Place]:
    """A place below `folder`; or, with the URI of a store, below a fresh prefix of it, behind a gate.

    Raises UsageError for a store that cannot stand behind a gate.
    """
    if not store:
        yield Place(str(folder / "faulted"), str(folder / "root"), str(folder / "faulted"))
        return
    parts = urllib.parse.urlsplit(store)
    query = urllib.parse.parse_qs(parts.query)
    if parts.scheme != "s3" or "endpoint" not in query:
        raise UsageError(
            f"--store {store}: give an S3 store with its endpoint, as s3://bucket/prefix?endpoint=http://host:port; "
            "a service that routes by host name, such as AWS's own, cannot stand behind a gate"
        )
    direct = below(store, folder.name)
    with S3Proxy(query["endpoint"][0], seed) as gate:
        gated = {**{key: values[0] for key, values in query.items()}, "endpoint": gate.endpoint}
        by_gate = urllib.parse.urlunsplit(parts._replace(query=urllib.parse.urlencode(gated)))
        mine = below(by_gate, folder.name)
        yield Place(below(mine, "faulted"), below(mine, "root"), below(direct, "faulted"), gate)
