mod checkpoints;
mod comparing;
mod connections;
mod deadlines;
mod first_step;
mod following;
mod gaining;
mod guards;
mod keeping;
mod last_step;
mod norm_tree;
mod reviewed;

use super::*;
use crate::message::{Norms, Order, PeerMessage, Ran, Suspicion};
use std::time::Duration;
use varuna_plan::Layout;
use varuna_plan::state::UnitNorm;
use varuna_plan::{Base, Pipeline, Prediction, Recompute, SampleRange, ScheduleKind, ScheduleSpec};
use varuna_plan::{SegmentRange, Shape, Stage, StepDeadline};

const ME: WorkerId = WorkerId(1);
const PEER: WorkerId = WorkerId(2);
const LAYOUT: Layout = Layout::new(2, false);

/// All workers hold everything; each has its own pipeline.
fn plan(generation: u64, base: Base, members: &[WorkerId], sources: &[WorkerId]) -> Arc<Plan> {
    let all = SegmentRange { start: 0, end: 2 };
    let share = 4 / members.len().max(1) as u64;
    let pipelines = (0..).zip(members).map(|(i, w)| Pipeline {
        stages: vec![Stage {
            recompute: None,
            worker: *w,
            segments: all,
        }],
        samples: SampleRange {
            start: i * share,
            end: (i + 1) * share,
        },
    });
    Arc::new(Plan {
        generation: Generation(generation),
        parent: Generation(0),
        base,
        layout: LAYOUT,
        shape: Shape {
            pipelines: pipelines.collect(),
            spares: vec![],
            micro_batch_size: 1,
            schedule: ScheduleSpec {
                kind: ScheduleKind::Gpipe,
                recompute: Recompute::None,
            },
            predicted: Prediction::default(),
        },
        sources: vec![sources.to_vec(); 2],
        addresses: [ME, PEER, WorkerId(3)]
            .iter()
            .map(|w| (*w, format!("{w}:1")))
            .collect(),
        deadline: StepDeadline::of_ms(1_000),
        relay: false,
        tree_fan_out: 2,
        following: false,
        parameters_first: false,
        keepers: Vec::new(),
        evidence: vec![],
        reason: String::new(),
        index: varuna_plan::PlanIndex::default(),
    })
}

/// The peer has the first segment, and this worker the second.
fn two_stages() -> Vec<Stage> {
    let stage = |worker, start| Stage {
        recompute: None,
        worker,
        segments: SegmentRange {
            start,
            end: start + 1,
        },
    };
    vec![stage(PEER, 0), stage(ME, 1)]
}

fn fixed(id: StateId, decision: Option<Decision>) -> Base {
    Base::Fixed {
        id,
        decision,
        checkpoint: id == StateId::INITIAL,
    }
}

fn norm(x: f64) -> UnitNorm {
    UnitNorm {
        norm2: x,
        overflow: false,
        before: varuna_plan::OptimizerProgress::START,
        loss: 0.5,
        eval_loss: None,
    }
}

struct Rig {
    member: Member,
    now: Time,
}

impl Rig {
    fn config() -> MemberConfig {
        MemberConfig {
            follows: true,
            parameters_first: false,
            id: ME,
            layout: LAYOUT,
            last_step: Step(10),
            checkpoint_every: None,
            compare_every: None,
            timing: MemberTiming::default(),
        }
    }

    fn new() -> Self {
        Rig {
            member: Member::new(Rig::config()),
            now: Time(1),
        }
    }

    fn put(&mut self, input: MemberInput) -> Vec<MemberEffect> {
        let mut effects = vec![];
        self.member.handle(self.now, input, &mut effects);
        effects
    }

    fn order(&mut self, order: Order) -> Vec<MemberEffect> {
        self.put(MemberInput::Order { term: 1, order })
    }

    /// A member that runs step 0 of generation 1 with a peer.
    fn running() -> Self {
        let mut rig = Rig::new();
        rig.order(Order::Prepare(plan(
            1,
            fixed(StateId::INITIAL, None),
            &[ME, PEER],
            &[],
        )));
        rig.put(MemberInput::Connected {
            generation: Generation(1),
            peer: PEER,
        });
        for unit in [Unit(0), Unit(1)] {
            rig.put(MemberInput::Loaded {
                unit,
                id: StateId::INITIAL,
            });
        }
        assert_eq!(rig.member.status().phase, Phase::Ready);
        let effects = rig.order(Order::Go {
            generation: Generation(1),
        });
        assert!(
            effects
                .iter()
                .any(|e| matches!(e, MemberEffect::Run { step: Step(0), .. }))
        );
        rig
    }

    fn units() -> Vec<(Unit, UnitNorm)> {
        vec![(Unit(0), norm(1.0)), (Unit(1), norm(2.0))]
    }

    fn prepare(&mut self, step: u64) -> Vec<MemberEffect> {
        let (generation, step) = (Generation(1), Step(step));
        self.put(MemberInput::Prepared {
            generation,
            step,
            units: Rig::units(),
            store_busy: false,
        })
    }

    fn peer_norm(&mut self, step: u64, armed: u64) -> Vec<MemberEffect> {
        self.peer_norms(step, armed, false)
    }

    fn peer_norms(&mut self, step: u64, armed: u64, save: bool) -> Vec<MemberEffect> {
        let norms = Norms {
            save,
            store_busy: false,
            step: Step(step),
            units: vec![],
            armed: Generation(armed),
        };
        let message = PeerMessage::Norm(norms);
        self.put(MemberInput::Peer {
            generation: Generation(1),
            from: PEER,
            message,
        })
    }

    fn connect(&mut self, generation: u64, peer: WorkerId) -> Vec<MemberEffect> {
        let generation = Generation(generation);
        self.put(MemberInput::Connected { generation, peer })
    }

    fn hear(&mut self, generation: u64, from: WorkerId, message: PeerMessage) -> Vec<MemberEffect> {
        self.put(MemberInput::Peer {
            generation: Generation(generation),
            from,
            message,
        })
    }

    fn asked_for(&mut self, generation: u64, unit: u32) -> Vec<MemberEffect> {
        self.hear(generation, PEER, PeerMessage::Fetch { unit: Unit(unit) })
    }

    fn fetched(
        &mut self,
        generation: u64,
        unit: u32,
        id: StateId,
        decision: Option<Decision>,
    ) -> Vec<MemberEffect> {
        self.put(MemberInput::Fetched {
            generation: Generation(generation),
            from: PEER,
            unit: Unit(unit),
            id,
            decision,
        })
    }

    fn loaded(&mut self, unit: u32, id: StateId) -> Vec<MemberEffect> {
        self.put(MemberInput::Loaded { unit: Unit(unit), id })
    }

    /// A member that is connected, has the initial state, and waits for Go.
    fn ready_in(&mut self, plan: Arc<Plan>) {
        let generation = plan.generation.0;
        self.order(Order::Prepare(plan.clone()));
        for peer in plan.links(ME) {
            self.connect(generation, *peer);
        }
        for unit in 0..2 {
            self.loaded(unit, StateId::INITIAL);
        }
        assert_eq!(self.member.status().phase, Phase::Ready);
    }

    /// A member that loads the base of generation 2 from its peer.
    fn loading(&mut self, base: StateId) {
        self.order(Order::Prepare(plan(2, fixed(base, None), &[ME, PEER], &[PEER])));
        self.connect(2, PEER);
        assert_eq!(self.member.status().phase, Phase::Loading);
    }

    fn go(&mut self, generation: u64) -> Vec<MemberEffect> {
        let generation = Generation(generation);
        self.order(Order::Go { generation })
    }
}

fn inventory(effects: &[MemberEffect]) -> Option<&crate::message::Inventory> {
    effects.iter().find_map(|e| match e {
        MemberEffect::Report(Report::Inventory(i)) => Some(i),
        _ => None,
    })
}

fn apply(effects: &[MemberEffect]) -> Option<Decision> {
    effects.iter().find_map(|e| match e {
        MemberEffect::Apply { decision, .. } => Some(*decision),
        _ => None,
    })
}

const FENCE: Order = Order::Fence { upto: Generation(1) };

#[test]
fn the_inventory_of_a_running_engine_waits_for_its_answer() {
    let mut rig = Rig::running();
    let effects = rig.order(FENCE);
    assert!(effects.contains(&MemberEffect::Abort));
    assert_eq!(inventory(&effects), None);
    // the engine had just finished the step when it got the order to stop
    assert_eq!(rig.prepare(0), vec![]);
    let effects = rig.put(MemberInput::Stopped {
        prepared: vec![(Unit(1), norm(2.0))],
    });
    let inventory = inventory(&effects).unwrap();
    assert_eq!(
        inventory.prepared.keys().copied().collect::<Vec<_>>(),
        vec![Unit(1)]
    );
    let ran = Ran {
        generation: Generation(1),
        step: Step(0),
        norm_put_in: false,
    };
    assert_eq!(inventory.ran, Some(ran));
    assert_eq!(rig.member.status().phase, Phase::Idle);
}

#[test]
fn a_fence_waits_for_the_optimizer_and_the_step_counts() {
    let mut rig = Rig::running();
    rig.prepare(0);
    let decision = apply(&rig.peer_norm(0, 0)).unwrap();
    let effects = rig.order(FENCE);
    assert_eq!(inventory(&effects), None);
    assert!(!effects.contains(&MemberEffect::Abort));
    let effects = rig.put(MemberInput::Applied { id: decision.id });
    let inventory = inventory(&effects).unwrap();
    assert_eq!(inventory.units[&Unit(0)], decision.id);
    assert_eq!(inventory.decision, Some(decision));
    assert!(!effects.iter().any(|e| matches!(e, MemberEffect::Run { .. })));
}

#[test]
fn an_idle_engine_that_waits_for_norms_answers_a_fence_at_once() {
    let mut rig = Rig::running();
    rig.prepare(0);
    let effects = rig.order(FENCE);
    let inventory = inventory(&effects).unwrap();
    assert!(
        !inventory.ran.unwrap().norm_put_in,
        "the root puts its own in when all are there"
    );
    assert_eq!(inventory.prepared.len(), 2);
    // the missing norm comes too late, because the member has promised not to commit
    assert_eq!(apply(&rig.peer_norm(0, 0)), None);
}

#[test]
fn a_prepared_worker_rolls_forward_by_the_plans_decision() {
    let mut rig = Rig::running();
    rig.prepare(0);
    rig.order(FENCE);
    let parts: Vec<UnitNorm> = Rig::units().into_iter().map(|(_, n)| n).collect();
    let decision = Decision::conclude(StateId::INITIAL, Generation(1), &parts, None);
    let effects = rig.order(Order::Prepare(plan(
        2,
        fixed(decision.id, Some(decision)),
        &[ME],
        &[ME],
    )));
    assert_eq!(apply(&effects), Some(decision));
    rig.put(MemberInput::Applied { id: decision.id });
    assert_eq!(rig.member.status().phase, Phase::Ready);
    assert_eq!(rig.member.held()[&Unit(1)], decision.id);
}

#[test]
fn early_norms_wait_and_late_answers_are_ignored() {
    let mut rig = Rig::running();
    rig.peer_norm(0, 0);
    rig.peer_norm(1, 0); // this cannot happen, but must not use unlimited memory
    rig.peer_norm(2, 0);
    assert_eq!(rig.member.current.as_ref().unwrap().norms.len(), 2);
    let decision = apply(&rig.prepare(0)).unwrap();
    assert_eq!(rig.prepare(0), vec![]);
    assert_eq!(rig.put(MemberInput::Stopped { prepared: vec![] }), vec![]);
    rig.put(MemberInput::Applied { id: decision.id });
    assert_eq!(rig.put(MemberInput::Applied { id: decision.id }), vec![]);
    assert_eq!(rig.member.status().at, decision.id);
}

#[test]
fn armed_members_switch_with_the_commit() {
    let mut rig = Rig::running();
    let next = plan(
        2,
        Base::AtSwitch { from: Generation(1) },
        &[ME, PEER, WorkerId(3)],
        &[ME, PEER],
    );
    rig.order(Order::Prepare(next));
    for peer in [PEER, WorkerId(3)] {
        rig.put(MemberInput::Connected {
            generation: Generation(2),
            peer,
        });
    }
    assert!(rig.member.status().next_connected);
    // the new worker asks before the switch and is answered at the switch
    let message = PeerMessage::Fetch { unit: Unit(0) };
    let ask = MemberInput::Peer {
        generation: Generation(2),
        from: WorkerId(3),
        message,
    };
    assert_eq!(rig.put(ask), vec![]);
    rig.order(Order::Arm {
        generation: Generation(2),
    });
    rig.prepare(0);
    let decision = apply(&rig.peer_norm(0, 2)).unwrap();
    assert_eq!(decision.switch, Some(Generation(2)));
    let effects = rig.put(MemberInput::Applied { id: decision.id });
    let served =
        |e: &MemberEffect| matches!(e, MemberEffect::Serve { to: WorkerId(3), id, .. } if *id == decision.id);
    assert!(effects.iter().any(served));
    assert!(
        !effects
            .iter()
            .any(|e| matches!(e, MemberEffect::Disconnect { .. }))
    );
    assert_eq!(
        (rig.member.generation(), rig.member.status().phase),
        (Generation(2), Phase::Ready)
    );
    let effects = rig.order(Order::Go {
        generation: Generation(2),
    });
    assert!(effects.contains(&MemberEffect::Disconnect {
        generation: Generation(1)
    }));
}

#[test]
fn without_agreement_nobody_switches() {
    let mut rig = Rig::running();
    rig.order(Order::Prepare(plan(
        2,
        Base::AtSwitch { from: Generation(1) },
        &[ME, PEER],
        &[ME, PEER],
    )));
    rig.order(Order::Arm {
        generation: Generation(2),
    });
    rig.prepare(0);
    let decision = apply(&rig.peer_norm(0, 0)).unwrap();
    assert_eq!(decision.switch, None);
    rig.put(MemberInput::Applied { id: decision.id });
    assert_eq!(rig.member.generation(), Generation(1));
}

#[test]
fn a_fence_waits_for_state_that_is_just_being_taken_over() {
    let mut rig = Rig::new();
    let base = StateId {
        step: Step(3),
        run_gen: Generation(1),
        ..StateId::INITIAL
    };
    rig.order(Order::Prepare(plan(2, fixed(base, None), &[ME, PEER], &[PEER])));
    let effects = rig.put(MemberInput::Connected {
        generation: Generation(2),
        peer: PEER,
    });
    let fetch = |u| PeerMessage::Fetch { unit: Unit(u) };
    for unit in 0..2 {
        let send = MemberEffect::Send {
            generation: Generation(2),
            to: PEER,
            message: fetch(unit),
        };
        assert!(effects.contains(&send));
    }
    let fetched = |unit, id| MemberInput::Fetched {
        generation: Generation(2),
        from: PEER,
        unit: Unit(unit),
        id,
        decision: None,
    };
    assert_eq!(rig.put(fetched(0, StateId::INITIAL)), vec![], "not the base");
    assert_eq!(
        rig.put(fetched(0, base)),
        vec![MemberEffect::Adopt {
            unit: Unit(0),
            id: base
        }]
    );
    assert_eq!(inventory(&rig.order(Order::Fence { upto: Generation(2) })), None);
    let effects = rig.put(MemberInput::Loaded {
        unit: Unit(0),
        id: base,
    });
    assert_eq!(
        inventory(&effects).unwrap().units,
        BTreeMap::from([(Unit(0), base)])
    );
}

#[test]
fn stalled_fetch_is_repeated_and_blames_the_link() {
    let mut rig = Rig::new();
    let base = StateId {
        step: Step(3),
        run_gen: Generation(1),
        ..StateId::INITIAL
    };
    rig.order(Order::Prepare(plan(2, fixed(base, None), &[ME, PEER], &[PEER])));
    rig.put(MemberInput::Connected {
        generation: Generation(2),
        peer: PEER,
    });
    rig.now = rig.now.after(Duration::from_millis(800));
    let asks = |effects: &[MemberEffect]| {
        effects
            .iter()
            .filter(|e| matches!(e, MemberEffect::Send { .. }))
            .count()
    };
    assert_eq!(asks(&rig.put(MemberInput::Tick)), 2);
    assert_eq!(asks(&rig.put(MemberInput::Tick)), 0);
    for _ in 0..4 {
        rig.now = rig.now.after(Duration::from_millis(500));
        rig.put(MemberInput::FetchProgress {
            generation: Generation(2),
            from: PEER,
            unit: Unit(0),
        });
        let effects = rig.put(MemberInput::Tick);
        assert!(
            !effects
                .iter()
                .any(|e| matches!(e, MemberEffect::Report(Report::Suspect { .. })))
        );
    }
    rig.now = rig.now.after(Duration::from_millis(2_100));
    let suspect = Report::Suspect {
        generation: Generation(2),
        about: PEER,
        why: Suspicion::Unreachable,
    };
    assert!(
        rig.put(MemberInput::Tick)
            .contains(&MemberEffect::Report(suspect))
    );
}

#[test]
fn queued_units_are_not_requested_again() {
    let mut rig = Rig::new();
    let base = StateId {
        step: Step(3),
        run_gen: Generation(1),
        ..StateId::INITIAL
    };
    rig.order(Order::Prepare(plan(2, fixed(base, None), &[ME, PEER], &[PEER])));
    let generation = Generation(2);
    rig.put(MemberInput::Connected {
        generation,
        peer: PEER,
    });
    let progress = |from, unit| MemberInput::FetchProgress {
        generation,
        from,
        unit: Unit(unit),
    };
    let asked = |effects: Vec<MemberEffect>| effects.iter().any(|e| matches!(e, MemberEffect::Send { .. }));
    for _ in 0..8 {
        rig.now = rig.now.after(Duration::from_millis(500));
        rig.put(progress(PEER, 0));
        assert!(!asked(rig.put(MemberInput::Tick)), "unit 1 waits behind unit 0");
    }
    let whole = MemberInput::Fetched {
        generation,
        from: PEER,
        unit: Unit(0),
        id: base,
        decision: None,
    };
    rig.put(whole);
    rig.now = rig.now.after(Duration::from_millis(800));
    // unit 1 makes no progress by late bytes of a unit that has arrived, nor by bytes of another connection
    rig.put(progress(PEER, 0));
    rig.put(progress(WorkerId(3), 1));
    assert!(asked(rig.put(MemberInput::Tick)));
}

#[test]
fn hang_is_suspected_at_the_deadline_and_a_close_at_once() {
    let mut rig = Rig::running();
    rig.now = rig.now.after(Duration::from_millis(999));
    let suspects = |effects: &[MemberEffect]| {
        effects
            .iter()
            .filter(|e| matches!(e, MemberEffect::Report(Report::Suspect { .. })))
            .count()
    };
    assert_eq!(suspects(&rig.put(MemberInput::Tick)), 0);
    rig.now = rig.now.after(Duration::from_millis(2));
    assert_eq!(suspects(&rig.put(MemberInput::Tick)), 1);
    let closed = |g, w| MemberInput::Closed {
        generation: Generation(g),
        peer: w,
    };
    assert_eq!(suspects(&rig.put(closed(7, PEER))), 0);
    assert_eq!(suspects(&rig.put(closed(1, WorkerId(3)))), 0, "not a member");
    assert_eq!(suspects(&rig.put(closed(1, PEER))), 1);
}

#[test]
fn failed_step_is_reported_and_aborted_by_the_fence() {
    let mut rig = Rig::running();
    let effects = rig.put(MemberInput::StepFailed {
        generation: Generation(1),
        about: Some(PEER),
    });
    let suspect = Report::Suspect {
        generation: Generation(1),
        about: PEER,
        why: Suspicion::Gone,
    };
    assert_eq!(effects, vec![MemberEffect::Report(suspect)]);
    assert!(rig.order(FENCE).contains(&MemberEffect::Abort));
    assert!(inventory(&rig.put(MemberInput::Stopped { prepared: vec![] })).is_some());
}

#[test]
fn first_member_reports_each_commit() {
    let mut rig = Rig::running();
    let mut commits = vec![];
    for step in 0..3 {
        rig.prepare(step);
        let decision = apply(&rig.peer_norm(step, 0)).unwrap();
        let effects = rig.put(MemberInput::Applied { id: decision.id });
        let told = MemberEffect::Report(Report::Committed { decision });
        assert_eq!(effects.contains(&told), ME < PEER);
        commits.push(decision);
    }
    let told = |rig: &mut Rig, step: u64| {
        let after = Step(step);
        let effects = rig.order(Order::Tell { after });
        let [MemberEffect::Report(Report::Commits { decisions, .. })] = effects.as_slice() else {
            panic!("{effects:?}");
        };
        decisions.clone()
    };
    assert_eq!(told(&mut rig, 0), commits);
    assert_eq!(told(&mut rig, 1), commits[1..]);
    assert_eq!(told(&mut rig, 3), []);
}

fn levels(effects: &[MemberEffect]) -> usize {
    let level = |e: &&MemberEffect| matches!(e, MemberEffect::Report(Report::Status(_)));
    effects.iter().filter(level).count()
}

/// Otherwise each step would cost the coordinator a message from each worker, and a launch would cost one for each pair of workers.
#[test]
fn status_is_reported_on_change_and_by_heartbeat() {
    let mut rig = Rig::running();
    for step in 0..3 {
        rig.prepare(step);
        let decision = apply(&rig.peer_norm(step, 0)).unwrap();
        assert_eq!(levels(&rig.put(MemberInput::Applied { id: decision.id })), 0);
    }
    let again = MemberInput::Connected {
        generation: Generation(1),
        peer: PEER,
    };
    assert_eq!(levels(&rig.put(again)), 0);
    rig.now = rig.now.after(Rig::config().timing.heartbeat);
    assert_eq!(levels(&rig.put(MemberInput::Tick)), 1);
    assert_eq!(levels(&rig.put(MemberInput::Drain)), 1);
}

/// The reason why the member exits after this time, if it does.
fn exit_after(rig: &mut Rig, time: Duration) -> Option<ExitReason> {
    rig.now = rig.now.after(time);
    let effects = rig.put(MemberInput::Tick);
    effects.into_iter().find_map(|e| match e {
        MemberEffect::Exit(reason) => Some(reason),
        _ => None,
    })
}

#[test]
fn a_worker_whose_engine_does_not_stop_ends() {
    let mut rig = Rig::running();
    rig.order(FENCE);
    assert_eq!(exit_after(&mut rig, Duration::from_secs(40)), None);
    rig.order(FENCE);
    assert_eq!(
        exit_after(&mut rig, Duration::from_secs(10)),
        Some(ExitReason::EngineStuck)
    );
}

#[test]
fn orphaned_worker_ends_after_a_while_without_commits() {
    let minutes = |n: u64| Duration::from_secs(60 * n);
    let mut rig = Rig::running();
    rig.put(MemberInput::StreamDown);
    assert_eq!(exit_after(&mut rig, minutes(20)), None);
    rig.prepare(0);
    let decision = apply(&rig.peer_norm(0, 0)).unwrap();
    rig.put(MemberInput::Applied { id: decision.id });
    assert_eq!(exit_after(&mut rig, minutes(29)), None, "it trains on");
    rig.put(MemberInput::Stream);
    assert_eq!(exit_after(&mut rig, minutes(100)), None, "there is one");
    rig.put(MemberInput::StreamDown);
    assert_eq!(exit_after(&mut rig, minutes(29)), None);
    let mut finished = Rig::running();
    finished.member.at.step = finished.member.config.last_step;
    finished.put(MemberInput::StreamDown);
    assert_eq!(exit_after(&mut finished, minutes(9)), None);
    assert_eq!(exit_after(&mut finished, minutes(2)), Some(ExitReason::Finished));
    assert_eq!(exit_after(&mut rig, minutes(2)), Some(ExitReason::Orphaned));
}

#[test]
fn training_worker_ignores_release_and_lower_terms() {
    let mut rig = Rig::running();
    assert_eq!(rig.order(Order::Release), vec![]);
    assert_eq!(
        rig.put(MemberInput::Order {
            term: 0,
            order: FENCE
        }),
        vec![]
    );
    rig.order(FENCE);
    rig.put(MemberInput::Stopped { prepared: vec![] });
    assert_eq!(
        rig.order(Order::Release),
        vec![MemberEffect::Exit(ExitReason::Released)]
    );
    assert_eq!(rig.put(MemberInput::Tick), vec![]);
}

#[test]
fn an_old_go_does_not_make_a_fenced_worker_give_up_its_state() {
    let mut rig = Rig::running();
    rig.order(FENCE);
    rig.put(MemberInput::Stopped { prepared: vec![] });
    assert_eq!(
        rig.order(Order::Go {
            generation: Generation(1)
        }),
        vec![]
    );
    assert_eq!(rig.member.held().len(), 2);
    let effects = rig.order(Order::Go {
        generation: Generation(2),
    });
    assert_eq!(
        effects,
        vec![MemberEffect::Free { keep: vec![] }],
        "a spare of generation 2"
    );
}

#[test]
fn state_of_another_generation_is_not_the_base() {
    let mut rig = Rig::running();
    rig.order(FENCE);
    rig.put(MemberInput::Stopped { prepared: vec![] });
    let other = StateId {
        chain: varuna_plan::state::Chain(99),
        ..StateId::INITIAL
    };
    rig.order(Order::Prepare(plan(2, fixed(other, None), &[ME, PEER], &[PEER])));
    let effects = rig.put(MemberInput::Connected {
        generation: Generation(2),
        peer: PEER,
    });
    let fetches = |e: &&MemberEffect| {
        matches!(
            e,
            MemberEffect::Send {
                message: PeerMessage::Fetch { .. },
                ..
            }
        )
    };
    assert_eq!(effects.iter().filter(fetches).count(), 2, "{effects:?}");
    assert_eq!(rig.member.status().phase, Phase::Loading);
}
