"""What every object store promises: objects, keys, and the ways to fail. It knows no store."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.store.contract.errors import (
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
        stream as stream,
        validate_key as validate_key,
    )
else:
    __getattr__ = door(__name__)
