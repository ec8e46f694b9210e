"""The stages that a pipeline file declares. Light: nothing is compiled or loaded here."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.stages.library.filters import (
        c4_quality as c4_quality,
        decontaminate as decontaminate,
        dedup as dedup,
        dedup_keys as dedup_keys,
        dedup_lines as dedup_lines,
        dedup_paragraphs as dedup_paragraphs,
        dedup_passages as dedup_passages,
        duplicate_lines as duplicate_lines,
        fineweb_quality as fineweb_quality,
        gopher_quality as gopher_quality,
        gopher_repetition as gopher_repetition,
        language as language,
        normalize as normalize,
        redact_pii as redact_pii,
        remove_junk as remove_junk,
        url_filter as url_filter,
    )
    from headrace.stages.library.inputs import (
        read as read,
        read_arrow as read_arrow,
        read_csv as read_csv,
        read_delta as read_delta,
        read_files as read_files,
        read_iceberg as read_iceberg,
        read_jsonl as read_jsonl,
        read_orc as read_orc,
        read_parquet as read_parquet,
        read_spool as read_spool,
        read_tar as read_tar,
        read_warc as read_warc,
    )
    from headrace.stages.library.scores import (
        fasttext_classifier as fasttext_classifier,
        onnx_classifier as onnx_classifier,
        perplexity as perplexity,
    )
    from headrace.stages.library.stages import (
        command as command,
        filter_records as filter_records,
        map_batches as map_batches,
        map_records as map_records,
        tokenize as tokenize,
        write_documents as write_documents,
        write_jsonl as write_jsonl,
        write_tokens as write_tokens,
    )
    from headrace.stages.library.warm import Compiling as Compiling
else:
    __getattr__ = door(__name__)
