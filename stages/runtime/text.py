"""The column of texts of a batch."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.stages.runtime.batch import Batch
from headrace.stages.runtime.errors import StageContractError


def text_of(batch: Batch, stage: str) -> pa.Array[Any]:
    """The column of texts; StageContractError where an earlier stage has taken it away."""
    if "text" not in batch.rows.schema.names:
        raise StageContractError(f'stage "{stage}" needs text and got none: put it before tokenize')
    return batch.rows.column("text")
