"""What a member of a cluster knows of it. Becoming one needs certificates: worker/membership/join.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.cluster import Credentials


class JoinError(Exception):
    """The node did not become a member; says why and what to do."""


@dataclass(frozen=True, slots=True)
class Membership:
    """What a member knows of its cluster and itself."""

    name: str
    controllers: tuple[str, ...]
    credentials: Credentials
