"""The bytes of a shard: header, blocks, packing, key files, and the names of its objects."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.store.shards.builder import (
        Built as Built,
        Documents as Documents,
        ScratchTokens as ScratchTokens,
        ShardBytes as ShardBytes,
        ShardLayout as ShardLayout,
        build_tokens as build_tokens,
        check_fit as check_fit,
        safetensors_parts as safetensors_parts,
        write_tokens as write_tokens,
    )
    from headrace.store.shards.core.blocks import (
        BLOCK_BYTES as BLOCK_BYTES,
        BLOCKS as BLOCKS,
        HEADER_CHECK as HEADER_CHECK,
        BlockTable as BlockTable,
        read_blocks as read_blocks,
    )
    from headrace.store.shards.core.parts import (
        GRAVITY as GRAVITY,
        PARTS_MAX as PARTS_MAX,
        Ordinals as Ordinals,
        broken_rows as broken_rows,
        keys_of as keys_of,
        rows_of as rows_of,
    )
    from headrace.store.shards.dedup_files import (
        SKETCHES_SUFFIX as SKETCHES_SUFFIX,
        SUFFIX as SUFFIX,
        KeptKeys as KeptKeys,
        RecordName as RecordName,
        decode_keys as decode_keys,
        encode_keys as encode_keys,
        encode_sketches as encode_sketches,
        merge_keys as merge_keys,
        merge_sketches as merge_sketches,
        read_keys as read_keys,
        read_sketches as read_sketches,
    )
    from headrace.store.shards.header import (
        HEADER_BYTES_MAX as HEADER_BYTES_MAX,
        data_end as data_end,
        malformed as malformed,
        read_plain_header as read_plain_header,
    )
    from headrace.store.shards.line_files import read_lines as read_lines
    from headrace.store.shards.object_keys import (
        FOLDERS as FOLDERS,
        KEYS_ROLE as KEYS_ROLE,
        SKETCHES_ROLE as SKETCHES_ROLE,
        are_checksums as are_checksums,
        are_keys as are_keys,
        epoch_of as epoch_of,
        is_checksum as is_checksum,
        is_key as is_key,
        is_key_of as is_key_of,
        kind_of as kind_of,
        numbered_role as numbered_role,
        quarantine_prefix as quarantine_prefix,
    )
    from headrace.store.shards.profile import (
        ALL_FIELDS_MAX as ALL_FIELDS_MAX,
        ALL_TOKENS_MAX as ALL_TOKENS_MAX,
        FIELD_STEP as FIELD_STEP,
        PROFILE_BYTES_MAX as PROFILE_BYTES_MAX,
        PROFILE_ROLE as PROFILE_ROLE,
        PROFILE_SUFFIX as PROFILE_SUFFIX,
        TOKEN_STEP_MAX as TOKEN_STEP_MAX,
        Profile as Profile,
        ProfileBuilder as ProfileBuilder,
        Series as Series,
        SeriesKind as SeriesKind,
        decode_profile as decode_profile,
        encode_profile as encode_profile,
        measure_profile as measure_profile,
        quantile as quantile,
    )
    from headrace.store.shards.shard import (
        ShardHeader as ShardHeader,
        checksum as checksum,
        content_hash as content_hash,
        read_header as read_header,
        read_shard as read_shard,
        verify_object as verify_object,
    )
    from headrace.store.shards.sidecars import (
        ROW_GROUP_ROWS as ROW_GROUP_ROWS,
        SCORE_PREFIX as SCORE_PREFIX,
        STEP_ROWS as STEP_ROWS,
        codes_of as codes_of,
        column_names as column_names,
        decode_table as decode_table,
        documents_schema as documents_schema,
        json_object as json_object,
        quarantine_schema as quarantine_schema,
        read_row_groups as read_row_groups,
        read_table as read_table,
        rows_named as rows_named,
        samples_schema as samples_schema,
        sidecar_schema as sidecar_schema,
        table_to_parquet as table_to_parquet,
        verdicts_schema as verdicts_schema,
        whole_ids as whole_ids,
        write_parquet as write_parquet,
    )
else:
    __getattr__ = door(__name__)
