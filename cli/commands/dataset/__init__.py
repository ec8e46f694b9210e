"""`headrace dataset`: what a dataset holds, and where its records went."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.cli.commands.dataset import commands as dataset_commands  # noqa: F401
    from headrace.cli.commands.dataset.blame import BlameQuestion as BlameQuestion, diagnose as diagnose
    from headrace.cli.commands.dataset.show import read_gate as read_gate
else:
    __getattr__ = door(__name__)
