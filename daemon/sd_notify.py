"""What a daemon tells the service manager that started it: datagrams to NOTIFY_SOCKET (sd_notify(3)).

Without a service manager every call does nothing.
"""

import asyncio
import os
import socket

#: Digits of a number of microseconds.
_DIGITS_MAX = 18


def notify(state: str) -> None:
    """Send one state, such as READY=1 or STATUS=..., if anybody listens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    # A name that begins with @ is in the abstract namespace, whose names begin with a zero byte.
    path = "\0" + address[1:] if address.startswith("@") else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sender:
        try:
            sender.sendto(state.encode(), path)
        except OSError:
            # The manager is busy or gone; a daemon does not stop its work for that.
            return


def watchdog_interval_s() -> float | None:
    """How often WATCHDOG=1 is wanted: half of what the unit allows; None if it wants none of this process."""
    wanted = os.environ.get("WATCHDOG_USEC", "")
    is_number = wanted.isascii() and wanted.isdigit() and len(wanted) <= _DIGITS_MAX
    if not is_number or os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    return int(wanted) / 2e6


async def keep_alive() -> None:
    """Tell the watchdog again and again that this event loop turns. Returns at once where there is none."""
    interval_s = watchdog_interval_s()
    while interval_s is not None:
        notify("WATCHDOG=1")
        await asyncio.sleep(interval_s)
