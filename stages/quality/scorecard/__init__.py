"""The scorecard of a dataset, its page, and the gate that it must pass."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.stages.quality.scorecard.card_page import card as card
    from headrace.stages.quality.scorecard.judgement import judge as judge, score as score
    from headrace.stages.quality.scorecard.measurement import gate as gate
else:
    __getattr__ = door(__name__)
