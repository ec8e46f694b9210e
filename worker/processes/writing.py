"""What a control channel's socket did not take is written when it does, by the loop of this thread."""

from __future__ import annotations

import asyncio

from headrace.worker.processes.channel import Channel, ChannelClosed


def write_on(channel: Channel) -> None:
    """To be called behind each `channel.send`. That the other end is gone is said by `channel.receive`."""
    if channel.wants_to_write:
        asyncio.get_running_loop().add_writer(channel.fileno(), _writable, channel)


def _writable(channel: Channel) -> None:
    loop = asyncio.get_running_loop()
    try:
        channel.flush()
    except ChannelClosed:
        loop.remove_writer(channel.fileno())
        return
    if not channel.wants_to_write:
        loop.remove_writer(channel.fileno())
