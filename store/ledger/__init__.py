"""The ledger: the numbered log, its entries, folds and snapshots."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.store.ledger.core.balance import (
        Balance as Balance,
        balance_of as balance_of,
        chief_of as chief_of,
        empty_sinks as empty_sinks,
        losses_of as losses_of,
        main_sink as main_sink,
    )
    from headrace.store.ledger.core.cluster_changes import (
        MemberExpelled as MemberExpelled,
        QueueRemoved as QueueRemoved,
        QueueSet as QueueSet,
        RunAmended as RunAmended,
        RunBegun as RunBegun,
        RunChanged as RunChanged,
        RunEnded as RunEnded,
        RunGated as RunGated,
        RunHeld as RunHeld,
        RunPlanned as RunPlanned,
        RunQueued as RunQueued,
        RunScaled as RunScaled,
        RunsCleared as RunsCleared,
        RunSteered as RunSteered,
        RunStopAsked as RunStopAsked,
        RunUnqueued as RunUnqueued,
        TokenSpent as TokenSpent,
        WorkerDrainAsked as WorkerDrainAsked,
        WorkerJoined as WorkerJoined,
        WorkerLeft as WorkerLeft,
    )
    from headrace.store.ledger.core.cluster_fold import (
        ENDED_RUNS_MAX as ENDED_RUNS_MAX,
        ClusterState as ClusterState,
        RunRecord as RunRecord,
        is_of_expelled as is_of_expelled,
    )
    from headrace.store.ledger.core.entries import (
        CHECKSUM_BYTES as CHECKSUM_BYTES,
        Beat as Beat,
        Change as Change,
        ClaimsReleased as ClaimsReleased,
        Closed as Closed,
        Entry as Entry,
        EntryError as EntryError,
        EpochRaised as EpochRaised,
        FragmentDropped as FragmentDropped,
        FragmentEnded as FragmentEnded,
        FragmentsListed as FragmentsListed,
        Led as Led,
        PipelineApplied as PipelineApplied,
        PrefixRead as PrefixRead,
        Removed as Removed,
        Resigned as Resigned,
        Retracted as Retracted,
        VersionHeld as VersionHeld,
        VersionPublished as VersionPublished,
        VersionSeen as VersionSeen,
        counts_of as counts_of,
        counts_row as counts_row,
        decode_entry as decode_entry,
        encode_entry as encode_entry,
    )
    from headrace.store.ledger.core.fold import (
        DEDUPLICATION as DEDUPLICATION,
        HELD_OUT_SPLIT as HELD_OUT_SPLIT,
        ROLLBACKS_MAX as ROLLBACKS_MAX,
        ClosedShard as ClosedShard,
        FragmentState as FragmentState,
        LedgerState as LedgerState,
    )
    from headrace.store.ledger.core.fragments import (
        Counts as Counts,
        Fragment as Fragment,
        Range as Range,
        StoredObject as StoredObject,
    )
    from headrace.store.ledger.core.intervals import (
        UNBOUNDED as UNBOUNDED,
        UNKNOWN as UNKNOWN,
        Gap as Gap,
        IntervalSet as IntervalSet,
        OverlapError as OverlapError,
        still_open as still_open,
    )
    from headrace.store.ledger.core.log_state import (
        FoldError as FoldError,
        ForeignLog as ForeignLog,
        LogState as LogState,
    )
    from headrace.store.ledger.core.shown import (
        balance_shown as balance_shown,
        lacks_input as lacks_input,
        state_of as state_of,
        without_hidden as without_hidden,
    )
    from headrace.store.ledger.log import (
        NUMBER_MAX as NUMBER_MAX,
        Appended as Appended,
        Log as Log,
        begins_a_term as begins_a_term,
        fold_log as fold_log,
        read_behind as read_behind,
        snapshot_problems as snapshot_problems,
    )
    from headrace.store.ledger.snapshot import decode_snapshot as decode_snapshot, encode_snapshot as encode_snapshot
else:
    __getattr__ = door(__name__)
