//! The promises that can be broken.

/// Which promise is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// A record's temporary is renamed without having been synced.
    RecordFileSync,
    /// A shard is not synced after a rename in it.
    DirSyncAfterRename,
    /// A shard is not synced after a removal in it.
    DirSyncAfterUnlink,
    /// Of several shards only the first is synced.
    LaterDirSyncs,
    /// The raised fence limit is not synced before its rename.
    FenceFileSync,
    /// The root is not synced after the fence limit was raised.
    FenceDirSync,
    /// The table's description is not synced.
    MetaFileSync,
    /// New directories are not made durable.
    MkdirSync,
    /// The audit line is not synced.
    AuditSync,
    /// The directory is synced before the rename instead of after it.
    BarrierBeforeRename,
    /// What is put back after a failure is not synced.
    RestoreSync,
    /// What should be put back after a failure is not.
    RestoreForgotten,
    /// A failed sync is tried again, and the second answer believed.
    SyncRetried,
    /// Locks exclude nobody.
    LockExcludesNobody,
    /// The lock of the fence counter excludes nobody.
    FenceLockExcludesNobody,
    /// One process of two takes its locks in the opposite order.
    LockOrder,
    /// The lock is given up before the barrier.
    EarlyUnlock,
    /// A replacement reports success and does nothing, now and then.
    LostRename,
    /// Temporaries are not removed after a failure.
    TempsForgotten,
    /// Replacing writes the record in place.
    InPlace,
    /// Files of the intent directory are not synced.
    IntentFileSync,
    /// The intent directory is not synced.
    IntentDirSync,
    /// The intent is not retired.
    RetirementForgotten,
    /// The intent is retired, but not durably.
    RetirementSync,
    /// A failed group is undone without an abort mark.
    AbortForgotten,
    /// The abort mark is not synced before the first undo.
    AbortSync,
    /// An intent is written after the first rename instead of before it.
    IntentAfterRename,
    /// An intent is retired before its records are durable.
    RetiredEarly,
    /// Recovery writes an intent anew, and acts on it without having synced it.
    FoundIntentSync,
    /// Recovery syncs the slot in which it found an intent, and believes that.
    FoundIntentBelieved,
    /// Recovery syncs nothing that it changed.
    RecoverySync,
    /// The lock of a slot excludes nobody: two may finish one intent at once.
    SlotLock,
    /// Recovery finishes an intent whatever the records hold.
    RecoversAnything,
    /// A reader does not look at intents.
    ReaderBlind,
    /// A reader takes an intent that was aborted for the new state.
    ReaderIgnoresAbort,
    /// The directory of a new audit file is not synced.
    AuditDirSync,
    /// The directory that the table is in is not synced.
    ParentSync,
    /// Recovery takes a record that is as decided for one that was made so durably.
    SettledBelieved,
    /// A call returns without a data sync of the journal.
    DataSync,
    /// The journal is synced before a frame is written instead of after it.
    SyncBeforeFrame,
    /// What is appended is told to be durable.
    AppendedIsDurable,
    /// What shared memory says is believed without its checksum, and words of an earlier boot are kept.
    HintUnchecked,
    /// A checkpoint is renamed without having been synced.
    CheckpointSync,
    /// The directory is not synced after a checkpoint was renamed.
    CheckpointDirSync,
    /// A segment is erased before the checkpoint is in force that goes on after it.
    ErasedTooEarly,
    /// A segment's file is cut off before the checkpoint is in force that goes on after it.
    CutTooEarly,
    /// A segment's file is not erased before it is used again, and frames of its earlier use are taken
    /// for new ones.
    RecycledBelieved,
    /// A frame counts though it is not in the chain of those before it.
    ChainUnchecked,
    /// That a sync failed is not told to the others.
    MarkForgotten,
    /// Bytes at the end of the journal that are no frame are taken for damage.
    TornTailRefused,
    /// Damage is taken for the end of the journal.
    DamageCut,
    /// What a dead process has appended is taken for durable.
    DeadWriterBelieved,
    /// The journal goes on in the next segment before the last one is durable.
    BorderSync,
    /// That a segment ends is not taken back before a frame is written behind its end.
    EndKept,
    /// The lock of those who append excludes nobody.
    AppendLock,
}
