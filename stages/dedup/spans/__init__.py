"""Spans that repeat across the corpus: lines, paragraphs, substrings of tokens."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.stages.dedup.spans.span_file import read_facts as read_facts
    from headrace.stages.dedup.spans.spans import SpanCounter as SpanCounter, compile_spans as compile_spans
else:
    __getattr__ = door(__name__)
