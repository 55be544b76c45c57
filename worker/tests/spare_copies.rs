//! Spare copies: two stages keep each other's units while they train. Each gradient is copied as soon as its step has run, and applied once
//! the step is decided. The copies have the same bits as the originals, and training continues from them after a loss.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{BATCH, Case, Exchange, MUON, engine, later, plan, run, shape, single};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use varuna_api::{Precision, UpdateRule};
use varuna_plan::state::UnitNorm;
use varuna_plan::{Decision, LossScaling, Plan, ScaleFactor, Shape, StateId, Unit, WorkerId};
use varuna_torch::{Device, Kernels};
use varuna_worker::agent::engine_thread::{self, Command, Event, Reader, Recipient};
use varuna_worker::engine::{Engine, EngineError};
use varuna_worker::state::UnitState;
use varuna_worker::transport::Link;
use varuna_worker::transport::local::LocalMesh;

const A: WorkerId = WorkerId(1);
const B: WorkerId = WorkerId(2);

/// A shape with two stages.
fn two_stages(case: &Case) -> Shape {
    shape(case, &[&[3, 3]], &[BATCH], 4)
}

/// A message to a keeper.
enum Sent {
    Copy(Unit, UnitState),
    /// The gradient of the step that was just run. It is empty if the unit's norm says that the step will be skipped.
    Gradient(Unit, Vec<f32>),
    /// Everything of this step was sent.
    Ran,
}

/// A stage, and the copies of the other stage's units that it keeps.
struct Worker {
    me: WorkerId,
    engine: Engine,
    plan: Plan,
    link: Arc<dyn Link>,
    exchange: Arc<Exchange>,
    to_keeper: Sender<Sent>,
    from_holder: Receiver<Sent>,
    skipped: bool,
}

impl Worker {
    /// The units that only this worker holds.
    fn alone(&self) -> Vec<Unit> {
        let units = self.plan.units(self.me).into_iter();
        units.filter(|u| self.plan.holders(*u).len() == 1).collect()
    }

    /// Trains from `at` for this many steps. Copies are made before the step `copy`.
    fn train(&mut self, mut at: StateId, steps: u64, copy: u64) -> StateId {
        tch::set_num_threads(1);
        let own = self.plan.units(self.me);
        for _ in 0..steps {
            if at.step.0 == copy {
                for unit in self.alone() {
                    let state = self.engine.export(unit).unwrap();
                    self.to_keeper.send(Sent::Copy(unit, state)).unwrap();
                }
            }
            let report = self
                .engine
                .run_step(&self.plan, at.step, &self.link, later())
                .unwrap();
            for (unit, norm) in &report.prepared {
                if self.plan.holders(*unit).len() == 1 {
                    let gradient = match norm.overflow {
                        true => Vec::new(),
                        false => self.engine.gradient(*unit).unwrap(),
                    };
                    self.to_keeper.send(Sent::Gradient(*unit, gradient)).unwrap();
                }
            }
            self.to_keeper.send(Sent::Ran).unwrap();
            let parts = self.exchange.all(at.step.0, &report.prepared);
            let decision = Decision::conclude(at, self.plan.generation, &parts, None);
            self.skipped |= decision.overflow;
            self.engine.apply(&decision, &own).unwrap();
            self.keep(at.step.0 >= copy, &decision);
            at = decision.id;
        }
        let held = self.engine.held();
        self.engine.recall(&held).unwrap();
        at
    }

    /// Stores what the holder has sent for a step, and applies the decision.
    fn keep(&mut self, copied: bool, decision: &Decision) {
        loop {
            match self.from_holder.recv().unwrap() {
                Sent::Copy(unit, state) => {
                    self.engine.recall(&[unit]).unwrap();
                    self.engine.import(unit, &state).unwrap();
                }
                Sent::Gradient(unit, gradient) if copied => {
                    let done = |applied: Result<(), EngineError>| applied.unwrap();
                    self.engine
                        .apply_in_background(decision, unit, gradient, Box::new(done))
                        .unwrap();
                }
                Sent::Gradient(..) => {}
                Sent::Ran => return,
            }
        }
    }
}

/// The two workers of a plan, each with its engine.
fn pair(case: &Case, engines: [Engine; 2]) -> [Worker; 2] {
    let shape = two_stages(case);
    let plan = plan(case, &shape);
    let mesh = LocalMesh::new(&shape.members());
    let exchange = Arc::new(Exchange::new(2));
    let ((to_b, from_a), (to_a, from_b)) = (channel(), channel());
    let [a, b] = engines;
    let worker = |me, engine, to_keeper, from_holder| Worker {
        me,
        engine,
        plan: plan.clone(),
        link: mesh.link(me),
        exchange: Arc::clone(&exchange),
        to_keeper,
        from_holder,
        skipped: false,
    };
    [worker(A, a, to_b, from_b), worker(B, b, to_a, from_a)]
}

/// Both workers train, each in its own thread. Returns the state that they reach.
fn train(workers: [Worker; 2], at: StateId, steps: u64, copy: u64) -> ([Worker; 2], StateId) {
    let threads = workers.map(|mut worker| {
        std::thread::spawn(move || {
            let reached = worker.train(at, steps, copy);
            (worker, reached)
        })
    });
    let [(a, at), (b, _)] = threads.map(|t| t.join().unwrap());
    ([a, b], at)
}

fn first_engines(case: &Case) -> [Engine; 2] {
    let plan = plan(case, &two_stages(case));
    [A, B].map(|me| {
        let mut engine = engine(case, me);
        for unit in plan.units(me) {
            engine.initialise(unit).unwrap();
        }
        let all = plan.layout.all_units();
        let copies: Vec<Unit> = all.filter(|unit| !plan.holders(*unit).contains(&me)).collect();
        engine.keep_copies(&copies).unwrap();
        engine
    })
}

/// Trains, with copies from step `copy` on, and checks that each copy has the bits of its holder. Returns whether steps were skipped.
fn kept_bits_are_the_holders(case: &Case, steps: u64, copy: u64) -> bool {
    let workers = train_and_compare(case, steps, copy);
    workers[0].skipped
}

/// The same. Returns the workers.
fn train_and_compare(case: &Case, steps: u64, copy: u64) -> [Worker; 2] {
    let (workers, _) = train(pair(case, first_engines(case)), StateId::INITIAL, steps, copy);
    let [a, b] = &workers;
    for (holder, keeper) in [(a, b), (b, a)] {
        assert!(!holder.alone().is_empty());
        for unit in holder.alone() {
            let (held, kept) = (
                holder.engine.export(unit).unwrap(),
                keeper.engine.export(unit).unwrap(),
            );
            assert!(held == kept, "unit {unit} of worker {}", holder.me);
        }
    }
    workers
}

#[test]
fn a_spare_copy_has_its_holders_bits_after_many_steps() {
    assert!(!kept_bits_are_the_holders(&Case::default(), 400, 2));
}

#[test]
fn spare_copy_matches_in_every_precision() {
    let case = |precision, scaling| Case {
        precision,
        scaling,
        ..Case::default()
    };
    assert!(!kept_bits_are_the_holders(
        &case(Precision::Bf16, LossScaling::OFF),
        60,
        1
    ));
    // The first steps overflow.
    let scaling = LossScaling::Dynamic {
        initial: ScaleFactor::two_to(32),
        minimum: ScaleFactor::ONE,
        window: 8,
    };
    assert!(kept_bits_are_the_holders(&case(Precision::Fp16, scaling), 60, 1));
}

#[test]
fn copies_are_on_the_host_if_its_optimizer_has_the_same_bits() {
    let adamw = Case::default().rule;
    for (kernels, rule, are_on_host) in [
        (Kernels::PROCESSOR, adamw, true),
        (Kernels::PROCESSOR, UpdateRule::Sgd { momentum: 0.9 }, true),
        (Kernels::PROCESSOR, MUON, false),
        (Kernels::LIBTORCH, adamw, false),
    ] {
        for precision in [Precision::Fp32, Precision::Bf16] {
            let case = Case {
                device: Device::CpuSeparateMemory,
                precision,
                kernels,
                rule,
                ..Case::default()
            };
            let [a, b] = train_and_compare(&case, 12, 2);
            for (holder, keeper) in [(&a, &b), (&b, &a)] {
                for unit in holder.alone() {
                    assert!(!holder.engine.is_on_host(unit).unwrap(), "unit {unit} is trained");
                    let kept = keeper.engine.is_on_host(unit).unwrap();
                    assert_eq!(kept, are_on_host, "unit {unit}, {rule:?}, {kernels:?}");
                }
            }
        }
    }
}

/// The keeper of a lost stage takes it over. What it has kept moves to its device, and is trained there as well as on the processor.
#[test]
fn a_copied_unit_that_its_keeper_gets_trains_on_the_device() {
    let trained = |device: Device| {
        tch::set_num_threads(1);
        let case = Case {
            device,
            ..Case::default()
        };
        let ([mut a, _], at) = train(pair(&case, first_engines(&case)), StateId::INITIAL, 6, 2);
        let alone = plan(&case, &single(&case));
        let units = alone.units(A);
        a.engine.keep_copies(&[]).unwrap();
        for unit in &units {
            assert_eq!(
                a.engine.is_on_host(*unit).unwrap(),
                device.is_host(),
                "unit {unit}"
            );
        }
        let link = LocalMesh::new(&[A]).link(A);
        let report = a.engine.run_step(&alone, at.step, &link, later()).unwrap();
        let norms: Vec<UnitNorm> = report.prepared.iter().map(|(_, norm)| *norm).collect();
        let decision = Decision::conclude(at, alone.generation, &norms, None);
        a.engine.apply(&decision, &units).unwrap();
        let data = |unit: &Unit| a.engine.export(*unit).unwrap().data;
        units.iter().map(data).collect::<Vec<_>>()
    };
    assert!(trained(Device::CpuSeparateMemory) == trained(Device::Cpu));
}

/// One stage is lost after some steps. A new worker gets the copies of its units that the other stage has kept, and both reach exactly the
/// state of a run without a loss.
#[test]
fn what_is_kept_trains_on_in_the_place_of_the_lost_stage() {
    let case = Case::default();
    let (before, after) = (12, 9);
    let undisturbed: BTreeMap<Unit, Vec<f32>> = run(&case, &two_stages(&case), before + after).parameters;
    for lost in [A, B] {
        let ([a, b], at) = train(pair(&case, first_engines(&case)), StateId::INITIAL, before, 3);
        let mut fresh = engine(&case, lost);
        let (survivor, units) = if lost == A {
            (b, a.plan.units(A))
        } else {
            (a, b.plan.units(B))
        };
        for unit in units {
            fresh
                .import(unit, &survivor.engine.export(unit).unwrap())
                .unwrap();
        }
        let engines = match lost {
            A => [fresh, survivor.engine],
            _ => [survivor.engine, fresh],
        };
        let (workers, reached) = train(pair(&case, engines), at, after, u64::MAX);
        assert_eq!(reached.step.0, before + after);
        for worker in &workers {
            for unit in worker.plan.units(worker.me) {
                let state = worker.engine.export(unit).unwrap();
                assert!(state.data == undisturbed[&unit], "unit {unit}, {lost} was lost");
            }
        }
    }
}

/// The optimizer for copies runs in parallel with later commands, which wait for it if they need its result.
#[test]
fn given_state_includes_earlier_gradients() {
    tch::set_num_threads(1);
    let case = Case::default();
    let (alone, unit) = (plan(&case, &single(&case)), Unit(1));
    let mut holder = engine(&case, A);
    for unit in alone.units(A) {
        holder.initialise(unit).unwrap();
    }
    let link = LocalMesh::new(&[A]).link(A);
    let report = holder
        .run_step(&alone, StateId::INITIAL.step, &link, later())
        .unwrap();
    let norms: Vec<UnitNorm> = report.prepared.iter().map(|(_, norm)| *norm).collect();
    let decision = Decision::conclude(StateId::INITIAL, alone.generation, &norms, None);
    let gradient = holder.gradient(unit).unwrap();
    holder.apply(&decision, &alone.units(A)).unwrap();

    let mut keeper = engine(&case, B);
    keeper.initialise(unit).unwrap();
    let (events, told) = channel();
    let commands = engine_thread::start(keeper, 1, move |event| drop(events.send(event))).unwrap();
    let recipient = Recipient {
        generation: alone.generation,
        to: A,
        unit,
    };
    for command in [
        Command::ApplyForwarded {
            unit,
            decision,
            gradient,
        },
        Command::Export {
            recipient,
            id: decision.id,
            decision: None,
            reader: Reader::Copy,
        },
    ] {
        commands.send(command).unwrap();
    }
    assert!(matches!(told.recv().unwrap(), Event::Loaded { id, .. } if id == decision.id));
    let Event::Exported { snapshot, .. } = told.recv().unwrap() else {
        panic!("another event");
    };
    assert!(snapshot.copy().unwrap() == holder.export(unit).unwrap());
}
