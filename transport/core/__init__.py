"""Pure: frames, credit, control messages, and the table of a relay."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.transport.core import frame as frame
    from headrace.transport.core.credit import CreditReceiver as CreditReceiver, CreditSender as CreditSender
    from headrace.transport.core.frame import (
        FRAGMENT_BYTES as FRAGMENT_BYTES,
        FRAME_LIMIT_BYTES as FRAME_LIMIT_BYTES,
        HEADER_BYTES as HEADER_BYTES,
        Aborted as Aborted,
        Bytes as Bytes,
        Control as Control,
        Finished as Finished,
        Frame as Frame,
        FrameKind as FrameKind,
        Granted as Granted,
        Welcomed as Welcomed,
        body_size as body_size,
        body_view as body_view,
        decode as decode,
        decode_control as decode_control,
        encode as encode,
        encode_control as encode_control,
        encode_head as encode_head,
        encode_parts as encode_parts,
        encoded_size as encoded_size,
        frame_size as frame_size,
        let_go as let_go,
    )
    from headrace.transport.core.relay_table import (
        Address as Address,
        RelayFullError as RelayFullError,
        RelayStatistics as RelayStatistics,
        RelayTable as RelayTable,
        rendezvous as rendezvous,
    )
else:
    __getattr__ = door(__name__)
