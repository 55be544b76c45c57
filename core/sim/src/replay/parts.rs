//! The measured parts of a reconfiguration, as a document (`bench/data/recovery.json`).

use serde::{Deserialize, Serialize};
use varuna_plan::Costs;

/// Costs of a reconfiguration besides those that the protocol and the planner cause themselves. Medians.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RecoveryParts {
    /// The format version: 1.
    pub version: u64,
    /// How and where it was measured, for people.
    pub source: String,
    /// From a worker's death to the fence, milliseconds: until its peers and the coordinator see its connections close.
    pub detect_ms: f64,
    /// From the fence to the persisted plan, milliseconds: engines stop and answer, the planner, the write.
    pub plan_ms: f64,
    /// From the plan to connected peers, milliseconds.
    pub connect_ms: f64,
    /// Time to move `transfer_bytes` of state, milliseconds, on a link that is not the bottleneck.
    pub transfer_ms: f64,
    /// The state that took `transfer_ms`.
    pub transfer_bytes: f64,
    /// From a worker's death until its platform confirms it, milliseconds. None: it is never confirmed, and a recovery that must give up
    /// committed steps first waits for all answers (`Timing::restore`).
    #[serde(default)]
    pub gone_ms: Option<f64>,
    /// How much longer the first step of a plan takes than the later ones, milliseconds.
    pub first_step_extra_ms: f64,
    /// Bytes of state per parameter that are transferred; none: as many as the planner assumes ([`Costs::parameter`]), which is what
    /// workers send.
    #[serde(default)]
    pub state_bytes_per_parameter: Option<f64>,
}

/// The document cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot read the recovery parts {file}: {why}")]
pub struct PartsError {
    /// File name, as the caller gave it.
    pub file: String,
    /// Which field, its value, what is allowed.
    pub why: String,
}

impl RecoveryParts {
    /// Reads the document.
    ///
    /// # Errors
    /// The text is not such a JSON document, or a field is negative or not finite.
    pub fn read(file: &str, text: &str) -> Result<RecoveryParts, PartsError> {
        let error = |why: String| PartsError {
            file: file.to_owned(),
            why,
        };
        let parts: RecoveryParts = serde_json::from_str(text).map_err(|e| error(e.to_string()))?;
        if parts.version != 1 {
            return Err(error(format!("version is {}, allowed is 1", parts.version)));
        }
        let day = 86_400e3;
        for (field, value, least, most) in [
            ("detectMs", parts.detect_ms, 0.0, day),
            ("planMs", parts.plan_ms, 0.0, day),
            ("connectMs", parts.connect_ms, 0.0, day),
            ("transferMs", parts.transfer_ms, 0.0, day),
            ("transferBytes", parts.transfer_bytes, 1.0, 1e18),
            ("goneMs", parts.gone_ms.unwrap_or(0.0), 0.0, day),
            ("firstStepExtraMs", parts.first_step_extra_ms, 0.0, day),
            (
                "stateBytesPerParameter",
                parts.state_bytes_per_parameter.unwrap_or(0.0),
                0.0,
                1e3,
            ),
        ] {
            if !(least..=most).contains(&value) {
                return Err(error(format!(
                    "{field} is {value}, allowed are {least} to {most}"
                )));
            }
        }
        Ok(parts)
    }

    /// Bytes of state per parameter that are transferred.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a few bytes")]
    pub fn state_bytes(&self, costs: &Costs) -> f64 {
        self.state_bytes_per_parameter
            .unwrap_or(costs.parameter.moved as f64)
    }

    /// Bytes per nanosecond at which state moves over a link with this bandwidth in bytes per second: the slower of the link and the host.
    #[must_use]
    pub fn bytes_per_ns(&self, link_bytes_per_s: f64) -> f64 {
        let host = self.transfer_bytes / (self.transfer_ms.max(1e-9) * 1e6);
        host.min(link_bytes_per_s / 1e9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"version":1,"source":"x","detectMs":70,"planMs":100,"connectMs":4,"transferMs":40,
        "transferBytes":66e6,"firstStepExtraMs":0,"stateBytesPerParameter":16}"#;

    #[test]
    fn state_moves_at_the_pace_of_the_slower_of_link_and_host() {
        let parts = RecoveryParts::read("r.json", TEXT).unwrap();
        assert!((parts.bytes_per_ns(0.9e9) - 0.9).abs() < 1e-12);
        assert!((parts.bytes_per_ns(100e9) - 1.65).abs() < 1e-12);
    }

    #[test]
    fn bad_parts_are_refused_with_file_and_field() {
        for (from, to, expected) in [
            ("\"detectMs\":70", "\"detectMs\":-1", "r.json: detectMs is -1"),
            ("\"planMs\":100", "\"planMs\":1e99", "planMs is 1"),
            ("\"planMs\":100,", "", "missing field `planMs`"),
            ("\"version\":1", "\"version\":2", "version is 2, allowed is 1"),
            ("\"planMs\":100", "\"planMs\":NaN", "r.json: expected"),
            (
                "\"planMs\":100",
                "\"planMs\":1,\"more\":1",
                "unknown field `more`",
            ),
        ] {
            let why = RecoveryParts::read("r.json", &TEXT.replace(from, to)).unwrap_err();
            assert!(why.to_string().contains(expected), "{why} lacks {expected}");
        }
    }
}
