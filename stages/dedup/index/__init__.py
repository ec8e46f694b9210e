"""Who holds which key: a table of slots in memory, or sorted runs on local disk with a filter in front."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.stages.dedup.index.claims import (
        Claims as Claims,
        KeySource as KeySource,
        LoadedKeys as LoadedKeys,
        Partition as Partition,
    )
    from headrace.stages.dedup.index.lookups import (
        CANDIDATES_MAX as CANDIDATES_MAX,
        claim as claim,
        fetch_ahead as fetch_ahead,
        find_equal as find_equal,
        find_holders as find_holders,
        first_holder as first_holder,
        has_no_key as has_no_key,
        hashes_of as hashes_of,
    )
    from headrace.stages.dedup.index.records import (
        ANSWERED as ANSWERED,
        CLAIMED as CLAIMED,
        Records as Records,
        add_record as add_record,
        word_of as word_of,
    )
    from headrace.stages.dedup.index.runs import Levels as Levels
    from headrace.stages.dedup.index.saved import open_saved as open_saved, save as save
    from headrace.stages.dedup.index.slots import NOBODY as NOBODY, FixedSlots as FixedSlots
else:
    __getattr__ = door(__name__)
