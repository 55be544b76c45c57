//! Names of folders and shards.

use varuna_plan::state::Chain;
use varuna_plan::{Generation, Layout, StateId, Step, Unit};

/// `step-00001200-g3-0123456789abcdef`: sorts by step, and names one state.
#[must_use]
pub fn folder_name(id: StateId) -> String {
    format!("step-{:08}-g{}-{:016x}", id.step.0, id.run_gen.0, id.chain.0)
}

/// The state of a folder name; None if it is not a checkpoint's.
#[must_use]
pub fn parse_folder(name: &str) -> Option<StateId> {
    let mut parts = name.strip_prefix("step-")?.split('-');
    let step = parts.next()?.parse().ok()?;
    let run_gen = parts.next()?.strip_prefix('g')?.parse().ok()?;
    let chain = u64::from_str_radix(parts.next()?, 16).ok()?;
    let id = StateId {
        run_gen: Generation(run_gen),
        step: Step(step),
        chain: Chain(chain),
    };
    // Only one spelling is accepted: two names must never mean one state.
    (parts.next().is_none() && folder_name(id) == name && id.is_possible()).then_some(id)
}

/// `segment-007`, or `tied` for the weight that the first and the last segment share; `segment-007-range-02` if units are ranges of these.
#[must_use]
pub fn unit_name(layout: Layout, unit: Unit) -> String {
    let whole = layout.whole_of(unit);
    let name = if layout.tied_unit() == Some(whole) {
        "tied".to_owned()
    } else {
        format!("segment-{:03}", whole.0)
    };
    match layout.ranges {
        1 => name,
        _ => format!("{name}-range-{:02}", layout.range_number(unit)),
    }
}

pub(crate) fn shard_file(layout: Layout, unit: Unit) -> String {
    format!("{}.safetensors", unit_name(layout, unit))
}

pub(crate) const MANIFEST: &str = "manifest.json";
/// The name of the file that says that a reader doubts a unit's shard.
const DOUBTED: (&str, &str) = ("doubted-", ".json");

pub(crate) fn doubt_file(unit: &str) -> String {
    format!("{}{unit}{}", DOUBTED.0, DOUBTED.1)
}

/// The unit whose shard is doubted in a file of this name; None if it is not such a file.
pub(crate) fn doubted_unit(file: &str) -> Option<&str> {
    file.strip_prefix(DOUBTED.0)?.strip_suffix(DOUBTED.1)
}

/// Marks a checkpoint that a reader found damaged, or that its run has given up.
pub(crate) const REFUSED: &str = "refused.json";

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn folder_names_name_one_state_each(
            step in 0..=StateId::NUMBER_MAX,
            run_gen in 0..=StateId::NUMBER_MAX,
            chain: u64,
        ) {
            let id = StateId { run_gen: Generation(run_gen), step: Step(step), chain: Chain(chain) };
            prop_assert_eq!(parse_folder(&folder_name(id)), Some(id));
        }

        #[test]
        fn no_other_name_is_taken_for_a_checkpoint(name in "\\PC{0,40}") {
            if let Some(id) = parse_folder(&name) {
                prop_assert_eq!(folder_name(id), name);
            }
        }
    }

    #[test]
    fn names_with_another_spelling_are_refused() {
        for name in [
            "step-7-g1-00000000000000ab",
            "step-00000007-g01-00000000000000ab",
            "step-00000007-g1-AB",
            "step-00000007-g18446744073709551615-00000000000000ab",
            "step-18446744073709551615-g1-00000000000000ab",
            "",
        ] {
            assert_eq!(parse_folder(name), None, "{name}");
        }
    }
}
