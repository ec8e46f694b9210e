"""The scorecard of a dataset, and its page."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.stages.quality.scorecard.card_page import card as card
    from headrace.stages.quality.scorecard.judgement import judge as judge, score as score
else:
    __getattr__ = door(__name__)
