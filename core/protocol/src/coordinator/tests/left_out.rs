//! What is said of workers that have no part in the plan.

use super::*;
use crate::coordinator::speeds::Estimates;
use varuna_plan::Spare;

impl Rig {
    /// Why the worker has no part in the plan, as people see it.
    pub(super) fn left_out(&self, worker: WorkerId) -> Option<LeftOut> {
        let workers = self.machine.snapshot().workers;
        let view = workers.into_iter().find(|view| view.id == worker);
        view.expect("a known worker").left_out
    }

    fn reason(&self, worker: WorkerId) -> Option<LeftOutReason> {
        self.left_out(worker).map(|left_out| left_out.reason)
    }
}

/// The first worker alone.
struct Narrow;

impl Planner for Narrow {
    fn plan(&self, request: &PlanRequest) -> Result<Shape, Infeasible> {
        let (used, idle) = request.workers.split_at(request.workers.len().min(1));
        let used = PlanRequest {
            workers: used.to_vec(),
            ..request.clone()
        };
        let spare = |id: WorkerId| Spare {
            worker: id,
            reason: "one is enough".to_owned(),
        };
        Ok(Shape {
            spares: idle.iter().map(|w| spare(w.id)).collect(),
            ..DataParallelPlanner.plan(&used)?
        })
    }
}

/// A trains alone, and B is a spare of its plan.
fn spare() -> Rig {
    let mut rig = Rig::with(config(), Record::default());
    rig.machine.shared.planner = Box::new(Narrow);
    for worker in [A, B] {
        rig.join(worker);
        rig.answer(worker, &[]);
    }
    rig.wait(60);
    assert_eq!(rig.plan().members(), [A]);
    for phase in [Phase::Ready, Phase::Running] {
        rig.status(A, 1, phase, StateId::INITIAL);
    }
    rig.wait(100);
    rig
}

#[test]
fn a_spare_has_the_planners_sentence_and_a_member_none() {
    let rig = spare();
    let expected = LeftOut {
        reason: LeftOutReason::NotNeeded,
        why: "one is enough".to_owned(),
    };
    assert_eq!((rig.left_out(A), rig.left_out(B)), (None, Some(expected)));
}

/// A reason, and what happens so that a worker is left out for it.
type Case = (LeftOutReason, fn(&mut Rig));

#[test]
fn each_reason_for_which_a_worker_is_not_planned_with_is_named() {
    let cases: [Case; 6] = [
        (LeftOutReason::WrongBits, |rig| {
            rig.machine.shared.roster.mark_corrupt(B);
        }),
        (LeftOutReason::Leaving, |rig| {
            let draining = Status {
                draining: true,
                ..idle()
            };
            rig.put(CoordinatorInput::Report {
                from: B,
                report: Report::Status(draining),
            });
        }),
        (LeftOutReason::NoData, |rig| {
            rig.machine.shared.quarantine.could_not_read(rig.now, "w2");
        }),
        (LeftOutReason::Unsound, |rig| {
            rig.machine.shared.quarantine.note_corruption(rig.now, "w2");
        }),
        (LeftOutReason::BadLink, |rig| {
            let least = Duration::from_secs(10);
            rig.machine.shared.bad_links.mark(rig.now, A, B, least);
        }),
        (LeftOutReason::Slow, |rig| {
            let slow = Estimates {
                speeds: BTreeMap::from([(B, 0.5)]),
                ..Estimates::default()
            };
            rig.machine.shared.speeds.adopt(&slow);
        }),
    ];
    for (reason, happens) in cases {
        let mut rig = spare();
        happens(&mut rig);
        assert_eq!(rig.reason(B), Some(reason), "{:?}", rig.left_out(B));
        assert_eq!(rig.left_out(A), None, "it trains");
    }
}

#[test]
fn worker_after_the_plan_is_new_until_considered() {
    let mut rig = spare();
    let hello = Hello {
        address: "c:1".to_owned(),
        name: "w3".to_owned(),
        node: String::new(),
        hardware: None,
        memory_bytes: None,
        copies_bytes: None,
        scores: None,
        speed: 1.0,
    };
    rig.put(CoordinatorInput::StreamUp { from: C, hello });
    assert_eq!(rig.reason(C), Some(LeftOutReason::New), "it has not reported");
    rig.say(C, Report::Status(idle()));
    assert_eq!(rig.machine.record().next, None);
    assert_eq!(rig.reason(C), Some(LeftOutReason::NotWorthAChange));
    assert_eq!(rig.reason(B), Some(LeftOutReason::NotNeeded));
}

#[test]
fn a_worker_beyond_the_wanted_number_says_so() {
    let mut rig = Rig::training(&[A]);
    rig.put(CoordinatorInput::MaxWorkers(Some(1)));
    rig.wait(100);
    rig.join(B);
    assert_eq!(rig.reason(B), Some(LeftOutReason::MaxWorkers));
}

#[test]
fn absent_workers_are_not_left_out() {
    let mut rig = spare();
    rig.put(CoordinatorInput::StreamDown { from: B });
    assert_eq!(rig.left_out(B), None);
    let mut waits = Rig::with(config(), Record::default());
    waits.join(A);
    assert_eq!(waits.machine.record().plan, None);
    assert_eq!(waits.left_out(A), None);
}
