"""Places that input is read from and nothing is written to: web servers, the Hugging Face hub, and fsspec's.

Web servers and the hub are read by a wire of ours: the one of fsspec believes any length, undoes a Content-Encoding,
and gives bytes without their version.
"""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.store.remote.fsspec_store import FsspecStore as FsspecStore
    from headrace.store.remote.http_store import HttpStore as HttpStore
    from headrace.store.remote.hub import (
        HubStore as HubStore,
        may_have_token as may_have_token,
        token_of as token_of,
    )
else:
    __getattr__ = door(__name__)
