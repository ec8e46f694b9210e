"""The training side: order, datasets, batches."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.loader.feedback import (
        MoreOfTheHarder as MoreOfTheHarder,
        WeightPolicy as WeightPolicy,
        feed_back as feed_back,
    )
    from headrace.loader.loader import Loader as Loader
    from headrace.loader.order import (
        DatasetGrew as DatasetGrew,
        LoaderClosed as LoaderClosed,
        LoaderError as LoaderError,
        StateMismatch as StateMismatch,
        WeightSchedule as WeightSchedule,
    )
    from headrace.loader.torch import TorchLoader as TorchLoader
    from headrace.loader.trace import (
        ReadPiece as ReadPiece,
        Trace as Trace,
        steps_of as steps_of,
        trace_document as trace_document,
        trace_step as trace_step,
    )
else:
    __getattr__ = door(__name__)
