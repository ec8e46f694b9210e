"""A recipe of docs/guide/trainers.md as it stands, in a run that writes what its steps saw and may kill itself.

`python recipe_runs.py HEADING OUT STEPS SAVE_AT DIE_AT RESUME` in a folder with data/plain; torchrun starts two ranks.
"""

import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from headrace import Loader, TorchLoader
from tests.kits.loader.recipes import recipe

TOKENS = 1 << 17
#: Of trainers whose checkpoints hold a count of samples.
GLOBAL_BATCH = 16


class Run:
    """One run's arguments, and what its steps saw."""

    def __init__(self, heading: str, out: str, steps: str, save_at: str, die_at: str, resume: str) -> None:
        self.heading, self.out = heading, Path(out)
        self.steps, self.save_at, self.die_at = int(steps), int(save_at), int(die_at)
        self.resumes = resume == "resume"
        self.rank, self.ranks = int(os.environ.get("RANK", "0")), int(os.environ["TEST_RANKS"])
        self.seen = 0

    def note(self, tokens: Any, rank: int | None = None) -> None:
        """A step of this rank sees these rows."""
        with (self.out / f"seen-{self.rank if rank is None else rank}.jsonl").open("a") as file:
            file.write(json.dumps(tokens.tolist()) + "\n")
        self.seen += 1
        if self.seen == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def cook(self, **given: Any) -> dict[str, Any]:
        """Run the recipe; what stands behind it."""
        names = {"Loader": Loader, "TorchLoader": TorchLoader, "chain": chain, "repeat": repeat, **given}
        exec(compile(recipe(self.heading), self.heading, "exec"), names)
        return names

    def steps_of(self, batches: Iterable[Any], tokens: Callable[[Any], Any], save: Callable[[int], None]) -> None:
        """The loop of a trainer that has none here."""
        done = self.save_at if self.resumes else 0
        for batch in batches:
            self.note(tokens(batch))
            done += 1
            if done == self.save_at:
                save(done)
            if done == self.steps:
                return


def tiny_model(run: Run) -> Any:
    """A language model whose training steps are noted."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=TOKENS,
        hidden_size=4,
        intermediate_size=4,
        num_hidden_layers=1,
        num_attention_heads=1,
        eos_token_id=0,
    )
    model = LlamaForCausalLM(config)

    def note(module: Any, _: Any, named: dict[str, Any]) -> None:
        if module.training:
            run.note(named["input_ids"])

    model.register_forward_pre_hook(note, with_kwargs=True)
    return model


def lightning(run: Run) -> None:
    """See the recipe."""
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Linear(1, 1)

        def training_step(self, batch: dict[str, Any], _: int) -> Any:
            run.note(batch["tokens"], self.global_rank)
            return self.weight(torch.ones(1, 1)).sum()

        def validation_step(self, batch: dict[str, Any], _: int) -> None:
            with (run.out / f"validated-{self.global_rank}.jsonl").open("a") as file:
                file.write(json.dumps(batch["tokens"].tolist()) + "\n")

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.01)

    class Logged(lightning.Callback):
        def on_train_end(self, trainer: Any, _: Any) -> None:
            assert trainer.logged_metrics["headrace/tokens_s"] > 0

    options = {
        "accelerator": "cpu", "devices": run.ranks, "strategy": "ddp" if run.ranks > 1 else "auto",
        "max_steps": run.steps, "val_check_interval": 7, "limit_val_batches": 3, "num_sanity_val_steps": 0,
        "default_root_dir": run.out, "logger": False, "enable_progress_bar": False, "enable_model_summary": False,
    }  # fmt: skip
    keeps = ModelCheckpoint(run.out, "{step}", every_n_train_steps=run.save_at, save_top_k=-1)
    saved = str(run.out / f"step={run.save_at}.ckpt") if run.resumes else None
    run.cook(Trainer=lightning.Trainer, options=options, callbacks=[keeps, Logged()], module=Module(), checkpoint=saved)


def trainer_options(run: Run) -> dict[str, Any]:
    """Of a `transformers.Trainer` and what is made of it."""
    return {
        "output_dir": str(run.out), "max_steps": run.steps, "save_steps": run.save_at, "report_to": [],
        "disable_tqdm": True, "use_cpu": True, "save_strategy": "steps", "logging_strategy": "no",
    }  # fmt: skip


def transformers(run: Run) -> None:
    """See the recipe."""
    from transformers import Trainer, TrainingArguments

    saved = str(run.out / f"checkpoint-{run.save_at}") if run.resumes else None
    run.cook(
        Trainer=Trainer, TrainingArguments=TrainingArguments, model=tiny_model(run), options=trainer_options(run),
        checkpoint=saved,
    )  # fmt: skip


def trl(run: Run) -> None:
    """See the recipe."""
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    words = Tokenizer(models.WordLevel({"<eos>": 0}, unk_token="<eos>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>", pad_token="<eos>")
    saved = str(run.out / f"checkpoint-{run.save_at}") if run.resumes else None
    run.cook(
        SFTTrainer=SFTTrainer, SFTConfig=SFTConfig, Dataset=Dataset, tokenizer=tokenizer, model=tiny_model(run),
        options={**trainer_options(run), "bf16": False, "gradient_checkpointing": False}, checkpoint=saved,
    )  # fmt: skip


class LastStepError(Exception):
    """A run made its last step."""


def accelerate(run: Run) -> None:
    """See the recipe, whose loop is over one pass."""
    from accelerate import Accelerator

    model = tiny_model(run)
    first = run.save_at if run.resumes else 0

    def end(*_: Any) -> None:
        if first + run.seen == run.steps:
            raise LastStepError

    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    optimizer.register_step_post_hook(end)
    with_state = "saved" if run.resumes else None
    try:
        run.cook(
            accelerator=Accelerator(cpu=True), model=model, optimizer=optimizer, save_every=run.save_at,
            checkpoint=with_state,
        )  # fmt: skip
    except LastStepError:
        return
    raise AssertionError("the pass ended first")


def torchtitan(run: Run) -> None:
    """torchtitan's configuration builds the loader, and DCP saves it as torchtitan's checkpoints do."""
    from dataclasses import dataclass

    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torchtitan.components.dataloader import BaseDataLoader

    dist.init_process_group("gloo")
    cooked = run.cook(BaseDataLoader=BaseDataLoader, dataclass=dataclass)
    config = cooked["Tokens"].Config(dataset_path="data/plain")
    loader = config.build(
        dp_world_size=run.ranks, dp_rank=run.rank, tokenizer=None, seq_len=8, local_batch_size=8,
        snapshot_every_n_steps=1,
    )  # fmt: skip
    assert isinstance(loader, BaseDataLoader)
    place = run.out / "saved"
    if run.resumes:
        dcp.load({"dataloader": loader}, checkpoint_id=place)

    def tokens(batch: tuple[dict[str, Any], Any]) -> Any:
        given, labels = batch
        assert list(given) == ["input", "positions"]
        assert labels.shape == given["input"].shape
        return given["input"]

    run.steps_of(loader, tokens, lambda _: dcp.save({"dataloader": loader}, checkpoint_id=place))


def megatron(run: Run) -> None:
    """Megatron's parallel state says the ranks, and its iterator reads; a checkpoint is a count of samples."""
    import torch.distributed as dist
    from megatron.core import parallel_state
    from megatron.core.rerun_state_machine import RerunDataIterator

    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel()
    count = run.out / "consumed"
    args = SimpleNamespace(
        micro_batch_size=GLOBAL_BATCH // run.ranks, consumed_train_samples=int(count.read_text()) if run.resumes else 0
    )
    cooked = run.cook(mpu=parallel_state, get_args=lambda: args)
    train, held_out, test = cooked["train_valid_test_datasets_provider"](None)
    assert test is None
    first = [next(held_out)["tokens"].tolist() for _ in range(3)]
    again = cooked["train_valid_test_datasets_provider"](None)[1]
    assert [next(again)["tokens"].tolist() for _ in range(3)] == first

    def save(done: int) -> None:
        if run.rank == 0:
            count.write_text(str(done * GLOBAL_BATCH))

    run.steps_of(iter(RerunDataIterator(train).__next__, None), lambda batch: batch["tokens"], save)


def nanotron(run: Run) -> None:
    """A trainer with what nanotron's has for its loader: nanotron 0.4 itself cannot be imported."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    count = run.out / "consumed"

    def save(done: int) -> None:
        if run.rank == 0:
            count.write_text(str(done * GLOBAL_BATCH))

    def train(batches: Any) -> None:
        run.steps_of(batches, lambda batch: batch["input_ids"], save)

    trainer = SimpleNamespace(
        parallel_context=SimpleNamespace(dp_pg=dist.group.WORLD), train=train,
        micro_batch_size=GLOBAL_BATCH // run.ranks, consumed_train_samples=int(count.read_text()) if run.resumes else 0,
    )  # fmt: skip
    run.cook(trainer=trainer, device="cpu")


if __name__ == "__main__":
    torch.set_num_threads(1)
    one = Run(*sys.argv[1:])
    {
        "Lightning": lightning,
        "transformers": transformers,
        "TRL": trl,
        "Accelerate": accelerate,
        "torchtitan": torchtitan,
        "Megatron": megatron,
        "nanotron": nanotron,
    }[one.heading](one)
    # see trainer_runs
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
