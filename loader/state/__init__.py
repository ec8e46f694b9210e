"""What a checkpoint keeps, and what resuming from it means."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.loader.state.received import (
        Arrived as Arrived,
        Sent as Sent,
        end_with_parent as end_with_parent,
        listen as listen,
        new_token as new_token,
    )
    from headrace.loader.state.resumption import (
        Grown as Grown,
        Resumption as Resumption,
        binding_of as binding_of,
        mixture_of as mixture_of,
        resume as resume,
    )
    from headrace.loader.state.state import (
        STATE_FORMAT as STATE_FORMAT,
        find_state as find_state,
        journal_to_json as journal_to_json,
        packed as packed,
        parse_journal as parse_journal,
        place_of as place_of,
        require_format as require_format,
        require_room as require_room,
        unpacked as unpacked,
    )
else:
    __getattr__ = door(__name__)
