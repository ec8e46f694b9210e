"""Pure: the events that enter the core and the commands that leave it."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.controller.core.messages import dedup as dedup, messages as messages
    from headrace.controller.core.messages.dedup import (
        AnswerDecision as AnswerDecision,
        AnswerNeeds as AnswerNeeds,
        AskDecision as AskDecision,
        DecisionAsked as DecisionAsked,
        DecisionEvent as DecisionEvent,
        DecisionMade as DecisionMade,
        NeedsAsked as NeedsAsked,
        Records as Records,
        ReleaseClaims as ReleaseClaims,
        ServeIndex as ServeIndex,
        VerdictsLetGo as VerdictsLetGo,
    )
    from headrace.controller.core.messages.log import (
        EntryFailed as EntryFailed,
        EntryOvertaken as EntryOvertaken,
        EntryRefused as EntryRefused,
        EntryUnresolved as EntryUnresolved,
        EntryWritten as EntryWritten,
        LogEvent as LogEvent,
        LogRead as LogRead,
        LogUnreadable as LogUnreadable,
        ReadLog as ReadLog,
        SnapshotWritten as SnapshotWritten,
        TruncateLog as TruncateLog,
        WriteEntry as WriteEntry,
        WriteSnapshot as WriteSnapshot,
    )
    from headrace.controller.core.messages.messages import (
        AnswerProposal as AnswerProposal,
        AnswerRequest as AnswerRequest,
        AuditDataset as AuditDataset,
        Command as Command,
        Coverage as Coverage,
        DatasetAudited as DatasetAudited,
        Event as Event,
        FragmentsWereRead as FragmentsWereRead,
        FragmentWasRead as FragmentWasRead,
        InHand as InHand,
        KillTask as KillTask,
        LinkLost as LinkLost,
        ListSource as ListSource,
        MakeLink as MakeLink,
        ManifestWritten as ManifestWritten,
        OpenRelay as OpenRelay,
        Outcome as Outcome,
        PoisonRecord as PoisonRecord,
        ReadFragment as ReadFragment,
        SealSink as SealSink,
        ShardProposed as ShardProposed,
        SourceListed as SourceListed,
        StartTask as StartTask,
        StepDown as StepDown,
        StopTask as StopTask,
        SweepTask as SweepTask,
        TaskEvent as TaskEvent,
        TaskExited as TaskExited,
        TaskFailed as TaskFailed,
        TaskReady as TaskReady,
        TaskSwept as TaskSwept,
        TimePassed as TimePassed,
        WriteManifest as WriteManifest,
    )
    from headrace.controller.core.messages.requests import (
        Allowance as Allowance,
        AmendRecorded as AmendRecorded,
        ChangedInput as ChangedInput,
        ClearAdmitted as ClearAdmitted,
        ClearRequested as ClearRequested,
        DrainRequested as DrainRequested,
        ExpelRequested as ExpelRequested,
        GateRecorded as GateRecorded,
        HoldDecided as HoldDecided,
        PipelineRequested as PipelineRequested,
        QueueRequested as QueueRequested,
        ScalingDecided as ScalingDecided,
        ShutdownAsked as ShutdownAsked,
        SteerAdmitted as SteerAdmitted,
        SteerRequested as SteerRequested,
        StopRequested as StopRequested,
        TokenOffered as TokenOffered,
        WorkerDrained as WorkerDrained,
        amending as amending,
        fixed_options as fixed_options,
        same_options as same_options,
    )
    from headrace.controller.core.messages.workers import (
        RunningLink as RunningLink,
        RunningTask as RunningTask,
        SpreadExpulsions as SpreadExpulsions,
        WorkerLost as WorkerLost,
        WorkerRegistered as WorkerRegistered,
    )
else:
    __getattr__ = door(__name__)
