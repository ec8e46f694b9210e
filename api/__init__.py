"""Headrace: raw text in, token shards out, every record accounted for.

Importing this loads nothing: each name is loaded when it is asked for.
"""

import os

# In a checkout this file is reached by a link, and the rooms are the folders beside the one that it lies in.
if os.path.islink(__file__):
    __path__.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

from headrace.pipeline.door import door

#: As `typing` has it, whose import takes longer than all of `import headrace`.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from headrace.cli.ui import (
        PreviewResult as PreviewResult,
        RunProgress as RunProgress,
        RunResult as RunResult,
    )
    from headrace.client import (
        Applied as Applied,
        ApplyRefused as ApplyRefused,
        CliError as CliError,
        ControllerSilent as ControllerSilent,
        Interrupted as Interrupted,
        ProcessDied as ProcessDied,
        RunOptions as RunOptions,
        UsageError as UsageError,
    )
    from headrace.loader import (
        DatasetGrew as DatasetGrew,
        Loader as Loader,
        LoaderClosed as LoaderClosed,
        LoaderError as LoaderError,
        MoreOfTheHarder as MoreOfTheHarder,
        StateMismatch as StateMismatch,
        TorchLoader as TorchLoader,
        WeightPolicy as WeightPolicy,
        WeightSchedule as WeightSchedule,
        feed_back as feed_back,
    )
    from headrace.loader.dataset import Source as Source, open_dataset as open_dataset
    from headrace.pipeline import Pipeline as Pipeline, PipelineError as PipelineError, Stage as Stage
    from headrace.runs import apply as apply, attach as attach, preview as preview, run as run
    from headrace.stages.interop import (
        datatrove_block as datatrove_block,
        to_datatrove as to_datatrove,
        to_ray as to_ray,
    )
    from headrace.stages.library import (
        c4_quality as c4_quality,
        command as command,
        decontaminate as decontaminate,
        dedup as dedup,
        dedup_keys as dedup_keys,
        dedup_lines as dedup_lines,
        dedup_paragraphs as dedup_paragraphs,
        dedup_passages as dedup_passages,
        duplicate_lines as duplicate_lines,
        fasttext_classifier as fasttext_classifier,
        filter_records as filter_records,
        fineweb_quality as fineweb_quality,
        gopher_quality as gopher_quality,
        gopher_repetition as gopher_repetition,
        language as language,
        map_batches as map_batches,
        map_records as map_records,
        normalize as normalize,
        onnx_classifier as onnx_classifier,
        perplexity as perplexity,
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
        redact_pii as redact_pii,
        remove_junk as remove_junk,
        tokenize as tokenize,
        url_filter as url_filter,
        write_documents as write_documents,
        write_jsonl as write_jsonl,
        write_tokens as write_tokens,
    )
    from headrace.stages.quality.scorecard import judge as judge, score as score
    from headrace.stages.runtime import InputError as InputError, StageContractError as StageContractError
    from headrace.stages.tokenizer import train_tokenizer as train_tokenizer
    from headrace.store import (
        ChecksumMismatch as ChecksumMismatch,
        DatasetBusy as DatasetBusy,
        FormatError as FormatError,
        NoDataset as NoDataset,
        StoreError as StoreError,
        StoreUnavailable as StoreUnavailable,
    )
    from headrace.version import __version__ as __version__
else:
    __getattr__ = door(__name__)

    def __dir__() -> list[str]:
        """The names of the face and those that each module has, for those who complete them."""
        return [*(name for name in globals() if name.startswith("__")), *__getattr__("__names__")]
