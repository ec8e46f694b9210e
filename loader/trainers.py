"""What a trainer's own loop, or its own loader between this one and the loop, does with batches, where it can be seen.

Accelerate's `prepare` wraps a `DataLoader`: one of its wrappers looks a batch ahead, so that the place behind the last
batch that it took is not where the training loop stands; the other reads in the first process alone and cuts batches
into rows by their first dimension, which cu_seqlens and documents do not have. Neither is of use here: batches come
for this rank and on its device already.

Lightning and transformers write checkpoints by themselves, and a loader whose place they leave out is read from the
beginning of a pass after a resume, which no loss shows. Nobody tells a loader who iterates it: the calls that stand
above say so, also in a worker process that was forked out of them, and where one is about to be spawned.
"""

import inspect
import sys
from types import FrameType
from typing import Any, Final, Literal, TypeAlias

from torch.utils.data import DataLoader

from headrace.loader.order import LoaderError

#: `bare`: writes the state of a loader that has one; `told`: writes it where a callback does; `reads`: does not resume
Loop: TypeAlias = Literal["bare", "told", "reads"]

#: (module, function or "" for any): the loop that stands nearest above a loader decides
_LOOPS: Final[dict[tuple[str, str], Loop]] = {
    ("lightning.pytorch.loops.fit_loop", ""): "bare",
    ("lightning.pytorch.loops.training_epoch_loop", ""): "bare",
    ("lightning.pytorch.loops.evaluation_loop", ""): "reads",
    ("lightning.pytorch.loops.prediction_loop", ""): "reads",
    ("pytorch_lightning.loops.fit_loop", ""): "bare",
    ("pytorch_lightning.loops.training_epoch_loop", ""): "bare",
    ("pytorch_lightning.loops.evaluation_loop", ""): "reads",
    ("pytorch_lightning.loops.prediction_loop", ""): "reads",
    ("transformers.trainer", "_run_epoch"): "told",
    ("transformers.trainer", "evaluation_loop"): "reads",
}


class CountedDataLoader(DataLoader[Any]):
    """A `DataLoader` whose loop keeps count of what it received."""


def check_loop(*, is_kept: bool, restarts: bool) -> None:
    """Raise LoaderError where a trainer's training loop iterates a loader whose place its checkpoints leave out.

    `is_kept`: a callback of that trainer writes it. `restarts`: the loader keeps none. Call it where a loader is
    iterated, or sent to who will.
    """
    through: DataLoader[Any] | None = None
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        if through is None:
            caller = frame.f_locals.get("self")
            through = caller if isinstance(caller, DataLoader) else None
        module = frame.f_globals.get("__name__", "")
        loop = _LOOPS.get((module, frame.f_code.co_name)) or _LOOPS.get((module, ""))
        if loop is not None:
            _check(loop, through, is_kept=is_kept, restarts=restarts)
            return
        frame = frame.f_back


def _check(loop: Loop, through: "DataLoader[Any] | None", *, is_kept: bool, restarts: bool) -> None:
    if restarts and loop != "reads":
        raise LoaderError(
            "a loader with restarts=True begins its pass again at each loop, and so where a run goes on from a "
            "checkpoint: give it to validation, and train from a loader without"
        )
    plain = through is not None and not isinstance(through, CountedDataLoader)
    if loop == "bare" and plain and not hasattr(through, "state_dict"):
        workers = through.num_workers if through is not None else 0
        instead = f"loader.over_workers({workers})" if workers else "the loader itself"
        raise LoaderError(
            "Lightning's checkpoints leave out the place of what comes through a DataLoader, and a run that goes on "
            "from one would read its pass again from the beginning: in place of the DataLoader give the trainer "
            f"{instead}, and leave everything else as it is"
        )
    if loop == "told" and not is_kept:
        raise LoaderError(
            "the checkpoints of transformers.Trainer leave out where the loader stands, and a run that goes on from "
            "one would read other batches: pass Trainer(..., callbacks=[headrace.loader.hugging_face.LoaderState("
            "loader)]) and TrainingArguments(..., ignore_data_skip=True)"
        )


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
    raise LoaderError(
        f"Accelerate's {type(active).__name__} stands between this loader and the loop: it looks ahead, cuts batches "
        "apart or drops them. Leave the loader out of accelerator.prepare, of skip_first_batches and of "
        "Trainer(train_dataset=...); its batches come for this rank and on its device. "
        "accelerator.register_for_checkpointing(loader) keeps its state"
    )
