"""Network namespaces as hosts on one bridge, in a namespace too: their cables can be unplugged.

This host has a cable to the bridge as well, so processes here and there reach each other. It needs root.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass
from typing import Self

from headrace.client import CliError

#: Seconds that one change of the network may take.
IP_S_MAX = 60.0
#: The first two parts of the addresses: set aside for tests of devices (RFC 2544), routed nowhere.
NETWORK = "198.18"
#: The last part of this host's own address.
_OWN = 254
NEEDS = (
    "[cluster] namespaces = true puts each worker into a network namespace: run as root, with `ip` of iproute2; "
    "or leave it out, and faults of the network are made by gates"
)


@dataclass(frozen=True, slots=True)
class Host:
    """One namespace: a host with its own address. `port` is the bridge's end of its cable.

    Without a namespace it is this host.
    """

    name: str
    namespace: str
    address: str
    port: str

    def command(self, *arguments: str) -> list[str]:
        """The command line in this namespace."""
        return ["ip", "netns", "exec", self.namespace, *arguments] if self.namespace else list(arguments)


class NetworkNamespaces:
    """A bridge and the namespaces on it. A context manager. Raises CliError where something cannot be made.

    `network` is the first three parts of the addresses; default: a network for tests of devices.
    """

    def __init__(self, network: str = "") -> None:
        self.mark = secrets.token_hex(3)
        self.hub = f"hr-{self.mark}-hub"
        self.hosts: dict[str, Host] = {}
        self._out: Counter[str] = Counter()
        self._network = network or f"{NETWORK}.{secrets.randbelow(256)}"
        self._own = f"hr-{self.mark}"
        ip("netns", "add", self.hub)
        self.in_hub("link", "add", "bridge", "type", "bridge")
        self.in_hub("link", "set", "bridge", "up")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def join(self) -> str:
        """Connect this host to the bridge; its address there."""
        address = f"{self._network}.{_OWN}"
        ip("link", "add", self._own, "type", "veth", "peer", "name", "own", "netns", self.hub)
        self.in_hub("link", "set", "own", "master", "bridge", "up")
        ip("address", "add", f"{address}/24", "dev", self._own)
        ip("link", "set", self._own, "up")
        return address

    def host(self, name: str) -> Host:
        """Add a host."""
        number = len(self.hosts) + 1
        host = Host(name, f"hr-{self.mark}-{name}", f"{self._network}.{number}", f"port{number}")
        ip("netns", "add", host.namespace)
        self.hosts[name] = host
        ip("link", "add", host.port, "netns", self.hub, "type", "veth", "peer", "name", "eth0", "netns", host.namespace)
        self.in_hub("link", "set", host.port, "master", "bridge", "up")
        ip("-n", host.namespace, "link", "set", "lo", "up")
        ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", "eth0")
        ip("-n", host.namespace, "link", "set", "eth0", "up")
        return host

    def unplug(self, name: str) -> None:
        """Unplug a host's cable, so its interface has no carrier; unplugged twice, it must be plugged in twice."""
        self._out[name] += 1
        self.in_hub("link", "set", self.hosts[name].port, "down")

    def plug(self, name: str) -> None:
        """Plug the cable in again."""
        self._out[name] -= 1
        if not self._out[name]:
            self.in_hub("link", "set", self.hosts[name].port, "up")

    def close(self) -> None:
        """Remove everything; a cable is gone with either end."""
        with contextlib.suppress(CliError):
            ip("link", "del", self._own)
        for namespace in (*(host.namespace for host in self.hosts.values()), self.hub):
            with contextlib.suppress(CliError):
                ip("netns", "del", namespace)

    def in_hub(self, *arguments: str) -> None:
        """`ip` in the bridge's namespace."""
        ip("-n", self.hub, *arguments)


def require_namespaces() -> None:
    """Raises CliError, in one line, where network namespaces cannot be made."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise CliError(NEEDS)


def ip(*arguments: str) -> None:
    """Run `ip` with these arguments. Raises CliError with what it says."""
    command = ["ip", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=IP_S_MAX, check=False)  # noqa: S603
    if done.returncode:
        raise CliError(f"{' '.join(command)}: {done.stderr.strip()}; network namespaces need root and their rights")
