"""Places that input is read from and nothing is written to: web servers, the Hugging Face hub, and fsspec's."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.store.remote.places import open_place as open_place
else:
    __getattr__ = door(__name__)
