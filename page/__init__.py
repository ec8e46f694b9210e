"""The page: a server of one static bundle, the state as a stream of differences, and questions with answers."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.page.server import (
        PageServer as PageServer,
        QuestionRefused as QuestionRefused,
        serve_page as serve_page,
    )
else:
    __getattr__ = door(__name__)
