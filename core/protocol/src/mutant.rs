//! Bugs that can be switched on (`varuna-mutants`): each is caught by unit tests of this crate, by seeds of the simulated world, or both.
mod members;

use varuna_mutants::{UNIT_TESTS, seeds, unit_tests_and_seeds};
members::with_mutants_of_members! {
    /// The steps that were ordered are not in the record.
    ForgetOrderedLastStep => UNIT_TESTS,
    /// The run ends although more steps were ordered.
    EndBeforeOrderedLastStep => UNIT_TESTS,
    /// Members do not hear of more steps.
    TellNobodyLastStep => UNIT_TESTS,
    /// A worker that has no memory for a step before Go is given less for good.
    FirstStepsExhaustForGood => UNIT_TESTS,
    /// Steps begin before Go with workers of builds that cannot do so.
    BeginBeforeGoWithAll => UNIT_TESTS,
    /// Steps begin before Go where workers have no memory for it.
    BeginBeforeGoWithoutRoom => UNIT_TESTS,
    /// Steps begin before Go however long the parameters take.
    BeginBeforeGoAtAnyCost => UNIT_TESTS,
    /// Steps begin before Go again although the generation before committed nothing.
    BeginBeforeGoAgain => UNIT_TESTS,
    /// Go as soon as one member is ready; members obey.
    GoEarly => unit_tests_and_seeds("befg", 0),
    /// The plan is sent before it is persisted.
    SendBeforePersist => unit_tests_and_seeds("a", 0),
    /// The record is written without compare-and-swap.
    BlindWrite => seeds("a", 0),
    /// The next generation counts from the plan in force, not from the highest ever persisted.
    ReuseGeneration => unit_tests_and_seeds("a", 0),
    /// Prepared gradients are ignored: resume where all units are held, even when someone committed further.
    RollBackPrepared => unit_tests_and_seeds("c", 0),
    /// Roll forward only if a survivor committed.
    OnlyIfSurvivorCommitted => UNIT_TESTS,
    /// A persisted decision to finish a step is not remembered at the next recovery.
    ForgetPersistedDecision => UNIT_TESTS,
    /// Where only newcomers have answered, nothing newer than the checkpoint is believed to exist.
    TipIsWhatAnswersHold => UNIT_TESTS,
    /// A state is known by its step alone.
    StepIsIdentity => UNIT_TESTS,
    /// Shards are named by step alone.
    ShardsWithoutGeneration => seeds("b", 78900),
    /// Each worker resolves "newest checkpoint" itself.
    NewestByEach => seeds("b", 0),
    /// A plan of which a member is gone or will go is armed, where it could be called off.
    ArmWhatIsLost => UNIT_TESTS,
    /// An armed plan is dropped without a fence.
    CancelAfterArm => unit_tests_and_seeds("gh", 0),
    /// Links that failed are forgotten: the same plan again.
    ForgetBadLinks => unit_tests_and_seeds("fh", 0),
    /// State cannot bypass a dead link between a target and its only source.
    NoRelay => UNIT_TESTS,
    /// A run whose gradients are never finite again continues.
    SkipForEver => UNIT_TESTS,
    /// A step is finished although a worker that ran it neither put in its norm nor is prepared.
    FinishUnpreparedStep => UNIT_TESTS,
    /// A step that is known to be committed is decided once more.
    FinishCommittedStep => UNIT_TESTS,
    /// The decision in the persisted plan does not count among the known ones.
    ForgetDecisionOfPlan => UNIT_TESTS,
    /// A recovery resumes at a state that does not cover the model.
    ResumeUncovered => UNIT_TESTS,
    /// A recovery resumes at the oldest state.
    ResumeAtOldest => unit_tests_and_seeds("clp", 0),
    /// A worker counts as a source of a decided state, whatever state its gradient belongs to.
    RollForwardFromAnyState => UNIT_TESTS,
    /// Committed steps are given up without waiting for their holders.
    GiveUpStepsAtOnce => UNIT_TESTS,
    /// A recovery does not wait for answers that may still come.
    RecoverWithoutWaiting => UNIT_TESTS,
    /// The answer to an earlier fence counts.
    CountStaleInventory => UNIT_TESTS,
    /// The answer of a worker counts after its stream has closed.
    CountAnswerOfClosedStream => UNIT_TESTS,
    /// A write keeps the term of the record instead of the coordinator's own.
    WriteWithoutOwnTerm => UNIT_TESTS,
    /// A coordinator continues after another has taken over.
    IgnoreNewerTerm => UNIT_TESTS,
    /// Generation numbers may fall behind those of the checkpoints in the store.
    NumbersBelowStore => UNIT_TESTS,
    /// After an unclear take-over the same term is used.
    KeepUnclearTerm => UNIT_TESTS,
    /// After an unclear write, whatever is in the store counts as written by this coordinator.
    AnyRecordIsMine => UNIT_TESTS,
    /// After a refused write the record is read once, whether the answer comes or not.
    ReadOnceAfterRefusal => UNIT_TESTS,
    /// A write that failed counts as done.
    FailedWriteCounts => unit_tests_and_seeds("a", 0),
    /// A member that is ready in another generation counts as ready.
    ReadyInAnyGeneration => UNIT_TESTS,
    /// A member at the last step counts as finished, whatever its generation.
    FinishedInAnyGeneration => UNIT_TESTS,
    /// A member at the last step counts as finished, whatever its phase.
    FinishedInAnyPhase => UNIT_TESTS,
    /// A member that was fenced past the generation does not end it.
    IgnoreFencedMember => UNIT_TESTS,
    /// A member that is silent does not end the generation.
    IgnoreSilentMember => UNIT_TESTS,
    /// A member that is based in the next generation does not show that the switch was decided.
    SwitchedOnlyWhenRunning => UNIT_TESTS,
    /// A change that an earlier coordinator may have armed is cancelled without a fence.
    CancelUnknownChange => UNIT_TESTS,
    /// Progress does not reset the count of generations that failed.
    NeverResetFailedGenerations => UNIT_TESTS,
    /// Workers that end again and again are planned with as if they were sound.
    NoQuarantine => UNIT_TESTS,
    /// A store that is unavailable to all looks like workers that cannot read their data.
    LeaveOutAllReaders => UNIT_TESTS,
    /// A restore overlooks the newest of several checkpoints.
    OverlookNewestCheckpoint => unit_tests_and_seeds("l", 0),
    /// Holders that are gone are waited for as long as those that are connected and silent.
    WaitForDeadAsForSilent => seeds("m", 4_700),
    /// A run is given up while the last checkpoint may still be on its way.
    GiveUpBeforeUploads => UNIT_TESTS,
    /// State is given up although its holders are connected and may still answer.
    GiveUpOnConnected => UNIT_TESTS,
    /// A coordinator gives a run up without knowing that no other has taken over.
    GiveUpUnconfirmed => UNIT_TESTS,
    /// A change that keeps a worker whose end is known waits for that end.
    WaitForLeaverOfNextPlan => UNIT_TESTS,
    /// A restore trusts a list of checkpoints that the store did not confirm.
    TrustOldListing => UNIT_TESTS,
    /// A step is published before those that precede it.
    PublishEarlySteps => UNIT_TESTS,
    /// A worker that is fenced is not asked for the commits that were not told.
    FenceWithoutTell => UNIT_TESTS,
    /// A worker whose fence was lost stays in an older generation.
    LeaveOlderGeneration => UNIT_TESTS,
    /// A pending change counts as a commit.
    PendingChangeIsProgress => UNIT_TESTS,
    /// A run without a checkpoint is given up before a restore would be.
    GiveUpBeforeRestore => UNIT_TESTS,
    /// Generations that never ran count as fruitless.
    CountUnrunGenerations => UNIT_TESTS,
    /// A step that a silent worker may have committed is not waited for.
    IgnoreUndecidedStep => UNIT_TESTS,
    /// A suspicion that comes while a new coordinator settles is lost.
    ForgetSuspicionWhileSettling => UNIT_TESTS,
    /// A recovery from memory waits for a store that never answered.
    WaitForSilentStore => UNIT_TESTS,
    /// Workers that have gone are never forgotten.
    KeepGoneWorkers => UNIT_TESTS,
    /// The deadline does not grow with generations that fail.
    DeadlineNeverGrows => UNIT_TESTS,
    /// A recovery plans with workers that did not answer.
    PlanWithUnanswered => UNIT_TESTS,
    /// A new coordinator does not wait for the members of the inherited plan.
    NoSettling => UNIT_TESTS,
    /// After a pause of its own the coordinator declares all workers silent.
    PauseSilencesEverybody => UNIT_TESTS,
    /// Every write of the record counts as progress of training.
    EveryWriteIsProgress => UNIT_TESTS,
    /// The run is done without the checkpoint of its last step.
    DoneWithoutFinalCheckpoint => unit_tests_and_seeds("c", 0),
    /// A checkpoint of the last step does not end the run.
    IgnoreFinalCheckpoint => unit_tests_and_seeds("f", 0),
    /// A recovery leaves the planned change in the record.
    RecoveryKeepsNext => unit_tests_and_seeds("f", 0),
    /// The plan of a recovery does not carry the decision that its base needs.
    RecoverWithoutDecision => unit_tests_and_seeds("cf", 0),
    /// A drained worker is released while it is not idle.
    ReleaseBusyWorker => UNIT_TESTS,
    /// A member of the next plan that drains does not end the change.
    IgnoreDrainingNextMember => UNIT_TESTS,
    /// A member that was fenced past the next plan does not end the change.
    IgnoreFencedNextMember => UNIT_TESTS,
    /// Members are armed before all are connected.
    ArmUnconnected => UNIT_TESTS,
    /// A generation in which no step is committed for four deadlines continues.
    NoStallDetection => UNIT_TESTS,
    /// A generation may take for ever to start.
    NoLaunchDeadline => UNIT_TESTS,
    /// A generation has the same time to start, however much it moves and however many before it were late.
    SameTimeForEveryLaunch => UNIT_TESTS,
    /// Members are armed as soon as all have caught up, however long before a member goes.
    SwitchLongBeforeNotice => UNIT_TESTS,
    /// The time for a planned change's start counts from its plan, also while newcomers follow.
    LaunchFromPlan => UNIT_TESTS,
    /// A recovery does not use draining workers even where too few others are left, or these make up no plan.
    NeverUseDraining => UNIT_TESTS,
    /// A write that succeeds after Stop is not noted.
    ForgetWriteAtStop => UNIT_TESTS,
    /// An inventory does not show that its worker was fenced.
    InventoryProvesNoFence => UNIT_TESTS,
    /// The time in which the coordinator itself was paused counts as time in which holders could answer.
    CountOwnPauseAsWaiting => UNIT_TESTS,
    /// Only a tick shows that the coordinator itself was paused.
    TicksAloneShowPause => UNIT_TESTS,
    /// The time in which the coordinator itself was paused counts as the time of a step.
    CountOwnPauseAsStep => UNIT_TESTS,
    /// A run is given up although a worker came back while that was written.
    GiveUpOnRevived => UNIT_TESTS,
    /// A run is given up although what is left was last looked at long ago.
    GiveUpLate => UNIT_TESTS,
    /// A coordinator that has not taken over ends the run with orders of its own term.
    EndBeforeTakeOver => UNIT_TESTS,
    /// A record that is older than the one that is known counts as what the store holds.
    OlderRecordCounts => unit_tests_and_seeds("f", 3_600),
    /// A store that refuses writes is asked again with every tick.
    WriteWithoutDelay => UNIT_TESTS,
    /// Workers that cannot reach one another are used although one that will go could take the place of one of them.
    KeepBadLink => UNIT_TESTS,
    /// Workers that cannot reach one another are used although one in quarantine could take the place of one of them.
    KeepQuarantineOverBadLink => UNIT_TESTS,
    /// The answer to an earlier write counts as the answer to the present one.
    AnyAnswerIsOfThisWrite => UNIT_TESTS,
    /// A change is proposed while a member is silent.
    ChangeWhileMemberIsSilent => UNIT_TESTS,
    /// All holders of a unit agree, whatever they say.
    ComparisonFindsNothing => UNIT_TESTS,
    /// Where holders of a unit differ, those that agree are replaced.
    ReplaceMajority => UNIT_TESTS,
    /// A worker whose state was found to be wrong is resumed from.
    ResumeFromOddHolder => UNIT_TESTS,
    /// A rollback goes to the newest checkpoint, compared or not.
    RollBackToUncompared => UNIT_TESTS,
    /// A state that was given up because holders differed is resumed from, and its mark taken for one of damage.
    ResumeFromVoidState => UNIT_TESTS,
    /// A checkpoint counts as compared though a recovery may have put it, long after the comparison.
    TrustStatePutAgain => UNIT_TESTS,
    /// The first step of a run only has the time of its estimate and the shortest deadline.
    FirstStepHasNoMoreTime => UNIT_TESTS,
    /// The time that earlier coordinators have waited for holders does not count.
    WaitAnew => UNIT_TESTS,
    /// A coordinator gives steps up before workers can have found it, since earlier ones have waited.
    GiveUpAtTakeOver => UNIT_TESTS,
    /// A damaged checkpoint of the last step is waited for as if it were on its way.
    IgnoreDamagedEnd => unit_tests_and_seeds("f", 3_700),
    /// The last step's state is put again as often as it is found damaged.
    PutAnewForEver => UNIT_TESTS,
    /// How often the last step's state was put again is forgotten with the coordinator that had it put.
    ForgetPutsAnew => UNIT_TESTS,
    /// A worker that was left out as slow, or because its use did not repay, is left out for ever.
    NoSecondChance => UNIT_TESTS,
    /// The workers found with wrong bits are forgotten with the coordinator that found them.
    ForgetOddHolders => UNIT_TESTS,
    /// A change is armed before its newcomers have caught up.
    ArmBeforeCaughtUp => UNIT_TESTS,
    /// Followers count as caught up once they have copies, however old these are.
    OldCopiesHaveCaughtUp => UNIT_TESTS,
    /// Members follow units that do not fit into their memory beside what they train with.
    FollowWithoutRoom => UNIT_TESTS,
    /// Newcomers that never catch up are waited for without end.
    WaitForFollowersForEver => UNIT_TESTS,
    /// Newcomers have the same time to catch up, however long a step takes.
    LongStepsGiveNoMoreTime => UNIT_TESTS,
    /// Workers keep spare copies that do not know how to follow.
    KeepersThatCannotFollow => UNIT_TESTS,
    /// A keeper's report on its copies under another plan counts.
    InStepInAnyGeneration => UNIT_TESTS,
    /// A run that was stopped still counts as stopped after it continues.
    StoppedForEver => UNIT_TESTS,
    /// The record says that nobody can train although a worker that could was lost before it promised not to.
    StoppedWithoutPromises => UNIT_TESTS,
    /// Workers of a run that was stopped in order are waited for.
    WaitForStopped => UNIT_TESTS,
    /// Workers between which data is damaged are planned next to one another again.
    ForgetDamage => UNIT_TESTS,
    /// A worker that ran out of memory under a plan is given the same again, however often.
    SameWorkWithoutMemory => UNIT_TESTS,
    /// A run that may begin anew does so while its holders may still come back.
    BeginAnewAtOnce => UNIT_TESTS,
    /// A coordinator that has just taken over resumes from what is known before any worker that trained is heard.
    CheckpointIsNewestForNewcomers => UNIT_TESTS,
}
#[cfg(all(test, feature = "mutants"))]
mod tests;
