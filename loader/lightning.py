"""The loader in Lightning: a data module, and a callback that lets no checkpoint hold what a damaged shard taught."""

from collections.abc import Iterator
from typing import Any, Final

from torch.utils.data import DataLoader

from headrace.loader.order import LoaderError
from headrace.loader.torch import OverWorkers, TorchLoader

try:
    from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise ImportError("headrace.loader.lightning needs Lightning: pip install lightning") from error

_PREFIX: Final = "headrace/"


class TokenData(LightningDataModule):
    """Batches of a training set, and of a validation set whose loader restarts. Lightning keeps the training state.

    Raises LoaderError for a validation set that would go on where its last loop ended.
    """

    def __init__(self, train: TorchLoader | OverWorkers, validation: TorchLoader | OverWorkers | None = None) -> None:
        super().__init__()
        self.train, self.validation = train, validation
        if validation is not None and not _torch_loader(validation).loader.restarts:
            raise LoaderError(
                "each evaluation would be of other samples: make the validation set's Loader with restarts=True"
            )

    def train_dataloader(self) -> TorchLoader | OverWorkers:
        """See Lightning's."""
        return self.train

    def val_dataloader(self) -> Any:
        """See Lightning's; no loop without a validation set."""
        return [] if self.validation is None else self.validation


class LoaderWatch(Callback):
    """Waits before each checkpoint until what was read is verified, and logs how fast batches come.

    Give it to `Trainer(callbacks=[...])`. It logs `headrace/tokens_s` and `headrace/data_wait_s_a_step`. Raises
    ChecksumMismatch where a checkpoint would be saved.
    """

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """See Lightning's."""
        del pl_module, checkpoint
        for loader in _loaders(trainer.train_dataloader):
            loader.wait_verified()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """See Lightning's."""
        del outputs, batch, batch_idx
        for loader in _loaders(trainer.train_dataloader):
            counts = loader.statistics()
            pl_module.log(f"{_PREFIX}tokens_s", counts.tokens_s)
            pl_module.log(f"{_PREFIX}data_wait_s_a_step", counts.data_wait_s_a_step)


def _loaders(given: Any) -> Iterator[TorchLoader]:
    """The loaders of ours in what Lightning iterates, alone or in its collections."""
    if isinstance(given, TorchLoader | OverWorkers):
        yield _torch_loader(given)
    elif isinstance(given, DataLoader) and isinstance(given.dataset, TorchLoader):
        yield given.dataset
    elif isinstance(given, dict | list | tuple):
        for one in given.values() if isinstance(given, dict) else given:
            yield from _loaders(one)


def _torch_loader(given: TorchLoader | OverWorkers) -> TorchLoader:
    return given.dataset
