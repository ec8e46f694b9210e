"""The loader's edge to PyTorch; everything below it is numpy and imports no torch."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from headrace.loader.assemble import Batch
from headrace.loader.batches import Loader, LoaderStatistics

try:
    import torch
    from torch.utils.data import IterableDataset, get_worker_info
except ImportError as error:
    raise ImportError("headrace.loader.torch needs PyTorch: pip install 'headrace[loader]'") from error

#: PyTorch takes indices and labels as int64; what the attention kernels take stays int32
_INT64: Final = ("tokens", "labels", "position_ids")
_AS_THEY_ARE: Final = ("loss_mask", "cu_seqlens", "documents", "positions")


class TorchLoader(IterableDataset[dict[str, Any]]):
    """Batches of a `Loader` as dicts of tensors on `device` (the CPU by default); `max_seqlen` stays an int.

    On a CUDA device the thread that makes batches also copies them, from pinned memory and on a stream of its own,
    so that up to `prefetch` batches are on the device before they are asked for. Iterate it directly, or through
    `DataLoader(loader, batch_size=None, num_workers=0)`: its state is that of the last batch received either way.
    """

    def __init__(self, loader: Loader, device: "torch.device | str" = "cpu") -> None:
        self.loader = loader
        self.device = torch.device(device)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if get_worker_info() is not None:
            raise RuntimeError(
                "TorchLoader makes its batches on a thread of its own, and each DataLoader worker would make all of "
                "them again; use DataLoader(loader, batch_size=None, num_workers=0)"
            )
        if self.device.type == "cuda":
            return self._on_device()
        return self.loader.iterate(_tensors)

    def _on_device(self) -> Iterator[dict[str, Any]]:
        copier = _Copier(self.device)
        for batch, copied in self.loader.iterate(copier.copy):
            current = torch.cuda.current_stream(self.device)
            current.wait_event(copied)
            for value in batch.values():
                if isinstance(value, torch.Tensor):
                    # the allocator must not reuse this memory while the step's stream still reads it
                    value.record_stream(current)
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """See `Loader.state_dict`."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Loader.load_state_dict`."""
        self.loader.load_state_dict(state)

    def statistics(self) -> LoaderStatistics:
        """See `Loader.statistics`."""
        return self.loader.statistics()

    def close(self) -> None:
        """See `Loader.close`."""
        self.loader.close()


def _tensors(batch: Batch) -> dict[str, Any]:
    fields = cast("dict[str, Any]", batch)
    tensors: dict[str, Any] = {name: torch.from_numpy(fields[name]).long() for name in _INT64}
    tensors |= {name: torch.from_numpy(fields[name]) for name in _AS_THEY_ARE}
    tensors["max_seqlen"] = batch["max_seqlen"]
    return tensors


class _Copier:
    """Copies batches to a CUDA device on a stream of its own. The int32 fields travel as they are and widen there."""

    def __init__(self, device: "torch.device") -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def copy(self, batch: Batch) -> "tuple[dict[str, Any], torch.cuda.Event]":
        """The batch on the device, and the event after which it is there."""
        fields = cast("dict[str, Any]", batch)
        moved: dict[str, Any] = {"max_seqlen": batch["max_seqlen"]}
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            for name in (*_INT64, *_AS_THEY_ARE):
                tensor = torch.from_numpy(fields[name]).pin_memory().to(self._device, non_blocking=True)
                moved[name] = tensor.long() if name in _INT64 else tensor
            copied.record(self._stream)
        return moved, copied
