"""Datasets read back: versions in the formats that others train with, texts, and duplicates beside what is kept."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.stages.export.folders import EXPORTS as EXPORTS, renew_export as renew_export
    from headrace.stages.export.hub import push as push
    from headrace.stages.export.mirroring import (
        DeltaMirror as DeltaMirror,
        IcebergMirror as IcebergMirror,
        mirror as mirror,
    )
    from headrace.stages.export.records import (
        DuplicatePair as DuplicatePair,
        ShownRecord as ShownRecord,
        differences as differences,
        duplicate_pairs as duplicate_pairs,
        find_kept as find_kept,
        first_records as first_records,
        named_records as named_records,
        sampled_records as sampled_records,
        text_decoder as text_decoder,
    )
    from headrace.stages.export.source import (
        read_documents as read_documents,
        stored_object_of as stored_object_of,
        token_shards as token_shards,
    )
else:
    __getattr__ = door(__name__)
