"""What made the loss jump: from losses by step to the documents, sources and properties that stand out in them."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.loader.blame.core.causes import (
        ORDER as ORDER,
        REPEATED as REPEATED,
        WORDS as WORDS,
        Cause as Cause,
        ProfiledRead as ProfiledRead,
        rank_causes as rank_causes,
        traits as traits,
    )
    from headrace.loader.blame.core.losses import (
        LOSSES_BYTES_MAX as LOSSES_BYTES_MAX,
        Losses as Losses,
        LossesError as LossesError,
        Spike as Spike,
        find_spikes as find_spikes,
        parse_losses as parse_losses,
    )
    from headrace.loader.blame.evidence import Evidence as Evidence, ReadDocument as ReadDocument, collect as collect
else:
    __getattr__ = door(__name__)
