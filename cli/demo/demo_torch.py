"""The quickstart's model where torch is installed: a causal transformer of two layers that sees its document only."""

from typing import Final

import torch
from torch import nn
from torch.nn import functional

from headrace.cli.demo.windows import Windows
from headrace.loader.batch import IGNORED_LABEL

WIDTH: Final = 128
HEADS: Final = 4
LAYERS: Final = 2
LEARNING_RATE: Final = 6e-3
#: steps over which the learning rate rises
WARM_UP: Final = 10


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(WIDTH)
        self.attention_in = nn.Linear(WIDTH, 3 * WIDTH)
        self.attention_out = nn.Linear(WIDTH, WIDTH)
        self.before_wide = nn.LayerNorm(WIDTH)
        self.wide_in = nn.Linear(WIDTH, 4 * WIDTH)
        self.wide_out = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        windows, tokens, _ = x.shape
        mixed = self.attention_in(self.before_attention(x)).view(windows, tokens, 3, HEADS, WIDTH // HEADS)
        query, key, value = mixed.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + self.attention_out(seen.transpose(1, 2).reshape(windows, tokens, WIDTH))
        wide: torch.Tensor = self.wide_out(functional.gelu(self.wide_in(self.before_wide(x))))
        return x + wide


class _Transformer(nn.Module):
    def __init__(self, vocabulary: int, window_tokens: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, WIDTH)
        self.places = nn.Embedding(window_tokens, WIDTH)
        self.layers = nn.ModuleList(_Layer() for _ in range(LAYERS))
        self.last = nn.LayerNorm(WIDTH)
        for table in (self.embedding, self.places):
            nn.init.normal_(table.weight, std=0.05)

    def forward(self, tokens: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        same = segments[:, :, None] == segments[:, None, :]
        mask = (same & torch.ones(length, length, dtype=torch.bool).tril()).unsqueeze(1)
        x = self.embedding(tokens) + self.places.weight[:length]
        for layer in self.layers:
            x = layer(x, mask)
        normed: torch.Tensor = self.last(x)
        return normed


class TinyTransformer:
    """Two layers, tied embeddings, AdamW; draws its weights from `seed` and leaves torch's global generator alone."""

    def __init__(self, vocabulary: int, window_tokens: int, seed: int) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._model = _Transformer(vocabulary, window_tokens)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95))
        self._steps = 0
        parameters = sum(parameter.numel() for parameter in self._model.parameters())
        version = torch.__version__.partition("+")[0]
        self.engine = f"torch {version}, a transformer of {parameters / 1e6:.1f} M parameters"

    def step(self, windows: Windows) -> float:
        """See `headrace.cli.demo.demo.TinyBigram.step`."""
        self._steps += 1
        for group in self._optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, self._steps / WARM_UP)
        hidden = self._model(torch.from_numpy(windows.tokens), torch.from_numpy(windows.segments)).flatten(0, 1)
        labels = torch.from_numpy(windows.labels).flatten()
        # the softmax is most of the work, so what is not counted does not enter it
        counted = labels != IGNORED_LABEL
        logits = functional.linear(hidden[counted], self._model.embedding.weight)
        loss = functional.cross_entropy(logits, labels[counted])
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        return float(loss.detach())
