"""What a task takes from a link: frames of its own epoch, and no others."""

from __future__ import annotations


def epoch_fault(link: str, frame_epoch: int, epoch: int) -> str:
    """Why a task of `epoch` refuses a frame; empty where it takes it.

    A frame of another epoch holds what was read for a task that is fenced off by now: its records are read again.
    """
    if frame_epoch == epoch:
        return ""
    return f"link {link}: a frame of epoch {frame_epoch}, this task is of {epoch}"
