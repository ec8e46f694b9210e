"""The commands of `headrace`, a file for each group."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.cli.commands import sizing as sizing
    from headrace.cli.commands.apply import apply_file as apply_file, show_plan as show_plan, show_status as show_status
    from headrace.cli.commands.canary import (
        GivenCode as GivenCode,
        check_canary as check_canary,
        try_canary as try_canary,
    )
    from headrace.cli.commands.examples import known_examples as known_examples, show_examples as show_examples
    from headrace.cli.commands.preview import (
        preview_file as preview_file,
        preview_ready as preview_ready,
        print_samples as print_samples,
    )
    from headrace.cli.commands.run import (
        Interrupts as Interrupts,
        catch_signals as catch_signals,
        follow_run as follow_run,
        run_embedded as run_embedded,
        run_file as run_file,
    )
else:
    __getattr__ = door(__name__)
