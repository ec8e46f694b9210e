"""Datasets: what a ledger tells of them, versions, retraction, collection and verification."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.store.datasets import collection as collection, manifest as manifest
    from headrace.store.datasets.card import (
        CARD_FILES_MAX as CARD_FILES_MAX,
        CARD_KEY as CARD_KEY,
        card_of as card_of,
        clear_card as clear_card,
        files_of as files_of,
        is_our_card as is_our_card,
        show_version as show_version,
    )
    from headrace.store.datasets.collection import Collected as Collected, collect as collect
    from headrace.store.datasets.dataset import (
        Dataset as Dataset,
        fold_ledger as fold_ledger,
        main_object as main_object,
    )
    from headrace.store.datasets.manifest import (
        MANIFEST_FORMAT as MANIFEST_FORMAT,
        MANIFEST_KEY as MANIFEST_KEY,
        bring_forward as bring_forward,
        doubt as doubt,
        entry_of as entry_of,
        mend as mend,
        removal as removal,
    )
    from headrace.store.datasets.recipes import (
        Recipe as Recipe,
        closed_ranges as closed_ranges,
        recipes_of as recipes_of,
    )
    from headrace.store.datasets.retraction import (
        Erasable as Erasable,
        RecordPlaces as RecordPlaces,
        erase as erase,
        find_records as find_records,
        numbered_lines as numbered_lines,
        to_erase as to_erase,
        write_rewritten as write_rewritten,
    )
    from headrace.store.datasets.shown import (
        as_shown as as_shown,
        count_retracted as count_retracted,
        hidden_at as hidden_at,
        state_at as state_at,
    )
    from headrace.store.datasets.tables import read_rows as read_rows, with_schema as with_schema
    from headrace.store.datasets.where import ExpressionError as ExpressionError, parse_where as parse_where
else:
    __getattr__ = door(__name__)
