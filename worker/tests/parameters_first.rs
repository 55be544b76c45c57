//! Plans whose members compute the first step before they have all state: others send them the parameters, and their state comes before the
//! step, beside it or after it. All bits are those of a step that begins with all state.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{BATCH, Case, engine, later, plan, shape, single};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, channel};
use std::time::{Duration, Instant};
use varuna_api::Precision;
use varuna_cuda::Libraries;
use varuna_plan::state::UnitNorm;
use varuna_plan::{
    Base, Decision, Generation, LossScaling, Plan, Recompute, ScaleFactor, Shape, StateId, Unit, WorkerId,
};
use varuna_torch::Device;
use varuna_worker::agent::engine_thread::{self, Command, Event, GradientOf, Reader, Recipient};
use varuna_worker::engine::{Adopter, EngineError};
use varuna_worker::state::{UnitSnapshot, UnitState};
use varuna_worker::transport::local::LocalMesh;
use varuna_worker::transport::nccl::{Nccl, NcclLink};
use varuna_worker::transport::{Address, Link, LinkError, Packet, Tag};

const ONE: WorkerId = WorkerId(1);
const TWO: WorkerId = WorkerId(2);
const THREE: WorkerId = WorkerId(3);
/// More than any event here takes.
const LONG: Duration = Duration::from_secs(60);

/// A state that was reached by a few steps of training.
struct Reached {
    case: Case,
    at: StateId,
    states: BTreeMap<Unit, UnitState>,
}

fn reached(case: &Case) -> Reached {
    let plan = plan(case, &single(case));
    let mut engine = engine(case, ONE);
    for unit in plan.units(ONE) {
        engine.initialise(unit).unwrap();
    }
    let link = LocalMesh::new(&[ONE]).link(ONE);
    let mut at = StateId::INITIAL;
    // The next step begins with an evaluation, where there are some.
    for _ in 0..4 {
        let report = engine.run_step(&plan, at.step, &link, later()).unwrap();
        let parts: Vec<_> = report.prepared.iter().map(|(_, norm)| *norm).collect();
        let decision = Decision::conclude(at, plan.generation, &parts, None);
        engine.apply(&decision, &plan.units(ONE)).unwrap();
        at = decision.id;
    }
    let states = engine.held().into_iter();
    let states = states.map(|unit| (unit, engine.export(unit).unwrap()));
    Reached {
        states: states.collect(),
        case: case.clone(),
        at,
    }
}

impl Reached {
    /// A plan that begins at this state, which these workers have.
    fn plan(&self, generation: u64, shape: &Shape, sources: &BTreeMap<Unit, Vec<WorkerId>>) -> Plan {
        let mut plan = Plan {
            generation: Generation(generation),
            base: Base::Fixed {
                id: self.at,
                decision: None,
                checkpoint: false,
            },
            parameters_first: true,
            ..Plan::first(self.case.layout(), shape.clone())
        };
        plan.sources = plan.layout.all_units().map(|u| sources[&u].clone()).collect();
        plan.addresses = shape.members().iter().map(|w| (*w, String::new())).collect();
        varuna_plan::check::check_plan(&plan, BATCH).unwrap();
        plan
    }

    fn worker(&self, me: WorkerId) -> Worker {
        let engine = engine(&self.case, me);
        let (emit, events) = channel();
        Worker {
            me,
            adopter: engine.adopter(),
            emit: emit.clone(),
            commands: engine_thread::start(engine, 1, move |event| drop(emit.send(event))).unwrap(),
            events,
        }
    }
}

/// An engine's thread, and what adopts units beside it.
struct Worker {
    me: WorkerId,
    adopter: Adopter,
    emit: std::sync::mpsc::Sender<Event>,
    commands: SyncSender<Command>,
    events: Receiver<Event>,
}

impl Worker {
    fn next(&self) -> Event {
        match self.events.recv_timeout(LONG).unwrap() {
            Event::Fatal(error) => panic!("worker {}: {error}", self.me),
            event => event,
        }
    }

    fn adopt(&self, from: &Reached, unit: Unit) {
        self.adopt_as(from, unit, from.at);
    }

    fn adopt_as(&self, from: &Reached, unit: Unit, id: StateId) {
        let state = from.states[&unit].clone();
        self.commands.send(Command::Adopt { unit, id, state }).unwrap();
        let loaded = self.next();
        assert!(matches!(loaded, Event::Loaded { unit: u, id: i } if (u, i) == (unit, id)));
    }

    fn adopt_beside(&mut self, from: &Reached, unit: Unit) {
        let (emit, id) = (self.emit.clone(), from.at);
        let done = move |adopted: Result<(), EngineError>| {
            adopted.unwrap();
            emit.send(Event::Loaded { unit, id }).unwrap();
        };
        let state = from.states[&unit].clone();
        self.adopter.adopt(unit, id, state, Box::new(done)).unwrap();
        assert!(matches!(self.next(), Event::Loaded { unit: u, .. } if u == unit));
    }

    fn run(&self, plan: &Arc<Plan>, at: StateId, link: Arc<dyn Link>) {
        let run = Command::Run {
            plan: Arc::clone(plan),
            step: at.step,
            deadline: LONG,
            link,
        };
        self.commands.send(run).unwrap();
    }

    fn prepared(&self) -> Vec<(Unit, UnitNorm)> {
        match self.next() {
            Event::Prepared { units, .. } => units,
            Event::StepFailed(failed) => panic!("worker {}: {}", self.me, failed.why),
            _ => panic!("worker {}: another event", self.me),
        }
    }

    fn quiesce(&self) -> Vec<(Unit, UnitNorm)> {
        self.commands.send(Command::Quiesce).unwrap();
        match self.next() {
            Event::Stopped { prepared } => prepared,
            _ => panic!("another event"),
        }
    }

    fn apply(&self, decision: Decision, units: Vec<Unit>) {
        self.commands.send(Command::Apply { decision, units }).unwrap();
        assert!(matches!(self.next(), Event::Applied { .. }));
    }

    fn gradient(&self, unit: Unit, decision: Decision) -> Vec<f32> {
        let recipient = Recipient {
            generation: Generation(1),
            to: WorkerId(9),
            unit,
        };
        let of = GradientOf::Decided(decision);
        self.commands.send(Command::Gradient { recipient, of }).unwrap();
        match self.next() {
            Event::Gradient { gradient, .. } => gradient,
            _ => panic!("another event"),
        }
    }

    /// Access to the unit's state as a connection has it that sends it.
    fn served(&self, unit: Unit) -> UnitSnapshot {
        let recipient = Recipient {
            generation: Generation(1),
            to: WorkerId(9),
            unit,
        };
        let export = Command::Export {
            recipient,
            id: StateId::INITIAL,
            decision: None,
            reader: Reader::Connection,
        };
        self.commands.send(export).unwrap();
        match self.next() {
            Event::Exported { snapshot, .. } => snapshot,
            _ => panic!("another event"),
        }
    }

    fn state(&self, unit: Unit, id: StateId) -> UnitState {
        self.commands.send(Command::Snapshot { unit, id }).unwrap();
        match self.next() {
            Event::Snapshot { snapshot, .. } => snapshot.copy().unwrap(),
            _ => panic!("another event"),
        }
    }
}

/// When the state comes that a member lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Comes {
    Before,
    Beside,
    After,
    /// All state is there, and the plan sends no parameters.
    AsUsual,
}

/// What the steps led to.
#[derive(PartialEq, Debug)]
struct Outcome {
    decisions: Vec<Decision>,
    norms: Vec<BTreeMap<Unit, UnitNorm>>,
    gradients: BTreeMap<Unit, Vec<f32>>,
    states: BTreeMap<Unit, UnitState>,
}

/// A pipeline of two workers beside one alone. The first worker lacks one unit, and has one that it does not compute with; the second
/// lacks all; the third has all.
fn three(case: &Case) -> Shape {
    shape(case, &[&[2, 4], &[6]], &[4, 4], 2)
}

fn lacked(case: &Case) -> BTreeMap<WorkerId, BTreeSet<Unit>> {
    let plan = plan(case, &three(case));
    let second = plan.units(TWO).into_iter().collect();
    BTreeMap::from([
        (ONE, BTreeSet::from([Unit(1)])),
        (TWO, second),
        (THREE, BTreeSet::new()),
    ])
}

/// The sources of each unit: who has it.
fn sources(case: &Case) -> BTreeMap<Unit, Vec<WorkerId>> {
    let units = case.layout().all_units().map(|unit| {
        let workers = match unit.0 {
            0 | 6 => vec![ONE, THREE],
            // The first worker has it beside its stage, and is asked for it.
            3 => vec![THREE, ONE],
            _ => vec![THREE],
        };
        (unit, workers)
    });
    units.collect()
}

/// Three workers whose engines have begun the first step.
struct Begun<'a> {
    from: &'a Reached,
    comes: Comes,
    plan: Arc<Plan>,
    workers: Vec<Worker>,
    links: BTreeMap<WorkerId, Arc<dyn Link>>,
    /// A state that is read while the step runs.
    served: Option<UnitSnapshot>,
}

/// Makes a worker's link of one that its process has.
type MakeLink<'a> = &'a dyn Fn(WorkerId, Arc<dyn Link>) -> Arc<dyn Link>;

fn plan_of(from: &Reached, comes: Comes) -> Arc<Plan> {
    let mut plan = from.plan(2, &three(&from.case), &sources(&from.case));
    plan.parameters_first = comes != Comes::AsUsual;
    let senders = [0, 1, 2, 3].map(|unit| plan.parameters_sender(TWO, Unit(unit), from.at.step));
    let expected = [None, None, Some(THREE), Some(ONE)];
    assert_eq!(
        senders,
        if plan.parameters_first {
            expected
        } else {
            [None; 4]
        }
    );
    Arc::new(plan)
}

/// The workers, each with the state that it has.
fn workers(from: &Reached, comes: Comes, plan: &Plan) -> Vec<Worker> {
    let workers: Vec<Worker> = plan.members().iter().map(|me| from.worker(*me)).collect();
    // Where the device has its own memory, what the first worker has beside its stage lies in the host's.
    let (keep, copies) = (vec![], vec![Unit(3)]);
    workers[0].commands.send(Command::Free { keep, copies }).unwrap();
    for worker in &workers {
        for (unit, has) in &sources(&from.case) {
            let usual = comes == Comes::AsUsual && plan.units(worker.me).contains(unit);
            if has.contains(&worker.me) || usual {
                worker.adopt(from, *unit);
            }
        }
    }
    workers
}

fn begin<'a>(from: &'a Reached, comes: Comes, link: MakeLink<'_>) -> Begun<'a> {
    let (plan, lacked) = (plan_of(from, comes), lacked(&from.case));
    let mesh = LocalMesh::new(plan.members());
    let links = plan.members().iter().map(|me| (*me, link(*me, mesh.link(*me))));
    let links: BTreeMap<_, _> = links.collect();
    let run = |worker: &Worker| worker.run(&plan, from.at, Arc::clone(&links[&worker.me]));
    let mut workers = workers(from, comes, &plan);
    let last = workers.pop().unwrap();
    for worker in &mut workers {
        let lacked = lacked[&worker.me].iter();
        if comes == Comes::Before {
            lacked.clone().for_each(|unit| worker.adopt(from, *unit));
        }
        run(worker);
        if comes == Comes::Beside {
            // The step waits for the parameters of the last worker, which has not begun.
            lacked.for_each(|unit| worker.adopt_beside(from, *unit));
        }
    }
    let served = Some(last.served(Unit(2)));
    run(&last);
    workers.push(last);
    Begun {
        from,
        comes,
        plan,
        workers,
        links,
        served,
    }
}

impl Begun<'_> {
    /// The norms of a step that the workers run, and what follows from them.
    fn decide(&self, at: StateId) -> (BTreeMap<Unit, UnitNorm>, Decision) {
        let norms: BTreeMap<Unit, UnitNorm> = self.workers.iter().flat_map(Worker::prepared).collect();
        let parts: Vec<UnitNorm> = norms.values().copied().collect();
        let decision = Decision::conclude(at, self.plan.generation, &parts, None);
        (norms, decision)
    }

    /// What all holders of each unit have, which must be the same.
    fn of_units<T: PartialEq>(&self, of: impl Fn(&Worker, Unit) -> T) -> BTreeMap<Unit, T> {
        let mut all = BTreeMap::new();
        for worker in &self.workers {
            for unit in self.plan.units(worker.me) {
                let own = of(worker, unit);
                let is_equal = all.get(&unit).is_none_or(|other| *other == own);
                assert!(is_equal, "unit {unit}");
                all.insert(unit, own);
            }
        }
        all
    }

    fn apply(&self, decision: Decision) {
        self.workers
            .iter()
            .for_each(|w| w.apply(decision, self.plan.units(w.me)));
    }

    /// Ends the first step, and runs two more.
    fn finish(mut self) -> Outcome {
        let (norms, first) = self.decide(self.from.at);
        let served = self.served.take().unwrap().copy().unwrap();
        assert!(served == self.from.states[&Unit(2)]);
        // Also before the state has come.
        let gradients = match first.overflow {
            true => BTreeMap::new(),
            false => self.of_units(|worker, unit| worker.gradient(unit, first)),
        };
        let lacked = lacked(&self.from.case);
        if self.comes == Comes::After {
            for worker in &self.workers {
                lacked[&worker.me]
                    .iter()
                    .for_each(|unit| worker.adopt(self.from, *unit));
            }
        }
        self.apply(first);
        let (mut at, mut all_norms, mut decisions) = (first.id, vec![norms], vec![first]);
        for _ in 0..2 {
            let workers = &self.workers;
            workers
                .iter()
                .for_each(|w| w.run(&self.plan, at, Arc::clone(&self.links[&w.me])));
            let (norms, decision) = self.decide(at);
            self.apply(decision);
            at = decision.id;
            all_norms.push(norms);
            decisions.push(decision);
        }
        Outcome {
            states: self.of_units(|worker, unit| worker.state(unit, at)),
            norms: all_norms,
            decisions,
            gradients,
        }
    }
}

fn dynamic() -> LossScaling {
    LossScaling::Dynamic {
        initial: ScaleFactor::two_to(10),
        minimum: ScaleFactor::ONE,
        window: 2,
    }
}

fn has_the_bits_of_a_usual_step(case: &Case) {
    has_them_over(case, &|_, link| link);
}

fn has_them_over(case: &Case, link: MakeLink<'_>) {
    let from = reached(case);
    let usual = begin(&from, Comes::AsUsual, link).finish();
    assert!(usual.decisions.iter().any(|decision| !decision.overflow));
    assert_eq!(usual.decisions[0].eval_loss.is_some(), case.evaluate);
    for comes in [Comes::Before, Comes::Beside, Comes::After] {
        let found = begin(&from, comes, link).finish();
        assert_eq!(found.decisions, usual.decisions, "{comes:?}");
        assert!(found == usual, "{comes:?}");
    }
}

#[test]
fn bits_are_those_of_a_step_with_all_state() {
    for (precision, tied) in [
        (Precision::Fp32, true),
        (Precision::Fp32, false),
        (Precision::Bf16, true),
    ] {
        has_the_bits_of_a_usual_step(&Case {
            precision,
            tied,
            evaluate: true,
            ..Case::default()
        });
    }
}

#[test]
fn loss_scale_reaches_a_worker_that_holds_nothing() {
    let case = Case {
        precision: Precision::Fp16,
        scaling: dynamic(),
        ..Case::default()
    };
    let scale = reached(&case).states[&Unit(0)].progress.loss_scale;
    assert!(scale.factor.value() > 1 << 10, "it was changed before");
    has_the_bits_of_a_usual_step(&case);
}

#[test]
fn bits_are_equal_where_the_device_has_its_own_memory() {
    has_the_bits_of_a_usual_step(&Case {
        device: Device::CpuSeparateMemory,
        precision: Precision::Bf16,
        ..Case::default()
    });
}

#[test]
fn bits_are_equal_over_communicators() {
    let library = std::env::current_exe().unwrap();
    let libraries = Libraries::load_from(&library.with_file_name("libvaruna_fake_nccl.so")).unwrap();
    let case = Case {
        device: Device::CpuSeparateMemory,
        ..Case::default()
    };
    has_them_over(&case, &|me, link| {
        let nccl = Nccl::open(&libraries, case.device).unwrap();
        Arc::new(NcclLink::new(me, link, Some(nccl)))
    });
}

/// A link that is fenced when its worker sends the gradient of a boundary: then all its own gradients are finished.
struct FencedBehind(Arc<dyn Link>);

impl Link for FencedBehind {
    fn send(&self, to: WorkerId, tag: Tag, packet: Packet, deadline: Instant) -> Result<(), LinkError> {
        if matches!(tag, Tag::Gradient { .. }) {
            self.0.abort();
        }
        self.0.send(to, tag, packet, deadline)
    }

    fn recv(&self, from: WorkerId, tag: Tag, deadline: Instant) -> Result<Packet, LinkError> {
        self.0.recv(from, tag, deadline)
    }

    fn recv_any(
        &self,
        wanted: &BTreeSet<Address>,
        deadline: Instant,
    ) -> Result<Option<(Address, Packet)>, LinkError> {
        self.0.recv_any(wanted, deadline)
    }

    fn wake(&self) {
        self.0.wake();
    }

    fn abort(&self) {
        self.0.abort();
    }

    fn is_aborted(&self) -> bool {
        self.0.is_aborted()
    }
}

/// Two stages without a tied weight; the first has all state, and the second none.
struct TwoStages {
    from: Reached,
    shape: Shape,
    sources: BTreeMap<Unit, Vec<WorkerId>>,
}

impl TwoStages {
    fn new(recompute: Recompute) -> TwoStages {
        TwoStages::on(Device::Cpu, recompute)
    }

    fn on(device: Device, recompute: Recompute) -> TwoStages {
        let case = Case {
            tied: false,
            device,
            ..Case::default()
        };
        let mut shape = shape(&case, &[&[4, 2]], &[8], 8);
        shape.schedule.recompute = recompute;
        let sources = case.layout().all_units().map(|unit| (unit, vec![ONE]));
        TwoStages {
            from: reached(&case),
            sources: sources.collect(),
            shape,
        }
    }

    fn plan(&self, generation: u64) -> Arc<Plan> {
        Arc::new(self.from.plan(generation, &self.shape, &self.sources))
    }

    fn workers(&self) -> [Worker; 2] {
        let workers = [ONE, TWO].map(|me| self.from.worker(me));
        self.sources
            .keys()
            .for_each(|unit| workers[0].adopt(&self.from, *unit));
        workers
    }

    /// Runs the first step up to its reduced gradients, where the state that is lacked comes later.
    fn step(&self, workers: &[Worker; 2], plan: &Arc<Plan>) -> Decision {
        let mesh = LocalMesh::new(plan.members());
        workers
            .iter()
            .for_each(|w| w.run(plan, self.from.at, mesh.link(w.me)));
        let norms: BTreeMap<Unit, UnitNorm> = workers.iter().flat_map(Worker::prepared).collect();
        let parts: Vec<UnitNorm> = norms.values().copied().collect();
        Decision::conclude(self.from.at, Generation(2), &parts, None)
    }

    /// Begins the step, and fences the second worker once its gradients are reduced.
    fn fenced(&self, workers: &[Worker; 2], plan: &Arc<Plan>) {
        let mesh = LocalMesh::new(plan.members());
        let [first, second] = workers;
        first.run(plan, self.from.at, mesh.link(ONE));
        second.run(plan, self.from.at, Arc::new(FencedBehind(mesh.link(TWO))));
        assert!(matches!(second.next(), Event::StepFailed(_)));
        mesh.link(ONE).abort();
        assert!(matches!(first.next(), Event::StepFailed(_)));
        assert!(first.quiesce().is_empty());
    }

    /// The states after the step, as the second worker has them.
    fn applied(&self, workers: &[Worker; 2], decision: Decision) -> Vec<UnitState> {
        let units = self.plan(2).units(TWO);
        workers[1].apply(decision, units.clone());
        let states = units.into_iter().map(|unit| workers[1].state(unit, decision.id));
        states.collect()
    }
}

fn units_of(prepared: &[(Unit, UnitNorm)]) -> Vec<Unit> {
    prepared.iter().map(|(unit, _)| *unit).collect()
}

#[test]
fn reduced_gradients_outlive_a_fence_and_meet_their_state() {
    for recompute in [Recompute::None, Recompute::Full] {
        let two = TwoStages::new(recompute);
        let (plan, undisturbed) = (two.plan(2), two.workers());
        let decision = two.step(&undisturbed, &plan);
        [4, 5]
            .iter()
            .for_each(|unit| undisturbed[1].adopt(&two.from, Unit(*unit)));
        let expected = two.applied(&undisturbed, decision);
        let mut workers = two.workers();
        two.fenced(&workers, &plan);
        assert_eq!(units_of(&workers[1].quiesce()), [Unit(4), Unit(5)]);
        // One comes in turn and one from the other thread.
        workers[1].adopt(&two.from, Unit(4));
        workers[1].adopt_beside(&two.from, Unit(5));
        assert_eq!(units_of(&workers[1].quiesce()), [Unit(4), Unit(5)]);
        // A recovery can finish the step with them.
        assert_eq!(two.applied(&workers, decision), expected);
    }
}

/// What the second worker keeps copies of lies in the host's memory. The new plan gives it these units, for the device.
#[test]
fn former_spare_copies_get_the_gradients_of_the_first_step() {
    let two = TwoStages::on(Device::CpuSeparateMemory, Recompute::None);
    let (plan, units) = (two.plan(2), [Unit(4), Unit(5)]);
    let adopt = |worker: &Worker| units.iter().for_each(|unit| worker.adopt(&two.from, *unit));
    let undisturbed = two.workers();
    let decision = two.step(&undisturbed, &plan);
    adopt(&undisturbed[1]);
    let expected = two.applied(&undisturbed, decision);
    for comes in [Comes::Before, Comes::After] {
        let workers = two.workers();
        let second = &workers[1];
        let (keep, copies) = (vec![], units.to_vec());
        second.commands.send(Command::Free { keep, copies }).unwrap();
        if comes == Comes::Before {
            adopt(second);
        }
        assert_eq!(two.step(&workers, &plan), decision);
        if comes == Comes::After {
            adopt(second);
        }
        // As Go does.
        let (keep, copies) = (units.to_vec(), vec![]);
        second.commands.send(Command::Free { keep, copies }).unwrap();
        assert_eq!(units_of(&second.quiesce()), units);
        assert!(two.applied(&workers, decision) == expected, "{comes:?}");
    }
}

#[test]
fn gradients_are_dropped_with_the_state_of_another_step() {
    let two = TwoStages::new(Recompute::None);
    let workers = two.workers();
    two.fenced(&workers, &two.plan(2));
    workers[1].adopt_as(&two.from, Unit(4), StateId::INITIAL);
    assert_eq!(units_of(&workers[1].quiesce()), [Unit(5)]);
    let keep = vec![Unit(4)];
    let copies = vec![];
    workers[1].commands.send(Command::Free { keep, copies }).unwrap();
    assert!(workers[1].quiesce().is_empty());
    let gradient = Command::Apply {
        decision: Decision::conclude(two.from.at, Generation(2), &[], None),
        units: vec![Unit(5)],
    };
    workers[1].commands.send(gradient).unwrap();
    let refused = workers[1].events.recv_timeout(LONG).unwrap();
    assert!(matches!(refused, Event::Fatal(EngineError::NotHeld(Unit(5)))));
}

#[test]
fn next_generation_repeats_a_fenced_step_with_equal_bits() {
    let two = TwoStages::new(Recompute::None);
    let undisturbed = two.workers();
    let decision = two.step(&undisturbed, &two.plan(2));
    [4, 5]
        .iter()
        .for_each(|unit| undisturbed[1].adopt(&two.from, Unit(*unit)));
    let expected = two.applied(&undisturbed, decision);
    let workers = two.workers();
    two.fenced(&workers, &two.plan(2));
    workers[1].adopt(&two.from, Unit(4));
    // Now the second worker lacks one unit, and has the other as any member.
    let mut next = two.sources.clone();
    next.get_mut(&Unit(4)).unwrap().push(TWO);
    let plan = Arc::new(two.from.plan(3, &two.shape, &next));
    assert_eq!(two.step(&workers, &plan), decision);
    workers[1].adopt(&two.from, Unit(5));
    assert_eq!(two.applied(&workers, decision), expected);
}

#[test]
fn who_lacks_what_it_must_send_keeps_the_rest_and_goes_on() {
    let mut two = TwoStages::new(Recompute::None);
    let two_pipelines = shape(&two.from.case, &[&[6], &[6]], &[4, 4], 2);
    // The first worker does not compute with the unit itself, or does.
    for next in [Some(two_pipelines), None] {
        let (plan, workers) = (two.plan(2), two.workers());
        let first = &workers[0];
        let keep = two.sources.keys().copied().filter(|unit| *unit != Unit(4));
        let (keep, copies) = (keep.collect(), vec![]);
        first.commands.send(Command::Free { keep, copies }).unwrap();
        let mesh = LocalMesh::new(plan.members());
        first.run(&plan, two.from.at, mesh.link(ONE));
        let Event::StepFailed(failed) = first.next() else {
            panic!("the step needs the unit")
        };
        assert_eq!((failed.about, failed.lacks), (None, None));
        assert!(failed.why.contains("unit 4"), "{}", failed.why);
        assert!(first.quiesce().is_empty());
        // A plan whose members all have their state first.
        first.adopt(&two.from, Unit(4));
        let units = plan.units(TWO).into_iter();
        units.for_each(|unit| workers[1].adopt(&two.from, unit));
        let mut usual = Plan::clone(&two.plan(3));
        usual.parameters_first = false;
        let decision = two.step(&workers, &Arc::new(usual));
        assert_eq!(two.applied(&workers, decision).len(), plan.units(TWO).len());
        two.shape = next.unwrap_or(two.shape);
    }
}

#[test]
fn counters_of_two_states_are_not_computed_with() {
    let two = TwoStages::new(Recompute::None);
    let workers = two.workers();
    let mut other = two.from.states[&Unit(5)].clone();
    other.progress.adam_steps += 1;
    let adopt = Command::Adopt {
        unit: Unit(5),
        id: two.from.at,
        state: other,
    };
    workers[0].commands.send(adopt).unwrap();
    assert!(matches!(workers[0].next(), Event::Loaded { .. }));
    let plan = two.plan(2);
    let mesh = LocalMesh::new(plan.members());
    workers
        .iter()
        .for_each(|w| w.run(&plan, two.from.at, mesh.link(w.me)));
    let Event::StepFailed(failed) = workers[1].next() else {
        panic!("it computes with them")
    };
    assert_eq!(failed.about, Some(ONE));
    for part in ["unit 5", "adam_steps: 5", "adam_steps: 4"] {
        assert!(failed.why.contains(part), "{}", failed.why);
    }
    mesh.link(ONE).abort();
}
