"""What a user declares: graphs, stages, parameters. Pure."""

from headrace.pipeline.door import door

#: As `typing` has it, whose import takes longer than all of `import headrace`.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from headrace.pipeline.base import STAGES_MAX as STAGES_MAX, Base as Base
    from headrace.pipeline.code import fingerprint as fingerprint
    from headrace.pipeline.door import Late as Late
    from headrace.pipeline.errors import PipelineError as PipelineError
    from headrace.pipeline.graph import (
        KEY_MAKER as KEY_MAKER,
        MODULES_BYTES_MAX as MODULES_BYTES_MAX,
        Pipeline as Pipeline,
        Stage as Stage,
        StageKind as StageKind,
        chain_order as chain_order,
        difference as difference,
        recipe_difference as recipe_difference,
    )
    from headrace.pipeline.masking import (
        HIDDEN as HIDDEN,
        SecretBrokenError as SecretBrokenError,
        SecretShownError as SecretShownError,
        check_arguments as check_arguments,
        mask as mask,
        secret_in as secret_in,
        whole_secret as whole_secret,
    )
    from headrace.pipeline.plain import (
        parse_pipeline as parse_pipeline,
        plain_problem as plain_problem,
        shape_problem as shape_problem,
    )
    from headrace.pipeline.unchanged import first_change as first_change, unchanged_stages as unchanged_stages
    from headrace.pipeline.validation import (
        REPLICAS_MAX as REPLICAS_MAX,
        STATEFUL_MAX as STATEFUL_MAX,
        TAKEN_MAX as TAKEN_MAX,
        validate as validate,
    )
else:
    __getattr__ = door(__name__)
