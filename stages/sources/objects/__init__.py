"""Objects of an input: which there are, how they are opened, unpacked and compared."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.stages.sources.objects.content import Content as Content
    from headrace.stages.sources.objects.formats import (
        ARROW as ARROW,
        CSV as CSV,
        FORMATS as FORMATS,
        HEAD_BYTES as HEAD_BYTES,
        JSONL as JSONL,
        MIXED_SOURCE as MIXED_SOURCE,
        ORC as ORC,
        PARQUET as PARQUET,
        SOURCES as SOURCES,
        TAR as TAR,
        TEXT as TEXT,
        WARC as WARC,
        Format as Format,
        check_format as check_format,
        codec_of as codec_of,
        data_format as data_format,
        format_of as format_of,
        globs_of as globs_of,
        misnamed as misnamed,
    )
    from headrace.stages.sources.objects.inputs import (
        InputObject as InputObject,
        Inputs as Inputs,
        file_at as file_at,
        to_path as to_path,
    )
    from headrace.stages.sources.objects.patterns import (
        WINDOW_BYTES as WINDOW_BYTES,
        partition_of as partition_of,
        split_patterns as split_patterns,
        with_followed_links as with_followed_links,
    )
    from headrace.stages.sources.objects.preflight_check import preflight as preflight
    from headrace.stages.sources.objects.streams import (
        BLOCK_BYTES as BLOCK_BYTES,
        FETCHED_BYTES_MAX as FETCHED_BYTES_MAX,
        UNFOLDED_A_STORED as UNFOLDED_A_STORED,
        UNFOLDED_BYTES_FREE as UNFOLDED_BYTES_FREE,
        InputStream as InputStream,
        LocalFile as LocalFile,
        RemoteFile as RemoteFile,
        checksum_of as checksum_of,
        expect as expect,
        open_raw as open_raw,
    )
    from headrace.stages.sources.objects.units import has_several as has_several
    from headrace.stages.sources.objects.unpack import Unpacker as Unpacker, UpTo as UpTo
else:
    __getattr__ = door(__name__)
