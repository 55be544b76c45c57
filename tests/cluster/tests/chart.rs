//! The chart, rendered by helm itself and applied to a real API server.

use anyhow::ensure;
use k8s_openapi::api::core::v1::{Event, Pod, Secret};
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use std::collections::BTreeSet;
use std::sync::Arc;
use varuna_api::crd::VarunaRecord;
use varuna_cluster_tests::{
    cluster, coordinators, documents, eventually, job, jobs, observed, operator, record, root,
};
use varuna_metrics::{Cause, Measured, Metrics, Phase};
use varuna_operator::cluster::lease::Candidate;
use varuna_operator::decide::ObservedJob;
use varuna_operator::decide::objects::{
    COORDINATOR_LABEL, coordinator_name, record_name, token_name, worker_selector,
};
use varuna_operator::health::Health;
use varuna_operator::installation::{Installation, JOB_RIGHTS, faults};

fn chart() -> String {
    root().join("charts/varuna").to_string_lossy().into_owned()
}

/// Values that switch on all optional parts of the chart.
const ALL: &[&str] = &[
    "--set",
    "priorityClass.enabled=true,worker.image=w:1,nodeSignals={my.cloud/},extraEnv[0].name=A,extraEnv[0].value=b",
];

#[test]
fn chart_lints_and_refuses_unknown_values() {
    cluster().helm(&["lint", "--strict", &chart()]).unwrap();
    for (value, want) in [
        ("nonsense=1", "nonsense"),
        ("replicas=two", "replicas"),
        ("worker.gpus=1", "gpus"),
        ("image.digest=0.1.0", "digest"),
        ("metrics.serviceMonitor.interval=15", "interval"),
    ] {
        let said = cluster().helm(&["template", "v", &chart(), "--set", value]);
        let said = said.expect_err(value).to_string();
        assert!(said.contains(want), "{value}: {said}");
    }
    let interval = "metrics.serviceMonitor.enabled=true,metrics.serviceMonitor.interval=1m30s";
    let rendered = cluster().helm(&["template", "v", &chart(), "--set", interval]);
    assert!(rendered.unwrap().contains("interval: 1m30s"));
}

#[test]
fn rendered_chart_is_accepted_without_warnings() {
    let namespace = cluster().namespace("rendered").unwrap();
    for mode in ["namespaced=false", "namespaced=true"] {
        let chart = chart();
        let template = [
            "template",
            "v",
            &chart,
            "-n",
            &namespace,
            "--no-hooks",
            "--set",
            mode,
        ];
        let arguments = [&template, ALL].concat();
        let rendered = cluster().helm(&arguments).unwrap();
        for kind in [
            "Deployment",
            "PodDisruptionBudget",
            "NetworkPolicy",
            "PriorityClass",
            "CustomResourceDefinition",
        ] {
            assert!(rendered.contains(&format!("kind: {kind}\n")), "{mode}: no {kind}");
        }
        assert_eq!(
            rendered.contains("kind: FlowSchema\n"),
            mode == "namespaced=false",
            "{mode}"
        );
        assert_eq!(
            rendered.contains("kind: Role\n  name: v-varuna-jobs"),
            mode == "namespaced=true"
        );
        let apply = [
            "-n",
            &namespace,
            "apply",
            "--server-side",
            "--force-conflicts",
            "--dry-run=server",
            "-f",
            "-",
        ];
        let said = cluster().kubectl(&apply, &rendered).unwrap();
        assert!(!said.to_lowercase().contains("warning"), "{said}");
    }
}

#[test]
fn the_charts_pods_keep_to_the_restricted_pod_security_standard() {
    let namespace = cluster().namespace("restricted").unwrap();
    let label = "pod-security.kubernetes.io/enforce=restricted";
    cluster()
        .kubectl(&["label", "namespace", &namespace, label], "")
        .unwrap();
    let render = |file: &str| -> serde_json::Value {
        let rendered = cluster()
            .helm(&["template", "v", &chart(), "--show-only", file])
            .unwrap();
        serde_saphyr::from_str(&rendered).unwrap()
    };
    // The Pod Security Standard of a namespace is enforced for pods. For a Deployment, the API server would only warn.
    let mut operator = render("templates/deployment.yaml")["spec"]["template"].clone();
    operator["apiVersion"] = "v1".into();
    operator["kind"] = "Pod".into();
    operator["metadata"]["name"] = "operator".into();
    for mut pod in [operator, render("templates/tests/installation.yaml")] {
        pod["metadata"]["namespace"] = namespace.clone().into();
        pod["spec"]["serviceAccountName"] = "default".into();
        let apply = ["-n", &namespace, "create", "--dry-run=server", "-f", "-"];
        cluster().kubectl(&apply, &pod.to_string()).unwrap();
    }
}

/// Installs or upgrades the chart for its own namespace only, without waiting for the Deployment, whose pods no kubelet would run. Returns
/// helm's output.
#[expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]
fn install(namespace: &str) -> String {
    let chart = chart();
    let arguments = [
        "upgrade",
        "--install",
        "v",
        &chart,
        "-n",
        namespace,
        "--take-ownership",
        "--force-conflicts",
        "--set",
        "namespaced=true,replicas=0",
    ];
    cluster().helm(&arguments).unwrap()
}

/// The operator cannot read Secrets. A coordinator cannot read Secrets or the record of another job, and cannot change its own job.
#[expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]
async fn check_access_to_secrets_and_records(namespace: &str, job: &ObservedJob, operator: Client) {
    let account = coordinator_name(job);
    let refused =
        |answer: kube::Result<()>| matches!(answer, Err(kube::Error::Api(status)) if status.is_forbidden());
    let secrets: Api<Secret> = Api::namespaced(operator, namespace);
    let token = token_name(job);
    assert!(
        refused(secrets.get(&token).await.map(drop)),
        "the operator reads a Secret"
    );
    let may = cluster().client_as(namespace, &account).await.unwrap();
    let secrets: Api<Secret> = Api::namespaced(may.clone(), namespace);
    assert!(
        refused(secrets.get(&token).await.map(drop)),
        "a coordinator reads a Secret"
    );
    let records: Api<VarunaRecord> = Api::namespaced(may.clone(), namespace);
    records.get(&record_name(job)).await.unwrap();
    assert!(
        refused(records.get("another").await.map(drop)),
        "a coordinator reads another's record"
    );
    let patch = Patch::Merge(serde_json::json!({ "spec": { "job": "{}" } }));
    let name = record_name(job);
    let changed = records.patch(&name, &PatchParams::default(), &patch).await;
    assert!(
        refused(changed.map(drop)),
        "a coordinator changes the job of its record"
    );
}

/// Two pods of workers, and all other objects of a job, exist.
#[expect(clippy::unwrap_used, reason = "a job that is not made has failed the test")]
async fn everything_is_made(admin: &Client, namespace: &str) {
    let pods: Api<Pod> = Api::namespaced(admin.clone(), namespace);
    let workers = ListParams::default().labels(&worker_selector("j"));
    let slices = ApiResource::erase::<k8s_openapi::api::discovery::v1::EndpointSlice>(&());
    let slices = documents(admin, namespace, &slices);
    let events: Api<Event> = Api::namespaced(admin.clone(), namespace);
    eventually("everything that a job needs is made", || async {
        ensure!(pods.list(&workers).await?.items.len() == 2, "pods");
        let job = observed(admin, namespace, "j").await?;
        slices.get(&coordinator_name(&job)).await?;
        ensure!(record(admin, namespace).await?.status.is_some(), "no record");
        let status = jobs(admin, namespace).get("j").await?.data["status"].clone();
        ensure!(status["newestPod"] == 2, "{status}");
        ensure!(
            !events.list(&ListParams::default()).await?.items.is_empty(),
            "events"
        );
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn chart_rights_suffice_and_worker_pods_are_restricted() {
    let namespace = cluster().namespace("rights").unwrap();
    let enforce = "pod-security.kubernetes.io/enforce=restricted";
    cluster()
        .kubectl(&["label", "namespace", &namespace, enforce], "")
        .unwrap();
    install(&namespace);
    let said = install(&namespace);
    assert!(said.contains("REVISION: 2"), "{said}");
    let admin = cluster().client().await.unwrap();
    let limited = cluster()
        .client_as(&namespace, "v-varuna-operator")
        .await
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let _operator = operator(limited.clone(), &namespace);
    let mut document = job("j");
    document["spec"]["elasticity"] = serde_json::json!({ "maxWorkers": 2 });
    let document: DynamicObject = serde_json::from_value(document).unwrap();
    jobs(&admin, &namespace)
        .create(&PostParams::default(), &document)
        .await
        .unwrap();
    // Writes like the coordinator's pod, with the rights that the operator has given it.
    let own = observed(&admin, &namespace, "j").await.unwrap();
    let account = coordinator_name(&own);
    let coordinator = eventually("the coordinator's account is made", || async {
        cluster().client_as(&namespace, &account).await
    })
    .await
    .unwrap();
    let _coordinators = coordinators(&admin, coordinator, &namespace, folder.path());
    let pods: Api<Pod> = Api::namespaced(admin.clone(), &namespace);
    let workers = ListParams::default().labels(&worker_selector("j"));
    everything_is_made(&admin, &namespace).await;
    cluster()
        .kubectl(&["-n", &namespace, "scale", "vj/j", "--replicas=1"], "")
        .unwrap();
    eventually("a pod is deleted", || async {
        ensure!(pods.list(&workers).await?.items.len() == 1, "pods");
        Ok(())
    })
    .await
    .unwrap();
    let pod = pods
        .list(&ListParams::default().labels(COORDINATOR_LABEL))
        .await
        .unwrap();
    assert_eq!(
        pod.items[0].spec.as_ref().unwrap().service_account_name,
        Some(account)
    );
    check_access_to_secrets_and_records(&namespace, &own, limited).await;
    cluster().helm(&["uninstall", "v", "-n", &namespace]).unwrap();
    // The definition remains, and with it the job.
    jobs(&admin, &namespace).get("j").await.unwrap();
}

#[test]
fn chart_role_has_exactly_the_checked_rights() {
    let rendered = cluster()
        .helm(&["template", "v", &chart(), "--show-only", "templates/rbac.yaml"])
        .unwrap();
    let role: serde_json::Value = rendered
        .split("\n---\n")
        .filter_map(|text| serde_saphyr::from_str(text).ok())
        .find(|d: &serde_json::Value| d["kind"] == "ClusterRole" && d["metadata"]["name"] == "v-varuna-jobs")
        .unwrap();
    let strings = |value: &serde_json::Value| -> Vec<String> {
        let all = value.as_array().unwrap().iter();
        all.map(|v| v.as_str().unwrap().to_owned()).collect()
    };
    let granted: BTreeSet<(String, String, String)> = role["rules"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|rule| {
            let [group] = <[String; 1]>::try_from(strings(&rule["apiGroups"])).unwrap();
            let verbs = strings(&rule["verbs"]);
            let of = move |resource: String| {
                let (group, verbs) = (group.clone(), verbs.clone());
                verbs
                    .into_iter()
                    .map(move |verb| (group.clone(), resource.clone(), verb))
            };
            strings(&rule["resources"]).into_iter().flat_map(of)
        })
        .collect();
    let checked: BTreeSet<(String, String, String)> = JOB_RIGHTS
        .iter()
        .flat_map(|(group, resource, verbs)| {
            verbs
                .iter()
                .map(move |verb| ((*group).to_owned(), (*resource).to_owned(), (*verb).to_owned()))
        })
        .collect();
    assert_eq!(granted, checked);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_check_of_an_installation_names_every_fault() {
    let namespace = cluster().namespace("installation").unwrap();
    install(&namespace);
    let installation = Installation {
        namespace: Some(namespace.clone()),
        lease_namespace: namespace.clone(),
        lease_name: "v-varuna-operator".into(),
    };
    let client = cluster()
        .client_as(&namespace, "v-varuna-operator")
        .await
        .unwrap();
    // No operator leads, because no replica runs.
    let found = faults(&client, &installation).await.unwrap();
    assert!(
        matches!(&found[..], [fault] if fault.starts_with("no replica leads: Lease v-varuna-operator")),
        "{found:?}"
    );
    let leases = Api::namespaced(client.clone(), &namespace);
    let health = Arc::new(Health::new(Arc::default()));
    let mut candidate = Candidate::new(leases, "v-varuna-operator".into(), "test".into(), health);
    candidate.acquire().await;
    let found = tokio::select! {
        found = faults(&client, &installation) => found.unwrap(),
        why = candidate.hold() => panic!("{why}"),
    };
    assert_eq!(found, Vec::<String>::new());
    // An account without any rights.
    let client = cluster().client_as(&namespace, "default").await.unwrap();
    let found = faults(&client, &installation).await.unwrap();
    for want in [
        format!("the operator may not create pods of the core group in namespace {namespace}"),
        format!("the operator may not update varunaruns/status of varuna.dev in namespace {namespace}"),
        "the operator may not watch nodes of the core group in all namespaces".to_owned(),
        format!("the operator may not get Lease v-varuna-operator in namespace {namespace}"),
    ] {
        assert!(found.contains(&want), "{want}: {found:?}");
    }
}

#[test]
fn coordinators_have_the_configured_priority_class() {
    for (values, class, is_made) in [
        ("create=true", Some("varuna-coordinator"), true),
        ("name=mine", Some("mine"), true),
        ("create=false", None, false),
        (
            "create=false,coordinator.priorityClass.name=mine",
            Some("mine"),
            false,
        ),
    ] {
        let set = format!("crds.install=false,coordinator.priorityClass.{values}");
        let rendered = cluster()
            .helm(&["template", "v", &chart(), "--set", &set])
            .unwrap();
        let mut lines = rendered.lines().map(str::trim);
        let passed = lines.find_map(|l| l.strip_prefix("- --coordinator-priority-class="));
        assert_eq!(passed, class, "{values}");
        let made = rendered
            .split("\n---\n")
            .find(|d| d.contains("kind: PriorityClass\n"));
        assert_eq!(made.is_some(), is_made, "{values}");
        if let (Some(made), Some(class)) = (made, class) {
            assert!(made.contains(&format!("  name: {class}\n")), "{values}: {made}");
        }
    }
}

/// A second release, as in docs/kubernetes/install.md: only the first release installs the objects that belong to the whole cluster.
#[tokio::test(flavor = "multi_thread")]
async fn second_release_manages_another_namespace() {
    let first = cluster().namespace("first-team").unwrap();
    install(&first);
    let further = cluster().namespace("further-team").unwrap();
    let chart = chart();
    let release = |name: &str, values: &str| {
        let set = format!("namespaced=true,replicas=0{values}");
        let arguments = ["install", name, &chart, "-n", &further, "--set", &set];
        cluster().helm(&arguments)
    };
    let refused = release("whole", "").expect_err("it takes the first release's definitions");
    assert!(refused.to_string().contains("ownership"), "{refused}");
    let values = ",crds.install=false,coordinator.priorityClass.create=false,coordinator.priorityClass.name=varuna-coordinator";
    release("team", values).unwrap();
    let inside = InNamespace(further.clone());
    let deployment = ["get", "deployment", "team-varuna-operator", "-o", "json"];
    let deployment = inside.kubectl(&deployment, "").unwrap();
    assert!(
        deployment.contains("--coordinator-priority-class=varuna-coordinator"),
        "{deployment}"
    );
    let installation = Installation {
        namespace: Some(further.clone()),
        lease_namespace: further.clone(),
        lease_name: "team-varuna-operator".into(),
    };
    let client = cluster()
        .client_as(&further, "team-varuna-operator")
        .await
        .unwrap();
    let found = faults(&client, &installation).await.unwrap();
    assert!(
        matches!(&found[..], [fault] if fault.starts_with("no replica leads")),
        "{found:?}"
    );
    let uninstall = ["uninstall", "team", "-n", &further];
    cluster().helm(&uninstall).unwrap();
}

/// kubectl in one namespace.
struct InNamespace(String);

impl InNamespace {
    fn kubectl(&self, arguments: &[&str], input: &str) -> anyhow::Result<String> {
        cluster().kubectl(&[&["-n", &self.0], arguments].concat(), input)
    }

    /// The error with which a command is refused; empty if it succeeds.
    fn refusal(&self, arguments: &[&str], input: &str) -> String {
        let said = self.kubectl(arguments, input).err();
        said.map(|e| e.to_string()).unwrap_or_default()
    }

    /// Gives a user the right to a verb on a resource, with a role of this name.
    fn grant(&self, name: &str, user: &str, verb: &str, resource: &str) -> anyhow::Result<()> {
        let (verb, resource) = (format!("--verb={verb}"), format!("--resource={resource}"));
        self.kubectl(&["create", "role", name, &verb, &resource], "")?;
        self.bind(name, &format!("--role={name}"), user)
    }

    fn bind(&self, name: &str, role: &str, user: &str) -> anyhow::Result<()> {
        let user = format!("--user={user}");
        self.kubectl(&["create", "rolebinding", name, role, &user], "")?;
        Ok(())
    }

    fn can(&self, user: &str, verb: &str, what: &str) -> bool {
        let said = self.kubectl(&["auth", "can-i", verb, what, &format!("--as={user}")], "");
        said.is_ok_and(|said| said.trim() == "yes")
    }

    fn patch_as_dev(&self, spec: &str) -> anyhow::Result<String> {
        self.kubectl(&["--as=dev", "patch", "vj", "j", "--type=merge", "-p", spec], "")
    }
}

/// One of the chart's templates, rendered for this namespace with this value.
fn rendered(file: &str, namespace: &str, value: &str) -> anyhow::Result<String> {
    let chart = chart();
    cluster().helm(&[
        "template",
        "v",
        &chart,
        "-n",
        namespace,
        "--set",
        value,
        "--show-only",
        &format!("templates/{file}"),
    ])
}

/// The uid of the FlowSchema with which the API server handles a call. The response has it in a header.
fn flow_schema_of(account: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let mut command = cluster().kubectl_command();
    command.args([&format!("--as={account}"), "-v=8"]).args(arguments);
    let said = String::from_utf8_lossy(&command.output()?.stderr).to_lowercase();
    let (_, rest) = said
        .split_once("x-kubernetes-pf-flowschema-uid")
        .ok_or_else(|| anyhow::anyhow!("no such header: {said}"))?;
    let uid = rest.chars().skip_while(|c| !c.is_ascii_hexdigit());
    Ok(uid.take_while(|c| c.is_ascii_hexdigit() || *c == '-').collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operators_lease_is_served_with_those_of_other_leaders() {
    let namespace = cluster().namespace("flow").unwrap();
    let schema = rendered("flow-control.yaml", &namespace, "namespaced=false").unwrap();
    let inside = InNamespace(namespace.clone());
    inside.kubectl(&["apply", "-f", "-"], &schema).unwrap();
    let name = format!("{namespace}-v-varuna-leader-election");
    let path = "jsonpath={.metadata.uid}";
    let uid = inside
        .kubectl(&["get", "flowschema", &name, "-o", path], "")
        .unwrap();
    let account = format!("system:serviceaccount:{namespace}:v-varuna-operator");
    let lease = ["-n", &namespace, "get", "lease", "v-varuna-operator"];
    eventually("the schema is in force", || async {
        let found = flow_schema_of(&account, &lease)?;
        ensure!(found == uid.trim(), "{found} in place of {uid}");
        Ok(())
    })
    .await
    .unwrap();
    let pods = ["-n", &namespace, "get", "pods"];
    assert_ne!(
        flow_schema_of(&account, &pods).unwrap(),
        uid.trim(),
        "nothing else"
    );
    let other = format!("system:serviceaccount:{namespace}:default");
    assert_ne!(flow_schema_of(&other, &lease).unwrap(), uid.trim(), "nobody else");
    inside.kubectl(&["delete", "-f", "-"], &schema).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_who_may_create_pods_may_make_jobs() {
    let namespace = cluster().namespace("admission").unwrap();
    let rendered = rendered("admission.yaml", &namespace, "namespaced=true").unwrap();
    let inside = InNamespace(namespace.clone());
    inside.kubectl(&["apply", "-f", "-"], &rendered).unwrap();
    inside.grant("jobs", "dev", "*", "varunajobs.varuna.dev").unwrap();
    let document = job("j").to_string();
    let create = ["--as=dev", "create", "-f", "-", "--dry-run=server"];
    eventually("who may not create pods is refused", || async {
        let said = inside.refusal(&create, &document);
        ensure!(
            said.contains("user dev may not create pods in namespace") && said.contains(&namespace),
            "{said}"
        );
        Ok(())
    })
    .await
    .unwrap();
    inside.kubectl(&["create", "-f", "-"], &document).unwrap();
    inside
        .patch_as_dev("{\"spec\": {\"disruption\": {\"noticeSeconds\": 40}}}")
        .unwrap();
    let said = inside.patch_as_dev(
        "{\"spec\": {\"workers\": {\"template\": {\"spec\": {\"serviceAccountName\": \"other\"}}}}}",
    );
    let said = said.expect_err("another account for its pods").to_string();
    assert!(said.contains("may not create pods"), "{said}");
    // The right to create pods does not include the right to add network rules.
    inside.grant("pods", "dev", "create", "pods").unwrap();
    eventually("rules of a network policy are refused", || async {
        let rules = "{\"spec\": {\"network\": {\"extraIngress\": [{}]}, \"workers\": {\"image\": \"i:1\"}}}";
        let said = inside.patch_as_dev(rules).err();
        let said = said.map(|e| e.to_string()).unwrap_or_default();
        ensure!(said.contains("user dev may not create networkpolicies"), "{said}");
        Ok(())
    })
    .await
    .unwrap();
    inside
        .patch_as_dev(
            "{\"spec\": {\"network\": {\"encryption\": \"none\"}, \"workers\": {\"image\": \"i:1\"}}}",
        )
        .unwrap();
    inside.kubectl(&["delete", "-f", "-"], &rendered).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_roles_of_every_cluster_reach_jobs() {
    let namespace = cluster().namespace("roles").unwrap();
    let rendered = rendered("roles.yaml", &namespace, "namespaced=true").unwrap();
    let inside = InNamespace(namespace);
    inside.kubectl(&["apply", "-f", "-"], &rendered).unwrap();
    // The controller manager adds the aggregated rules to these roles.
    inside.bind("views", "--clusterrole=view", "viewer").unwrap();
    inside.bind("edits", "--clusterrole=edit", "editor").unwrap();
    let (jobs, scale) = ("varunajobs.varuna.dev", "varunajobs.varuna.dev/scale");
    eventually("an editor makes jobs and a viewer sees them", || async {
        ensure!(inside.can("viewer", "get", jobs), "a viewer sees nothing");
        ensure!(!inside.can("viewer", "create", jobs), "a viewer makes jobs");
        ensure!(inside.can("editor", "create", jobs), "an editor makes none");
        ensure!(inside.can("editor", "patch", scale), "an editor scales none");
        Ok(())
    })
    .await
    .unwrap();
    let document = job("k").to_string();
    inside
        .kubectl(&["--as=editor", "create", "-f", "-"], &document)
        .unwrap();
    inside.kubectl(&["delete", "-f", "-"], &rendered).unwrap();
}

#[test]
fn alert_rules_use_existing_metrics() {
    let set = "metrics.serviceMonitor.enabled=true,metrics.rules.enabled=true,metrics.rules.labels.release=p";
    let rendered = cluster()
        .helm(&["template", "v", &chart(), "--set", set])
        .unwrap();
    let documents: Vec<serde_json::Value> = rendered
        .split("\n---\n")
        .filter_map(|text| serde_saphyr::from_str(text).ok())
        .collect();
    let of = |kind: &str| documents.iter().find(|d| d["kind"] == kind).expect(kind);
    assert_eq!(of("ServiceMonitor")["spec"]["endpoints"][0]["path"], "/metrics");
    assert_eq!(
        of("PodMonitor")["spec"]["podMetricsEndpoints"][0]["path"],
        "/metrics"
    );
    let rules = of("PrometheusRule");
    assert_eq!(rules["metadata"]["labels"]["release"], "p");
    // Every metric, with a job and a recovery so that none is missing.
    let metrics = varuna_operator::metrics::Metrics::default();
    metrics.reconciled(std::time::Duration::ZERO, Some("api"));
    let coordinator = Metrics::new("ns", "j");
    coordinator.recovered(&Measured {
        phase: Phase::Total,
        cause: Cause::Lost,
        took: std::time::Duration::ZERO,
        workers: 1,
    });
    let known = metrics.render() + &coordinator.render();
    let rules = rules["spec"]["groups"][0]["rules"].as_array().unwrap();
    assert!(rules.len() >= 5, "{rules:?}");
    for rule in rules {
        let expression = rule["expr"].as_str().unwrap();
        let names = expression
            .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .filter(|word| word.starts_with("varuna_"));
        let mut seen = 0;
        for name in names {
            let family = name.trim_end_matches("_bucket").trim_end_matches("_total");
            assert!(
                known.contains(&format!("# TYPE {family} ")),
                "{name} in {expression}:\n{known}"
            );
            seen += 1;
        }
        assert!(seen > 0, "{expression}");
        assert!(
            rule["annotations"]["summary"]
                .as_str()
                .is_some_and(|s| !s.is_empty())
        );
    }
}

#[test]
fn the_dashboard_is_rendered_as_it_is_where_it_is_asked_for() {
    let render = |set: &str| {
        let rendered = cluster()
            .helm(&["template", "v", &chart(), "--set", set])
            .unwrap();
        let documents = rendered.split("\n---\n").map(str::to_owned).collect::<Vec<_>>();
        let parsed = documents
            .iter()
            .filter_map(|text| serde_saphyr::from_str::<serde_json::Value>(text).ok());
        parsed.filter(|d| d["kind"] == "ConfigMap").collect::<Vec<_>>()
    };
    assert_eq!(
        render("metrics.dashboard.enabled=false"),
        Vec::<serde_json::Value>::new()
    );
    let made = render("metrics.dashboard.enabled=true,metrics.dashboard.labels.release=p");
    let [map] = made.as_slice() else {
        panic!("{made:?}")
    };
    assert_eq!(map["metadata"]["labels"]["grafana_dashboard"], "1");
    assert_eq!(map["metadata"]["labels"]["release"], "p");
    let text = map["data"]["varuna.json"].as_str().unwrap();
    let written = std::fs::read_to_string(root().join("charts/varuna/dashboard.json")).unwrap();
    let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    assert_eq!(json(text), json(&written));
}

/// What the chart renders for several sets of values. So a review shows how a change of a template changes the objects in a cluster.
/// `VARUNA_WRITE_GOLDEN=1` writes the files again.
#[test]
fn what_the_chart_renders_is_what_was_reviewed() {
    let cases: &[(&str, &str)] = &[
        ("default", "crds.install=false"),
        (
            "namespaced",
            "crds.install=false,namespaced=true,replicas=1,networkPolicy.enabled=false,podDisruptionBudget.enabled=false,serviceAccount.create=false,serviceAccount.name=mine",
        ),
        (
            "full",
            "crds.install=false,priorityClass.enabled=true,worker.image=w:1,nodeSignals={my.cloud/},metrics.serviceMonitor.enabled=true,metrics.rules.enabled=true,priorityClassName=p,image.tag=t",
        ),
    ];
    for (name, set) in cases {
        let arguments = ["template", "v", &chart(), "-n", "ns", "--set", set];
        let rendered = cluster().helm(&arguments).unwrap();
        let path = root().join(format!("tests/cluster/tests/golden/{name}.yaml"));
        if std::env::var_os("VARUNA_WRITE_GOLDEN").is_some() {
            std::fs::write(&path, &rendered).unwrap();
        }
        let golden = std::fs::read_to_string(&path).unwrap();
        let differs = rendered
            .lines()
            .zip(golden.lines())
            .find(|(now, then)| now != then);
        assert!(
            rendered == golden,
            "{name}: {differs:?}; if this is meant, write it anew with VARUNA_WRITE_GOLDEN=1"
        );
    }
}
