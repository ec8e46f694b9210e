"""`headrace dataset`: commands that write: another version, a copy, a list of records."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.cli.commands.maintenance.checkpoints import (
        loader_state_in as loader_state_in,
        sources_of as sources_of,
    )
    from headrace.cli.commands.maintenance.findings import (
        deduplicate as deduplicate,
        read_list as read_list,
        show_contamination as show_contamination,
        write_repeats as write_repeats,
    )
    from headrace.cli.commands.maintenance.maintenance import (
        collect_garbage as collect_garbage,
        compact_dataset as compact_dataset,
        export_dataset as export_dataset,
        mirror_dataset as mirror_dataset,
        push_dataset as push_dataset,
        remove_dataset as remove_dataset,
        retract_records as retract_records,
        write_manifest as write_manifest,
    )
    from headrace.cli.commands.maintenance.purge import purge_dataset as purge_dataset
    from headrace.cli.commands.maintenance.splitting import split_dataset as split_dataset
else:
    __getattr__ = door(__name__)
