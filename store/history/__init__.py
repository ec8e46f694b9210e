"""What became of a dataset from version to version, and the names of versions."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.store.history.address import (
        delete_tag as delete_tag,
        manifest_at as manifest_at,
        open_at as open_at,
        read_tags as read_tags,
        set_tag as set_tag,
        split_address as split_address,
        stands_for as stands_for,
        version_named as version_named,
        view as view,
    )
    from headrace.store.history.audit import (
        GATE_CHARACTERS_MAX as GATE_CHARACTERS_MAX,
        broken_rows as broken_rows,
        gate_of as gate_of,
        parse_gate as parse_gate,
    )
    from headrace.store.history.copies import (
        Copy as Copy,
        copies_of as copies_of,
        note_copy as note_copy,
        renew_copy as renew_copy,
    )
    from headrace.store.history.diff import differences as differences
    from headrace.store.history.earlier import (
        BaseVerdicts as BaseVerdicts,
        EarlierVerdicts as EarlierVerdicts,
        open_earlier as open_earlier,
    )
    from headrace.store.history.trace_index import shards_with as shards_with, write_trace_index as write_trace_index
    from headrace.store.history.versions import (
        VersionFacts as VersionFacts,
        history_of as history_of,
        log_rows as log_rows,
    )
else:
    __getattr__ = door(__name__)
