"""Sinks: shards of tokens, texts with sidecars, and compaction."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.stages.sinks.compaction import (
        groups as groups,
        left_to_do as left_to_do,
        merge as merge,
        retracted_rows as retracted_rows,
        write_retracted as write_retracted,
    )
    from headrace.stages.sinks.held_out import chosen_groups as chosen_groups, write_chosen as write_chosen
    from headrace.stages.sinks.sidecars import (
        count_fates as count_fates,
        create_object as create_object,
        fates_by_record as fates_by_record,
        fates_of_lost as fates_of_lost,
    )
else:
    __getattr__ = door(__name__)
