//! The mutants of the member alone.

/// The mutants of the crate: those that are given, and those of the member.
macro_rules! with_mutants_of_members {
    ($($others:tt)*) => { varuna_mutants::mutants! { $($others)*
    /// A smaller number of steps takes the place of a greater one.
    TakeSmallerLastStep => UNIT_TESTS,
    /// Messages of any generation are taken from peers.
    SkipFenceCheck => seeds("eb", 0),
    /// A member continues committing after it answered a fence.
    CommitAfterFence => unit_tests_and_seeds("c", 0),
    /// Roll-forward applies without the reduced norm.
    ForgetNorm => unit_tests_and_seeds("b", 0),
    /// A member that has run a step before Go puts its norms in before Go.
    PutNormsInBeforeGo => UNIT_TESTS,
    /// A member that runs a step before Go begins it again.
    BeginFirstStepTwice => UNIT_TESTS,
    /// Former units, whose parameters others lack, are freed before these are sent.
    FreeBeforeParameters => UNIT_TESTS,
    /// Whoever is connected first is asked for state, and who is to send the parameters waits to be asked.
    AskAnySourceFirst => UNIT_TESTS,
    /// A step before Go begins before the state that others lack is sent.
    BeginBeforeServing => UNIT_TESTS,
    /// State that arrives does away with the gradient of the step that was run before Go.
    ForgetGradientOfFirstStep => UNIT_TESTS,
    /// A gradient that was computed with another worker's parameters is reported without the state that it belongs to.
    ReportGradientWithoutState => UNIT_TESTS,
    /// A keeper that asks after the first step was run gets a whole copy.
    KeepersMissFirstStep => UNIT_TESTS,
    /// The time of a step that began before Go counts from Go.
    TimeStepFromGo => UNIT_TESTS,
    /// A fence interrupts the optimizer.
    TornApply => unit_tests_and_seeds("b", 0),
    /// Units that the new plan takes away are freed when the plan is accepted.
    FreeBeforeGo => unit_tests_and_seeds("bcgp", 0),
    /// Each member switches at its own next boundary.
    SwitchAlone => UNIT_TESTS,
    /// Workers leave after their last commit.
    ExitAtEnd => seeds("fg", 0),
    /// A member does not note that it has put in its norm.
    NormNotNoted => UNIT_TESTS,
    /// A step is committed although norms of units are missing.
    CommitWithoutAllUnits => UNIT_TESTS,
    /// A member passes norms on before all of its subtree has put in its own.
    PassOnWithoutSubtree => UNIT_TESTS,
    /// A norm counts although it comes from a worker that is no child.
    NormOfStranger => UNIT_TESTS,
    /// The decision of a worker that is not the parent counts.
    DecisionOfStranger => UNIT_TESTS,
    /// A decision counts for whatever step it is.
    DecisionOfAnyStep => UNIT_TESTS,
    /// The norm of any step is kept.
    NormOfAnyStep => UNIT_TESTS,
    /// A member continues after a commit although a fence waits.
    RunOnAfterFence => UNIT_TESTS,
    /// A member forgets the decision of its last commit.
    ForgetOwnDecision => unit_tests_and_seeds("c", 0),
    /// A fence that is repeated is not answered.
    AnswerFenceOnce => unit_tests_and_seeds("f", 0),
    /// A fence of the present generation is not obeyed.
    IgnoreFenceOfPresent => UNIT_TESTS,
    /// A member forgets that it was fenced.
    ForgetFence => UNIT_TESTS,
    /// A fence is answered while state is being taken over.
    FenceDuringTakeOver => UNIT_TESTS,
    /// A plan with the number of the fence is accepted.
    AcceptFencedPlan => UNIT_TESTS,
    /// A planned change is replaced by an older one.
    OlderChangeReplacesNewer => UNIT_TESTS,
    /// A worker that still trains or serves joins the planned change of another generation.
    JoinWhileBusy => UNIT_TESTS,
    /// A decision is applied to a unit that is not at the state it starts from.
    ApplyFromAnyParent => UNIT_TESTS,
    /// A decision is applied to a gradient of another generation.
    ApplyGradientOfAnotherGeneration => UNIT_TESTS,
    /// A Go from before the fence makes a spare give up its state.
    OldGoFreesState => UNIT_TESTS,
    /// A member obeys the Go of another generation.
    GoInAnyGeneration => UNIT_TESTS,
    /// Gradients outlive the state that was given up.
    KeepGradientsAfterFree => UNIT_TESTS,
    /// The last step that was run is remembered after the state was given up.
    KeepRanAfterFree => UNIT_TESTS,
    /// A member that starts does not note the step that it is about to run.
    ForgetRanAtStart => UNIT_TESTS,
    /// State is sent to peers while training runs.
    ServeWhileRunning => UNIT_TESTS,
    /// State that is not the base is sent to peers.
    ServeAnyState => UNIT_TESTS,
    /// State that is not the base is taken over.
    AdoptAnyState => UNIT_TESTS,
    /// State is taken over while a fence waits.
    AdoptBeforeFence => UNIT_TESTS,
    /// A member is ready before it is connected to its peers.
    ReadyUnconnected => unit_tests_and_seeds("f", 800),
    /// State that is being overwritten still counts as held.
    KeepReplacedState => UNIT_TESTS,
    /// The decision that led to a state does not travel with it.
    DecisionDoesNotTravel => UNIT_TESTS,
    /// Orders of an older coordinator are obeyed.
    ObeyLowerTerm => UNIT_TESTS,
    /// A member does not report that nothing moves.
    MemberReportsNoHang => UNIT_TESTS,
    /// A connection that closes is not reported.
    IgnoreClosedPeer => UNIT_TESTS,
    /// The switch takes place although not all members are armed.
    SwitchIfOneIsArmed => UNIT_TESTS,
    /// A member switches to its planned change whichever was agreed on.
    SwitchToAnyChange => UNIT_TESTS,
    /// A fetch that failed in another generation counts in the present one.
    FetchFailedInAnyGeneration => UNIT_TESTS,
    /// A unit that was fetched for another generation is taken over.
    TakeUnitOfAnyGeneration => UNIT_TESTS,
    /// A plan that came while the engine was busy is forgotten.
    ForgetWaitingPlan => UNIT_TESTS,
    /// A joiner of a switch takes the state of a shard that an earlier plan asked for as its base.
    LearnBaseFromStore => UNIT_TESTS,
    /// A unit is sent to a peer again while it is on its way there.
    ServeTwice => UNIT_TESTS,
    /// All units that were asked for are sent at once.
    ServeAllAtOnce => UNIT_TESTS,
    /// A member waits for ever for an engine that does not stop.
    WaitForStuckEngine => UNIT_TESTS,
    /// A member waits for ever for a coordinator.
    StayWithoutCoordinator => UNIT_TESTS,
    /// A checkpoint is made although some member's store is busy.
    SaveIntoBusyStore => UNIT_TESTS,
    /// A member does not report whom it cannot reach for a planned change.
    HideDeadLinkOfChange => UNIT_TESTS,
    /// A connection of a planned change that is lost after all were connected blocks the change until a fence ends it.
    ForgetLostLinkOfChange => UNIT_TESTS,
    /// A step's time is counted from the arrival of an unrelated copy.
    StepTimeSinceLastProgress => UNIT_TESTS,
    /// A spare copy that was lost is lost again by each gradient that its holder still sends.
    LoseLostCopyAgain => UNIT_TESTS,
    /// A worker reports that it has caught up although the spare copy of a unit that it gains is lost.
    CaughtUpWithoutKeptCopy => UNIT_TESTS,
    /// A member reports its status with every step and with every connection.
    TellEveryStep => UNIT_TESTS,
    /// A member's digest is of another moment than the state that it names.
    DigestAfterSwitch => UNIT_TESTS,
    /// A member suspects a peer, or itself, while its engine makes or takes over state.
    SuspectWhileTakingOver => UNIT_TESTS,
    /// A source whose states arrive damaged is asked for ever.
    AskDamagedForEver => UNIT_TESTS,
    /// A newcomer applies gradients in whatever order they come.
    ApplyForwardedOutOfOrder => unit_tests_and_seeds("b", 0),
    /// A gradient that comes late is applied to a unit that was fetched at the base meanwhile.
    FollowOnFromBase => unit_tests_and_seeds("b", 900),
    /// A newcomer takes a gradient of another generation.
    TakeGradientOfAnyGeneration => UNIT_TESTS,
    /// Gradients are forwarded after the optimizer has scaled and clipped them.
    ForwardAfterApply => unit_tests_and_seeds("b", 0),
    /// More gradients are copied however many already wait to be sent to a follower.
    ForwardWithoutBound => UNIT_TESTS,
    /// A newcomer is ready with units that it has followed, whatever state they have reached.
    ReadyBeforeBase => unit_tests_and_seeds("b", 0),
    /// A keeper reports that it is prepared before it has the gradients for its spare copies.
    CommitBeforeKeeperCanFinish => unit_tests_and_seeds("n", 2_800),
    /// A step waits without end for a gradient that is to go to a spare copy.
    WaitForGradientForEver => UNIT_TESTS,
    /// A spare copy takes gradients in whatever order they come.
    KeepAcrossGap => UNIT_TESTS,
    /// An inventory does not name the gradients that wait for spare copies.
    HideSpareGradients => UNIT_TESTS,
    /// A keeper takes a gradient of another generation.
    TakeSpareGradientOfAnyGeneration => UNIT_TESTS,
    /// A keeper reports that its copies are in step although one of them is not.
    InStepWithSomeCopies => UNIT_TESTS,
    /// Damaged frames look like a connection that ended.
    HideDamagedFrames => UNIT_TESTS,
    } };
}
pub(super) use with_mutants_of_members;
