"""Pure: which input is read, by whom, and what is under suspicion."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.controller.core.run.input import comparison as comparison, earlier as earlier
    from headrace.controller.core.run.input.comparison import (
        Compared as Compared,
        Comparing as Comparing,
        ObjectChange as ObjectChange,
        said_of as said_of,
    )
    from headrace.controller.core.run.input.earlier import KnownObjects as KnownObjects, ListedAs as ListedAs
    from headrace.controller.core.run.input.intake import Intake as Intake
    from headrace.controller.core.run.input.listing import Listing as Listing
    from headrace.controller.core.run.input.suspicion import VAIN_MAX as VAIN_MAX, Suspicion as Suspicion
else:
    __getattr__ = door(__name__)
