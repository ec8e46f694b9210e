"""What commands and scripts use: the client of a controller, pipeline files, a cluster's folder, errors for people."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.client.base import with_base as with_base
    from headrace.client.client import (
        ENDED as ENDED,
        Applied as Applied,
        ApplyRefused as ApplyRefused,
        Client as Client,
        ControllerAt as ControllerAt,
        ControllerSilent as ControllerSilent,
        RunOptions as RunOptions,
        StreamBroke as StreamBroke,
        check_numbers as check_numbers,
        cluster_folder as cluster_folder,
        controller_at as controller_at,
        pipeline_of as pipeline_of,
    )
    from headrace.client.embedded import (
        AGAIN as AGAIN,
        DEATH_S as DEATH_S,
        START_S as START_S,
        Embedded as Embedded,
        begin as begin,
        begun_or_new as begun_or_new,
        seconds_since_start as seconds_since_start,
        usable_cores as usable_cores,
    )
    from headrace.client.errors import (
        EXIT_FAULT as EXIT_FAULT,
        EXIT_INTERRUPTED as EXIT_INTERRUPTED,
        EXIT_USAGE as EXIT_USAGE,
        CliError as CliError,
        ControllerDied as ControllerDied,
        Interrupted as Interrupted,
        ProcessDied as ProcessDied,
        UsageError as UsageError,
        check_address as check_address,
        check_pairs as check_pairs,
        check_without_cluster as check_without_cluster,
        explain as explain,
        pairs_by_stage as pairs_by_stage,
    )
    from headrace.client.new_cluster import (
        init as init,
        make_cluster as make_cluster,
        make_token as make_token,
        operator as operator,
        renew as renew,
        token as token,
    )
    from headrace.client.pipeline_file import (
        MODULE as MODULE,
        complete as complete,
        load as load,
        load_build as load_build,
        users_code as users_code,
    )
else:
    __getattr__ = door(__name__)
