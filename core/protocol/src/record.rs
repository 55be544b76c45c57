//! The one persisted document, which a coordinator leaves to its successors.

use crate::comparison_record::ComparisonRecord;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use varuna_plan::{Generation, Plan, StateId, Step};

/// The one persisted document, written only by compare-and-swap on `version`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", try_from = "WrittenRecord")]
pub struct Record {
    /// Grows by one with every write.
    pub version: u64,
    /// Grows by one with every coordinator that took over.
    pub term: u64,
    /// Greatest generation ever persisted, abandoned ones included.
    pub highest: Generation,
    /// The plan in force, or the one being launched.
    pub plan: Option<Arc<Plan>>,
    /// The planned change under way.
    pub next: Option<Arc<Plan>>,
    /// The job has ended.
    pub done: bool,
    /// The results of comparisons between holders. Omitted if there were none, as in records of older versions.
    #[serde(skip_serializing_if = "ComparisonRecord::is_empty")]
    pub trust: ComparisonRecord,
    /// The run's last step, if more steps were ordered than its job file says; otherwise 0, which is omitted, as in records of older
    /// versions. It never decreases.
    #[serde(skip_serializing_if = "is_first_step")]
    pub last_step: Step,
    /// How long the recovery under way has waited for holders that do not answer, summed over all coordinators, in milliseconds. Omitted if
    /// it is 0, as in records of older versions.
    #[serde(skip_serializing_if = "is_zero")]
    pub waited_ms: u64,
    /// How often the state of the last step was put again because its checkpoint was found damaged, summed over all coordinators. Omitted
    /// if it is 0, as in records of older versions.
    #[serde(skip_serializing_if = "is_zero")]
    pub puts_anew: u32,
    /// The run was stopped in order: all workers that could have trained in a generation up to this one have promised not to. This is valid
    /// only while it equals `highest`, so each new plan ends it. Omitted if it is 0, as in records of older versions.
    #[serde(skip_serializing_if = "is_zero")]
    pub stopped: Generation,
}

impl Record {
    /// Whether no worker trains, or will ever train, in any generation that was persisted: there is nobody to wait for.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        let last = self.stopped == self.highest || bug!(StoppedForEver);
        last && self.stopped > Generation(0) && !bug!(WaitForStopped)
    }

    /// Whether members of its plans may still train, or come back.
    #[must_use]
    pub fn may_train(&self) -> bool {
        !self.done && self.plan.is_some() && !self.is_stopped()
    }
}

fn is_zero<T: Default + PartialEq>(number: &T) -> bool {
    *number == T::default()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_first_step(step: &Step) -> bool {
    step.0 == 0
}

/// A record as it is written, before its numbers are checked.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WrittenRecord {
    version: u64,
    term: u64,
    highest: Generation,
    plan: Option<Arc<Plan>>,
    next: Option<Arc<Plan>>,
    done: bool,
    #[serde(default)]
    trust: ComparisonRecord,
    #[serde(default)]
    last_step: Step,
    #[serde(default)]
    waited_ms: u64,
    #[serde(default)]
    puts_anew: u32,
    #[serde(default)]
    stopped: Generation,
}

/// An error: the record has a value that no coordinator writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{field} is {value}, allowed is {least} to {most}")]
pub struct ImpossibleRecord {
    /// The field.
    pub field: &'static str,
    /// Value of the field.
    pub value: u64,
    /// The least that is allowed.
    pub least: u64,
    /// The most that is allowed.
    pub most: u64,
}

impl TryFrom<WrittenRecord> for Record {
    type Error = ImpossibleRecord;
    fn try_from(written: WrittenRecord) -> Result<Record, ImpossibleRecord> {
        let WrittenRecord {
            version,
            term,
            highest,
            plan,
            next,
            done,
            trust,
            last_step,
            waited_ms,
            puts_anew,
            stopped,
        } = written;
        let (most, most_persisted) = (StateId::NUMBER_MAX, highest.0);
        let number = |plan: &Option<Arc<Plan>>| plan.as_ref().map_or(1, |p| p.generation.0);
        // Each of these numbers must have a successor, and no plan may have a number that could be given again.
        for (field, value, least, most) in [
            ("version", version, 0, most),
            ("term", term, 0, most),
            ("highest", highest.0, 0, most),
            ("lastStep", last_step.0, 0, most),
            ("stopped", stopped.0, 0, most_persisted),
            ("plan.generation", number(&plan), 1, most_persisted.max(1)),
            ("next.generation", number(&next), 1, most_persisted.max(1)),
        ] {
            if !(least..=most).contains(&value) {
                return Err(ImpossibleRecord {
                    field,
                    value,
                    least,
                    most,
                });
            }
        }
        Ok(Record {
            version,
            term,
            highest,
            plan,
            next,
            done,
            trust,
            last_step,
            waited_ms,
            puts_anew,
            stopped,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison_record::{MinorityHolder, Rollback};
    use varuna_plan::WorkerId;
    use varuna_plan::state::Chain;

    #[test]
    fn a_record_whose_numbers_have_no_next_one_is_refused() {
        let read = |version: u64, term: u64, highest: u64| {
            serde_json::from_str::<Record>(&format!(
                r#"{{"version":{version},"term":{term},"highest":{highest},"plan":null,"next":null,"done":false}}"#
            ))
        };
        let most = StateId::NUMBER_MAX;
        assert!(read(most, most, most).is_ok());
        for (record, field) in [
            (read(u64::MAX, 1, 1), "version is 18446744073709551615"),
            (read(1, most + 1, 1), "term is 281474976710657"),
            (read(1, 1, u64::MAX), "highest is 18446744073709551615"),
        ] {
            let error = record.unwrap_err().to_string();
            let expected = format!("{field}, allowed is 0 to 281474976710656");
            assert!(error.contains(&expected), "{error}");
        }
        assert_eq!(
            serde_json::to_string(&read(3, 2, 1).unwrap()).unwrap(),
            serde_json::to_string(&Record {
                version: 3,
                term: 2,
                highest: Generation(1),
                ..Record::default()
            })
            .unwrap()
        );
    }

    fn state(run_gen: u64, step: u64) -> StateId {
        StateId {
            run_gen: Generation(run_gen),
            step: Step(step),
            chain: Chain(9),
        }
    }

    fn rolled_back(to: StateId, generation: u64) -> ComparisonRecord {
        let generation = Generation(generation);
        ComparisonRecord {
            compared: vec![],
            rollbacks: vec![Rollback { to, generation }],
            odd: vec![],
        }
    }

    #[test]
    fn a_record_without_comparisons_is_written_and_read_as_before() {
        let text = r#"{"version":1,"term":1,"highest":1,"plan":null,"next":null,"done":false}"#;
        let record: Record = serde_json::from_str(text).unwrap();
        assert!(record.trust.is_empty());
        assert_eq!(serde_json::to_string(&record).unwrap(), text);
        let mut trust = rolled_back(state(2, 40), 4);
        trust.add_minority_holder(MinorityHolder {
            worker: WorkerId(7),
            name: "w7".into(),
        });
        let with = Record {
            trust,
            last_step: Step(120),
            waited_ms: 40,
            puts_anew: 2,
            stopped: Generation(1),
            ..record
        };
        let written = serde_json::to_string(&with).unwrap();
        let read: Record = serde_json::from_str(&written).unwrap();
        assert_eq!(read, with);
        // The record as the previous release wrote it.
        let earlier = text.replace("false}", r#"false,"trust":{"compared":[],"rollbacks":[]}}"#);
        let read: Record = serde_json::from_str(&earlier).unwrap();
        assert_eq!(
            (read.trust, read.last_step, read.waited_ms),
            (ComparisonRecord::default(), Step(0), 0)
        );
    }
}
