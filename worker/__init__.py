"""The worker daemon and the task runtime."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.worker.daemon import main as main
else:
    __getattr__ = door(__name__)
