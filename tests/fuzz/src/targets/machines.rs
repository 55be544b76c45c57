//! The state machines of the protocol behind the messages that they are told: whatever workers, peers or the coordinator say,
//! nothing ends the process, and what the machines say can be read.

mod coordinator;
mod member;

pub(super) use coordinator::{CoordinatorRun, coordinator_kind, run_coordinator};
pub(super) use member::{MemberRun, member_kind, run_member};

use varuna_plan::Step;

/// Items that are looked at.
const ITEMS_MAX: usize = 400;
/// Answers to the effects of one input: no machine asks for ever.
const ANSWERS_MAX: usize = 1000;
/// The run's last step.
const LAST: Step = Step(20);

/// The first word of what is shown of a value.
fn word(value: &impl std::fmt::Debug) -> String {
    let shown = format!("{value:?}");
    shown.split([' ', '(', '{']).next().unwrap_or_default().to_owned()
}
