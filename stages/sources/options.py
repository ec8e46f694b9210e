"""What a pipeline file may ask of a source of files: one set of options, of which each format takes some."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from headrace.pipeline import PipelineError
from headrace.stages.runtime import check_integer, check_text
from headrace.stages.sources.objects import WINDOW_BYTES

#: A damaged file ends the run, or is read as far as it goes and the rest quarantined as one record.
STOP: Final = "stop"
QUARANTINE: Final = "quarantine"
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of all sources of files; a format ignores what it has no use for."""

    text_key: str = "text"
    id_key: str = "id"
    #: A field that is an object, whose fields are the record's own; "": none.
    metadata_key: str = ""
    #: Of a page of HTML, leave menus, headers and footers out.
    main_content: bool = True
    #: Whether a WARC record without a type, or with one that is not known, has a number; it is filtered then.
    untyped: bool = False
    #: Bytes at which a large file is cut.
    fragment_bytes: int = 64 * _MIB
    #: About how many bytes, and at most how many records, a batch holds.
    batch_bytes: int = _MIB
    batch_records: int = 4096
    #: A larger record is quarantined.
    max_record_bytes: int = 8 * _MIB
    #: Bytes of memory that a stream of zstd may take.
    window_bytes_max: int = WINDOW_BYTES
    damaged: str = STOP
    #: Whether links below a folder may lead out of it.
    follow_links: bool = False

    def check(self, stage: str) -> None:
        """Raise PipelineError, naming the stage, for what is out of its limits."""
        check_text(stage, "text_key", self.text_key)
        check_text(stage, "id_key", self.id_key)
        if self.text_key == self.id_key:
            raise PipelineError(f'stage "{stage}": text_key and id_key are both {self.id_key!r}: they name two fields')
        found: Any = self.metadata_key
        if not isinstance(found, str) or (found and found in (self.text_key, self.id_key)):
            raise PipelineError(f'stage "{stage}": metadata_key is {found!r}; name a field of its own, or "" for none')
        for name, value, least, most in (
            ("fragment_bytes", self.fragment_bytes, 1 << 10, 1 << 40),
            ("batch_bytes", self.batch_bytes, 1, 64 * _MIB),
            ("batch_records", self.batch_records, 1, _MIB),
            ("max_record_bytes", self.max_record_bytes, 1, 256 * _MIB),
            ("window_bytes_max", self.window_bytes_max, WINDOW_BYTES, 2048 * _MIB),
        ):
            check_integer(stage, name, value, least, most)
        if self.damaged not in (STOP, QUARANTINE):
            raise PipelineError(f'stage "{stage}": damaged is {self.damaged!r}; it must be "{STOP}" or "{QUARANTINE}"')
