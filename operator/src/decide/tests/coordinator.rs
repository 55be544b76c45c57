//! The job's coordinator: which pod is in charge, and when another one takes over.

use super::*;
use proptest::prelude::*;
use varuna_api::crd::RunMessage;

fn orders(goal: RunGoal, coordinator: i64) -> RunSpec {
    RunSpec {
        uid: "u".into(),
        goal,
        coordinator,
        newest_coordinator: coordinator,
        steps: 10,
        allow_state_loss: false,
        save_at: None,
        leaving: vec![],
        ends_at: BTreeMap::new(),
        written_at: None,
        ended: vec![],
        domains: BTreeMap::new(),
    }
}

/// A change of an observation.
type Change = Box<dyn Fn(&mut Observed)>;

/// A job that trains under coordinator 1.
fn served() -> Observed {
    let mut observed = observed(1);
    observed.pods = vec![pod(1, PodPhase::Running)];
    observed.orders = Some(orders(RunGoal::Run, 1));
    observed.coordinators = vec![coordinator(1, PodPhase::Running)];
    observed.run = Some(with_workers(training(3), &["j-w1-u"], &[]));
    observed
}

/// The decision about the coordinator: the one in charge, the number of one that is started, the numbers of those that are deleted.
fn decided(observed: &Observed) -> (i64, Option<i64>, Vec<i64>) {
    let desired = decide(observed);
    let orders = desired.orders.or(observed.orders.clone()).unwrap();
    let number = |name: &String| name.rsplit('-').next().unwrap().parse().unwrap();
    (
        orders.coordinator,
        desired
            .starts
            .map(|pod| number_of(&pod, objects::COORDINATOR_LABEL)),
        desired.coordinators_deleted.iter().map(number).collect(),
    )
}

fn leaving_node() -> ObservedNode {
    ObservedNode {
        ready: true,
        taints: vec!["karpenter.sh/disrupted".into()],
        conditions: vec![],
        domain: String::new(),
    }
}

#[test]
fn new_job_gets_one_coordinator() {
    let desired = decide(&observed(1));
    assert_eq!(desired.orders, Some(orders(RunGoal::Run, 1)));
    let made = desired.starts.as_ref().unwrap();
    assert_eq!(made["metadata"]["name"], "j-coordinator-u-1");
    let next = carried_out(&observed(1), &desired);
    let again = decide(&next);
    assert_eq!((again.orders, again.starts), (None, None));
    let calm = decide(&served());
    assert_eq!((calm.orders, calm.starts), (None, None));
    assert!(calm.coordinators_deleted.is_empty());
}

#[test]
fn a_coordinator_that_is_gone_is_replaced_at_once() {
    let cases: Vec<(&str, Change)> = vec![
        ("its pod was deleted", Box::new(|o| o.coordinators.clear())),
        (
            "its process was killed",
            Box::new(|o| {
                let killed = ended(1, 137, "Error", 1);
                o.coordinators[0].phase = PodPhase::Failed;
                o.coordinators[0].ended = killed.ended;
            }),
        ),
        (
            "it does not answer any more",
            Box::new(|o| {
                o.coordinator_probe = Some(CoordinatorProbe {
                    number: 1,
                    answer: ProbeAnswer::Silent,
                });
            }),
        ),
        (
            "nobody has asked it, and its node does not answer",
            Box::new(|o| o.nodes.get_mut("good").unwrap().ready = false),
        ),
        (
            "its image is not there, and another is configured",
            Box::new(|o| {
                o.coordinators[0].phase = PodPhase::Pending;
                o.coordinators[0].waiting = Some(("ErrImagePull".into(), "m".into()));
                o.coordinators[0].image = Some("another".into());
            }),
        ),
    ];
    for (what, change) in cases {
        let mut observed = served();
        change(&mut observed);
        let (in_charge, started, _) = decided(&observed);
        assert_eq!((in_charge, started), (2, Some(2)), "{what}");
        let deleted = decide(&observed).coordinators_deleted.len();
        let lives = observed.coordinators.iter().filter(|p| !p.has_ended()).count();
        assert_eq!(deleted, lives, "{what}");
    }
}

#[test]
fn unstartable_coordinator_is_not_retried_repeatedly() {
    let mut observed = served();
    observed.coordinators.clear();
    observed.failures = vec![Failure {
        part: JobPart::Pods,
        message: "exceeded quota: q".into(),
        retry_in: 4,
    }];
    let desired = decide(&observed);
    assert!(
        desired.starts.is_none() && desired.orders.is_none(),
        "{desired:?}"
    );
    observed.failures[0].retry_in = 0;
    assert_eq!(decided(&observed), (2, Some(2), vec![]));
    // The job's own coordinator image does not exist.
    let own = "  coordinator: {template: {spec: {containers: [{name: coordinator, image: mine}]}}}\n";
    let mut waits = served();
    waits.job.spec = Ok(spec(1, own));
    waits.coordinators[0].phase = PodPhase::Pending;
    waits.coordinators[0].waiting = Some(("ErrImagePull".into(), "m".into()));
    waits.coordinators[0].image = Some("mine".into());
    assert_eq!(decided(&waits), (1, None, vec![]), "it waits for the image");
    waits.job.spec = Ok(spec(1, &own.replace("mine", "corrected")));
    assert_eq!(decided(&waits), (2, Some(2), vec![1]));
}

/// A new job with this text in its spec. The pod of its coordinator was created and has not started.
fn with_new_coordinator(extra: &str) -> Observed {
    let mut observed = on_nodes(1);
    observed.job.spec = Ok(spec(1, extra));
    let mut next = carried_out(&observed, &decide(&observed));
    next.run = Some(ObservedRun::default());
    next
}

#[test]
fn failed_coordinator_is_recreated_after_a_correction() {
    let keys = |name: &str| {
        format!(
            "  workers: {{template: {{spec: {{containers: [{{name: worker, envFrom: [{{secretRef: {{name: {name}}}}}]}}]}}}}}}\n"
        )
    };
    let pool =
        |name: &str| format!("  coordinator: {{template: {{spec: {{nodeSelector: {{pool: {name}}}}}}}}}\n");
    let waiting = Some((
        "CreateContainerConfigError".to_owned(),
        "no Secret kyes".to_owned(),
    ));
    let unschedulable = Some("0/6 nodes are available".to_owned());
    let cases = [
        (keys("kyes"), keys("keys"), waiting, None),
        (pool("gone"), pool("cpu"), None, unschedulable),
    ];
    for (wrong, right, waiting, unschedulable) in cases {
        let mut observed = with_new_coordinator(&wrong);
        observed.coordinators[0].waiting = waiting;
        observed.coordinators[0].unschedulable = unschedulable;
        assert_eq!(decided(&observed), (1, None, vec![]), "{wrong}");
        observed.job.spec = Ok(spec(1, &right));
        assert_eq!(decided(&observed), (2, Some(2), vec![1]), "{right}");
        let next = carried_out(&observed, &decide(&observed));
        assert_eq!(decided(&next), (2, None, vec![]), "{right}");
        // The pod was created by an earlier release, which did not record its template.
        observed.coordinators[0].made_from = None;
        assert_eq!(decided(&observed), (1, None, vec![]), "{right}");
    }
}

#[test]
fn unschedulable_coordinator_may_use_on_demand_nodes() {
    let mut observed = on_nodes(1);
    observed.nodes.insert("a".into(), leaving_node());
    let mut next = carried_out(&observed, &decide(&observed));
    next.run = Some(ObservedRun::default());
    assert_eq!(next.coordinators[0].avoids, BTreeSet::from(["a".to_owned()]));
    next.nodes.get_mut("a").unwrap().taints.clear();
    assert_eq!(decided(&next), (1, None, vec![]), "it may have a node already");
    next.coordinators[0].unschedulable = Some("0/7 nodes are available".into());
    assert_eq!(decided(&next), (2, Some(2), vec![1]));
    next.nodes.insert("a".into(), leaving_node());
    assert_eq!(decided(&next), (1, None, vec![]), "the node goes still");
}

#[test]
fn orders_that_are_refused_end_no_coordinator_that_runs() {
    let mut observed = served();
    observed.failures = vec![Failure {
        part: JobPart::Coordinator,
        message: "etcdserver: request timed out".into(),
        retry_in: 4,
    }];
    let desired = decide(&observed);
    assert_eq!(desired.coordinator, CoordinatorGoal::Run);
    assert_eq!(decided(&observed), (1, None, vec![]));
    // A coordinator that is gone is replaced after the backoff.
    observed.coordinators.clear();
    assert!(decide(&observed).starts.is_none());
    observed.failures[0].retry_in = 0;
    assert_eq!(decided(&observed), (2, Some(2), vec![]));
}

#[test]
fn answering_coordinator_is_kept() {
    let mut observed = served();
    observed.nodes.get_mut("good").unwrap().ready = false;
    observed.coordinator_probe = Some(CoordinatorProbe {
        number: 1,
        answer: ProbeAnswer::Answers,
    });
    assert_eq!(decided(&observed), (1, None, vec![]));
    // It was not probed yet, because another operator has just taken over, and after an outage no node seems to be ready.
    observed.coordinator_probe = None;
    observed.run.as_mut().unwrap().health_address = Some("10.0.0.1:8081".parse().unwrap());
    assert_eq!(decided(&observed), (1, None, vec![]));
    observed.coordinator_probe = Some(CoordinatorProbe {
        number: 1,
        answer: ProbeAnswer::NeverAnswered,
    });
    assert_eq!(decided(&observed), (2, Some(2), vec![1]));
    observed.nodes.get_mut("good").unwrap().ready = true;
    assert_eq!(
        decided(&observed),
        (1, None, vec![]),
        "there is no way to it from here"
    );
    // The result for an earlier coordinator does not count for this one.
    observed.coordinator_probe = Some(CoordinatorProbe {
        number: 0,
        answer: ProbeAnswer::Silent,
    });
    assert_eq!(decided(&observed), (1, None, vec![]));
}

#[test]
fn leaving_coordinator_stays_until_its_successor_runs() {
    let deleted = |o: &mut Observed| o.coordinators[0].deleting = true;
    let leaves = |o: &mut Observed| drop(o.nodes.insert("good".into(), leaving_node()));
    for change in [&deleted as &dyn Fn(&mut Observed), &leaves] {
        let mut observed = served();
        change(&mut observed);
        assert_eq!(decided(&observed), (1, Some(2), vec![]));
        let mut successor = coordinator(2, PodPhase::Pending);
        observed.coordinators.push(successor.clone());
        assert_eq!(decided(&observed), (1, None, vec![]), "it starts");
        successor.phase = PodPhase::Running;
        successor.node = None;
        observed.coordinators[1] = successor;
        let (in_charge, started, old) = decided(&observed);
        assert_eq!((in_charge, started), (2, None));
        assert_eq!(old.is_empty(), observed.coordinators[0].deleting);
        // The coordinator ends before its successor runs.
        observed.coordinators[1].phase = PodPhase::Pending;
        observed.coordinators.remove(0);
        assert_eq!(decided(&observed), (2, None, vec![]));
    }
    let started = decide(&{
        let mut observed = served();
        leaves(&mut observed);
        observed
    });
    let affinity = started.starts.unwrap()["spec"]["affinity"]["nodeAffinity"].clone();
    let term = &affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"][0];
    assert_eq!(term["matchFields"][0]["values"][0], "good");
}

#[test]
fn a_failure_counts_once_and_the_next_try_waits() {
    let mut observed = served();
    assert_eq!(coordinator_failure(&observed), None);
    let crashed = ended(1, 1, "Error", 1);
    observed.coordinators[0].phase = PodPhase::Failed;
    observed.coordinators[0].ended = crashed.ended;
    let (number, why) = coordinator_failure(&observed).unwrap();
    assert_eq!(number, 1);
    assert!(why.contains("exit code 1 (Error): last words"), "{why}");
    observed.failures = vec![Failure {
        part: JobPart::Coordinator,
        message: why,
        retry_in: 1,
    }];
    let desired = decide(&observed);
    assert_eq!(desired.orders, Some(orders(RunGoal::None, 1)));
    assert!(
        desired.starts.is_none() && desired.coordinators_deleted.is_empty(),
        "its log stays"
    );
    assert_eq!(
        condition(&desired, ConditionType::Degraded).reason,
        "CoordinatorFails"
    );
    let mut next = carried_out(&observed, &desired);
    next.run = None;
    assert_eq!(coordinator_failure(&next), None, "it was seen");
    next.failures[0].retry_in = 0;
    assert_eq!(decided(&next), (2, Some(2), vec![]));
    // A coordinator that was evicted, or that reported the end of its run, has not failed.
    let mut taken = served();
    taken.coordinators[0].phase = PodPhase::Failed;
    taken.coordinators[0].disrupted = Some("EvictionByEvictionAPI".into());
    assert_eq!(coordinator_failure(&taken), None);
    taken.run = Some(ObservedRun {
        ended: Some(RunEnd::Done),
        ..training(10)
    });
    assert_eq!(coordinator_failure(&taken), None);
    taken.run.as_mut().unwrap().ended = Some(RunEnd::Failed("disk full".into()));
    assert_eq!(coordinator_failure(&taken), Some((1, "disk full".into())));
}

#[test]
fn never_reporting_coordinator_is_replaced() {
    let mut observed = served();
    observed.run = Some(ObservedRun::default());
    // It was ready long before it was put in charge.
    observed.coordinators[0].runs_since = Some(NOW - 300);
    let first = decide(&observed);
    assert_eq!((first.starts.is_some(), first.reconcile_in), (false, Some(60)));
    let mut silent = carried_out(&observed, &first);
    silent.now += 59;
    assert_eq!(coordinator_failure(&silent), None);
    assert_eq!(decide(&silent).reconcile_in, Some(1));
    silent.now += 1;
    let (number, why) = coordinator_failure(&silent).unwrap();
    assert_eq!(number, 1);
    assert!(why.contains("has not reported"), "{why}");
    assert_eq!(decided(&silent), (2, Some(2), vec![1]));
    let backed_off = Observed {
        failures: vec![Failure {
            part: JobPart::Coordinator,
            message: why,
            retry_in: 1,
        }],
        ..silent.clone()
    };
    let desired = decide(&backed_off);
    assert_eq!(desired.orders.as_ref().unwrap().goal, RunGoal::None);
    assert_eq!(desired.coordinators_deleted, ["j-coordinator-u-1"]);
    assert_eq!(
        condition(&desired, ConditionType::Degraded).reason,
        "CoordinatorFails"
    );
}

#[test]
fn coordinator_with_any_report_is_kept() {
    let mut silent = served();
    silent.run = Some(ObservedRun::default());
    silent.coordinators[0].runs_since = Some(NOW);
    let mut silent = carried_out(&silent, &decide(&silent));
    silent.now += 3600;
    assert!(coordinator_failure(&silent).is_some());
    let cases: Vec<(&str, Change)> = vec![
        (
            "it listens, and waits for its record or for workers",
            Box::new(|o| {
                let run = o.run.as_mut().unwrap();
                run.health_address = Some("10.0.0.1:8081".parse().unwrap());
            }),
        ),
        (
            "its container has not started",
            Box::new(|o| o.coordinators[0].runs_since = None),
        ),
        (
            "it has started late",
            Box::new(|o| o.coordinators[0].runs_since = Some(o.now - 59)),
        ),
        (
            "another one is in charge",
            Box::new(|o| o.orders.as_mut().unwrap().coordinator = 2),
        ),
        (
            "nobody can report",
            Box::new(|o| {
                o.failures.push(Failure {
                    part: JobPart::Server,
                    message: "connection refused".into(),
                    retry_in: 4,
                });
            }),
        ),
    ];
    for (what, change) in cases {
        let mut observed = silent.clone();
        change(&mut observed);
        assert_eq!(coordinator_failure(&observed), None, "{what}");
    }
}

#[test]
fn coordinator_is_not_moved_between_leaving_nodes() {
    let mut observed = served();
    observed.nodes.insert("spot".into(), leaving_node());
    observed.coordinators[0].phase = PodPhase::Pending;
    observed.coordinators[0].node = Some("spot".into());
    assert_eq!(decided(&observed), (2, Some(2), vec![1]));
    for i in 0..64 {
        observed.nodes.insert(format!("spot{i}"), leaving_node());
    }
    assert_eq!(decided(&observed), (1, None, vec![]));
}

#[test]
fn complete_job_has_no_coordinator() {
    let mut observed = served();
    observed.run = Some(ObservedRun {
        ended: Some(RunEnd::Done),
        ..training(10)
    });
    let desired = decide(&observed);
    assert_eq!(desired.orders.as_ref().unwrap().goal, RunGoal::None);
    assert_eq!(desired.coordinators_deleted, ["j-coordinator-u-1"]);
    let mut stopped = served();
    stopped.run.as_mut().unwrap().ended = Some(RunEnd::Stopped);
    assert_eq!(
        decided(&stopped),
        (2, Some(2), vec![1]),
        "it was suspended, and is not any more"
    );
    let mut again = served();
    again.orders = Some(orders(RunGoal::None, 7));
    again.coordinators.clear();
    again.run = None;
    assert_eq!(decided(&again), (8, Some(8), vec![]), "no number is used twice");
}

#[test]
fn orders_have_the_present_permission_to_lose_state() {
    let mut observed = served();
    observed.job.spec = Ok(spec(1, "  allowStateLoss: true\n"));
    let allowed = decide(&observed).orders;
    let expected = RunSpec {
        allow_state_loss: true,
        ..orders(RunGoal::Run, 1)
    };
    assert_eq!(allowed, Some(expected));
    observed.orders = allowed;
    assert_eq!(decide(&observed).orders, None, "it is ordered");
    observed.job.spec = Err("it cannot be read".into());
    assert_eq!(decide(&observed).orders, None, "what was allowed stays so");
    observed.job.spec = Ok(spec(1, ""));
    assert_eq!(decide(&observed).orders, Some(orders(RunGoal::Run, 1)));
}

#[test]
fn suspension_waits_for_a_coordinator_only_if_needed() {
    let mut observed = served();
    observed.job.spec = Ok(spec(1, "  suspend: true\n  allowStateLoss: true\n"));
    assert_eq!(decide(&observed).coordinator, CoordinatorGoal::Stop);
    observed.run = Some(ObservedRun::default());
    assert_eq!(
        decide(&observed).coordinator,
        CoordinatorGoal::Absent,
        "nothing was trained"
    );
    let status = decide(&served()).status;
    assert!(status.plan.is_some());
    observed.job.status = status;
    assert_eq!(
        decide(&observed).coordinator,
        CoordinatorGoal::Stop,
        "another one takes over"
    );
    observed.coordinators[0].phase = PodPhase::Pending;
    observed.coordinators[0].unschedulable = Some("no room".into());
    let desired = decide(&observed);
    assert_eq!(desired.coordinator, CoordinatorGoal::Absent, "it cannot start");
    assert_eq!(deleted(&desired), ["j-w1-u"]);
}

#[test]
fn coordinator_continues_without_a_readable_spec() {
    let mut observed = served();
    observed.job.spec = Err("unknown preset".into());
    assert_eq!(decided(&observed), (1, None, vec![]));
    observed.coordinators.clear();
    let desired = decide(&observed);
    assert!(
        desired.orders.is_none() && desired.starts.is_none(),
        "{desired:?}"
    );
}

#[test]
fn more_steps_are_ordered_as_the_spec_asks_for_them() {
    let mut observed = served();
    observed.job.spec.as_mut().unwrap().training.steps = 25;
    assert_eq!(decide(&observed).orders.unwrap().steps, 25);
    observed.job.spec = Err("unknown preset".into());
    assert_eq!(decide(&observed).orders, None);
}

#[test]
fn what_it_says_becomes_events_once() {
    let mut observed = served();
    let message = |number, resumed, text: &str| RunMessage {
        number,
        resumed,
        text: text.into(),
    };
    observed.run.as_mut().unwrap().messages = vec![
        message(1, false, "lost worker j-w2"),
        message(2, true, "training goes on"),
    ];
    let first = decide(&observed);
    let said = |d: &Decided| -> Vec<_> {
        let events = d
            .events
            .iter()
            .filter(|e| matches!(e.reason, Reason::Run | Reason::Resumed));
        events.map(|e| (e.reason, e.text.clone())).collect()
    };
    assert_eq!(
        said(&first),
        [
            (Reason::Run, "lost worker j-w2".to_owned()),
            (Reason::Resumed, "training goes on".to_owned())
        ]
    );
    let mut next = carried_out(&observed, &first);
    assert_eq!(said(&decide(&next)), []);
    next.run.as_mut().unwrap().messages.clear();
    assert_eq!(
        decide(&next).status.last_message,
        Some(2),
        "a coordinator that has said nothing"
    );
}

#[test]
fn kernel_parameters_of_the_workers_are_not_its_own() {
    let context_of = |extra: &str| {
        let text = "  workers: {template: {spec: {securityContext: {fsGroup: 7, sysctls: [{name: kernel.msgmax, value: \"1\"}]}}}}\n";
        let mut observed = observed(1);
        observed.job.spec = Ok(spec(1, &format!("{text}{extra}")));
        decide(&observed).starts.unwrap()["spec"]["securityContext"].clone()
    };
    let context = context_of("");
    assert_eq!(
        (&context["fsGroup"], &context["sysctls"]),
        (&7.into(), &Value::Null)
    );
    let own = "  coordinator: {template: {spec: {securityContext: {sysctls: [{name: net.core.somaxconn, value: \"2\"}]}}}}\n";
    assert_eq!(context_of(own)["sysctls"][0]["name"], "net.core.somaxconn");
}

#[test]
fn run_folder_has_room_for_ten_million_steps() {
    let pod = decide(&observed(1)).starts.unwrap();
    let volumes = pod["spec"]["volumes"].as_array().unwrap();
    let folder = volumes.iter().find(|v| v["name"] == "varuna-run").unwrap();
    let limit = varuna_api::quantity::bytes(&folder["emptyDir"]["sizeLimit"]).unwrap();
    // A line of metrics.jsonl and a record of an event file have half a kilobyte each, or less.
    assert!(limit >= 10_000_000 * 2048, "{limit}");
}

#[test]
fn coordinator_pod_opens_the_location_like_workers() {
    let text = "  workers:\n    template:\n      metadata: {labels: {azure.workload.identity/use: \"true\"}}\n      spec:\n        serviceAccountName: bucket\n        volumes: [{name: data, persistentVolumeClaim: {claimName: c}}, {name: authority, configMap: {name: ca}}]\n        nodeSelector: {gpu: h100}\n        containers:\n        - {name: worker, env: [{name: AWS_REGION, value: eu}], envFrom: [{secretRef: {name: keys}}], volumeMounts: [{name: data, mountPath: /data}, {name: authority, mountPath: /ca}], resources: {limits: {nvidia.com/gpu: 1}}}\n        - {name: sidecar, image: s}\n";
    let pod_of = |extra: &str| {
        let mut observed = observed(1);
        observed.job.spec = Ok(spec(1, &format!("{text}{extra}")));
        let desired = decide(&observed);
        let subject = desired.objects[1]["subjects"][0]["name"].clone();
        (desired.starts.unwrap(), subject, desired.objects)
    };
    let (pod, subject, objects) = pod_of("");
    let spec = &pod["spec"];
    assert_eq!(
        (&spec["serviceAccountName"], &subject),
        (&"bucket".into(), &"bucket".into())
    );
    assert!(objects.iter().all(|o| o["kind"] != "ServiceAccount"));
    assert_eq!(pod["metadata"]["labels"]["azure.workload.identity/use"], "true");
    assert_eq!(spec["nodeSelector"], Value::Null);
    assert_eq!(spec["containers"].as_array().unwrap().len(), 1);
    let container = &spec["containers"][0];
    assert_eq!(container["image"], "coordinator-img");
    assert_eq!(container["resources"]["limits"], Value::Null);
    assert_eq!(container["envFrom"][0]["secretRef"]["name"], "keys");
    let env = container["env"].as_array().unwrap();
    assert!(env.iter().any(|e| e["name"] == "AWS_REGION"), "{env:?}");
    let words = |list: &Value, field: &str| -> Vec<String> {
        let all = list.as_array().unwrap().iter();
        all.map(|v| v[field].as_str().unwrap().to_owned()).collect()
    };
    // The dataset's volume may be attached to one node only, and the coordinator reads no data.
    assert_eq!(
        words(&container["volumeMounts"], "mountPath"),
        ["/ca", "/run/varuna/credentials", "/tmp"]
    );
    let own_volumes = ["varuna-credentials", "varuna-run"];
    assert_eq!(words(&spec["volumes"], "name")[0], "authority");
    assert_eq!(words(&spec["volumes"], "name")[1..], own_volumes);
    for uri in ["/data/checkpoints", "file:///data"] {
        let (pod, _, _) = pod_of(&format!("  checkpoint: {{uri: \"{uri}\", intervalSteps: 10}}\n"));
        let spec = &pod["spec"];
        assert_eq!(
            words(&spec["volumes"], "name")[..2],
            ["data", "authority"],
            "{uri}"
        );
        assert_eq!(
            spec["containers"][0]["volumeMounts"][0]["mountPath"], "/data",
            "{uri}"
        );
    }
    let (pod, _, _) = pod_of("  checkpoint: {uri: \"s3://data/checkpoints\", intervalSteps: 10}\n");
    assert_eq!(words(&pod["spec"]["volumes"], "name")[0], "authority");
    let own = "  coordinator: {serviceAccountName: writer, template: {spec: {nodeSelector: {pool: cpu}, containers: [{name: coordinator, image: mine}]}}}\n";
    let (pod, subject, _) = pod_of(own);
    assert_eq!(
        (&pod["spec"]["serviceAccountName"], &subject),
        (&"writer".into(), &"writer".into())
    );
    assert_eq!(pod["spec"]["nodeSelector"]["pool"], "cpu");
    assert_eq!(pod["spec"]["containers"][0]["image"], "mine");
}

/// As docs/reference/observability.md has it for a receiver of OpenTelemetry.
#[test]
fn its_own_template_gives_it_variables_that_workers_do_not_get() {
    let own = "  coordinator:
    template:
      spec:
        containers:
        - name: coordinator
          env:
          - {name: OTEL_EXPORTER_OTLP_ENDPOINT, value: \"http://collector:4318\"}
          - {name: OTEL_EXPORTER_OTLP_HEADERS, valueFrom: {secretKeyRef: {name: collector, key: headers}}}
";
    let mut observed = observed(1);
    observed.job.spec = Ok(spec(1, own));
    let desired = decide(&observed);
    let variable = |pod: &Value, name: &str| {
        let env = pod["spec"]["containers"][0]["env"].as_array().unwrap();
        env.iter().find(|e| e["name"] == name).cloned()
    };
    let pod = desired.starts.unwrap();
    let endpoint = variable(&pod, "OTEL_EXPORTER_OTLP_ENDPOINT").unwrap();
    assert_eq!(endpoint["value"], "http://collector:4318");
    let headers = variable(&pod, "OTEL_EXPORTER_OTLP_HEADERS").unwrap();
    assert_eq!(headers["valueFrom"]["secretKeyRef"]["name"], "collector");
    assert!(variable(&pod, "VARUNA_POD_IP").is_some());
    assert!(!desired.create.is_empty(), "no worker is made");
    for worker in &desired.create {
        assert_eq!(variable(worker, "OTEL_EXPORTER_OTLP_ENDPOINT"), None);
    }
}

/// A change of the coordinators' pods.
#[derive(Clone, Copy, Debug)]
enum PodEvent {
    Starts,
    Crashes,
    IsDeleted,
    Vanishes,
    NodeLeaves,
    IsSilent,
}

fn happen(observed: &mut Observed, what: PodEvent, which: usize) {
    let count = observed.coordinators.len();
    if count == 0 {
        return;
    }
    let pod = &mut observed.coordinators[which % count];
    match what {
        PodEvent::Starts if pod.phase == PodPhase::Pending => {
            pod.phase = PodPhase::Running;
            pod.node = Some("good".into());
        }
        PodEvent::Crashes if pod.phase == PodPhase::Running => {
            pod.phase = PodPhase::Failed;
            pod.ended = ended(1, 137, "Error", 1).ended;
        }
        PodEvent::IsDeleted => pod.deleting = true,
        PodEvent::Vanishes => drop(observed.coordinators.remove(which % count)),
        PodEvent::NodeLeaves if pod.phase == PodPhase::Running => pod.node = Some("spot".into()),
        PodEvent::IsSilent => {
            observed.coordinator_probe = Some(CoordinatorProbe {
                number: pod.number,
                answer: ProbeAnswer::Silent,
            });
        }
        _ => {}
    }
}

proptest! {
    #[test]
    fn after_whatever_happens_one_coordinator_is_in_charge_and_runs(
        happenings in proptest::collection::vec((prop_oneof![
            4 => Just(PodEvent::Starts), 1 => Just(PodEvent::Crashes), 1 => Just(PodEvent::IsDeleted),
            1 => Just(PodEvent::Vanishes), 1 => Just(PodEvent::NodeLeaves), 1 => Just(PodEvent::IsSilent),
        ], 0_usize..4), 0..30)
    ) {
        let mut observed = served();
        observed.nodes.insert("spot".into(), leaving_node());
        let (mut in_charge, mut newest) = (1, 1);
        let step = |observed: &mut Observed, in_charge: &mut i64, newest: &mut i64| {
            let desired = decide(observed);
            if let Some(made) = &desired.starts {
                let number = number_of(made, objects::COORDINATOR_LABEL);
                assert!(number > *newest, "{number} is used twice");
                *newest = number;
            }
            *observed = carried_out(observed, &desired);
            let now = observed.orders.as_ref().unwrap().coordinator;
            assert!(now >= *in_charge);
            *in_charge = now;
        };
        for (what, which) in happenings {
            happen(&mut observed, what, which);
            step(&mut observed, &mut in_charge, &mut newest);
        }
        for _ in 0..8 {
            observed.coordinators.retain(|p| !p.deleting);
            for which in 0..observed.coordinators.len() {
                happen(&mut observed, PodEvent::Starts, which);
            }
            step(&mut observed, &mut in_charge, &mut newest);
        }
        let running: Vec<i64> = observed.coordinators.iter().filter(|p| p.phase == PodPhase::Running && !p.deleting).map(|p| p.number).collect();
        prop_assert_eq!(running, vec![in_charge]);
        let desired = decide(&observed);
        prop_assert!(desired.starts.is_none() && desired.orders.is_none() && desired.coordinators_deleted.is_empty(), "{:?}", desired);
    }
}
