"""The pure part of the page: requests, rows and their differences, the time line."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.page.core.board import (
        ROW_BYTES_MAX as ROW_BYTES_MAX,
        Board as Board,
        Loaders as Loaders,
        ReportRefused as ReportRefused,
        Timeline as Timeline,
        written as written,
    )
    from headrace.page.core.request import (
        HEAD_BYTES_MAX as HEAD_BYTES_MAX,
        Request as Request,
        RequestRefused as RequestRefused,
        body_length as body_length,
        check as check,
        parse_head as parse_head,
    )
else:
    __getattr__ = door(__name__)
