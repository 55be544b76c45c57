//! User-defined models that were exported by `varuna_export` (tests/data/exported, by python/varuna_export/tests/make_fixture.py): under
//! any plan they are trained as PyTorch trains the unsplit model.

#![expect(clippy::unwrap_used, reason = "a test")]

mod common;

use common::{BATCH, Case, Trained, later, run_engines};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use varuna_api::{Evaluation, LearningRate, Optimizer, Packing, Schedule, Sharding, Training, UpdateRule};
use varuna_model::{Exported, Model, Unit};
use varuna_plan::{
    LossScaling, Moments, Pipeline, Plan, Prediction, Recompute, SampleRange, ScheduleKind, ScheduleSpec,
    SegmentRange, Shape, Stage, Step, WorkerId,
};
use varuna_torch::Device;
use varuna_worker::backend::Backend;
use varuna_worker::engine::{Engine, EngineConfig, EngineError, SampleError, Samples};
use varuna_worker::model::{ExportedError, Module};
use varuna_worker::numerics::Numerics;
use varuna_worker::transport::Link;
use varuna_worker::transport::local::LocalMesh;

const STEPS: u64 = 6;
/// Tolerance of losses, compared with PyTorch and with other plans.
const TOLERANCE: f64 = 1e-5;

const ADAMW: UpdateRule = UpdateRule::Adamw {
    beta1: 0.9,
    beta2: 0.95,
    epsilon: 1e-8,
};
const SGD: UpdateRule = UpdateRule::Sgd { momentum: 0.9 };

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data/exported")
        .join(name)
}

/// The model as its `model.yaml` describes it in a job.
fn described(folder: &Path) -> Exported {
    let section = std::fs::read_to_string(folder.join("model.yaml")).unwrap();
    let section = section.replace('\n', "\n  ");
    let job = format!(
        "apiVersion: varuna.dev/v1alpha1\nkind: VarunaJob\nmetadata: {{name: own}}\nspec:\n  {section}\n  data: {{path: d}}\n  training: {{globalBatchSize: 8, \
         steps: 6, optimizer: {{learningRate: 0.01}}}}\n"
    );
    let job = varuna_api::parse_job(&job).unwrap();
    let Model::Exported(exported) = job.model else {
        panic!("an exported model")
    };
    Exported {
        path: folder.to_str().unwrap().to_owned(),
        ..exported
    }
}

fn module(name: &str) -> Module {
    Module::open(&described(&folder(name)).into(), Device::Cpu).unwrap()
}

/// The results of PyTorch.
struct Reference {
    /// The rows of each step's samples.
    rows: Vec<Vec<Vec<i64>>>,
    document: Value,
}

impl Reference {
    fn of(name: &str) -> Reference {
        let text = std::fs::read_to_string(folder(name).join("reference.json")).unwrap();
        let document: Value = serde_json::from_str(&text).unwrap();
        Reference {
            rows: serde_json::from_value(document["rows"].clone()).unwrap(),
            document,
        }
    }

    fn losses(&self, optimizer: &str) -> Vec<f64> {
        serde_json::from_value(self.document[optimizer]["losses"].clone()).unwrap()
    }
}

/// The rows of a reference.
struct Rows(Vec<Vec<Vec<i64>>>);

impl Samples for Rows {
    fn train(&self, index: u64, tokens: &mut [i64]) -> Result<(), SampleError> {
        let [step, sample] = [index / BATCH, index % BATCH].map(|n| usize::try_from(n).unwrap());
        // Samples after the last step, which are read ahead.
        let step = step % self.0.len();
        tokens.copy_from_slice(&self.0[step][sample]);
        Ok(())
    }
    fn held_out(&self, index: u64, tokens: &mut [i64]) -> Result<(), SampleError> {
        self.train(index, tokens)
    }
    fn held_out_len(&self) -> u64 {
        BATCH
    }
}

fn training(rule: UpdateRule, evaluates: bool) -> Training {
    let (rate, weight_decay) = match rule {
        UpdateRule::Sgd { .. } => (0.05, 0.0),
        _ => (0.01, 0.1),
    };
    Training {
        optimizer: Optimizer {
            rule,
            weight_decay,
            clip_norm: None,
            ..Case::default().training().optimizer
        },
        learning_rate: LearningRate {
            peak: rate,
            min: 0.0,
            warmup_steps: 0,
            decay_steps: 100,
            schedule: Schedule::Constant,
        },
        evaluation: evaluates.then_some(Evaluation {
            interval_steps: 2,
            samples: 5,
        }),
        loss_scaling: LossScaling::OFF,
        packing: Packing::default(),
        ..Case::default().training()
    }
}

/// A plan. For each pipeline: the numbers of segments of its stages, and its samples.
fn plan(module: &Module, pipelines: &[(&[u32], u64)], micro_batch_size: u32, recompute: Recompute) -> Plan {
    let (mut worker, mut first) = (0, 0);
    let pipelines = pipelines.iter().map(|(stages, samples)| {
        let mut start = 0;
        let stages = stages.iter().map(|count| {
            worker += 1;
            start += count;
            Stage {
                worker: WorkerId(worker),
                segments: SegmentRange {
                    start: start - count,
                    end: start,
                },
                recompute: None,
            }
        });
        let stages = stages.collect();
        first += samples;
        Pipeline {
            stages,
            samples: SampleRange {
                start: first - samples,
                end: first,
            },
        }
    });
    let shape = Shape {
        pipelines: pipelines.collect(),
        spares: vec![],
        micro_batch_size,
        schedule: ScheduleSpec {
            kind: ScheduleKind::OneForwardOneBackward { warmup_factor: 1.0 },
            recompute,
        },
        predicted: Prediction::default(),
    };
    let mut plan = Plan::first(module.layout(), shape);
    plan.addresses = plan.shape.members().iter().map(|w| (*w, String::new())).collect();
    varuna_plan::check::check_plan(&plan, BATCH).unwrap();
    plan
}

fn engine(module: &Module, rows: &[Vec<Vec<i64>>], training: &Training, me: WorkerId) -> Engine {
    Engine::new(EngineConfig {
        me,
        model: module.clone(),
        training: training.clone(),
        backend: Backend::of_processor(Numerics::FP32),
        samples: Arc::new(Rows(rows.to_vec())),
    })
}

/// Trains. Each worker opens the folder separately, as processes do.
fn train(name: &str, plan: &Plan, training: &Training) -> Trained {
    let rows = Reference::of(name).rows;
    let mesh = LocalMesh::new(&plan.shape.members());
    let trained = run_engines(
        plan,
        STEPS,
        |me| engine(&module(name), &rows, training, me),
        |me| mesh.link(me),
    );
    Trained {
        moments: training.optimizer.rule.moments(),
        ..trained
    }
}

fn assert_curve(expected: &[f64], found: &[f64], what: &str) {
    assert_eq!(expected.len(), found.len(), "{what}");
    for (step, (a, b)) in expected.iter().zip(found).enumerate() {
        assert!(
            (a - b).abs() <= TOLERANCE * a.abs(),
            "{what}, step {step}: {a} and {b}"
        );
    }
}

#[test]
fn sharded_pipelines_match_pytorch() {
    for name in ["mlp", "decoder", "odd"] {
        let (reference, module) = (Reference::of(name), module(name));
        let mut sharded = training(ADAMW, false);
        sharded.optimizer.sharding = Sharding::Zero1;
        let pipelines = [(&[4u32][..], 3), (&[2, 2], 3), (&[1, 3], 2)];
        let mut plan = plan(&module, &pipelines, 2, Recompute::None);
        plan = Plan {
            addresses: plan.addresses.clone(),
            ..Plan::first(Sharding::Zero1.layout(module.layout()), plan.shape)
        };
        let trained = train(name, &plan, &sharded);
        assert_curve(&reference.losses("adamw"), &trained.losses, name);
    }
}

#[test]
fn every_plan_trains_as_pytorch_trains_the_unsplit_model() {
    for name in ["mlp", "decoder", "odd"] {
        let (reference, module) = (Reference::of(name), module(name));
        assert_eq!(module.layout().segments, 4, "{name}");
        for (optimizer, rule) in [("adamw", ADAMW), ("sgd", SGD)] {
            let expected = reference.losses(optimizer);
            for pipelines in [
                &[(&[4u32][..], 8)][..],
                &[(&[1, 3], 8)],
                &[(&[1, 1, 1, 1], 8)],
                &[(&[2, 2], 3), (&[3, 1], 5)],
            ] {
                for recompute in [Recompute::None, Recompute::Full] {
                    let plan = plan(&module, pipelines, 2, recompute);
                    // The evaluation before the first step must not leave a module in evaluation mode.
                    let trained = train(name, &plan, &training(rule, name == "odd"));
                    let what = format!("{name}, {optimizer}, {pipelines:?}, {recompute:?}");
                    assert_curve(&expected, &trained.losses, &what);
                }
            }
        }
    }
}

#[test]
fn all_plans_end_with_the_same_parameters_and_evaluate_alike() {
    let module = module("decoder");
    let of = |pipelines: &[(&[u32], u64)]| {
        let plan = plan(&module, pipelines, 1, Recompute::None);
        train("decoder", &plan, &training(ADAMW, true))
    };
    let (alone, split) = (of(&[(&[4], 8)]), of(&[(&[1, 2, 1], 4), (&[2, 2], 4)]));
    assert_eq!(alone.evaluations.len(), 3);
    let evaluated = |trained: &Trained| {
        trained
            .evaluations
            .iter()
            .map(|(_, loss)| *loss)
            .collect::<Vec<_>>()
    };
    assert_curve(&evaluated(&alone), &evaluated(&split), "evaluations");
    // The held-out samples of the first evaluation are the samples of the first step.
    assert!((alone.evaluations[0].1 - alone.losses[0]).abs() < 0.5);
    for (unit, of_alone) in &alone.parameters {
        let pairs = of_alone.iter().zip(&split.parameters[unit]);
        let far = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(far < 1e-4, "unit {unit}: {far}");
    }
}

#[test]
fn random_operators_repeat_within_a_step() {
    let module = module("noisy");
    let of = |recompute, pipelines: &[(&[u32], u64)]| {
        let plan = plan(&module, pipelines, 2, recompute);
        train("noisy", &plan, &training(SGD, true))
    };
    let kept = of(Recompute::None, &[(&[4], 8)]);
    assert_eq!(
        kept.losses,
        of(Recompute::Full, &[(&[4], 8)]).losses,
        "recomputed to equal bits"
    );
    // The micro-batches are the same.
    let split = of(Recompute::None, &[(&[1, 3], 8)]);
    assert_curve(&kept.losses, &split.losses, "in two stages");
    // Dropout is off in evaluations, so they do not depend on the plan.
    let others = of(Recompute::None, &[(&[4], 3), (&[2, 2], 5)]);
    let first = |trained: &Trained| vec![trained.evaluations[0].1];
    assert_curve(&first(&kept), &first(&others), "an evaluation");
    // The samples of the first step are used in all steps, with a learning rate of zero.
    let plan = plan(&module, &[(&[4], 8)], 2, Recompute::None);
    let rows = Reference::of("noisy").rows;
    let mut same = rows.clone();
    for step in &mut same {
        step.clone_from(&rows[0]);
    }
    let mesh = LocalMesh::new(&plan.shape.members());
    let mut still = training(SGD, false);
    still.learning_rate.peak = 0.0;
    let trained = run_engines(
        &plan,
        3,
        |me| engine(&module, &same, &still, me),
        |me| mesh.link(me),
    );
    assert!(trained.losses[0] != trained.losses[1] && trained.losses[1] != trained.losses[2]);
}

/// A copy of the decoder's folder, and the model as a job describes it.
fn copied() -> (tempfile::TempDir, Exported) {
    let temporary = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(folder("decoder")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), temporary.path().join(entry.file_name())).unwrap();
    }
    let described = Exported {
        path: temporary.path().to_str().unwrap().to_owned(),
        ..described(&folder("decoder"))
    };
    (temporary, described)
}

#[test]
fn a_step_fails_while_the_code_of_a_segment_cannot_be_read() {
    let (temporary, described) = copied();
    let module = Module::open(&described.into(), Device::Cpu).unwrap();
    let me = WorkerId(1);
    let rows = Reference::of("decoder").rows;
    let mut engine = engine(&module, &rows, &training(SGD, false), me);
    let plan = plan(&module, &[(&[4], BATCH)], 4, Recompute::None);
    for unit in plan.units(me) {
        engine.initialise(unit).unwrap();
    }
    let link = LocalMesh::new(&[me]).link(me);
    let mut failed = |link: &Arc<dyn Link>, deadline| {
        let step = engine.run_step(&plan, Step(0), link, deadline);
        step.err().map(|failure| failure.error)
    };
    let may_pass =
        |error: Option<EngineError>| matches!(error, Some(EngineError::Code { may_pass: true, .. }));
    let code = temporary.path().join("segment-1.pt");
    let kept = temporary.path().join("kept");
    std::fs::rename(&code, &kept).unwrap();
    let error = failed(&link, later());
    let Some(EngineError::Code { why, may_pass: false }) = &error else {
        panic!("there is no such file: {error:?}")
    };
    assert!(why.contains("segment-1.pt of the model's folder"), "{why}");
    // The file is there, and its read fails: again and again, until the step's deadline or a fence.
    std::os::unix::fs::symlink(temporary.path(), &code).unwrap();
    let (began, short) = (Instant::now(), Duration::from_millis(300));
    assert!(may_pass(failed(&link, began + short)));
    assert!(began.elapsed() >= short, "another step would fail at once");
    let fenced = LocalMesh::new(&[me]).link(me);
    fenced.abort();
    let began = Instant::now();
    assert!(may_pass(failed(&fenced, began + Duration::from_secs(40))));
    assert!(began.elapsed() < Duration::from_secs(20), "a fence waits for it");
    // It can be read while the step waits for it.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(200));
            std::fs::rename(&kept, &code).unwrap();
        });
        assert_eq!(failed(&link, later()), None);
    });
}

#[test]
fn wrong_folder_is_refused_with_the_file() {
    let copy = |change: fn(&Path)| {
        let (temporary, described) = copied();
        change(temporary.path());
        (temporary, described)
    };
    let opened = |change: fn(&Path)| {
        let (_temporary, described) = copy(change);
        match Module::open(&described.into(), Device::Cpu) {
            Ok(_) => panic!("it was opened"),
            Err(error) => error.to_string(),
        }
    };
    let append = |file: PathBuf| {
        let mut bytes = std::fs::read(&file).unwrap();
        bytes.push(b' ');
        std::fs::write(file, bytes).unwrap();
    };
    let found = opened(|folder| std::fs::remove_file(folder.join("segment-2.pt")).unwrap());
    assert!(found.contains("segment-2.pt of the model's folder"), "{found}");
    let found = opened(|folder| std::fs::remove_dir_all(folder).unwrap());
    assert!(found.contains("manifest.json of the model's folder"), "{found}");
    let (temporary, described) = copy(|_| ());
    append(temporary.path().join("manifest.json"));
    let Err(ExportedError::OtherContent { named_by, .. }) =
        Module::open(&Model::from(described.clone()), Device::Cpu)
    else {
        panic!("another manifest")
    };
    assert_eq!(named_by, "spec.model.exported.digest");

    // Initial values are read when a unit is initialised, not before.
    let (temporary, described) = copy(|_| ());
    append(temporary.path().join("segment-1.safetensors"));
    let module = Module::open(&described.into(), Device::Cpu).unwrap();
    let mut engine = engine(
        &module,
        &Reference::of("decoder").rows,
        &training(SGD, false),
        WorkerId(1),
    );
    engine.initialise(Unit(2)).unwrap();
    let Err(EngineError::Model(found)) = engine.initialise(Unit(1)) else {
        panic!("other values")
    };
    assert!(found.contains("segment-1.safetensors has the SHA-256"), "{found}");
}

#[test]
fn state_of_an_exported_model_goes_from_engine_to_engine() {
    let module = module("decoder");
    let rows = Reference::of("decoder").rows;
    let training = training(ADAMW, false);
    let mut one = engine(&module, &rows, &training, WorkerId(1));
    let mut other = engine(&module, &rows, &training, WorkerId(2));
    for unit in module.layout().all_units() {
        one.initialise(unit).unwrap();
        let state = one.export(unit).unwrap();
        assert_eq!(state.data.len() % 3, 0, "parameters and two moments");
        other.import(unit, &state).unwrap();
        assert_eq!(
            one.parameters_digest(unit).unwrap(),
            other.parameters_digest(unit).unwrap()
        );
    }
    assert_eq!(training.optimizer.rule.moments(), Moments::Adam);
}
