"""Pages, progress and tables for people."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.cli.ui.deaths import (
        DeathBook as DeathBook,
        DeathRow as DeathRow,
        death_lines as death_lines,
        rows_of as rows_of,
    )
    from headrace.cli.ui.options import (
        CanaryOptions as CanaryOptions,
        ClusterFolder as ClusterFolder,
        ControllerAddress as ControllerAddress,
        ControllerOptions as ControllerOptions,
        Json as Json,
    )
    from headrace.cli.ui.page import (
        ACCENT as ACCENT,
        BAD as BAD,
        FAINT as FAINT,
        GOOD as GOOD,
        balance_page as balance_page,
        console as console,
        facts_page as facts_page,
        place as place,
        plain_table as plain_table,
        ranges_page as ranges_page,
        recipes_page as recipes_page,
        run_page as run_page,
        title as title,
    )
    from headrace.cli.ui.preview import (
        PreviewResult as PreviewResult,
        preview_page as preview_page,
        sample_lines as sample_lines,
    )
    from headrace.cli.ui.progress_lines import (
        Calls as Calls,
        Progress as Progress,
        at_batch as at_batch,
        closed_line as closed_line,
        input_bytes_read as input_bytes_read,
        progress_on as progress_on,
        worked_s as worked_s,
    )
    from headrace.cli.ui.recipes import Recipes as Recipes, ranges_json as ranges_json
    from headrace.cli.ui.report import (
        RunProgress as RunProgress,
        RunResult as RunResult,
        passed_unseen as passed_unseen,
        read_ledger as read_ledger,
        speeds as speeds,
    )
    from headrace.cli.ui.status_tables import (
        links_table as links_table,
        queues_table as queues_table,
        tasks_table as tasks_table,
        workers_table as workers_table,
    )
    from headrace.cli.ui.words import (
        MB as MB,
        megabytes as megabytes,
        number as number,
        padding as padding,
        percent as percent,
        print_json as print_json,
        safe as safe,
        say as say,
    )
else:
    __getattr__ = door(__name__)
