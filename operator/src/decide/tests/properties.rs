//! Properties of decisions for arbitrary observations. Pods are drawn as API documents, so that reading them is tested too: pods with
//! several containers, init containers and sidecars, pods that a node rejects, that cannot start, that were created from an earlier
//! template, or that avoid nodes.

use super::*;
use crate::decide::pod_verdicts::judge_pods;
use crate::decide::workers::Workers;
use crate::observe_pod;
use proptest::prelude::*;
use serde_json::json;
use varuna_api::PodGroup;

/// Nodes of the drawn pods: `dead` does not answer, `gone` does not exist, `spot` announces its end.
const NODES: [&str; 5] = ["good", "other", "dead", "gone", "spot"];

const GROUPS: &str = "  workerGroups:
    - {name: spot, maxWorkers: 6}
    - {name: lasting, minWorkers: 1, maxWorkers: 2}
";

/// The states of a pod and its containers. Numbers are exit codes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PodState {
    WaitsForNode,
    WaitsForImage,
    WaitsForConfig,
    InitRuns,
    InitWaitsForImage,
    InitFailed(i32),
    Runs,
    RunsBesideCrashingSidecar,
    WorkerEndedBesideSidecar(i32),
    Ended(i32),
    Rejected,
}

#[derive(Clone, Debug)]
struct Drawn {
    number: i64,
    doing: PodState,
    node: Option<&'static str>,
    deleting: bool,
    disrupted: bool,
    group: Option<&'static str>,
    /// Whether it was created from the present template. None if the release that created it did not record the template.
    made_from: Option<bool>,
    avoids: Option<&'static str>,
    /// Seconds since it ended.
    ago: i64,
}

impl Drawn {
    /// The pod as the API server would show it.
    fn pod(&self, job: &Job) -> ObservedPod {
        let time = |at: i64| json!(decision::time(at));
        let mut metadata = json!({
            "name": format!("j-w{}-u", self.number), "creationTimestamp": time(NOW - 2 * self.ago - 10),
            "labels": { objects::NUMBER_LABEL: self.number.to_string() }, "annotations": {},
        });
        if let Some(group) = self.group {
            metadata["labels"][objects::GROUP_LABEL] = group.into();
        }
        let groups = job.pod_groups();
        let group = groups.iter().find(|g| g.name == self.group);
        let made_from = match (self.made_from, group) {
            (Some(true), Some(group)) => Some(group.workers.pods_hash()),
            (Some(_), _) => Some("old".into()),
            (None, _) => None,
        };
        if let Some(made_from) = made_from {
            metadata["annotations"][objects::MADE_FROM_ANNOTATION] = made_from.into();
        }
        if let Some(avoids) = self.avoids {
            metadata["annotations"][objects::AVOIDS_ANNOTATION] = avoids.into();
        }
        if self.deleting {
            metadata["deletionTimestamp"] = time(NOW + 5);
            metadata["deletionGracePeriodSeconds"] = 30.into();
        }
        let mesh = json!({ "name": "mesh", "image": "i", "restartPolicy": "Always" });
        let fetch = json!({ "name": "fetch", "image": "i" });
        let worker = json!({ "name": "worker", "image": "i" });
        let spec = json!({ "initContainers": [mesh, fetch], "containers": [worker], "nodeName": self.node });
        let document = json!({ "metadata": metadata, "spec": spec, "status": self.status() });
        observe_pod::pod(&serde_json::from_value(document).unwrap()).unwrap()
    }

    fn status(&self) -> Value {
        let container = |name: &str, state: Value| json!({ "name": name, "image": "i", "imageID": "i", "ready": false, "restartCount": 0, "state": state });
        let waiting = |reason: &str| json!({ "waiting": { "reason": reason, "message": "m" } });
        let (started, at) = (NOW - 2 * self.ago, NOW - self.ago);
        let ended = |code: i32| {
            json!({ "terminated": {
                "exitCode": code, "reason": "Error", "message": "last words",
                "startedAt": decision::time(started), "finishedAt": decision::time(at),
            } })
        };
        let runs = || json!({ "running": {} });
        let initializing = || waiting("PodInitializing");
        let (phase, mesh, fetch, worker) = match self.doing {
            PodState::WaitsForNode => (
                "Pending",
                waiting("PodInitializing"),
                initializing(),
                initializing(),
            ),
            PodState::WaitsForImage => ("Pending", runs(), ended(0), waiting("ImagePullBackOff")),
            PodState::WaitsForConfig => ("Pending", runs(), ended(0), waiting("CreateContainerConfigError")),
            PodState::InitRuns => ("Pending", runs(), runs(), initializing()),
            PodState::InitWaitsForImage => ("Pending", runs(), waiting("ErrImagePull"), initializing()),
            PodState::InitFailed(code) => ("Failed", ended(137), ended(code), initializing()),
            PodState::Runs => ("Running", runs(), ended(0), runs()),
            PodState::RunsBesideCrashingSidecar => ("Running", waiting("CrashLoopBackOff"), ended(0), runs()),
            PodState::WorkerEndedBesideSidecar(code) => ("Running", runs(), ended(0), ended(code)),
            PodState::Ended(0) => ("Succeeded", ended(137), ended(0), ended(0)),
            PodState::Ended(code) => ("Failed", ended(137), ended(0), ended(code)),
            PodState::Rejected => {
                let (reason, at) = ("UnexpectedAdmissionError", decision::time(at));
                return json!({ "phase": "Failed", "reason": reason, "message": "no healthy device", "startTime": at });
            }
        };
        let mut conditions = vec![];
        if self.node.is_none() {
            conditions.push(json!({ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/5 nodes" }));
        }
        if self.disrupted {
            conditions.push(
                json!({ "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI" }),
            );
        }
        json!({
            "phase": phase, "conditions": conditions,
            "initContainerStatuses": [container("mesh", mesh), container("fetch", fetch)],
            "containerStatuses": [container("worker", worker)],
        })
    }
}

fn any_pod_state() -> impl Strategy<Value = PodState> {
    let code = prop_oneof![Just(1), Just(137), Just(143)];
    prop_oneof![
        1 => Just(PodState::WaitsForNode),
        1 => Just(PodState::WaitsForImage),
        1 => Just(PodState::WaitsForConfig),
        1 => Just(PodState::InitRuns),
        1 => Just(PodState::InitWaitsForImage),
        1 => code.clone().prop_map(PodState::InitFailed),
        4 => Just(PodState::Runs),
        1 => Just(PodState::RunsBesideCrashingSidecar),
        1 => prop_oneof![Just(0), code.clone()].prop_map(PodState::WorkerEndedBesideSidecar),
        2 => prop_oneof![Just(0), code].prop_map(PodState::Ended),
        1 => Just(PodState::Rejected),
    ]
}

fn any_pod() -> impl Strategy<Value = Drawn> {
    let group = prop_oneof![
        4 => Just(None),
        4 => Just(Some("spot")),
        4 => Just(Some("lasting")),
        1 => Just(Some("removed")),
    ];
    let avoids = prop_oneof![
        3 => Just(None),
        1 => Just(Some("spot")),
        1 => Just(Some("other,spot")),
    ];
    (
        1_i64..40,
        any_pod_state(),
        proptest::sample::select(&NODES[..]),
        any::<(bool, bool)>(),
        (group, proptest::option::of(any::<bool>()), avoids),
        0_i64..900,
    )
        .prop_map(
            |(number, doing, node, (deleting, disrupted), (group, made_from, avoids), ago)| {
                let over = matches!(
                    doing,
                    PodState::Ended(_) | PodState::Rejected | PodState::InitFailed(_)
                );
                Drawn {
                    number,
                    doing,
                    node: Some(node).filter(|_| doing != PodState::WaitsForNode),
                    deleting: deleting && number % 3 == 0,
                    disrupted: disrupted && over,
                    group,
                    made_from,
                    avoids,
                    ago,
                }
            },
        )
}

fn any_run() -> impl Strategy<Value = Option<ObservedRun>> {
    let ended = |end, step| {
        Just(Some(ObservedRun {
            ended: Some(end),
            ..training(step)
        }))
    };
    prop_oneof![
        1 => Just(None),
        4 => (0_u64..9).prop_map(|s| Some(training(s))),
        1 => ended(RunEnd::Done, 10),
        1 => ended(RunEnd::Stopped, 5),
    ]
}

fn any_observed() -> impl Strategy<Value = Observed> {
    (
        1_u32..9,
        proptest::collection::vec(any_pod(), 0..14),
        any_run(),
        any::<(bool, bool, bool)>(),
        0_i64..50,
    )
        .prop_map(|(max, drawn, run, (suspend, grouped, attached), newest)| {
            observe(
                max,
                &drawn,
                run,
                (suspend && newest % 4 == 0, grouped, attached),
                newest,
            )
        })
}

/// A job that trains with all of its workers, or nearly all. Only in such a job pods are replaced because of another template, or deleted
/// although they run.
pub(super) fn any_healthy() -> impl Strategy<Value = Observed> {
    let pod = (
        proptest::sample::select(&["good", "other", "spot"][..]),
        any::<(bool, bool)>(),
        proptest::sample::select(&[None, Some(true), Some(false)][..]),
    );
    (1_u32..9, proptest::collection::vec(pod, 9), any::<bool>()).prop_map(|(max, pods, grouped)| {
        let pods = pods.into_iter().zip(1..).take(max as usize);
        let drawn: Vec<Drawn> = pods
            .map(|((node, (beside, is_well), made_from), number)| Drawn {
                number,
                doing: if beside {
                    PodState::RunsBesideCrashingSidecar
                } else {
                    PodState::Runs
                },
                // Most nodes do not announce their end.
                node: Some(if is_well { "good" } else { node }),
                deleting: false,
                disrupted: false,
                group: grouped.then_some(if number == 1 { "lasting" } else { "spot" }),
                made_from,
                avoids: None,
                ago: 0,
            })
            .collect();
        observe(max, &drawn, Some(training(5)), (false, grouped, true), 0)
    })
}

pub(super) fn any_job() -> impl Strategy<Value = Observed> {
    prop_oneof![3 => any_observed(), 1 => any_healthy()]
}

fn observe(
    max: u32,
    drawn: &[Drawn],
    run: Option<ObservedRun>,
    (suspend, grouped, attached): (bool, bool, bool),
    newest: i64,
) -> Observed {
    let mut observed = observed(max);
    let groups = if grouped { GROUPS } else { "" };
    // A spec with a greater maximum than all groups together is not valid.
    let max = if grouped { max.min(8) } else { max };
    let suspend = if suspend { "  suspend: true\n" } else { "" };
    let job = spec(max, &format!("{groups}{suspend}"));
    for name in ["other", "dead", "spot"] {
        let node = ObservedNode {
            ready: name != "dead",
            taints: (name == "spot")
                .then(|| "karpenter.sh/disrupted".into())
                .into_iter()
                .collect(),
            ..ObservedNode::default()
        };
        observed.nodes.insert(name.into(), node);
    }
    let mut pods: Vec<ObservedPod> = drawn
        .iter()
        .map(|d| {
            if grouped {
                d.clone()
            } else {
                Drawn {
                    group: d.group.filter(|g| *g == "removed"),
                    ..d.clone()
                }
            }
        })
        .map(|d| d.pod(&job))
        .collect();
    pods.sort_by_key(|p| p.number);
    pods.dedup_by_key(|p| p.number);
    let names: Vec<&str> = pods
        .iter()
        .filter(|p| p.phase == PodPhase::Running)
        .map(|p| p.name.as_str())
        .collect();
    observed.run = run.map(|run| {
        if attached {
            with_workers(run, &names, &[])
        } else {
            run
        }
    });
    observed.job.spec = Ok(job);
    observed.job.status.newest_pod = newest;
    observed.pods = pods;
    observed
}

fn judged(observed: &Observed) -> Vec<JudgedPod<'_>> {
    judge_pods(observed, &Workers::of(observed.run.as_ref()))
}

/// Number of pods that count against the maximum of the job, or of a group.
fn live(observed: &Observed, group: Option<&str>) -> usize {
    let pods = judged(observed);
    let live = pods.iter().filter(|p| p.verdict.is_active());
    live.filter(|p| p.pod.group.as_deref() == group).count()
}

fn groups(observed: &Observed) -> Vec<PodGroup<'_>> {
    observed.job.spec.as_ref().unwrap().pod_groups()
}

fn runs(desired: &Decided) -> bool {
    matches!(
        desired.coordinator,
        CoordinatorGoal::Run | CoordinatorGoal::RunAndSave
    )
}

fn is_failed(desired: &Decided) -> bool {
    condition(desired, ConditionType::Failed).status == "True"
}

proptest! {
    #[test]
    fn what_was_carried_out_is_not_wanted_again(observed in any_job()) {
        let first = decide(&observed);
        let next = carried_out(&observed, &first);
        let second = decide(&next);
        prop_assert!(second.create.is_empty(), "{:?}", names(&second));
        prop_assert!(second.delete.iter().all(|d| !first.delete.contains(d)), "{:?} then {:?}", first.delete, second.delete);
        let third = decide(&carried_out(&next, &second));
        prop_assert_eq!(&third.status, &second.status);
        prop_assert!(third.delete.is_empty() && third.events.is_empty(), "{:?} {:?}", third.delete, third.events);
        prop_assert_eq!(third.objects, second.objects);
    }

    #[test]
    fn a_pod_is_deleted_once_and_it_is_the_jobs(observed in any_job()) {
        let desired = decide(&observed);
        let mut seen = BTreeSet::new();
        for deletion in &desired.delete {
            let pod = observed.pods.iter().find(|p| p.name == deletion.name);
            prop_assert!(pod.is_some_and(|p| !p.deleting), "{:?}: {:?}", deletion, pod);
            prop_assert!(seen.insert(&deletion.name), "{:?} twice", deletion);
        }
    }

    #[test]
    fn groups_keep_their_size_and_names_are_unique(observed in any_job()) {
        let desired = decide(&observed);
        let next = carried_out(&observed, &desired);
        for group in groups(&observed) {
            let live = live(&next, group.name);
            let wanted = if runs(&desired) { group.pods as usize } else { 0 };
            let stopping = desired.coordinator == CoordinatorGoal::Stop;
            prop_assert!(stopping || live <= wanted, "{live} of {wanted}");
        }
        if runs(&desired) {
            let known: Vec<_> = groups(&observed).iter().map(|g| g.name.map(str::to_owned)).collect();
            let strays = next.pods.iter().filter(|p| !known.contains(&p.group));
            prop_assert!(strays.clone().all(|p| p.deleting || p.has_ended() || p.ended.is_some()), "{:?}", strays.collect::<Vec<_>>());
        }
        for name in names(&desired) {
            prop_assert!(observed.pods.iter().all(|p| p.name != name));
        }
        let given = observed.job.status.newest_pod.max(observed.pods.iter().map(|p| p.number).max().unwrap_or(0));
        prop_assert!(names(&desired).iter().all(|n| n[3..n.len() - 2].parse::<i64>().unwrap() > given));
    }

    #[test]
    fn new_pods_use_the_present_template_and_avoid_leaving_nodes(observed in any_job()) {
        let desired = decide(&observed);
        for made in next_pods(&desired) {
            let groups = groups(&observed);
            let group = groups.iter().find(|g| g.name == made.group.as_deref()).unwrap();
            prop_assert_eq!(made.made_from, Some(group.workers.pods_hash()));
            prop_assert!(made.avoids.contains("spot"), "{:?}", made.avoids);
        }
    }

    #[test]
    fn running_job_has_its_pods_or_a_time_to_retry(observed in any_job()) {
        let desired = decide(&observed);
        if runs(&desired) {
            let next = carried_out(&observed, &desired);
            let complete = groups(&observed).iter().all(|g| live(&next, g.name) == g.pods as usize);
            prop_assert!(complete || desired.reconcile_in.is_some_and(|s| s > 0));
        }
    }

    #[test]
    fn rollout_replaces_state_holders_node_by_node(observed in any_job()) {
        let desired = decide(&observed);
        let pods = judged(&observed);
        let run_well = pods.iter().filter(|p| p.verdict == PodVerdict::Running);
        let taken: Vec<_> = run_well.clone().filter(|p| deleted(&desired).contains(&p.pod.name.as_str())).collect();
        if runs(&desired) {
            let is_rollout = |p: &&&JudgedPod<'_>| desired.delete.iter().any(|d| d.name == p.pod.name && d.event == Some(Reason::RollingUpdate));
            let workers = Workers::of(observed.run.as_ref());
            let holds = |p: &&&JudgedPod<'_>| !workers.holds_nothing(p.pod);
            let rolled: BTreeSet<_> = taken.iter().filter(is_rollout).filter(holds).map(|p| &p.pod.node).collect();
            prop_assert!(rolled.len() <= 1, "{:?}", rolled);
            for group in groups(&observed) {
                let of_group = |p: &&&JudgedPod<'_>| p.pod.group.as_deref() == group.name;
                let surplus = run_well.clone().filter(|p| p.pod.group.as_deref() == group.name).count().saturating_sub(group.pods as usize);
                let others = taken.iter().filter(of_group).filter(|p| !is_rollout(p)).count();
                prop_assert!(others <= surplus, "{others} for {surplus} too many");
            }
        }
    }

    #[test]
    fn ended_pod_is_kept_for_an_hour_at_most(observed in any_job()) {
        let mut next = carried_out(&observed, &decide(&observed));
        next.now += 3600;
        let desired = decide(&next);
        if runs(&desired) {
            let ended = next.pods.iter().filter(|p| !p.deleting && (p.has_ended() || p.ended.is_some()));
            for pod in ended {
                prop_assert!(deleted(&desired).contains(&pod.name.as_str()), "{:?}", pod);
            }
        }
    }

    #[test]
    fn failures_of_one_node_at_one_moment_count_once_whoever_fails(observed in any_job()) {
        let before = decide(&observed);
        let mut more = observed.clone();
        let failed = judged(&observed);
        let copies = failed.iter().filter(|p| p.verdict.failure().is_some()).map(|p| ObservedPod {
            number: p.pod.number + 100,
            name: format!("j-w{}-u", p.pod.number + 100),
            ..p.pod.clone()
        });
        more.pods.extend(copies);
        let after = decide(&more);
        prop_assert_eq!(&after.status.recent_failures, &before.status.recent_failures);
        prop_assert_eq!(is_failed(&after), is_failed(&before));
    }

    #[test]
    fn simultaneous_failures_are_one_crash(
        failures in proptest::collection::vec((proptest::sample::select(&NODES[..]), 0_i64..=10, any::<bool>()), 1..30),
        rejections in proptest::collection::vec((proptest::sample::select(&NODES[..]), 0_i64..3000), 0..30),
    ) {
        let mut observed = observed(3);
        observed.job.spec = Ok(spec(3, "  failurePolicy: {maxCrashes: 2}\n"));
        let job = observed.job.spec.clone().unwrap();
        let drawn = |number, node, doing, ago| Drawn {
            number, doing, node: Some(node), deleting: false, disrupted: false, group: None, made_from: None, avoids: None, ago,
        };
        let crashed = failures.iter().map(|(node, ago, init)| {
            (*node, if *init { PodState::InitFailed(1) } else { PodState::Ended(1) }, 20 + ago)
        });
        let rejected = rejections.iter().map(|(node, ago)| (*node, PodState::Rejected, *ago));
        observed.pods = crashed.chain(rejected).zip(1..).map(|((node, doing, ago), number)| drawn(number, node, doing, ago).pod(&job)).collect();
        prop_assert!(!is_failed(&decide(&observed)));
    }
}
