//! The mutants of what is decided here: bugs that can be switched on, each of which some unit test of this crate catches (`varuna-mutants`).

use varuna_mutants::UNIT_TESTS;

varuna_mutants::mutants! {
    /// The first steps' deadline holds for the whole generation.
    FirstStepsNeverEnd => UNIT_TESTS,
    /// The first step of a generation gets no more time after generations that committed nothing.
    IgnoreFruitlessGenerations => UNIT_TESTS,
    /// Short steps make the deadline shorter than the floor.
    DeadlineBelowFloor => UNIT_TESTS,
    /// One endless step makes the next deadline endless.
    DeadlineWithoutEnd => UNIT_TESTS,
    /// A step that begins with an evaluation gets no more time than others.
    EvaluationTakesNoTime => UNIT_TESTS,
    /// The time of a step with an evaluation counts as the time of any step.
    EvaluationsAreObserved => UNIT_TESTS,
    /// Only the last step determines the expected step time.
    LastStepAloneCounts => UNIT_TESTS,
    /// The loss scale is reset when a run is resumed.
    ForgetSavedScale => UNIT_TESTS,
    /// Steps before an overflow count towards the next doubling of the loss scale.
    OverflowKeepsWindow => UNIT_TESTS,
    /// Steps before a doubling of the loss scale count towards the next one.
    DoublingKeepsWindow => UNIT_TESTS,
    /// The loss scale falls below the job's least one.
    ScaleBelowMinimum => UNIT_TESTS,
    /// A step that a smaller loss scale would have saved counts as failed.
    EverySkippedStepFails => UNIT_TESTS,
    /// A skipped step counts as one of the optimizer's.
    CountSkippedSteps => UNIT_TESTS,
    /// Failed steps count on after one that succeeded.
    FailuresAreNeverForgiven => UNIT_TESTS,
    /// The checker lets a pipeline leave segments out, or have them twice.
    AllowGap => UNIT_TESTS,
    /// The checker lets a stage be empty.
    AllowEmptyStage => UNIT_TESTS,
    /// The checker lets a worker have two places.
    AllowWorkerTwice => UNIT_TESTS,
    /// The checker lets a worker have a stage that was not offered.
    AllowStranger => UNIT_TESTS,
    /// The checker lets a pipeline end before the last segment.
    AllowShortPipeline => UNIT_TESTS,
    /// The checker lets samples be taken twice, or left out between pipelines.
    AllowSampleTwice => UNIT_TESTS,
    /// The checker lets the last samples of a batch be left out.
    AllowShortBatch => UNIT_TESTS,
    /// The checker lets members and sources be without an address.
    AllowUnreachable => UNIT_TESTS,
    /// The checker lets a unit be had from nowhere.
    AllowUnsourced => UNIT_TESTS,
    /// Keepers of spare copies do not count where losses of state are expected.
    KeepersHoldNothing => UNIT_TESTS,
    /// The checker lets a plan send parameters first that only workers without a stage could send.
    AllowParametersOfStranger => UNIT_TESTS,
    /// Parameters come first however long they take.
    ParametersFirstAtAnyCost => UNIT_TESTS,
    /// A worker that holds former units, or computes with parameters beside the state that comes, counts as if it had room for all of it.
    ForgetFormerUnits => UNIT_TESTS,
    /// The checker lets a worker keep the spare copy of what it holds alone.
    AllowKeeperOfItsOwn => UNIT_TESTS,
    /// The checker lets an interleaved pipeline have part of a group of micro-batches.
    AllowPartOfGroup => UNIT_TESTS,
    /// A step counts as one with an overflow only where all units have one.
    OneOverflowIsNotEnough => UNIT_TESTS,
    /// The norm of a gradient that is not finite is kept, whichever it is.
    OverflowKeepsNorm => UNIT_TESTS,
    /// States with different pasts have the same name.
    ChainForgetsPast => UNIT_TESTS,
    /// A loss that is not finite is no overflow.
    IgnoreLossOverflow => UNIT_TESTS,
    /// A step without targets has a loss of 0.
    ForgetNoLoss => UNIT_TESTS,
    /// Receives are posted in the order in which messages are needed.
    PostInNeededOrder => UNIT_TESTS,
    /// Two workers have one communicator for both directions.
    OneEdgeForBothWays => UNIT_TESTS,
    /// A holder alone has a communicator with itself.
    GroupOfOne => UNIT_TESTS,
    /// The tied weight is reduced before what backwards finish first.
    TiedWeightFirst => UNIT_TESTS,
    /// Where optimizer state is sharded, each range has one holder: it is lost with a worker.
    OneHolderOfEachRange => UNIT_TESTS,
    /// Where optimizer state is sharded, both ends of a pipeline hold the same ranges of the weight that they share, and are lost together.
    EndsOfPipelineAreNeighbours => UNIT_TESTS,
    /// Where optimizer state is sharded, pipelines of one node follow each other: its loss takes ranges with it.
    NeighboursShareNode => UNIT_TESTS,
    /// If optimizer state is sharded, no worker sends its parameters to the workers that compute with them.
    KeepParametersToOneself => UNIT_TESTS,
    /// Where optimizer state is sharded, workers that send each other parameters are not connected.
    RingNeighboursOnly => UNIT_TESTS,
    /// Memory of sharded state is counted as if one pipeline had all of it.
    CountStateUnshared => UNIT_TESTS,
    /// Memory of sharded state is counted as for more pipelines than a plan has.
    CountSharesOfOthers => UNIT_TESTS,
    /// An interleaved plan has fewer workers than the job's minimum, or the parent more than its maximum.
    RefineToAnySize => UNIT_TESTS,
    /// A worker keeps the spare copy of what it holds alone.
    KeepOwnCopy => UNIT_TESTS,
    /// One holder's units go to several keepers though one has room for all.
    SpreadOneHolder => UNIT_TESTS,
    /// A worker keeps copies that it has no room for.
    KeepWithoutRoom => UNIT_TESTS,
    /// Copies that are kept in the host's memory beside a GPU must fit into what stages leave of the GPU's.
    KeepApartInTrainingsMemory => UNIT_TESTS,
    /// The spare copies that a worker keeps leave it as much room to follow as if there were none.
    ForgetKeptCopies => UNIT_TESTS,
    /// A worker keeps the copies of any number of others.
    KeepOfEveryone => UNIT_TESTS,
    /// A keeper that keeps copies already is as good as one that keeps none.
    IgnoreKept => UNIT_TESTS,
    /// A worker that does not know how keeps copies.
    KeeperThatCannot => UNIT_TESTS,
    /// A copy is kept on its holder's node, or in its zone, where another is to be had.
    KeepNearby => UNIT_TESTS,
    /// Gradients for spare copies occupy a link for any share of a step.
    FillLinksWithGradients => UNIT_TESTS,
    /// The gradients that a keeper receives from one holder leave as much of its link for those of another.
    ForgetReceivedGradients => UNIT_TESTS,
    /// A worker's sends and receives share the bandwidth of a link.
    BothWaysShareLink => UNIT_TESTS,
    /// The commit waits for all gradients that go to keepers, one after the other.
    CommitWaitsForAll => UNIT_TESTS,
    /// The commit waits for one gradient of all that a worker sends to its keeper.
    CommitWaitsForOne => UNIT_TESTS,
    /// Without a store a loss costs nothing.
    NothingToRedoWithoutStore => UNIT_TESTS,
    /// All remaining segments go to one stage.
    PileUpRemainder => UNIT_TESTS,
    /// A plan is chosen under which some worker's memory does not hold its old and its new state together.
    IgnoreCrowding => UNIT_TESTS,
    /// Of two equally fast plans, one that holds each segment only once is not worse.
    IgnoreRedundancy => UNIT_TESTS,
    /// Of two equally fast plans, one that moves more state is not worse.
    MoveFreely => UNIT_TESTS,
    /// A plan is chosen for which state comes too late that only leaving workers hold, though another plan has it in time.
    IgnoreDeparture => UNIT_TESTS,
    /// State that workers that stay hold too counts as lost with those that leave.
    CountSafeState => UNIT_TESTS,
    /// A leaving worker sends what it alone holds once, however many pipelines need it.
    SendOneCopy => UNIT_TESTS,
    /// One worker more makes a step longer.
    MoreMayBeSlower => UNIT_TESTS,
    /// A slow worker trains, and sets everybody's pace.
    SlowWorkersTrain => UNIT_TESTS,
    /// Neighbours in a pipeline are in different zones.
    PlaceAcrossZones => UNIT_TESTS,
    /// All copies of a stage are on one node, or in one zone, where another has a worker that is as good.
    CopiesShareNode => UNIT_TESTS,
    /// A worker's position in the parent plan does not influence its next one.
    ForgetPlaces => UNIT_TESTS,
    /// Workers on several nodes count as if they shared one.
    FarNodesLinkAsNear => UNIT_TESTS,
    /// A prediction that is near enough is corrected.
    CorrectNoise => UNIT_TESTS,
    /// The planner does not count the scores that a worker's attention makes.
    ForgetScores => UNIT_TESTS,
    /// All workers that are missing a unit ask the same source first.
    AllAskOneSource => UNIT_TESTS,
    /// The tree of a thousand workers is as narrow as that of a few.
    DeepTree => UNIT_TESTS,
}

#[cfg(all(test, feature = "mutants"))]
mod tests;
