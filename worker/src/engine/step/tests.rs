use super::super::Engine;
use super::super::tests::{alone, engine};
use super::exchange::Summed;
use super::*;
use crate::transport::LinkError;
use std::time::Duration;
use varuna_plan::WorkerId;
use varuna_torch::FlatBuffer;

/// A network that cannot be stopped.
struct Refusing;

impl Exchange for Refusing {
    fn send(&mut self, _: WorkerId, _: Tag, _: &Tensor) -> Result<(), EngineError> {
        Err(LinkError::Aborted.into())
    }

    fn receive(&mut self, _: WorkerId, _: Tag, _: &[usize]) -> Result<Tensor, EngineError> {
        Err(LinkError::Aborted.into())
    }

    fn begin(&mut self, _: Unit, _: &FlatBuffer) -> Result<(), EngineError> {
        Err(LinkError::Aborted.into())
    }

    fn next(&mut self) -> Result<Summed, EngineError> {
        Err(LinkError::Aborted.into())
    }

    fn poll_pending(&mut self) -> Result<(), EngineError> {
        Err(LinkError::Aborted.into())
    }

    fn stop(&mut self) -> Result<Vec<Summed>, EngineError> {
        Err(LinkError::Aborted.into())
    }
}

#[test]
fn ended_step_frees_activations_before_it_takes_norms() {
    let mut engine = engine(varuna_torch::Device::Cpu);
    let plan = alone(&engine);
    let Engine {
        config,
        units,
        gathered,
        reader,
        tables,
        ..
    } = &mut engine;
    let units = Computing::of(&plan, units, gathered);
    let activation = Tensor::ones([4], (tch::Kind::Float, tch::Device::Cpu));
    let mut run = Run {
        config,
        tables,
        plan: &plan,
        step: Step(0),
        before: OptimizerProgress::START,
        deadline: Instant::now() + Duration::from_secs(60),
        exchange: Box::new(Refusing),
        tokens: Tokens::new(reader),
        places: vec![Place::of(&plan, &plan.shape.pipelines[0], 0)],
        pipeline: &plan.shape.pipelines[0],
        stash: BTreeMap::from([((0, 0), Stash::Input(activation))]),
        loss: LossSum::new(config.backend.device, 1, &config.model).unwrap(),
        eval_loss: None,
        timings: StepTimings::default(),
        marked: Vec::new(),
        is_measured: false,
        task_marks: None,
        ahead: RunAhead::default(),
    };
    assert!(run.collect_finished(units, &mut Vec::new()).is_err());
    assert!(run.stash.is_empty(), "there is memory before anything needs it");
}
