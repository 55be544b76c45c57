//! Tests of the crate's interface, in one program: each program of its own would compile and link the stores again.

#![expect(clippy::unwrap_used, reason = "a test's helpers may panic as the tests do")]

mod folders;
mod formats;
mod origin;
mod reading;

use varuna_checkpoint::Facts;

/// The facts of a job `demo`, of which nothing else is known.
fn facts() -> Facts {
    Facts {
        job: "demo".into(),
        model: serde_json::Value::Null,
        training_hash: String::new(),
        seed: 1,
        global_batch_size: 1,
        data_fingerprint: String::new(),
        moments: varuna_plan::Moments::Adam,
    }
}
