"""The scorecard of a dataset, and its page."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.stages.quality.scorecard.judgement import judge as judge, score as score
    from headrace.stages.quality.scorecard.scorecard import card as card
else:
    __getattr__ = door(__name__)
