"""What a controller says of its runs: status, progress, counts and metrics."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.controller.status.metrics import families as families
    from headrace.controller.status.progress import RunProgress as RunProgress
    from headrace.controller.status.status import reply as reply
else:
    __getattr__ = door(__name__)
