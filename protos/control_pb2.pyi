from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Fragment(_message.Message):
    __slots__ = ("id", "stage", "uri", "version", "start", "end", "reader", "size")
    ID_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    URI_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    READER_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    stage: str
    uri: str
    version: str
    start: int
    end: int
    reader: str
    size: int
    def __init__(self, id: _Optional[bytes] = ..., stage: _Optional[str] = ..., uri: _Optional[str] = ..., version: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., reader: _Optional[str] = ..., size: _Optional[int] = ...) -> None: ...

class Gap(_message.Message):
    __slots__ = ("first", "end", "offset")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    first: int
    end: int
    offset: int
    def __init__(self, first: _Optional[int] = ..., end: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class Range(_message.Message):
    __slots__ = ("fragment", "first", "count", "offset", "length", "kept", "verdicts")
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    fragment: bytes
    first: int
    count: int
    offset: int
    length: int
    kept: bytes
    verdicts: bytes
    def __init__(self, fragment: _Optional[bytes] = ..., first: _Optional[int] = ..., count: _Optional[int] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ..., kept: _Optional[bytes] = ..., verdicts: _Optional[bytes] = ...) -> None: ...

class StoredObject(_message.Message):
    __slots__ = ("role", "key", "checksum", "size")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    role: str
    key: str
    checksum: str
    size: int
    def __init__(self, role: _Optional[str] = ..., key: _Optional[str] = ..., checksum: _Optional[str] = ..., size: _Optional[int] = ...) -> None: ...

class Counts(_message.Message):
    __slots__ = ("kept", "filtered", "duplicate", "quarantined", "filtered_by", "quarantined_by", "edited", "tokens", "sequences", "padding", "counters")
    class FilteredByEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class QuarantinedByEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class EditedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    KEPT_FIELD_NUMBER: _ClassVar[int]
    FILTERED_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    FILTERED_BY_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_BY_FIELD_NUMBER: _ClassVar[int]
    EDITED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    kept: int
    filtered: int
    duplicate: int
    quarantined: int
    filtered_by: _containers.ScalarMap[str, int]
    quarantined_by: _containers.ScalarMap[str, int]
    edited: _containers.ScalarMap[str, int]
    tokens: int
    sequences: int
    padding: int
    counters: _containers.ScalarMap[str, int]
    def __init__(self, kept: _Optional[int] = ..., filtered: _Optional[int] = ..., duplicate: _Optional[int] = ..., quarantined: _Optional[int] = ..., filtered_by: _Optional[_Mapping[str, int]] = ..., quarantined_by: _Optional[_Mapping[str, int]] = ..., edited: _Optional[_Mapping[str, int]] = ..., tokens: _Optional[int] = ..., sequences: _Optional[int] = ..., padding: _Optional[int] = ..., counters: _Optional[_Mapping[str, int]] = ...) -> None: ...

class Balance(_message.Message):
    __slots__ = ("records_read", "records_closed", "records_open", "kept", "filtered", "filtered_by", "duplicate", "quarantined", "quarantined_by", "edited", "counters", "balanced", "complete", "fragments", "fragments_open", "fragments_unended", "fragments_dropped", "open_at", "tokens", "sequences", "padding", "padding_share", "shards", "version", "seq_len")
    class FilteredByEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class QuarantinedByEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class EditedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    RECORDS_READ_FIELD_NUMBER: _ClassVar[int]
    RECORDS_CLOSED_FIELD_NUMBER: _ClassVar[int]
    RECORDS_OPEN_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    FILTERED_FIELD_NUMBER: _ClassVar[int]
    FILTERED_BY_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_BY_FIELD_NUMBER: _ClassVar[int]
    EDITED_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    BALANCED_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    FRAGMENTS_FIELD_NUMBER: _ClassVar[int]
    FRAGMENTS_OPEN_FIELD_NUMBER: _ClassVar[int]
    FRAGMENTS_UNENDED_FIELD_NUMBER: _ClassVar[int]
    FRAGMENTS_DROPPED_FIELD_NUMBER: _ClassVar[int]
    OPEN_AT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    PADDING_SHARE_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SEQ_LEN_FIELD_NUMBER: _ClassVar[int]
    records_read: int
    records_closed: int
    records_open: int
    kept: int
    filtered: int
    filtered_by: _containers.ScalarMap[str, int]
    duplicate: int
    quarantined: int
    quarantined_by: _containers.ScalarMap[str, int]
    edited: _containers.ScalarMap[str, int]
    counters: _containers.ScalarMap[str, int]
    balanced: bool
    complete: bool
    fragments: int
    fragments_open: int
    fragments_unended: int
    fragments_dropped: int
    open_at: _containers.RepeatedScalarFieldContainer[str]
    tokens: int
    sequences: int
    padding: int
    padding_share: float
    shards: int
    version: int
    seq_len: int
    def __init__(self, records_read: _Optional[int] = ..., records_closed: _Optional[int] = ..., records_open: _Optional[int] = ..., kept: _Optional[int] = ..., filtered: _Optional[int] = ..., filtered_by: _Optional[_Mapping[str, int]] = ..., duplicate: _Optional[int] = ..., quarantined: _Optional[int] = ..., quarantined_by: _Optional[_Mapping[str, int]] = ..., edited: _Optional[_Mapping[str, int]] = ..., counters: _Optional[_Mapping[str, int]] = ..., balanced: _Optional[bool] = ..., complete: _Optional[bool] = ..., fragments: _Optional[int] = ..., fragments_open: _Optional[int] = ..., fragments_unended: _Optional[int] = ..., fragments_dropped: _Optional[int] = ..., open_at: _Optional[_Iterable[str]] = ..., tokens: _Optional[int] = ..., sequences: _Optional[int] = ..., padding: _Optional[int] = ..., padding_share: _Optional[float] = ..., shards: _Optional[int] = ..., version: _Optional[int] = ..., seq_len: _Optional[int] = ...) -> None: ...

class LinkEnd(_message.Message):
    __slots__ = ("link", "stage", "peer", "sends", "ticket", "addresses", "peer_worker", "generation", "relays", "rendezvous")
    LINK_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    SENDS_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    PEER_WORKER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RELAYS_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_FIELD_NUMBER: _ClassVar[int]
    link: str
    stage: str
    peer: str
    sends: bool
    ticket: bytes
    addresses: _containers.RepeatedScalarFieldContainer[str]
    peer_worker: str
    generation: int
    relays: _containers.RepeatedCompositeFieldContainer[RelayAt]
    rendezvous: bytes
    def __init__(self, link: _Optional[str] = ..., stage: _Optional[str] = ..., peer: _Optional[str] = ..., sends: _Optional[bool] = ..., ticket: _Optional[bytes] = ..., addresses: _Optional[_Iterable[str]] = ..., peer_worker: _Optional[str] = ..., generation: _Optional[int] = ..., relays: _Optional[_Iterable[_Union[RelayAt, _Mapping]]] = ..., rendezvous: _Optional[bytes] = ...) -> None: ...

class RelayAt(_message.Message):
    __slots__ = ("worker", "addresses")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    worker: str
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, worker: _Optional[str] = ..., addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class Network(_message.Message):
    __slots__ = ("certificate", "key", "authority", "addresses", "gates", "expelled")
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    GATES_FIELD_NUMBER: _ClassVar[int]
    EXPELLED_FIELD_NUMBER: _ClassVar[int]
    certificate: bytes
    key: bytes
    authority: bytes
    addresses: _containers.RepeatedScalarFieldContainer[str]
    gates: str
    expelled: Expulsions
    def __init__(self, certificate: _Optional[bytes] = ..., key: _Optional[bytes] = ..., authority: _Optional[bytes] = ..., addresses: _Optional[_Iterable[str]] = ..., gates: _Optional[str] = ..., expelled: _Optional[_Union[Expulsions, _Mapping]] = ...) -> None: ...

class StartTask(_message.Message):
    __slots__ = ("pipeline_json", "stages", "epoch", "version", "replica", "seal", "limits", "alone", "listens", "network", "fenced", "waits")
    PIPELINE_JSON_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    SEAL_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    ALONE_FIELD_NUMBER: _ClassVar[int]
    LISTENS_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    pipeline_json: str
    stages: _containers.RepeatedScalarFieldContainer[str]
    epoch: int
    version: str
    replica: int
    seal: SealPolicy
    limits: Limits
    alone: bool
    listens: bool
    network: Network
    fenced: bool
    waits: bool
    def __init__(self, pipeline_json: _Optional[str] = ..., stages: _Optional[_Iterable[str]] = ..., epoch: _Optional[int] = ..., version: _Optional[str] = ..., replica: _Optional[int] = ..., seal: _Optional[_Union[SealPolicy, _Mapping]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., alone: _Optional[bool] = ..., listens: _Optional[bool] = ..., network: _Optional[_Union[Network, _Mapping]] = ..., fenced: _Optional[bool] = ..., waits: _Optional[bool] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("record_s", "task_bytes")
    RECORD_S_FIELD_NUMBER: _ClassVar[int]
    TASK_BYTES_FIELD_NUMBER: _ClassVar[int]
    record_s: float
    task_bytes: int
    def __init__(self, record_s: _Optional[float] = ..., task_bytes: _Optional[int] = ...) -> None: ...

class SealPolicy(_message.Message):
    __slots__ = ("target_bytes", "held_bytes_max", "age_s")
    TARGET_BYTES_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    target_bytes: int
    held_bytes_max: int
    age_s: float
    def __init__(self, target_bytes: _Optional[int] = ..., held_bytes_max: _Optional[int] = ..., age_s: _Optional[float] = ...) -> None: ...

class ListSource(_message.Message):
    __slots__ = ("stage", "listing")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    LISTING_FIELD_NUMBER: _ClassVar[int]
    stage: str
    listing: int
    def __init__(self, stage: _Optional[str] = ..., listing: _Optional[int] = ...) -> None: ...

class ReadFragments(_message.Message):
    __slots__ = ("reads",)
    READS_FIELD_NUMBER: _ClassVar[int]
    reads: _containers.RepeatedCompositeFieldContainer[ReadFragment]
    def __init__(self, reads: _Optional[_Iterable[_Union[ReadFragment, _Mapping]]] = ...) -> None: ...

class ReadFragment(_message.Message):
    __slots__ = ("fragment", "gaps", "poison", "trial")
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    GAPS_FIELD_NUMBER: _ClassVar[int]
    POISON_FIELD_NUMBER: _ClassVar[int]
    TRIAL_FIELD_NUMBER: _ClassVar[int]
    fragment: Fragment
    gaps: _containers.RepeatedCompositeFieldContainer[Gap]
    poison: _containers.RepeatedCompositeFieldContainer[PoisonRecord]
    trial: bool
    def __init__(self, fragment: _Optional[_Union[Fragment, _Mapping]] = ..., gaps: _Optional[_Iterable[_Union[Gap, _Mapping]]] = ..., poison: _Optional[_Iterable[_Union[PoisonRecord, _Mapping]]] = ..., trial: _Optional[bool] = ...) -> None: ...

class PoisonRecord(_message.Message):
    __slots__ = ("ordinal", "stage", "story")
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    STORY_FIELD_NUMBER: _ClassVar[int]
    ordinal: int
    stage: str
    story: str
    def __init__(self, ordinal: _Optional[int] = ..., stage: _Optional[str] = ..., story: _Optional[str] = ...) -> None: ...

class Sweep(_message.Message):
    __slots__ = ("sweep", "halt")
    SWEEP_FIELD_NUMBER: _ClassVar[int]
    HALT_FIELD_NUMBER: _ClassVar[int]
    sweep: int
    halt: bool
    def __init__(self, sweep: _Optional[int] = ..., halt: _Optional[bool] = ...) -> None: ...

class Seal(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("proposal", "outcome", "overlaps", "reason")
    class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[Answer.Outcome]
        ACCEPTED: _ClassVar[Answer.Outcome]
        OVERLAPS: _ClassVar[Answer.Outcome]
        REFUSED: _ClassVar[Answer.Outcome]
    UNKNOWN: Answer.Outcome
    ACCEPTED: Answer.Outcome
    OVERLAPS: Answer.Outcome
    REFUSED: Answer.Outcome
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    OVERLAPS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    proposal: int
    outcome: Answer.Outcome
    overlaps: _containers.RepeatedCompositeFieldContainer[Range]
    reason: str
    def __init__(self, proposal: _Optional[int] = ..., outcome: _Optional[_Union[Answer.Outcome, str]] = ..., overlaps: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., reason: _Optional[str] = ...) -> None: ...

class OpenLink(_message.Message):
    __slots__ = ("link", "transport", "handles", "far")
    LINK_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    FAR_FIELD_NUMBER: _ClassVar[int]
    link: LinkEnd
    transport: str
    handles: bytes
    far: bool
    def __init__(self, link: _Optional[_Union[LinkEnd, _Mapping]] = ..., transport: _Optional[str] = ..., handles: _Optional[bytes] = ..., far: _Optional[bool] = ...) -> None: ...

class CloseLink(_message.Message):
    __slots__ = ("link", "reason")
    LINK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    link: str
    reason: str
    def __init__(self, link: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class StopTask(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Records(_message.Message):
    __slots__ = ("fragment", "rows")
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    fragment: bytes
    rows: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, fragment: _Optional[bytes] = ..., rows: _Optional[_Iterable[int]] = ...) -> None: ...

class NeedsAnswer(_message.Message):
    __slots__ = ("proposal", "open", "gone")
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    proposal: int
    open: _containers.RepeatedCompositeFieldContainer[Records]
    gone: _containers.RepeatedCompositeFieldContainer[Records]
    def __init__(self, proposal: _Optional[int] = ..., open: _Optional[_Iterable[_Union[Records, _Mapping]]] = ..., gone: _Optional[_Iterable[_Union[Records, _Mapping]]] = ...) -> None: ...

class ReleaseClaims(_message.Message):
    __slots__ = ("records",)
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[Records]
    def __init__(self, records: _Optional[_Iterable[_Union[Records, _Mapping]]] = ...) -> None: ...

class DecisionAsked(_message.Message):
    __slots__ = ("number", "fragment", "row", "keys", "stage")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    number: int
    fragment: bytes
    row: int
    keys: bytes
    stage: str
    def __init__(self, number: _Optional[int] = ..., fragment: _Optional[bytes] = ..., row: _Optional[int] = ..., keys: _Optional[bytes] = ..., stage: _Optional[str] = ...) -> None: ...

class Decision(_message.Message):
    __slots__ = ("number", "duplicate", "fragment", "row", "near", "settled")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    NEAR_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    number: int
    duplicate: bool
    fragment: bytes
    row: int
    near: bool
    settled: bool
    def __init__(self, number: _Optional[int] = ..., duplicate: _Optional[bool] = ..., fragment: _Optional[bytes] = ..., row: _Optional[int] = ..., near: _Optional[bool] = ..., settled: _Optional[bool] = ...) -> None: ...

class AskDecision(_message.Message):
    __slots__ = ("asking_task", "asking_attempt", "question")
    ASKING_TASK_FIELD_NUMBER: _ClassVar[int]
    ASKING_ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    asking_task: str
    asking_attempt: int
    question: DecisionAsked
    def __init__(self, asking_task: _Optional[str] = ..., asking_attempt: _Optional[int] = ..., question: _Optional[_Union[DecisionAsked, _Mapping]] = ...) -> None: ...

class ServeIndex(_message.Message):
    __slots__ = ("position",)
    POSITION_FIELD_NUMBER: _ClassVar[int]
    position: int
    def __init__(self, position: _Optional[int] = ...) -> None: ...

class DecisionMade(_message.Message):
    __slots__ = ("asking_task", "asking_attempt", "decision")
    ASKING_TASK_FIELD_NUMBER: _ClassVar[int]
    ASKING_ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    asking_task: str
    asking_attempt: int
    decision: Decision
    def __init__(self, asking_task: _Optional[str] = ..., asking_attempt: _Optional[int] = ..., decision: _Optional[_Union[Decision, _Mapping]] = ...) -> None: ...

class TaskCommand(_message.Message):
    __slots__ = ("task", "attempt", "term", "cause", "start", "list", "sweep", "seal", "answer", "open", "close", "stop", "needs", "release", "decide", "decision", "reads", "serve", "expelled")
    TASK_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    LIST_FIELD_NUMBER: _ClassVar[int]
    SWEEP_FIELD_NUMBER: _ClassVar[int]
    SEAL_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    NEEDS_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    DECIDE_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    READS_FIELD_NUMBER: _ClassVar[int]
    SERVE_FIELD_NUMBER: _ClassVar[int]
    EXPELLED_FIELD_NUMBER: _ClassVar[int]
    task: str
    attempt: int
    term: int
    cause: str
    start: StartTask
    list: ListSource
    sweep: Sweep
    seal: Seal
    answer: Answer
    open: OpenLink
    close: CloseLink
    stop: StopTask
    needs: NeedsAnswer
    release: ReleaseClaims
    decide: AskDecision
    decision: Decision
    reads: ReadFragments
    serve: ServeIndex
    expelled: Expulsions
    def __init__(self, task: _Optional[str] = ..., attempt: _Optional[int] = ..., term: _Optional[int] = ..., cause: _Optional[str] = ..., start: _Optional[_Union[StartTask, _Mapping]] = ..., list: _Optional[_Union[ListSource, _Mapping]] = ..., sweep: _Optional[_Union[Sweep, _Mapping]] = ..., seal: _Optional[_Union[Seal, _Mapping]] = ..., answer: _Optional[_Union[Answer, _Mapping]] = ..., open: _Optional[_Union[OpenLink, _Mapping]] = ..., close: _Optional[_Union[CloseLink, _Mapping]] = ..., stop: _Optional[_Union[StopTask, _Mapping]] = ..., needs: _Optional[_Union[NeedsAnswer, _Mapping]] = ..., release: _Optional[_Union[ReleaseClaims, _Mapping]] = ..., decide: _Optional[_Union[AskDecision, _Mapping]] = ..., decision: _Optional[_Union[Decision, _Mapping]] = ..., reads: _Optional[_Union[ReadFragments, _Mapping]] = ..., serve: _Optional[_Union[ServeIndex, _Mapping]] = ..., expelled: _Optional[_Union[Expulsions, _Mapping]] = ...) -> None: ...

class TaskReady(_message.Message):
    __slots__ = ("facts", "addresses")
    class FactsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    FACTS_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    facts: _containers.ScalarMap[str, str]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, facts: _Optional[_Mapping[str, str]] = ..., addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class LinkLost(_message.Message):
    __slots__ = ("link", "generation", "reason", "apart", "unreachable")
    LINK_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    APART_FIELD_NUMBER: _ClassVar[int]
    UNREACHABLE_FIELD_NUMBER: _ClassVar[int]
    link: str
    generation: int
    reason: str
    apart: bool
    unreachable: bool
    def __init__(self, link: _Optional[str] = ..., generation: _Optional[int] = ..., reason: _Optional[str] = ..., apart: _Optional[bool] = ..., unreachable: _Optional[bool] = ...) -> None: ...

class FragmentsListed(_message.Message):
    __slots__ = ("stage", "fragments", "last", "error", "listing", "skipped", "all_below")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    FRAGMENTS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LISTING_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    ALL_BELOW_FIELD_NUMBER: _ClassVar[int]
    stage: str
    fragments: _containers.RepeatedCompositeFieldContainer[Fragment]
    last: bool
    error: str
    listing: int
    skipped: str
    all_below: str
    def __init__(self, stage: _Optional[str] = ..., fragments: _Optional[_Iterable[_Union[Fragment, _Mapping]]] = ..., last: _Optional[bool] = ..., error: _Optional[str] = ..., listing: _Optional[int] = ..., skipped: _Optional[str] = ..., all_below: _Optional[str] = ...) -> None: ...

class FragmentsRead(_message.Message):
    __slots__ = ("reads",)
    READS_FIELD_NUMBER: _ClassVar[int]
    reads: _containers.RepeatedCompositeFieldContainer[FragmentRead]
    def __init__(self, reads: _Optional[_Iterable[_Union[FragmentRead, _Mapping]]] = ...) -> None: ...

class FragmentRead(_message.Message):
    __slots__ = ("fragment", "count", "error", "changed", "unreadable", "checksum", "continues", "compared", "prefix")
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    CONTINUES_FIELD_NUMBER: _ClassVar[int]
    COMPARED_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    fragment: bytes
    count: int
    error: str
    changed: bool
    unreadable: bool
    checksum: bytes
    continues: bool
    compared: str
    prefix: int
    def __init__(self, fragment: _Optional[bytes] = ..., count: _Optional[int] = ..., error: _Optional[str] = ..., changed: _Optional[bool] = ..., unreadable: _Optional[bool] = ..., checksum: _Optional[bytes] = ..., continues: _Optional[bool] = ..., compared: _Optional[str] = ..., prefix: _Optional[int] = ...) -> None: ...

class Proposed(_message.Message):
    __slots__ = ("proposal", "sink", "version", "epoch", "ranges", "objects", "counts", "needs", "released")
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    SINK_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    NEEDS_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    proposal: int
    sink: str
    version: str
    epoch: int
    ranges: _containers.RepeatedCompositeFieldContainer[Range]
    objects: _containers.RepeatedCompositeFieldContainer[StoredObject]
    counts: Counts
    needs: _containers.RepeatedCompositeFieldContainer[Records]
    released: _containers.RepeatedCompositeFieldContainer[Records]
    def __init__(self, proposal: _Optional[int] = ..., sink: _Optional[str] = ..., version: _Optional[str] = ..., epoch: _Optional[int] = ..., ranges: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., objects: _Optional[_Iterable[_Union[StoredObject, _Mapping]]] = ..., counts: _Optional[_Union[Counts, _Mapping]] = ..., needs: _Optional[_Iterable[_Union[Records, _Mapping]]] = ..., released: _Optional[_Iterable[_Union[Records, _Mapping]]] = ...) -> None: ...

class NeedsAsked(_message.Message):
    __slots__ = ("proposal", "sink", "records")
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    SINK_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    proposal: int
    sink: str
    records: _containers.RepeatedCompositeFieldContainer[Records]
    def __init__(self, proposal: _Optional[int] = ..., sink: _Optional[str] = ..., records: _Optional[_Iterable[_Union[Records, _Mapping]]] = ...) -> None: ...

class VerdictsLetGo(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Swept(_message.Message):
    __slots__ = ("sweep", "pending", "held", "fenced")
    SWEEP_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    sweep: int
    pending: _containers.RepeatedCompositeFieldContainer[PendingFragment]
    held: _containers.RepeatedCompositeFieldContainer[HeldRanges]
    fenced: bool
    def __init__(self, sweep: _Optional[int] = ..., pending: _Optional[_Iterable[_Union[PendingFragment, _Mapping]]] = ..., held: _Optional[_Iterable[_Union[HeldRanges, _Mapping]]] = ..., fenced: _Optional[bool] = ...) -> None: ...

class PendingFragment(_message.Message):
    __slots__ = ("fragment", "gaps")
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    GAPS_FIELD_NUMBER: _ClassVar[int]
    fragment: bytes
    gaps: _containers.RepeatedCompositeFieldContainer[Gap]
    def __init__(self, fragment: _Optional[bytes] = ..., gaps: _Optional[_Iterable[_Union[Gap, _Mapping]]] = ...) -> None: ...

class HeldRanges(_message.Message):
    __slots__ = ("sink", "ranges")
    SINK_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    sink: str
    ranges: _containers.RepeatedCompositeFieldContainer[Range]
    def __init__(self, sink: _Optional[str] = ..., ranges: _Optional[_Iterable[_Union[Range, _Mapping]]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("stages", "held_bytes", "links", "busy_s", "open_ranges", "held_records", "pending_fragments", "trouble", "spans_sent", "spans_dropped")
    STAGES_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    BUSY_S_FIELD_NUMBER: _ClassVar[int]
    OPEN_RANGES_FIELD_NUMBER: _ClassVar[int]
    HELD_RECORDS_FIELD_NUMBER: _ClassVar[int]
    PENDING_FRAGMENTS_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    SPANS_SENT_FIELD_NUMBER: _ClassVar[int]
    SPANS_DROPPED_FIELD_NUMBER: _ClassVar[int]
    stages: _containers.RepeatedCompositeFieldContainer[StageProgress]
    held_bytes: int
    links: _containers.RepeatedCompositeFieldContainer[LinkProgress]
    busy_s: float
    open_ranges: int
    held_records: int
    pending_fragments: int
    trouble: str
    spans_sent: int
    spans_dropped: int
    def __init__(self, stages: _Optional[_Iterable[_Union[StageProgress, _Mapping]]] = ..., held_bytes: _Optional[int] = ..., links: _Optional[_Iterable[_Union[LinkProgress, _Mapping]]] = ..., busy_s: _Optional[float] = ..., open_ranges: _Optional[int] = ..., held_records: _Optional[int] = ..., pending_fragments: _Optional[int] = ..., trouble: _Optional[str] = ..., spans_sent: _Optional[int] = ..., spans_dropped: _Optional[int] = ...) -> None: ...

class StageProgress(_message.Message):
    __slots__ = ("stage", "records", "bytes", "busy_s", "dropped", "skipped_bytes", "stored_bytes", "cpu_s", "at_batch_s", "batch_records", "guessed_s")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    BUSY_S_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_BYTES_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    CPU_S_FIELD_NUMBER: _ClassVar[int]
    AT_BATCH_S_FIELD_NUMBER: _ClassVar[int]
    BATCH_RECORDS_FIELD_NUMBER: _ClassVar[int]
    GUESSED_S_FIELD_NUMBER: _ClassVar[int]
    stage: str
    records: int
    bytes: int
    busy_s: float
    dropped: int
    skipped_bytes: int
    stored_bytes: int
    cpu_s: float
    at_batch_s: float
    batch_records: int
    guessed_s: float
    def __init__(self, stage: _Optional[str] = ..., records: _Optional[int] = ..., bytes: _Optional[int] = ..., busy_s: _Optional[float] = ..., dropped: _Optional[int] = ..., skipped_bytes: _Optional[int] = ..., stored_bytes: _Optional[int] = ..., cpu_s: _Optional[float] = ..., at_batch_s: _Optional[float] = ..., batch_records: _Optional[int] = ..., guessed_s: _Optional[float] = ...) -> None: ...

class LinkProgress(_message.Message):
    __slots__ = ("link", "frames", "bytes", "in_flight_bytes", "blocked", "via")
    LINK_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_FIELD_NUMBER: _ClassVar[int]
    VIA_FIELD_NUMBER: _ClassVar[int]
    link: str
    frames: int
    bytes: int
    in_flight_bytes: int
    blocked: int
    via: str
    def __init__(self, link: _Optional[str] = ..., frames: _Optional[int] = ..., bytes: _Optional[int] = ..., in_flight_bytes: _Optional[int] = ..., blocked: _Optional[int] = ..., via: _Optional[str] = ...) -> None: ...

class TaskFailed(_message.Message):
    __slots__ = ("error", "final")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    error: str
    final: bool
    def __init__(self, error: _Optional[str] = ..., final: _Optional[bool] = ...) -> None: ...

class TaskEvent(_message.Message):
    __slots__ = ("task", "attempt", "cause", "ready", "listed", "proposed", "swept", "progress", "failed", "exited", "lost", "needs", "let_go", "asked", "decided", "reads")
    TASK_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    LISTED_FIELD_NUMBER: _ClassVar[int]
    PROPOSED_FIELD_NUMBER: _ClassVar[int]
    SWEPT_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    EXITED_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    NEEDS_FIELD_NUMBER: _ClassVar[int]
    LET_GO_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    DECIDED_FIELD_NUMBER: _ClassVar[int]
    READS_FIELD_NUMBER: _ClassVar[int]
    task: str
    attempt: int
    cause: str
    ready: TaskReady
    listed: FragmentsListed
    proposed: Proposed
    swept: Swept
    progress: Progress
    failed: TaskFailed
    exited: TaskExited
    lost: LinkLost
    needs: NeedsAsked
    let_go: VerdictsLetGo
    asked: DecisionAsked
    decided: DecisionMade
    reads: FragmentsRead
    def __init__(self, task: _Optional[str] = ..., attempt: _Optional[int] = ..., cause: _Optional[str] = ..., ready: _Optional[_Union[TaskReady, _Mapping]] = ..., listed: _Optional[_Union[FragmentsListed, _Mapping]] = ..., proposed: _Optional[_Union[Proposed, _Mapping]] = ..., swept: _Optional[_Union[Swept, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., failed: _Optional[_Union[TaskFailed, _Mapping]] = ..., exited: _Optional[_Union[TaskExited, _Mapping]] = ..., lost: _Optional[_Union[LinkLost, _Mapping]] = ..., needs: _Optional[_Union[NeedsAsked, _Mapping]] = ..., let_go: _Optional[_Union[VerdictsLetGo, _Mapping]] = ..., asked: _Optional[_Union[DecisionAsked, _Mapping]] = ..., decided: _Optional[_Union[DecisionMade, _Mapping]] = ..., reads: _Optional[_Union[FragmentsRead, _Mapping]] = ...) -> None: ...

class TaskExited(_message.Message):
    __slots__ = ("code", "story", "in_hand", "killed_for")
    CODE_FIELD_NUMBER: _ClassVar[int]
    STORY_FIELD_NUMBER: _ClassVar[int]
    IN_HAND_FIELD_NUMBER: _ClassVar[int]
    KILLED_FOR_FIELD_NUMBER: _ClassVar[int]
    code: int
    story: str
    in_hand: _containers.RepeatedCompositeFieldContainer[InHand]
    killed_for: str
    def __init__(self, code: _Optional[int] = ..., story: _Optional[str] = ..., in_hand: _Optional[_Iterable[_Union[InHand, _Mapping]]] = ..., killed_for: _Optional[str] = ...) -> None: ...

class InHand(_message.Message):
    __slots__ = ("stage", "range")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    stage: str
    range: Range
    def __init__(self, stage: _Optional[str] = ..., range: _Optional[_Union[Range, _Mapping]] = ...) -> None: ...

class Register(_message.Message):
    __slots__ = ("worker", "version", "cores", "memory_bytes", "host", "pid", "tasks", "host_id", "addresses", "labels", "links", "door", "relay_addresses", "allows_chaos", "protocol", "protocol_oldest", "leaving", "measured")
    class MeasuredEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    WORKER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    HOST_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    DOOR_FIELD_NUMBER: _ClassVar[int]
    RELAY_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    ALLOWS_CHAOS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_OLDEST_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    MEASURED_FIELD_NUMBER: _ClassVar[int]
    worker: str
    version: str
    cores: int
    memory_bytes: int
    host: str
    pid: int
    tasks: _containers.RepeatedCompositeFieldContainer[RunningTask]
    host_id: str
    addresses: _containers.RepeatedScalarFieldContainer[str]
    labels: _containers.RepeatedScalarFieldContainer[str]
    links: _containers.RepeatedCompositeFieldContainer[RunningLink]
    door: str
    relay_addresses: _containers.RepeatedScalarFieldContainer[str]
    allows_chaos: bool
    protocol: int
    protocol_oldest: int
    leaving: bool
    measured: _containers.ScalarMap[str, float]
    def __init__(self, worker: _Optional[str] = ..., version: _Optional[str] = ..., cores: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., tasks: _Optional[_Iterable[_Union[RunningTask, _Mapping]]] = ..., host_id: _Optional[str] = ..., addresses: _Optional[_Iterable[str]] = ..., labels: _Optional[_Iterable[str]] = ..., links: _Optional[_Iterable[_Union[RunningLink, _Mapping]]] = ..., door: _Optional[str] = ..., relay_addresses: _Optional[_Iterable[str]] = ..., allows_chaos: _Optional[bool] = ..., protocol: _Optional[int] = ..., protocol_oldest: _Optional[int] = ..., leaving: _Optional[bool] = ..., measured: _Optional[_Mapping[str, float]] = ...) -> None: ...

class RunningTask(_message.Message):
    __slots__ = ("task", "attempt", "version", "epoch", "ready", "facts", "addresses", "fenced", "linked", "stages", "waits")
    class FactsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TASK_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    LINKED_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    task: str
    attempt: int
    version: str
    epoch: int
    ready: bool
    facts: _containers.ScalarMap[str, str]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    fenced: bool
    linked: bool
    stages: _containers.RepeatedScalarFieldContainer[str]
    waits: bool
    def __init__(self, task: _Optional[str] = ..., attempt: _Optional[int] = ..., version: _Optional[str] = ..., epoch: _Optional[int] = ..., ready: _Optional[bool] = ..., facts: _Optional[_Mapping[str, str]] = ..., addresses: _Optional[_Iterable[str]] = ..., fenced: _Optional[bool] = ..., linked: _Optional[bool] = ..., stages: _Optional[_Iterable[str]] = ..., waits: _Optional[bool] = ...) -> None: ...

class RunningLink(_message.Message):
    __slots__ = ("link", "sender_attempt", "receiver_attempt", "generation")
    LINK_FIELD_NUMBER: _ClassVar[int]
    SENDER_ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    link: str
    sender_attempt: int
    receiver_attempt: int
    generation: int
    def __init__(self, link: _Optional[str] = ..., sender_attempt: _Optional[int] = ..., receiver_attempt: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...

class MakeLink(_message.Message):
    __slots__ = ("link", "sender", "sender_attempt", "receiver", "receiver_attempt", "transport", "window_bytes", "sender_end", "receiver_end", "generation", "door")
    LINK_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    SENDER_ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    WINDOW_BYTES_FIELD_NUMBER: _ClassVar[int]
    SENDER_END_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_END_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    DOOR_FIELD_NUMBER: _ClassVar[int]
    link: str
    sender: str
    sender_attempt: int
    receiver: str
    receiver_attempt: int
    transport: str
    window_bytes: int
    sender_end: LinkEnd
    receiver_end: LinkEnd
    generation: int
    door: str
    def __init__(self, link: _Optional[str] = ..., sender: _Optional[str] = ..., sender_attempt: _Optional[int] = ..., receiver: _Optional[str] = ..., receiver_attempt: _Optional[int] = ..., transport: _Optional[str] = ..., window_bytes: _Optional[int] = ..., sender_end: _Optional[_Union[LinkEnd, _Mapping]] = ..., receiver_end: _Optional[_Union[LinkEnd, _Mapping]] = ..., generation: _Optional[int] = ..., door: _Optional[str] = ...) -> None: ...

class OpenRelay(_message.Message):
    __slots__ = ("link", "generation", "sender_ticket", "receiver_ticket")
    LINK_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SENDER_TICKET_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_TICKET_FIELD_NUMBER: _ClassVar[int]
    link: str
    generation: int
    sender_ticket: bytes
    receiver_ticket: bytes
    def __init__(self, link: _Optional[str] = ..., generation: _Optional[int] = ..., sender_ticket: _Optional[bytes] = ..., receiver_ticket: _Optional[bytes] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("term", "controller", "heartbeat_s", "expelled")
    TERM_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_S_FIELD_NUMBER: _ClassVar[int]
    EXPELLED_FIELD_NUMBER: _ClassVar[int]
    term: int
    controller: str
    heartbeat_s: float
    expelled: Expulsions
    def __init__(self, term: _Optional[int] = ..., controller: _Optional[str] = ..., heartbeat_s: _Optional[float] = ..., expelled: _Optional[_Union[Expulsions, _Mapping]] = ...) -> None: ...

class Expelled(_message.Message):
    __slots__ = ("member", "keys")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    member: str
    keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, member: _Optional[str] = ..., keys: _Optional[_Iterable[str]] = ...) -> None: ...

class Expulsions(_message.Message):
    __slots__ = ("members",)
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[Expelled]
    def __init__(self, members: _Optional[_Iterable[_Union[Expelled, _Mapping]]] = ...) -> None: ...

class KillTask(_message.Message):
    __slots__ = ("task", "attempt", "reason")
    TASK_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    task: str
    attempt: int
    reason: str
    def __init__(self, task: _Optional[str] = ..., attempt: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("reason", "elsewhere", "leader")
    REASON_FIELD_NUMBER: _ClassVar[int]
    ELSEWHERE_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    reason: str
    elsewhere: bool
    leader: str
    def __init__(self, reason: _Optional[str] = ..., elsewhere: _Optional[bool] = ..., leader: _Optional[str] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("sent",)
    SENT_FIELD_NUMBER: _ClassVar[int]
    sent: int
    def __init__(self, sent: _Optional[int] = ...) -> None: ...

class FromWorker(_message.Message):
    __slots__ = ("register", "task", "heartbeat", "logs", "fault", "leaving")
    REGISTER_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    register: Register
    task: TaskEvent
    heartbeat: Heartbeat
    logs: LogPage
    fault: FaultTold
    leaving: Leaving
    def __init__(self, register: _Optional[_Union[Register, _Mapping]] = ..., task: _Optional[_Union[TaskEvent, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., logs: _Optional[_Union[LogPage, _Mapping]] = ..., fault: _Optional[_Union[FaultTold, _Mapping]] = ..., leaving: _Optional[_Union[Leaving, _Mapping]] = ...) -> None: ...

class Leaving(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Stay(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class ToWorker(_message.Message):
    __slots__ = ("term", "welcome", "task", "link", "kill", "refusal", "heartbeat", "logs", "relay", "fault", "expelled", "stay", "log", "log_term", "cause")
    TERM_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    KILL_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    RELAY_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    EXPELLED_FIELD_NUMBER: _ClassVar[int]
    STAY_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    LOG_TERM_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    term: int
    welcome: Welcome
    task: TaskCommand
    link: MakeLink
    kill: KillTask
    refusal: Refusal
    heartbeat: Heartbeat
    logs: LogsAsked
    relay: OpenRelay
    fault: FaultAsked
    expelled: Expulsions
    stay: Stay
    log: str
    log_term: int
    cause: str
    def __init__(self, term: _Optional[int] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., task: _Optional[_Union[TaskCommand, _Mapping]] = ..., link: _Optional[_Union[MakeLink, _Mapping]] = ..., kill: _Optional[_Union[KillTask, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., logs: _Optional[_Union[LogsAsked, _Mapping]] = ..., relay: _Optional[_Union[OpenRelay, _Mapping]] = ..., fault: _Optional[_Union[FaultAsked, _Mapping]] = ..., expelled: _Optional[_Union[Expulsions, _Mapping]] = ..., stay: _Optional[_Union[Stay, _Mapping]] = ..., log: _Optional[str] = ..., log_term: _Optional[int] = ..., cause: _Optional[str] = ...) -> None: ...

class LogSearch(_message.Message):
    __slots__ = ("pipeline", "stage", "task", "cause", "level", "since", "lines_max", "follow")
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    LINES_MAX_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    pipeline: str
    stage: str
    task: str
    cause: str
    level: str
    since: float
    lines_max: int
    follow: bool
    def __init__(self, pipeline: _Optional[str] = ..., stage: _Optional[str] = ..., task: _Optional[str] = ..., cause: _Optional[str] = ..., level: _Optional[str] = ..., since: _Optional[float] = ..., lines_max: _Optional[int] = ..., follow: _Optional[bool] = ...) -> None: ...

class LogsAsked(_message.Message):
    __slots__ = ("number", "search", "end")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SEARCH_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    number: int
    search: LogSearch
    end: bool
    def __init__(self, number: _Optional[int] = ..., search: _Optional[_Union[LogSearch, _Mapping]] = ..., end: _Optional[bool] = ...) -> None: ...

class LogPage(_message.Message):
    __slots__ = ("number", "lines", "last", "missing", "lost")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    number: int
    lines: _containers.RepeatedScalarFieldContainer[bytes]
    last: bool
    missing: _containers.RepeatedScalarFieldContainer[str]
    lost: int
    def __init__(self, number: _Optional[int] = ..., lines: _Optional[_Iterable[bytes]] = ..., last: _Optional[bool] = ..., missing: _Optional[_Iterable[str]] = ..., lost: _Optional[int] = ...) -> None: ...

class FaultAsked(_message.Message):
    __slots__ = ("fault", "worker", "kind", "target", "task", "for_s", "share", "delay_s", "ends", "victims", "end", "controller")
    FAULT_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    FOR_S_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    DELAY_S_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    VICTIMS_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    fault: str
    worker: str
    kind: str
    target: str
    task: str
    for_s: float
    share: float
    delay_s: float
    ends: _containers.RepeatedScalarFieldContainer[str]
    victims: _containers.RepeatedCompositeFieldContainer[Victim]
    end: bool
    controller: str
    def __init__(self, fault: _Optional[str] = ..., worker: _Optional[str] = ..., kind: _Optional[str] = ..., target: _Optional[str] = ..., task: _Optional[str] = ..., for_s: _Optional[float] = ..., share: _Optional[float] = ..., delay_s: _Optional[float] = ..., ends: _Optional[_Iterable[str]] = ..., victims: _Optional[_Iterable[_Union[Victim, _Mapping]]] = ..., end: _Optional[bool] = ..., controller: _Optional[str] = ...) -> None: ...

class Victim(_message.Message):
    __slots__ = ("pid", "title")
    PID_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    pid: int
    title: str
    def __init__(self, pid: _Optional[int] = ..., title: _Optional[str] = ...) -> None: ...

class FaultTold(_message.Message):
    __slots__ = ("fault", "accepted", "reason", "victims", "struck", "again")
    class StruckEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    FAULT_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    VICTIMS_FIELD_NUMBER: _ClassVar[int]
    STRUCK_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    fault: str
    accepted: bool
    reason: str
    victims: _containers.RepeatedScalarFieldContainer[str]
    struck: _containers.ScalarMap[str, int]
    again: bool
    def __init__(self, fault: _Optional[str] = ..., accepted: _Optional[bool] = ..., reason: _Optional[str] = ..., victims: _Optional[_Iterable[str]] = ..., struck: _Optional[_Mapping[str, int]] = ..., again: _Optional[bool] = ...) -> None: ...

class FromAgent(_message.Message):
    __slots__ = ("gates", "told")
    GATES_FIELD_NUMBER: _ClassVar[int]
    TOLD_FIELD_NUMBER: _ClassVar[int]
    gates: str
    told: FaultTold
    def __init__(self, gates: _Optional[str] = ..., told: _Optional[_Union[FaultTold, _Mapping]] = ...) -> None: ...

class ApplyRequest(_message.Message):
    __slots__ = ("pipeline_json", "amend", "fuse", "replicas", "seal", "quarantined_max", "quarantined_share_max", "limits", "changed_input", "gate_json", "gate_pauses", "places", "transports", "dry_run", "autoscale", "keep", "was", "token", "queue", "cores", "priority", "user")
    class PlacesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class TransportsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PIPELINE_JSON_FIELD_NUMBER: _ClassVar[int]
    AMEND_FIELD_NUMBER: _ClassVar[int]
    FUSE_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    SEAL_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_MAX_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_SHARE_MAX_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    CHANGED_INPUT_FIELD_NUMBER: _ClassVar[int]
    GATE_JSON_FIELD_NUMBER: _ClassVar[int]
    GATE_PAUSES_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    TRANSPORTS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    AUTOSCALE_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    WAS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    pipeline_json: str
    amend: bool
    fuse: bool
    replicas: int
    seal: SealPolicy
    quarantined_max: int
    quarantined_share_max: float
    limits: Limits
    changed_input: str
    gate_json: str
    gate_pauses: bool
    places: _containers.ScalarMap[str, str]
    transports: _containers.ScalarMap[str, str]
    dry_run: bool
    autoscale: str
    keep: bool
    was: str
    token: str
    queue: str
    cores: int
    priority: int
    user: str
    def __init__(self, pipeline_json: _Optional[str] = ..., amend: _Optional[bool] = ..., fuse: _Optional[bool] = ..., replicas: _Optional[int] = ..., seal: _Optional[_Union[SealPolicy, _Mapping]] = ..., quarantined_max: _Optional[int] = ..., quarantined_share_max: _Optional[float] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., changed_input: _Optional[str] = ..., gate_json: _Optional[str] = ..., gate_pauses: _Optional[bool] = ..., places: _Optional[_Mapping[str, str]] = ..., transports: _Optional[_Mapping[str, str]] = ..., dry_run: _Optional[bool] = ..., autoscale: _Optional[str] = ..., keep: _Optional[bool] = ..., was: _Optional[str] = ..., token: _Optional[str] = ..., queue: _Optional[str] = ..., cores: _Optional[int] = ..., priority: _Optional[int] = ..., user: _Optional[str] = ...) -> None: ...

class PlannedTask(_message.Message):
    __slots__ = ("task", "stages", "worker", "cores", "memory_bytes")
    TASK_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    task: str
    stages: _containers.RepeatedScalarFieldContainer[str]
    worker: str
    cores: float
    memory_bytes: int
    def __init__(self, task: _Optional[str] = ..., stages: _Optional[_Iterable[str]] = ..., worker: _Optional[str] = ..., cores: _Optional[float] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class PlannedChain(_message.Message):
    __slots__ = ("chain", "reason")
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    chain: str
    reason: str
    def __init__(self, chain: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class PlanReply(_message.Message):
    __slots__ = ("tasks", "links", "chains", "workers", "stops", "shared_s", "another_index")
    TASKS_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    CHAINS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    STOPS_FIELD_NUMBER: _ClassVar[int]
    SHARED_S_FIELD_NUMBER: _ClassVar[int]
    ANOTHER_INDEX_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[PlannedTask]
    links: _containers.RepeatedCompositeFieldContainer[LinkStatus]
    chains: _containers.RepeatedCompositeFieldContainer[PlannedChain]
    workers: int
    stops: _containers.RepeatedCompositeFieldContainer[PlannedTask]
    shared_s: float
    another_index: str
    def __init__(self, tasks: _Optional[_Iterable[_Union[PlannedTask, _Mapping]]] = ..., links: _Optional[_Iterable[_Union[LinkStatus, _Mapping]]] = ..., chains: _Optional[_Iterable[_Union[PlannedChain, _Mapping]]] = ..., workers: _Optional[int] = ..., stops: _Optional[_Iterable[_Union[PlannedTask, _Mapping]]] = ..., shared_s: _Optional[float] = ..., another_index: _Optional[str] = ...) -> None: ...

class ApplyReply(_message.Message):
    __slots__ = ("accepted", "reason", "differences", "warnings", "plan", "standby", "waits")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCES_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    STANDBY_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    reason: str
    differences: _containers.RepeatedScalarFieldContainer[str]
    warnings: _containers.RepeatedScalarFieldContainer[str]
    plan: PlanReply
    standby: bool
    waits: str
    def __init__(self, accepted: _Optional[bool] = ..., reason: _Optional[str] = ..., differences: _Optional[_Iterable[str]] = ..., warnings: _Optional[_Iterable[str]] = ..., plan: _Optional[_Union[PlanReply, _Mapping]] = ..., standby: _Optional[bool] = ..., waits: _Optional[str] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("pipeline", "workers", "within_s")
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    WITHIN_S_FIELD_NUMBER: _ClassVar[int]
    pipeline: str
    workers: int
    within_s: float
    def __init__(self, pipeline: _Optional[str] = ..., workers: _Optional[int] = ..., within_s: _Optional[float] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("pipeline", "interval_s")
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    pipeline: str
    interval_s: float
    def __init__(self, pipeline: _Optional[str] = ..., interval_s: _Optional[float] = ...) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("worker", "host", "cores", "pid", "state", "labels", "addresses", "cores_reserved", "memory_reserved_bytes", "allows_chaos", "memory_bytes")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    CORES_RESERVED_FIELD_NUMBER: _ClassVar[int]
    MEMORY_RESERVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    ALLOWS_CHAOS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    worker: str
    host: str
    cores: int
    pid: int
    state: str
    labels: _containers.RepeatedScalarFieldContainer[str]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    cores_reserved: float
    memory_reserved_bytes: int
    allows_chaos: bool
    memory_bytes: int
    def __init__(self, worker: _Optional[str] = ..., host: _Optional[str] = ..., cores: _Optional[int] = ..., pid: _Optional[int] = ..., state: _Optional[str] = ..., labels: _Optional[_Iterable[str]] = ..., addresses: _Optional[_Iterable[str]] = ..., cores_reserved: _Optional[float] = ..., memory_reserved_bytes: _Optional[int] = ..., allows_chaos: _Optional[bool] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class TaskStatus(_message.Message):
    __slots__ = ("task", "stages", "worker", "state", "attempt", "restarts", "progress", "cores", "memory_bytes")
    TASK_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    task: str
    stages: _containers.RepeatedScalarFieldContainer[str]
    worker: str
    state: str
    attempt: int
    restarts: int
    progress: Progress
    cores: float
    memory_bytes: int
    def __init__(self, task: _Optional[str] = ..., stages: _Optional[_Iterable[str]] = ..., worker: _Optional[str] = ..., state: _Optional[str] = ..., attempt: _Optional[int] = ..., restarts: _Optional[int] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., cores: _Optional[float] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class LinkStatus(_message.Message):
    __slots__ = ("link", "sender", "receiver", "transport", "generation", "trouble", "via")
    LINK_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    VIA_FIELD_NUMBER: _ClassVar[int]
    link: str
    sender: str
    receiver: str
    transport: str
    generation: int
    trouble: str
    via: str
    def __init__(self, link: _Optional[str] = ..., sender: _Optional[str] = ..., receiver: _Optional[str] = ..., transport: _Optional[str] = ..., generation: _Optional[int] = ..., trouble: _Optional[str] = ..., via: _Optional[str] = ...) -> None: ...

class Death(_message.Message):
    __slots__ = ("what", "name", "cause", "count")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    what: str
    name: str
    cause: str
    count: int
    def __init__(self, what: _Optional[str] = ..., name: _Optional[str] = ..., cause: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class PipelineStatus(_message.Message):
    __slots__ = ("pipeline", "dataset", "state", "version", "term", "epoch", "ledger_entries", "fragments", "fragments_done", "input_bytes", "shards", "counts", "tasks", "links", "stages", "failure", "facts", "first_batch_s", "records_resumed", "changes", "refused_change", "waits", "held_by_dead", "balance", "deaths", "sources", "ledger_lag_s", "fixed", "notes", "applied_by", "queue", "queue_cores")
    class CountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Counts
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Counts, _Mapping]] = ...) -> None: ...
    class FactsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    DATASET_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    FRAGMENTS_FIELD_NUMBER: _ClassVar[int]
    FRAGMENTS_DONE_FIELD_NUMBER: _ClassVar[int]
    INPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    FIRST_BATCH_S_FIELD_NUMBER: _ClassVar[int]
    RECORDS_RESUMED_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    REFUSED_CHANGE_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    HELD_BY_DEAD_FIELD_NUMBER: _ClassVar[int]
    BALANCE_FIELD_NUMBER: _ClassVar[int]
    DEATHS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    LEDGER_LAG_S_FIELD_NUMBER: _ClassVar[int]
    FIXED_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    APPLIED_BY_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_CORES_FIELD_NUMBER: _ClassVar[int]
    pipeline: str
    dataset: str
    state: str
    version: str
    term: int
    epoch: int
    ledger_entries: int
    fragments: int
    fragments_done: int
    input_bytes: int
    shards: int
    counts: _containers.MessageMap[str, Counts]
    tasks: _containers.RepeatedCompositeFieldContainer[TaskStatus]
    links: _containers.RepeatedCompositeFieldContainer[LinkStatus]
    stages: _containers.RepeatedCompositeFieldContainer[StageProgress]
    failure: str
    facts: _containers.ScalarMap[str, str]
    first_batch_s: float
    records_resumed: int
    changes: _containers.RepeatedScalarFieldContainer[str]
    refused_change: str
    waits: _containers.RepeatedScalarFieldContainer[str]
    held_by_dead: int
    balance: Balance
    deaths: _containers.RepeatedCompositeFieldContainer[Death]
    sources: _containers.RepeatedScalarFieldContainer[str]
    ledger_lag_s: float
    fixed: _containers.RepeatedScalarFieldContainer[str]
    notes: _containers.RepeatedScalarFieldContainer[str]
    applied_by: str
    queue: str
    queue_cores: int
    def __init__(self, pipeline: _Optional[str] = ..., dataset: _Optional[str] = ..., state: _Optional[str] = ..., version: _Optional[str] = ..., term: _Optional[int] = ..., epoch: _Optional[int] = ..., ledger_entries: _Optional[int] = ..., fragments: _Optional[int] = ..., fragments_done: _Optional[int] = ..., input_bytes: _Optional[int] = ..., shards: _Optional[int] = ..., counts: _Optional[_Mapping[str, Counts]] = ..., tasks: _Optional[_Iterable[_Union[TaskStatus, _Mapping]]] = ..., links: _Optional[_Iterable[_Union[LinkStatus, _Mapping]]] = ..., stages: _Optional[_Iterable[_Union[StageProgress, _Mapping]]] = ..., failure: _Optional[str] = ..., facts: _Optional[_Mapping[str, str]] = ..., first_batch_s: _Optional[float] = ..., records_resumed: _Optional[int] = ..., changes: _Optional[_Iterable[str]] = ..., refused_change: _Optional[str] = ..., waits: _Optional[_Iterable[str]] = ..., held_by_dead: _Optional[int] = ..., balance: _Optional[_Union[Balance, _Mapping]] = ..., deaths: _Optional[_Iterable[_Union[Death, _Mapping]]] = ..., sources: _Optional[_Iterable[str]] = ..., ledger_lag_s: _Optional[float] = ..., fixed: _Optional[_Iterable[str]] = ..., notes: _Optional[_Iterable[str]] = ..., applied_by: _Optional[str] = ..., queue: _Optional[str] = ..., queue_cores: _Optional[int] = ...) -> None: ...

class QueueStatus(_message.Message):
    __slots__ = ("queue", "weight", "cores_max", "priority", "cores", "fair_share", "granted", "waiting")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    CORES_MAX_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    FAIR_SHARE_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    queue: str
    weight: int
    cores_max: int
    priority: int
    cores: int
    fair_share: float
    granted: _containers.RepeatedScalarFieldContainer[str]
    waiting: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, queue: _Optional[str] = ..., weight: _Optional[int] = ..., cores_max: _Optional[int] = ..., priority: _Optional[int] = ..., cores: _Optional[int] = ..., fair_share: _Optional[float] = ..., granted: _Optional[_Iterable[str]] = ..., waiting: _Optional[_Iterable[str]] = ...) -> None: ...

class QueueRequest(_message.Message):
    __slots__ = ("queue", "remove", "weight", "cores_max", "priority")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    CORES_MAX_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    queue: str
    remove: bool
    weight: int
    cores_max: int
    priority: int
    def __init__(self, queue: _Optional[str] = ..., remove: _Optional[bool] = ..., weight: _Optional[int] = ..., cores_max: _Optional[int] = ..., priority: _Optional[int] = ...) -> None: ...

class QueueReply(_message.Message):
    __slots__ = ("accepted", "reason", "again")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    reason: str
    again: bool
    def __init__(self, accepted: _Optional[bool] = ..., reason: _Optional[str] = ..., again: _Optional[bool] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("workers", "pipelines", "controller", "version", "standby", "leader", "term", "trouble", "allows_chaos", "expelled", "queues", "lost")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    PIPELINES_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STANDBY_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    ALLOWS_CHAOS_FIELD_NUMBER: _ClassVar[int]
    EXPELLED_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStatus]
    pipelines: _containers.RepeatedCompositeFieldContainer[PipelineStatus]
    controller: str
    version: str
    standby: bool
    leader: str
    term: int
    trouble: str
    allows_chaos: bool
    expelled: _containers.RepeatedScalarFieldContainer[str]
    queues: _containers.RepeatedCompositeFieldContainer[QueueStatus]
    lost: _containers.RepeatedCompositeFieldContainer[Death]
    def __init__(self, workers: _Optional[_Iterable[_Union[WorkerStatus, _Mapping]]] = ..., pipelines: _Optional[_Iterable[_Union[PipelineStatus, _Mapping]]] = ..., controller: _Optional[str] = ..., version: _Optional[str] = ..., standby: _Optional[bool] = ..., leader: _Optional[str] = ..., term: _Optional[int] = ..., trouble: _Optional[str] = ..., allows_chaos: _Optional[bool] = ..., expelled: _Optional[_Iterable[str]] = ..., queues: _Optional[_Iterable[_Union[QueueStatus, _Mapping]]] = ..., lost: _Optional[_Iterable[_Union[Death, _Mapping]]] = ...) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ("pipeline", "cancel")
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    pipeline: str
    cancel: bool
    def __init__(self, pipeline: _Optional[str] = ..., cancel: _Optional[bool] = ...) -> None: ...

class StopReply(_message.Message):
    __slots__ = ("accepted", "reason", "standby")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STANDBY_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    reason: str
    standby: bool
    def __init__(self, accepted: _Optional[bool] = ..., reason: _Optional[str] = ..., standby: _Optional[bool] = ...) -> None: ...

class SteerRequest(_message.Message):
    __slots__ = ("pipeline", "pause", "replicas", "places", "transports", "worker", "back", "expel", "clear")
    class ReplicasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class PlacesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class TransportsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    TRANSPORTS_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    BACK_FIELD_NUMBER: _ClassVar[int]
    EXPEL_FIELD_NUMBER: _ClassVar[int]
    CLEAR_FIELD_NUMBER: _ClassVar[int]
    pipeline: str
    pause: bool
    replicas: _containers.ScalarMap[str, int]
    places: _containers.ScalarMap[str, str]
    transports: _containers.ScalarMap[str, str]
    worker: str
    back: bool
    expel: str
    clear: bool
    def __init__(self, pipeline: _Optional[str] = ..., pause: _Optional[bool] = ..., replicas: _Optional[_Mapping[str, int]] = ..., places: _Optional[_Mapping[str, str]] = ..., transports: _Optional[_Mapping[str, str]] = ..., worker: _Optional[str] = ..., back: _Optional[bool] = ..., expel: _Optional[str] = ..., clear: _Optional[bool] = ...) -> None: ...

class SteerReply(_message.Message):
    __slots__ = ("accepted", "reason", "changes", "again")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    reason: str
    changes: _containers.RepeatedScalarFieldContainer[str]
    again: bool
    def __init__(self, accepted: _Optional[bool] = ..., reason: _Optional[str] = ..., changes: _Optional[_Iterable[str]] = ..., again: _Optional[bool] = ...) -> None: ...
