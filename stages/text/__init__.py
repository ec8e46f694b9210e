"""Texts as UTF-8 bytes: words, characters, hashes, and the compiled loops over them."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.stages.text import characters as characters
    from headrace.stages.text.characters import (
        LINE_BREAK as LINE_BREAK,
        LINE_END as LINE_END,
        PUNCTUATION as PUNCTUATION,
        SPACE as SPACE,
        SYMBOL as SYMBOL,
        flags_table as flags_table,
    )
    from headrace.stages.text.cutting import (
        ENDS_SENTENCE as ENDS_SENTENCE,
        HAS_LETTER as HAS_LETTER,
        HAS_NO_SYMBOL as HAS_NO_SYMBOL,
        IS_PUNCTUATION as IS_PUNCTUATION,
        KIND as KIND,
        LENGTH as LENGTH,
        ZERO as ZERO,
    )
    from headrace.stages.text.texts import (
        ONE_WORD as ONE_WORD,
        PADDING as PADDING,
        LoopRoom as LoopRoom,
        Numbers as Numbers,
        Rule as Rule,
        drop as drop,
        longest as longest,
        scores_of as scores_of,
        share as share,
        tag as tag,
        text_bytes as text_bytes,
        with_column as with_column,
        with_edits as with_edits,
        with_texts as with_texts,
    )
    from headrace.stages.text.utf8 import decode as decode, flags_of as flags_of, space_width as space_width
    from headrace.stages.text.words import (
        WORDS_TYPE as WORDS_TYPE,
        compile_words as compile_words,
        find_words as find_words,
        pointers_to as pointers_to,
        room_for as room_for,
        room_size as room_size,
    )
else:
    __getattr__ = door(__name__)
