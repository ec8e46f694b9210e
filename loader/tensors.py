"""Batches as tensors, under our names or those of trainers' models, and what trainers' loops do with batches.

What is wide travels as int32 and is widened on its device. Trainers' names are made where the tensors are.

Accelerate's `prepare` wraps a `DataLoader`: one of its wrappers looks a batch ahead, so that the place behind the
last batch that it took is not where the training loop stands; the other reads in the first process alone and cuts
batches into rows by their first dimension, which cu_seqlens and documents do not have. Neither is of use here:
batches come for this rank and on its device already.

Lightning and transformers write checkpoints by themselves, and a loader whose place they leave out is read from the
beginning of a pass after a resume, which no loss shows. Nobody tells a loader who iterates it: the calls that stand
above say so, also in a worker process that was forked out of them, and where one is about to be spawned.
"""

import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, Literal, TypeAlias, cast

import torch
from torch.utils.data import DataLoader

from headrace.loader.batch import FIELDS, IGNORED_LABEL, NOTHING, Batch
from headrace.loader.order import LoaderError

#: PyTorch takes indices and labels as int64; what the attention kernels take stays int32
_INT64: Final = ("tokens", "labels", "position_ids")
_INTS: Final = ("max_seqlen",)
#: a byte a token: a view of it would keep the memory of all wide fields, of which the others have been widened
_COPIED: Final = ("loss_mask",)
_AS_THEY_ARE: Final = ("cu_seqlens", "documents", "positions", "sources", "state")
_ALWAYS: Final = ("tokens", "positions", "sources", "state")
#: what names may ask for beside the fields of a batch, and of which fields it is made
_MADE: Final[Mapping[str, tuple[str, ...]]] = {
    "unshifted_labels": ("labels",),
    "counted_labels": ("labels", "loss_mask"),
    "loss_weights": ("loss_mask",),
    "attention_mask": ("documents", "cu_seqlens"),
    "every_token": (),
}


@dataclass(frozen=True, slots=True)
class Names:
    """What a trainer calls the fields of a batch: its names, and our fields of which they are made.

    `flat` gives [B, L] as [1, B * L], as attention over segments of any length takes it.
    """

    fields: Mapping[str, str]
    flat: bool = False

    def needs(self) -> set[str]:
        """The fields of a batch that these are made of."""
        return {part for field in self.fields.values() for part in _MADE.get(field, (field,))}

    def of(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The batch under these names."""
        found = {name: _made(field, batch) for name, field in self.fields.items()}
        if self.flat:
            shape = batch["tokens"].shape
            for name, value in found.items():
                if isinstance(value, torch.Tensor) and value.shape == shape:
                    found[name] = value.reshape(1, -1)
        return found


_TRANSFORMERS: Final = {"input_ids": "tokens", "labels": "unshifted_labels", "position_ids": "position_ids"}
_BOUNDS: Final = {
    "cu_seq_lens_q": "cu_seqlens",
    "cu_seq_lens_k": "cu_seqlens",
    "max_length_q": "max_seqlen",
    "max_length_k": "max_seqlen",
}
#: By the name of a trainer, or of how its attention learns where documents end.
NAMES: Final[Mapping[str, Names]] = {
    "transformers": Names(_TRANSFORMERS),
    "transformers-flash": Names(_TRANSFORMERS | _BOUNDS, flat=True),
    "transformers-mask": Names(
        {"input_ids": "tokens", "labels": "unshifted_labels", "attention_mask": "attention_mask"}
    ),
    "torchtitan": Names({"input": "tokens", "positions": "position_ids", "labels": "labels"}),
    "nanotron": Names(
        {"input_ids": "tokens", "input_mask": "every_token", "label_ids": "counted_labels", "label_mask": "loss_mask"}
    ),
    "megatron": Names(
        {
            "tokens": "tokens",
            "labels": "counted_labels",
            "loss_mask": "loss_weights",
            "position_ids": "position_ids",
        }
    ),
}


def chosen_names(names: str | Mapping[str, str] | None, made: frozenset[str]) -> Names | None:
    """What a caller asked for; `made` are the fields that the loader makes. Raises ValueError for what cannot be."""
    if names is None:
        return None
    if isinstance(names, str):
        if names not in NAMES:
            raise ValueError(
                f"names is one of {', '.join(map(repr, NAMES))}, or a mapping of names to fields; got {names!r}"
            )
        chosen = NAMES[names]
    else:
        chosen = Names(dict(names))
    known = {*_ALWAYS, *FIELDS, *_MADE}
    if unknown := sorted(set(map(str, chosen.fields.values())) - known):
        raise ValueError(f"names: no field {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    if missing := sorted(chosen.needs() - made - set(_ALWAYS)):
        raise ValueError(f"names={names!r} needs Loader(..., fields=...) with {', '.join(missing)}")
    return chosen


def _made(field: str, batch: Mapping[str, Any]) -> Any:
    match field:
        case "unshifted_labels":
            # as models that shift labels themselves take them: of the first token of a piece nothing is to be learnt
            labels = torch.full_like(batch["labels"], IGNORED_LABEL)
            labels[:, 1:] = batch["labels"][:, :-1]
            return labels
        case "counted_labels":
            # a loss by vocabulary in parts looks up every label before it applies the mask
            return batch["labels"].masked_fill(~batch["loss_mask"], 0)
        case "loss_weights":
            return batch["loss_mask"].float()
        case "attention_mask":
            told = (batch["documents"][:, 0] != NOTHING).long()
            size = batch["tokens"].numel()
            lengths = batch["cu_seqlens"].diff().long()
            return torch.repeat_interleave(told, lengths, output_size=size).reshape(batch["tokens"].shape)
        case "every_token":
            return torch.ones_like(batch["tokens"], dtype=torch.bool)
        case _:
            return batch[field]


def tensors(batch: Batch) -> dict[str, Any]:
    """The batch as tensors on the CPU."""
    fields = cast("dict[str, Any]", batch)
    found: dict[str, Any] = {name: torch.from_numpy(fields[name]).long() for name in _INT64 if name in fields}
    found |= {name: torch.from_numpy(fields[name]).clone() for name in _COPIED if name in fields}
    found |= {name: torch.from_numpy(fields[name]) for name in _AS_THEY_ARE if name in fields}
    return found | {name: fields[name] for name in _INTS if name in fields}


class Copier:
    """Copies batches to a CUDA device on a stream of its own. The int32 fields travel as they are and widen there."""

    def __init__(self, device: "torch.device", names: Names | None) -> None:
        self._device = device
        self._names = names
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def copy(self, batch: Batch) -> "tuple[dict[str, Any], torch.cuda.Event]":
        """The batch on the device, and the event after which it is there."""
        fields = cast("dict[str, Any]", batch)
        moved: dict[str, Any] = {name: fields[name] for name in _INTS if name in fields}
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            for name in filter(fields.__contains__, (*_INT64, *_COPIED, *_AS_THEY_ARE)):
                tensor = torch.from_numpy(fields[name]).pin_memory().to(self._device, non_blocking=True)
                moved[name] = tensor.long() if name in _INT64 else tensor
            if self._names is not None:
                moved = self._names.of(moved)
            copied.record(self._stream)
        return moved, copied


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
