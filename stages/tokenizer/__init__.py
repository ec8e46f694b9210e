"""Tokenizing: the engines, the comparison between them, vocabularies, and training."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.stages.tokenizer.decoding import Decoder as Decoder, make_decoder as make_decoder
    from headrace.stages.tokenizer.engine_choice import choose_engine as choose_engine
    from headrace.stages.tokenizer.minified import (
        is_for_gigatoken as is_for_gigatoken,
        minify as minify,
        share as share,
    )
    from headrace.stages.tokenizer.training import train_tokenizer as train_tokenizer
    from headrace.stages.tokenizer.vocabulary import (
        TokenizerFacts as TokenizerFacts,
        keep_parsed as keep_parsed,
        resolve_tokenizer as resolve_tokenizer,
    )
else:
    __getattr__ = door(__name__)
