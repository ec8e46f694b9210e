"""What became of a dataset from version to version."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.store.history.versions import VersionFacts as VersionFacts, history_of as history_of
else:
    __getattr__ = door(__name__)
