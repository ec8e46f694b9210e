"""Datasets as the loader reads them: manifest, shards and rows."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.loader.dataset.dataset import (
        TokenDataset as TokenDataset,
        dataset_in as dataset_in,
        open_dataset as open_dataset,
    )
    from headrace.loader.dataset.shard import (
        DOCUMENT as DOCUMENT,
        LENGTH as LENGTH,
        REPEATED as REPEATED,
        START as START,
        PieceTable as PieceTable,
        Shard as Shard,
    )
    from headrace.loader.dataset.sources import (
        HELD_SHARE as HELD_SHARE,
        SHARD_BYTES_MIN as SHARD_BYTES_MIN,
        TOKEN_BYTES_MAX as TOKEN_BYTES_MAX,
        Source as Source,
        Sources as Sources,
        known_part as known_part,
        known_parts as known_parts,
        refuse_growth as refuse_growth,
    )
    from headrace.loader.dataset.verify import WAIT_S_MAX as WAIT_S_MAX
else:
    __getattr__ = door(__name__)
