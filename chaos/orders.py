"""What a controller says to a worker."""

from __future__ import annotations

from typing import NamedTuple

from headrace.controller.core import messages as core
from headrace.controller.core.authority import Authority


class Order(NamedTuple):
    """A command on its way, in whose name it is given, and the ticket of a link."""

    command: core.Command
    given: Authority
    ticket: bytes = b""
