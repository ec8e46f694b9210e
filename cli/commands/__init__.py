"""The commands of `headrace`, a file for each group."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.cli.commands import (
        daemons as daemons,
        dataset_commands as dataset_commands,
        launch as launch,
        operate as operate,
        queue as queue,
        sizing as sizing,
    )
    from headrace.cli.commands.apply import apply_file as apply_file
    from headrace.cli.commands.blame import Question as Question, diagnose as diagnose
    from headrace.cli.commands.canary import CanaryOptions as CanaryOptions
    from headrace.cli.commands.dataset import read_gate as read_gate
    from headrace.cli.commands.examples import show_examples as show_examples
    from headrace.cli.commands.preview import preview_file as preview_file
    from headrace.cli.commands.run import (
        Interrupts as Interrupts,
        catch_signals as catch_signals,
        run_embedded as run_embedded,
        run_file as run_file,
    )
else:
    __getattr__ = door(__name__)
