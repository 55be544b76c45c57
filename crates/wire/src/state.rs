//! Identities of states and decisions, which both directions carry.

use crate::error::{WireError, need};
use crate::v1;
use varuna_plan::state::Chain;
use varuna_plan::{Decision, Generation, LossScale, OptimizerProgress, ScaleFactor, StateId, Step};

pub(crate) fn id_to_wire(id: StateId) -> v1::StateId {
    v1::StateId {
        run_gen: id.run_gen.0,
        step: id.step.0,
        chain: id.chain.0,
    }
}

pub(crate) fn read_id(id: v1::StateId) -> Result<StateId, WireError> {
    let id = StateId {
        run_gen: Generation(id.run_gen),
        step: Step(id.step),
        chain: Chain(id.chain),
    };
    if id.is_possible() {
        Ok(id)
    } else {
        let found = format!("step {} of generation {}", id.step, id.run_gen);
        Err(WireError::value("StateId", "step", found, "numbers up to 2^48"))
    }
}

/// A step that was run in a generation.
pub(crate) fn read_run(run_gen: u64, step: u64) -> Result<(Generation, Step), WireError> {
    let chain = 0;
    let id = read_id(v1::StateId { run_gen, step, chain })?;
    Ok((id.run_gen, id.step))
}

pub(crate) fn progress_to_wire(progress: OptimizerProgress) -> v1::OptimizerProgress {
    v1::OptimizerProgress {
        adam_steps: progress.adam_steps,
        loss_scale: progress.loss_scale.factor.value(),
        clean_steps: progress.loss_scale.clean_steps,
        failed_in_a_row: progress.failed_in_a_row,
    }
}

pub(crate) fn read_progress(progress: v1::OptimizerProgress) -> Result<OptimizerProgress, WireError> {
    let factor = ScaleFactor::try_from(progress.loss_scale).map_err(|_| {
        let found = progress.loss_scale;
        WireError::value(
            "OptimizerProgress",
            "loss_scale",
            found,
            "a power of two from 1 to 2^32",
        )
    })?;
    Ok(OptimizerProgress {
        adam_steps: progress.adam_steps,
        loss_scale: LossScale {
            factor,
            clean_steps: progress.clean_steps,
        },
        failed_in_a_row: progress.failed_in_a_row,
    })
}

pub(crate) fn decision_to_wire(decision: &Decision) -> v1::Decision {
    v1::Decision {
        parent: Some(id_to_wire(decision.parent)),
        id: Some(id_to_wire(decision.id)),
        norm2: Some(decision.norm2),
        overflow: decision.overflow,
        loss: Some(decision.loss),
        eval_loss: decision.eval_loss,
        switch: decision.switch.map(|g| g.0),
        before: Some(progress_to_wire(decision.before)),
    }
}

pub(crate) fn read_decision(decision: v1::Decision) -> Result<Decision, WireError> {
    const M: &str = "Decision";
    let (parent, id) = (
        read_id(need(decision.parent, M, "parent")?)?,
        read_id(need(decision.id, M, "id")?)?,
    );
    // A decision covers exactly one step; anything else would break the order of states.
    if parent.step.0.checked_add(1) != Some(id.step.0) {
        let found = format!("a state of step {} after step {}", id.step, parent.step);
        return Err(WireError::value(M, "id", found, "the step after parent"));
    }
    Ok(Decision {
        parent,
        id,
        norm2: need(decision.norm2, M, "norm2")?,
        overflow: decision.overflow,
        before: read_progress(need(decision.before, M, "before")?)?,
        loss: need(decision.loss, M, "loss")?,
        eval_loss: decision.eval_loss,
        switch: decision.switch.map(Generation),
    })
}
