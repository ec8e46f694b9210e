"""Pure: which input is read, by whom, and what is under suspicion."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.controller.core.run.input import known_objects as known_objects
    from headrace.controller.core.run.input.intake import Intake as Intake
    from headrace.controller.core.run.input.known_objects import (
        Compared as Compared,
        Comparing as Comparing,
        KnownObjects as KnownObjects,
        ListedAs as ListedAs,
        ObjectChange as ObjectChange,
        said_of as said_of,
    )
    from headrace.controller.core.run.input.listing import Listing as Listing
    from headrace.controller.core.run.input.queued import Queued as Queued
    from headrace.controller.core.run.input.rewritten import GONE as GONE, WholeListing as WholeListing
    from headrace.controller.core.run.input.suspicion import VAIN_MAX as VAIN_MAX, Suspicion as Suspicion
else:
    __getattr__ = door(__name__)
