"""A request to a bucket: its place, its credentials, its sockets, its bytes."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.store.s3.connection.body import Body as Body
    from headrace.store.s3.connection.config import S3Target as S3Target, resolve as resolve
    from headrace.store.s3.connection.sockets import allow as allow, kind_of as kind_of, pools_of as pools_of
    from headrace.store.s3.connection.wire import (
        CONNECTIONS_KEPT as CONNECTIONS_KEPT,
        READ_TIMEOUT_S as READ_TIMEOUT_S,
        Answer as Answer,
        NoAnswer as NoAnswer,
        Wire as Wire,
        announced_bytes as announced_bytes,
    )
    from headrace.store.s3.connection.xml import BadXml as BadXml, check_xml as check_xml, read_xml as read_xml
else:
    __getattr__ = door(__name__)
