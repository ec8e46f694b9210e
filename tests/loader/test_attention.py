"""Attention over packed sequences, masked by `cu_seqlens`, against each document on its own."""

import itertools

import pytest

torch = pytest.importorskip("torch")

from torch.nn.functional import cross_entropy, scaled_dot_product_attention  # noqa: E402

from headrace.loader.loader import Loader  # noqa: E402
from headrace.loader.torch import TorchLoader  # noqa: E402

VOCABULARY = 5000
WIDTH = 8


class TinyAttention(torch.nn.Module):
    """One layer of causal attention with learned positions, in double precision."""

    def __init__(self, seq_len: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.places = torch.nn.Embedding(seq_len, WIDTH)
        self.inputs = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.double()

    def forward(self, tokens, position_ids, mask):
        x = self.embedding(tokens) + self.places(position_ids)
        query, key, value = self.inputs(x).chunk(3, -1)
        return (x + scaled_dot_product_attention(query, key, value, attn_mask=mask)) @ self.embedding.weight.T


def test_packed_attention_is_that_of_each_document_alone(tiny_dataset: str):
    torch.manual_seed(0)
    model = TinyAttention(16)
    with torch.no_grad():
        for batch in TorchLoader(Loader(tiny_dataset, batch_size=4, last="pad")):
            bounds = batch["cu_seqlens"].tolist()
            numbers = torch.arange(len(bounds) - 1).repeat_interleave(batch["cu_seqlens"].diff().long())
            tokens, labels = batch["tokens"].flatten(), batch["labels"].flatten()
            causal = torch.ones(tokens.numel(), tokens.numel()).tril().bool()
            packed = model(tokens, batch["position_ids"].flatten(), causal & (numbers[:, None] == numbers))
            total = 0.0
            for begin, end in itertools.pairwise(bounds):
                length = end - begin
                assert length <= batch["max_seqlen"]
                own = model(tokens[begin:end], torch.arange(length), torch.ones(length, length).tril().bool())
                assert torch.allclose(packed[begin:end], own, rtol=0, atol=1e-12)
                if batch["loss_mask"].flatten()[begin]:
                    # within a document each token but the last is asked for the next one
                    total += float(cross_entropy(own[:-1], tokens[begin + 1 : end], reduction="sum"))
            assert float(cross_entropy(packed, labels, reduction="sum")) == pytest.approx(total, abs=1e-9)
