"""Object stores, the shard format, the ledger and datasets."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.store.errors import (
        ChecksumMismatch as ChecksumMismatch,
        DatasetBusy as DatasetBusy,
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
    from headrace.store.named import find as find, put as put, put_draft as put_draft
    from headrace.store.naming import one_name as one_name
    from headrace.store.objects import (
        KEY_BYTES_MAX as KEY_BYTES_MAX,
        RESERVED_SEGMENT as RESERVED_SEGMENT,
        Buffer as Buffer,
        Decide as Decide,
        ObjectInfo as ObjectInfo,
        ObjectStore as ObjectStore,
        Stream as Stream,
        below as below,
        get_with_info as get_with_info,
        open_store as open_store,
        stream as stream,
        validate_key as validate_key,
    )
    from headrace.store.typed import NUMBER_MAX as NUMBER_MAX, misfit as misfit
    from headrace.store.version import release as release
    from headrace.store.words import counted as counted
else:
    __getattr__ = door(__name__)
