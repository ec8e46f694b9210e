"""The store in a directory, `file://`, and what survives a power failure."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.store.files import disk as disk, store as store
    from headrace.store.files.disk import whole_file as whole_file
    from headrace.store.files.scratch import (
        DraftFile as DraftFile,
        Scratch as Scratch,
        near as near,
        open_draft as open_draft,
    )
    from headrace.store.files.store import FileStore as FileStore
    from headrace.store.files.user_cache import (
        CACHE_ADVICE as CACHE_ADVICE,
        own_cache as own_cache,
        taken_alone as taken_alone,
    )
else:
    __getattr__ = door(__name__)
