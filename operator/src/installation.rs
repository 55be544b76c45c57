//! Whether an installation is whole, as `helm test` asks it: the definitions are served, the operator has every right that it needs, and a
//! replica leads.

use crate::cluster::lease;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::PostParams;
use kube::{Api, Client};
use std::time::Duration;

/// A right that the operator needs: API group, resource with its subresource, verbs.
pub type Right = (&'static str, &'static str, &'static [&'static str]);

/// Verbs on what the operator makes for a job by server-side apply, and watches.
const MADE: &[&str] = &["get", "list", "watch", "create", "patch"];

/// Rights on the objects of jobs, in each namespace that the operator manages. The chart's role grants these and no others.
pub const JOB_RIGHTS: &[Right] = &[
    ("varuna.dev", "varunajobs", &["list", "watch", "delete"]),
    ("varuna.dev", "varunajobs/status", &["patch"]),
    ("varuna.dev", "varunajobs/finalizers", &["update"]),
    ("", "pods", &["get", "list", "watch", "create", "delete"]),
    (
        "varuna.dev",
        "varunaruns",
        &["get", "list", "watch", "create", "update"],
    ),
    ("varuna.dev", "varunarecords", &["get", "create", "update"]),
    ("varuna.dev", "varunaruns/status", &["update"]),
    ("varuna.dev", "varunarecords/status", &["update"]),
    ("", "secrets", &["create"]),
    ("", "serviceaccounts", MADE),
    ("rbac.authorization.k8s.io", "roles", MADE),
    ("rbac.authorization.k8s.io", "rolebindings", MADE),
    ("", "services", MADE),
    ("policy", "poddisruptionbudgets", MADE),
    ("networking.k8s.io", "networkpolicies", MADE),
    ("discovery.k8s.io", "endpointslices", MADE),
    ("discovery.k8s.io", "endpointslices/restricted", &["create"]),
    ("events.k8s.io", "events", &["create", "patch"]),
    (
        "kueue.x-k8s.io",
        "workloads",
        &["get", "list", "watch", "create", "patch", "delete"],
    ),
    ("kueue.x-k8s.io", "workloads/status", &["patch"]),
];

/// Rights on what belongs to no namespace.
const CLUSTER_RIGHTS: &[Right] = &[
    ("", "nodes", &["get", "list", "watch"]),
    ("kueue.x-k8s.io", "resourceflavors", &["list", "watch"]),
    ("kueue.x-k8s.io", "workloadpriorityclasses", &["list", "watch"]),
    ("scheduling.k8s.io", "priorityclasses", &["list", "watch"]),
];

/// The lease is watched for this time at most: its holder renews it every two seconds.
const LEASE_WATCH: Duration = Duration::from_secs(20);

/// The installation that is checked.
#[derive(Clone, Debug)]
pub struct Installation {
    /// The namespace that the operator manages; none = all.
    pub namespace: Option<String>,
    /// Namespace of the Lease.
    pub lease_namespace: String,
    /// Name of the Lease.
    pub lease_name: String,
}

/// Everything that is wrong with an installation, a sentence each; empty where it is whole. It is asked with the rights of the operator.
///
/// # Errors
/// The API server does not answer.
pub async fn faults(client: &Client, installation: &Installation) -> kube::Result<Vec<String>> {
    let mut faults = missing_definitions(client).await?;
    faults.extend(missing_rights(client, installation).await?);
    let leases: Api<Lease> = Api::namespaced(client.clone(), &installation.lease_namespace);
    let lease = format!(
        "Lease {} in namespace {}",
        installation.lease_name, installation.lease_namespace
    );
    match is_renewed(&leases, &installation.lease_name).await {
        Ok(true) => {}
        Ok(false) => faults.push(format!(
            "no replica leads: {lease} was not renewed for {} s; see the logs of the operator's pods",
            LEASE_WATCH.as_secs()
        )),
        Err(kube::Error::Api(status)) if status.is_forbidden() => {
            faults.push(format!("the operator may not get {lease}"));
        }
        Err(error) => return Err(error),
    }
    Ok(faults)
}

async fn missing_definitions(client: &Client) -> kube::Result<Vec<String>> {
    let (group, version) = varuna_api::manifest::API_VERSION
        .split_once('/')
        .unwrap_or_default();
    let served = match client
        .list_api_group_resources(varuna_api::manifest::API_VERSION)
        .await
    {
        Ok(list) => list.resources.into_iter().map(|r| r.name).collect(),
        Err(kube::Error::Api(status)) if status.is_not_found() => vec![],
        Err(error) => return Err(error),
    };
    let missing = |name: &&str| !served.iter().any(|s| s == name);
    Ok(["varunajobs", "varunaruns", "varunarecords"]
        .iter()
        .filter(|name| missing(name))
        .map(|name| {
            format!("the API server does not serve {name}.{group} {version}: install the definitions (crds.install)")
        })
        .collect())
}

async fn missing_rights(client: &Client, installation: &Installation) -> kube::Result<Vec<String>> {
    let mut missing = vec![];
    let in_namespaces = JOB_RIGHTS.iter().map(|r| (installation.namespace.as_deref(), r));
    let everywhere = CLUSTER_RIGHTS.iter().map(|r| (None, r));
    for (namespace, (group, resource, verbs)) in in_namespaces.chain(everywhere) {
        for verb in *verbs {
            if !may(client, namespace, group, resource, verb).await? {
                let whose = if group.is_empty() { "the core group" } else { group };
                let place = namespace.map_or("all namespaces".to_owned(), |n| format!("namespace {n}"));
                missing.push(format!(
                    "the operator may not {verb} {resource} of {whose} in {place}"
                ));
            }
        }
    }
    Ok(missing)
}

async fn may(
    client: &Client,
    namespace: Option<&str>,
    group: &str,
    resource: &str,
    verb: &str,
) -> kube::Result<bool> {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                namespace: namespace.map(str::to_owned),
                group: Some(group.to_owned()),
                resource: Some(resource.to_owned()),
                subresource: Some(subresource.to_owned()),
                verb: Some(verb.to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let answer = reviews.create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

/// Whether a holder of the lease renews it: its version changes under the same holder.
async fn is_renewed(leases: &Api<Lease>, name: &str) -> kube::Result<bool> {
    let read = || async {
        let lease = leases.get_opt(name).await?;
        let holder = lease
            .as_ref()
            .and_then(|l| l.spec.as_ref()?.holder_identity.clone());
        let version = lease.and_then(|l| l.metadata.resource_version);
        Ok::<_, kube::Error>((holder.filter(|h| !h.is_empty()), version))
    };
    let watched = async {
        let mut before = read().await?;
        loop {
            tokio::time::sleep(lease::INTERVAL).await;
            let now = read().await?;
            if now.0.is_some() && now.0 == before.0 && now.1 != before.1 {
                return Ok(true);
            }
            before = now;
        }
    };
    tokio::time::timeout(LEASE_WATCH, watched)
        .await
        .unwrap_or(Ok(false))
}
