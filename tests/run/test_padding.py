"""How little of the shards is padding, for documents of real lengths."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from headrace.store.shards.core.packing import pack

#: Of all tokens in the sequences.
PADDING_SHARE_MAX = 0.005


@pytest.mark.parametrize("seq_len", [512, 2048, 4096])
def test_under_half_a_percent_of_real_documents_sequences_is_padding(undisturbed: Path, seq_len: int) -> None:
    shards = json.loads((undisturbed / "manifest.json").read_text())["shards"]
    lengths = [
        length
        for shard in shards
        for length in pq.read_table(undisturbed / shard["documents"], columns=["tokens"])["tokens"].to_pylist()
    ]
    assert len(lengths) > 500
    packing = pack(lengths, seq_len)
    assert packing.padding / (packing.sequences * seq_len) < PADDING_SHARE_MAX
