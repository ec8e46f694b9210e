"""What every stage works with: batches, records, the contract, errors, and the building of stages."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.stages.runtime.arrow_check import (
        METADATA_BYTES_MAX as METADATA_BYTES_MAX,
        UnsoundArrow as UnsoundArrow,
        check_messages as check_messages,
        sound as sound,
    )
    from headrace.stages.runtime.batch import (
        DUPLICATE as DUPLICATE,
        FILTERED as FILTERED,
        LINEAGE as LINEAGE,
        PART as PART,
        QUARANTINED as QUARANTINED,
        RAW_BYTES_MAX as RAW_BYTES_MAX,
        ROW as ROW,
        SOURCE_ROWS as SOURCE_ROWS,
        VERDICTS as VERDICTS,
        Batch as Batch,
        BatchDraft as BatchDraft,
        Columns as Columns,
        Member as Member,
        as_column as as_column,
        batch_of as batch_of,
        cut_raw as cut_raw,
        join_verdicts as join_verdicts,
        make_schema as make_schema,
        make_verdicts as make_verdicts,
        no_verdicts as no_verdicts,
        ordinals_of as ordinals_of,
        parts_of as parts_of,
        reason_class as reason_class,
        row_keys as row_keys,
        text_of as text_of,
        uncut as uncut,
        verdict_keys as verdict_keys,
        verdicts_of as verdicts_of,
    )
    from headrace.stages.runtime.build import (
        build_stage as build_stage,
        load_target as load_target,
        process_safely as process_safely,
        quarantine as quarantine,
    )
    from headrace.stages.runtime.contract import (
        ContentAnswer as ContentAnswer,
        FragmentEnd as FragmentEnd,
        IndexPart as IndexPart,
        Prefix as Prefix,
        Sink as Sink,
        Source as Source,
        StatefulTransform as StatefulTransform,
        Transform as Transform,
        WrittenShard as WrittenShard,
    )
    from headrace.stages.runtime.counters import WITHOUT as WITHOUT
    from headrace.stages.runtime.declaration import (
        check_integer as check_integer,
        check_number as check_number,
        check_path as check_path,
        check_text as check_text,
        progress_to as progress_to,
        tell as tell,
    )
    from headrace.stages.runtime.environment_lock import (
        ENVIRONMENT_OF as ENVIRONMENT_OF,
        environment as environment,
        unlike as unlike,
    )
    from headrace.stages.runtime.errors import (
        DamagedInput as DamagedInput,
        DeviceFailed as DeviceFailed,
        FragmentChanged as FragmentChanged,
        InputError as InputError,
        StageContractError as StageContractError,
        WrongFormat as WrongFormat,
        is_device_error as is_device_error,
        unreadable as unreadable,
    )
    from headrace.stages.runtime.malloc import (
        give_back as give_back,
        giving_back as giving_back,
        heap_bytes as heap_bytes,
    )
    from headrace.stages.runtime.modules import (
        Shipped as Shipped,
        forget_modules as forget_modules,
        install_modules as install_modules,
    )
    from headrace.stages.runtime.samples import (
        merge as merge,
        rank as rank,
        read_samples as read_samples,
        sampled_of as sampled_of,
        samples_table as samples_table,
        with_samples as with_samples,
    )
else:
    __getattr__ = door(__name__)
