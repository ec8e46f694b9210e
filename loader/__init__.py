"""The training side: order, datasets, batches."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.loader.loader import Loader as Loader
    from headrace.loader.order import (
        DatasetGrew as DatasetGrew,
        LoaderClosed as LoaderClosed,
        LoaderError as LoaderError,
        StateMismatch as StateMismatch,
    )
    from headrace.loader.torch import TorchLoader as TorchLoader
    from headrace.loader.trace import (
        steps_of as steps_of,
        trace_document as trace_document,
        trace_step as trace_step,
    )
else:
    __getattr__ = door(__name__)
