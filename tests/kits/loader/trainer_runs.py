"""A training run by one trainer, told on the command line: it writes each batch that its step saw, and may kill itself.

`python trainer_runs.py TRAINER VIA URI OUT STEPS SAVE_AT DIE_AT RESUME`; torchrun starts it where there are two ranks.
"""

import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from headrace.loader.loader import Loader
from headrace.loader.torch import TorchLoader

#: over all ranks; a pass of 1,003 rows has 50 steps
ROWS_A_STEP = 20


class Run:
    """One run's arguments, and what its steps saw."""

    def __init__(self, arguments: list[str]) -> None:
        self.trainer, self.via, self.uri, out, steps, save_at, die_at, resume = arguments
        self.out = Path(out)
        self.steps, self.save_at, self.die_at, self.resumes = int(steps), int(save_at), int(die_at), resume == "resume"
        self.world_size = int(os.environ.get("TEST_RANKS", "1"))
        self.seen = 0

    def loader(self) -> Any:
        """Nobody passes rank and world_size."""
        loader = TorchLoader(Loader(self.uri, batch_size=ROWS_A_STEP // self.world_size, seed=3))
        match self.via:
            case "bare":
                return loader
            case "over_workers":
                return loader.over_workers(2)
            case "data_loader":
                return DataLoader(loader, batch_size=None)
            case "data_loader_workers":
                return DataLoader(loader, batch_size=None, num_workers=2)
            case "data_loader_spawned":
                return DataLoader(loader, batch_size=None, num_workers=1, multiprocessing_context="spawn")
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(
            loader, batch_size=None, num_workers=2, persistent_workers=self.via == "stateful_persistent"
        )

    def validation(self) -> Any:
        """A second loader, which each of its loops goes on with."""
        loader = TorchLoader(Loader(self.uri, batch_size=ROWS_A_STEP * 2, seed=4))
        return loader.over_workers(1)

    def note(self, batch: dict[str, Any], rank: int) -> None:
        with (self.out / f"seen-{rank}.jsonl").open("a") as file:
            file.write(json.dumps([batch["state"].tolist(), batch["tokens"].tolist()]) + "\n")
        self.seen += 1
        if self.seen == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)


class Net(nn.Module):
    def __init__(self, run: Run) -> None:
        super().__init__()
        self.weight = nn.Linear(1, 1)
        self.run = run

    def forward(self, **batch: Any) -> dict[str, Any]:
        self.run.note(batch, torch.distributed.get_rank() if torch.distributed.is_initialized() else 0)
        return {"loss": self.weight(torch.ones(1, 1)).sum()}


def lightning(run: Run) -> None:
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net(run)

        def training_step(self, batch: dict[str, Any], _: int) -> Any:
            return self.net(**batch)["loss"]

        def validation_step(self, batch: dict[str, Any], _: int) -> None:
            assert batch["tokens"].shape[1] == 8

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.01)

    ends = run.trainer == "lightning_saved_after_fit" and not run.resumes
    validates = run.trainer == "lightning_that_validates"
    keeps = ModelCheckpoint(run.out, "{step}", every_n_train_steps=run.save_at, save_top_k=-1)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=run.world_size, strategy="ddp" if run.world_size > 1 else "auto",
        max_steps=run.save_at if ends else run.steps, val_check_interval=7 if validates else None,
        default_root_dir=run.out, logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=not ends, callbacks=[] if ends else [keeps],
    )  # fmt: skip
    saved = run.out / f"step={run.save_at}.ckpt"
    trainer.fit(
        Module(), run.loader(), run.validation() if validates else None, ckpt_path=saved if run.resumes else None,
        weights_only=False,
    )  # fmt: skip
    if ends:
        # the second is the one that stays
        trainer.save_checkpoint(saved)
        trainer.save_checkpoint(saved)


def transformers(run: Run) -> None:
    from transformers import Trainer, TrainingArguments

    from headrace.loader.hugging_face import LoaderState

    keeps = run.trainer == "transformers"
    loader = run.loader()
    kept = loader.dataset if isinstance(loader, DataLoader) else loader

    class Ours(Trainer):
        def get_train_dataloader(self) -> Any:
            return loader

    arguments = TrainingArguments(
        output_dir=str(run.out), max_steps=run.steps, save_steps=run.save_at, report_to=[], disable_tqdm=True,
        use_cpu=True, remove_unused_columns=False,
        ignore_data_skip=run.trainer != "transformers_that_skips",
    )  # fmt: skip
    trainer = Ours(model=Net(run), args=arguments, callbacks=[LoaderState(kept)] if keeps else [])
    trainer.train(resume_from_checkpoint=str(run.out / f"checkpoint-{run.save_at}") if run.resumes else None)


def accelerate(run: Run) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    net, loader = Net(run), run.loader()
    net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.01))
    accelerator.register_for_checkpointing(loader)
    if run.resumes:
        accelerator.load_state(str(run.out / "state"))
    step = run.save_at if run.resumes else 0
    while step < run.steps:
        for batch in loader:
            accelerator.backward(net(**batch)["loss"])
            optimizer.step()
            step += 1
            if step == run.save_at:
                accelerator.save_state(str(run.out / "state"))
            if step == run.steps:
                break


def checkpoint(run: Run) -> None:
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    dist.init_process_group("gloo")
    net, loader = Net(run), run.loader()
    step = 0
    if run.resumes:
        dcp.load({"loader": loader}, checkpoint_id=run.out / "saved")
        step = run.save_at
    else:
        # a journal that is longer than that of a loader which is made anew
        loader.loader.skip(900, 20)
    while step < run.steps:
        for batch in loader:
            net(**batch)
            step += 1
            if step == run.save_at:
                dcp.save({"loader": loader}, checkpoint_id=run.out / "saved")
            if step == run.steps:
                break


if __name__ == "__main__":
    torch.set_num_threads(1)
    one = Run(sys.argv[1:])
    {
        "lightning": lightning,
        "lightning_saved_after_fit": lightning,
        "lightning_that_validates": lightning,
        "transformers": transformers,
        "transformers_without_callback": transformers,
        "transformers_that_skips": transformers,
        "accelerate": accelerate,
        "checkpoint": checkpoint,
    }[one.trainer](one)
    # transformers and Accelerate leave it, and a thread of gloo that outlives the interpreter may abort the process
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
