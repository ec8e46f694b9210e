"""A loop that ends in one of the ways in which training loops end, while its batches are still made ahead.

`python -m tests.kits.loader.exits VIA END URI`
"""

import os
import signal
import sys
from typing import Any

import torch
from torch.utils.data import DataLoader

from headrace.loader.loader import Loader
from headrace.loader.torch import TorchLoader


def batches(loader: TorchLoader, via: str) -> Any:
    match via:
        case "bare":
            return loader
        case "over_workers":
            return loader.over_workers(2)
        case "data_loader":
            return DataLoader(loader, batch_size=None, num_workers=2)
        case "data_loader_persistent":
            return DataLoader(loader, batch_size=None, num_workers=2, persistent_workers=True)
        case "data_loader_spawned":
            return DataLoader(loader, batch_size=None, num_workers=2, multiprocessing_context="spawn")
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(loader, batch_size=None, num_workers=2)


#: what lives until the interpreter is gone
ALIVE: list[Any] = []


def main(via: str, end: str, uri: str) -> None:
    torch.set_num_threads(1)
    ALIVE.append(iter(batches(TorchLoader(Loader(uri, batch_size=1, prefetch=64)), via)))
    print(next(ALIVE[0])["state"].tolist(), flush=True)
    match end:
        case "raise":
            raise ValueError("the loss is no number")
        case "sys.exit":
            sys.exit(3)
        case "SIGTERM":
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        case "SIGINT":
            os.kill(os.getpid(), signal.SIGINT)
            signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
