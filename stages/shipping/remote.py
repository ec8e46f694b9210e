"""What tasks need that read from S3 or write to it; a forkserver imports it once for all of them
(stages/shipping/preload.py).
"""

import importlib


def preload() -> None:
    """Import the client, which takes a third of a second of processor time."""
    importlib.import_module("headrace.store.s3.store")
