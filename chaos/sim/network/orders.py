"""What a controller says to a worker."""

from __future__ import annotations

from typing import NamedTuple

from headrace.controller.core.cluster import Authority
from headrace.controller.core.messages import messages as core


class Order(NamedTuple):
    """A command on its way, in whose name it is given, and the ticket of a link."""

    command: core.Command
    given: Authority
    ticket: bytes = b""
