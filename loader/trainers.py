"""What a trainer's own loader between this one and the loop does with batches, where it can be seen.

Accelerate's `prepare` wraps a `DataLoader`: one of its wrappers looks a batch ahead, so that the place behind the last
batch that it took is not where the training loop stands; the other reads in the first process alone and cuts batches
into rows by their first dimension, which cu_seqlens and documents do not have. Neither is of use here: batches come
for this rank and on its device already.
"""

import logging
import sys
from typing import Any

from headrace.loader.errors import LoaderError

logger = logging.getLogger("headrace.loader")


def check_wrapper(loader: object) -> None:
    """Raise LoaderError where Accelerate's `prepare` stands between `loader` and the training loop."""
    accelerate: Any = sys.modules.get("accelerate.data_loader")
    if accelerate is None:
        return
    active = accelerate.GradientState().active_dataloader
    if active is None:
        return
    read = active.dataset
    if isinstance(read, accelerate.IterableDatasetShard):
        read = read.dataset
    if read is not loader:
        return
    # by type: these classes say that they are what they wrap
    if issubclass(type(active), accelerate.SkipDataLoader):
        logger.warning(
            "the trainer reads %d batches of this pass again and drops them; that is where it was only if it had come "
            "no further than this pass: headrace.loader.hugging_face.LoaderState keeps the place in its checkpoint",
            active.skip_batches,
        )
        return
    raise LoaderError(
        f"Accelerate's {type(active).__name__} stands between this loader and the loop: it looks ahead or cuts batches "
        "apart. Leave the loader out of accelerator.prepare, and of Trainer(train_dataset=...); its batches come for "
        "this rank and on its device. accelerator.register_for_checkpointing(loader) keeps its state"
    )
