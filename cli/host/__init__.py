"""What this host can do: measured in bounded time, and kept as facts."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.cli.host.corpus import (
        quickstart_pipeline as quickstart_pipeline,
        trained_tokenizer as trained_tokenizer,
    )
    from headrace.cli.host.facts import (
        FACTS as FACTS,
        LOOPBACK as LOOPBACK,
        Fact as Fact,
        facts_for_others as facts_for_others,
        facts_path as facts_path,
        keep_facts as keep_facts,
        read_facts as read_facts,
    )
    from headrace.cli.host.machine import (
        MeasureError as MeasureError,
        measure_disk as measure_disk,
        measure_network as measure_network,
        measure_store as measure_store,
        serve_peer as serve_peer,
    )
    from headrace.cli.host.programs import (
        measure_filters as measure_filters,
        measure_loader as measure_loader,
        measure_tokenizer as measure_tokenizer,
    )
else:
    __getattr__ = door(__name__)
