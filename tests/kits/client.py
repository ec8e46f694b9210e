"""What stands in for a client of a controller; a test gives it the answers."""

from __future__ import annotations

from typing import Self

from headrace.client import ControllerAt


class ClientStandIn:
    """Is opened and closed like a client, and asks nobody."""

    def __init__(self, at: ControllerAt) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass
