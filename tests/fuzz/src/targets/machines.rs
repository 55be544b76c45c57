//! The state machines of the protocol with arbitrary messages. Whatever workers, peers or the coordinator send, the process must not end,
//! and the messages of the state machines must be valid.

mod coordinator;
mod member;

pub(super) use coordinator::{CoordinatorRun, coordinator_kind, run_coordinator};
pub(super) use member::{MemberRun, member_kind, run_member};

use varuna_plan::Step;

/// Maximum number of items that are used.
const ITEMS_MAX: usize = 400;
/// Maximum number of answers to the effects of one input: no state machine may request something endlessly.
const ANSWERS_MAX: usize = 1000;
/// The run's last step.
const LAST: Step = Step(20);

/// The first word of a value's debug text.
fn word(value: &impl std::fmt::Debug) -> String {
    let shown = format!("{value:?}");
    shown.split([' ', '(', '{']).next().unwrap_or_default().to_owned()
}
