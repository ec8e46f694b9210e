"""Object stores, the shard format, the ledger and datasets."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.store.contract.errors import (
        ChecksumMismatch as ChecksumMismatch,
        DatasetBusy as DatasetBusy,
        FolderRefused as FolderRefused,
        FormatError as FormatError,
        InvalidKey as InvalidKey,
        InvalidUri as InvalidUri,
        NoDataset as NoDataset,
        ObjectMissing as ObjectMissing,
        StoreError as StoreError,
        StoreRefused as StoreRefused,
        StoreStalled as StoreStalled,
        StoreUnavailable as StoreUnavailable,
    )
    from headrace.store.contract.objects import (
        KEY_BYTES_MAX as KEY_BYTES_MAX,
        RESERVED_SEGMENT as RESERVED_SEGMENT,
        WHOLE_BYTES_MAX as WHOLE_BYTES_MAX,
        Buffer as Buffer,
        Capabilities as Capabilities,
        Decide as Decide,
        InputStore as InputStore,
        ObjectDraft as ObjectDraft,
        ObjectInfo as ObjectInfo,
        ObjectStore as ObjectStore,
        Stream as Stream,
        get_with_info as get_with_info,
        stream as stream,
        validate_key as validate_key,
    )
    from headrace.store.named import find as find, put as put, put_draft as put_draft
    from headrace.store.open import (
        below as below,
        folder_of as folder_of,
        one_name as one_name,
        open_input as open_input,
        open_store as open_store,
    )
    from headrace.store.typed import (
        NUMBER_MAX as NUMBER_MAX,
        Moment as Moment,
        Natural as Natural,
        misfit as misfit,
        whole_number as whole_number,
    )
    from headrace.store.version import release as release
    from headrace.store.words import counted as counted
else:
    __getattr__ = door(__name__)
