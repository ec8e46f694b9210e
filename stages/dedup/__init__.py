"""Deduplication: keys of texts, one decider that answers for a stage, and the index in which it remembers the kept."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.stages.dedup import kept as kept
    from headrace.stages.dedup.clusters import Clusters as Clusters, HeldOut as HeldOut, rows_of as rows_of
    from headrace.stages.dedup.core import decider as decider, partitions as partitions
    from headrace.stages.dedup.core.scheme import (
        DEFAULTS as DEFAULTS,
        KEYS as KEYS,
        PARTITIONS_MAX as PARTITIONS_MAX,
        PERMUTATIONS_MAX as PERMUTATIONS_MAX,
        RULE as RULE,
        SKETCH as SKETCH,
        URL_RULE as URL_RULE,
        Scheme as Scheme,
        best_bands as best_bands,
        numbered_column as numbered_column,
        scheme_of as scheme_of,
    )
    from headrace.stages.dedup.key_index import KeyIndex as KeyIndex, Match as Match, compile_index as compile_index
    from headrace.stages.dedup.minhash import (
        CODES_MORE as CODES_MORE,
        Keys as Keys,
        compile_keys as compile_keys,
        make_keys as make_keys,
        make_sketches as make_sketches,
        permutations as permutations,
        read_words as read_words,
        sign as sign,
    )
    from headrace.stages.dedup.offline import (
        KeepRule as KeepRule,
        OfflineDuplicate as OfflineDuplicate,
        find_offline as find_offline,
        load_keys as load_keys,
    )
    from headrace.stages.dedup.stage import keys_of as keys_of, matches_of as matches_of
    from headrace.stages.dedup.text_key import own_key as own_key
else:
    __getattr__ = door(__name__)
