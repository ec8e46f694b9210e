"""A pipeline's code on its way to the workers, and what is loaded there before a task begins."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.stages.shipping import preload as preload
    from headrace.stages.shipping.preload import (
        MINIFIED as MINIFIED,
        Inherited as Inherited,
        can_wait as can_wait,
        inherited_by as inherited_by,
    )
    from headrace.stages.shipping.preview_run import (
        SAMPLE_CHARACTERS_MAX as SAMPLE_CHARACTERS_MAX,
        Preview as Preview,
        RemovedRecords as RemovedRecords,
        Sample as Sample,
        preview as preview,
    )
    from headrace.stages.shipping.shipping import (
        as_module as as_module,
        beside as beside,
        cell_modules as cell_modules,
        has_user_code as has_user_code,
        modules_of as modules_of,
        travels_as_text as travels_as_text,
    )
else:
    __getattr__ = door(__name__)
