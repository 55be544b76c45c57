//! The cluster of the tests, with the operator installed as users install it.

use crate::images::{IMAGES, NEXT_IMAGES, images, tag, worker_image};
use crate::job::{Job, with_checkpoints};
use crate::prometheus;
use crate::store::{self, Bucket};
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use varuna_cluster_tests::nodes::Nodes;
use varuna_cluster_tests::{Cluster, Family, KueueController, built_kueue, eventually, kueue_queues, root};

/// Namespace and release of the operator.
pub(crate) const OPERATOR: &str = "varuna";
/// The nodes: the first one runs the operator, the others run workers.
pub(crate) const NODES: [u8; 3] = [2, 3, 4];
/// GPUs of the nodes.
const GPUS: [u8; 3] = [0, 4, 4];

/// GPUs of a queue: one less than the jobs of the tests may use.
pub(crate) const QUOTA: u32 = 3;

/// What a case needs besides a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Need {
    /// A cluster that the tests made, whose parts they may break.
    OwnCluster,
    /// A cluster that the tests made, with IPv6 only.
    Ipv6,
    /// A bucket.
    Bucket,
    /// Prometheus.
    Prometheus,
    /// Images of a build that speaks one more version of the protocol.
    NextImages,
    /// Kueue's own controller.
    Kueue,
}

/// Everything that the cases share.
pub(crate) struct World {
    /// The field comes before the cluster, so that the nodes end first.
    pub(crate) nodes: Option<Nodes>,
    /// The bucket, if there is one.
    pub(crate) bucket: Option<Bucket>,
    /// Kueue's controller, once a case has used it. It keeps running, because without it nothing removes its finalizers.
    kueue: Option<KueueController>,
    /// The cluster.
    pub(crate) cluster: Cluster,
    /// A client with all rights.
    pub(crate) client: Client,
    /// The address family of a cluster that the tests made.
    pub(crate) family: Family,
    /// Tag of the images.
    pub(crate) tag: String,
    cases: u32,
    /// The state of the cluster when a case first failed.
    pub(crate) first_failure: Option<String>,
}

impl World {
    /// Makes a cluster with addresses of this family, or uses the given one, and installs the operator.
    ///
    /// # Errors
    /// Something does not start.
    pub(crate) async fn start(family: Family) -> Result<World> {
        let world = World::without_operator(family).await?;
        world.install(&world.tag)?;
        Ok(world)
    }

    /// Does the same without installing the operator.
    ///
    /// # Errors
    /// Something does not start.
    pub(crate) async fn without_operator(family: Family) -> Result<World> {
        let tag = tag()?;
        let (cluster, nodes) = match Cluster::given()? {
            Some(cluster) => (cluster, None),
            None => own(family)?,
        };
        let bucket = match (&nodes, store::program(), cluster.state()) {
            (Some(_), Some(_), Some(state)) => Some(Bucket::start(
                &state.join("bucket"),
                family.bridge(),
                "varuna-test",
            )?),
            _ => None,
        };
        let client = cluster.client().await?;
        let world = World {
            nodes,
            bucket,
            kueue: None,
            cluster,
            client,
            family,
            tag,
            cases: 0,
            first_failure: None,
        };
        if world.nodes.is_some() {
            for (number, gpus) in NODES.into_iter().zip(GPUS) {
                world.gpus(number, gpus).await?;
            }
        }
        Ok(world)
    }

    /// Installs the operator with images of this tag, or upgrades it to them, and checks the installation.
    ///
    /// # Errors
    /// The operator does not start, or the installation is incomplete.
    pub(crate) fn install(&self, tag: &str) -> Result<()> {
        let chart = root().join("charts/varuna").to_string_lossy().into_owned();
        let mut set = vec![
            format!(
                "image.repository=localhost/varuna-operator,image.tag={tag},coordinator.image.repository=localhost/varuna-coordinator,\
                 coordinator.image.tag={tag},worker.image={}",
                worker_image(tag)
            ),
            "logLevel=info\\,varuna_operator=debug".to_owned(),
        ];
        if self.nodes.is_some() {
            set.push(format!("nodeSelector.varuna\\.dev/node=t{}", NODES[0]));
        }
        let mut arguments = vec![
            "upgrade",
            "--install",
            "v",
            &chart,
            "-n",
            OPERATOR,
            "--create-namespace",
        ];
        arguments.extend([
            "--take-ownership",
            "--force-conflicts",
            "--wait",
            "--timeout",
            "180s",
        ]);
        for value in &set {
            arguments.extend(["--set-string", value.as_str()]);
        }
        let said = self.cluster.helm(&arguments).and_then(|_| {
            let test = ["test", "v", "-n", OPERATOR, "--logs", "--timeout", "180s"];
            self.cluster.helm(&test)
        });
        let said = said.map_err(|error| {
            let all = self.cluster.kubectl(&["-n", OPERATOR, "describe", "pods"], "");
            error.context(all.unwrap_or_default())
        })?;
        ensure!(
            said.contains("definitions, rights and leadership are as they should be"),
            "{said}"
        );
        Ok(())
    }

    /// Loads the images of the next build into all nodes, and returns their tag.
    ///
    /// # Errors
    /// The images cannot be loaded.
    pub(crate) fn load_next_images(&self) -> Result<String> {
        let nodes = self.nodes.as_ref().context("nodes of its own")?;
        nodes.load_images(&NODES, &images(NEXT_IMAGES)?)?;
        Ok(format!("{}-next", self.tag))
    }

    /// Sets the number of a node's GPUs, as a device plugin would.
    ///
    /// # Errors
    /// The node does not appear.
    pub(crate) async fn gpus(&self, number: u8, gpus: u8) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let name = format!("t{number}");
        let patch = json!({ "status": { "capacity": { "nvidia.com/gpu": gpus.to_string() } } });
        eventually(&format!("node {name} with {gpus} GPUs"), || async {
            let node = nodes.get(&name).await?;
            let status = node.status.unwrap_or_default();
            let amount = |m: Option<std::collections::BTreeMap<String, _>>| {
                m.and_then(|m| {
                    m.get("nvidia.com/gpu")
                        .map(|q: &k8s_openapi::apimachinery::pkg::api::resource::Quantity| q.0.clone())
                })
            };
            let want = Some(gpus.to_string());
            if amount(status.capacity) != want {
                nodes
                    .patch_status(&name, &PatchParams::default(), &Patch::Merge(&patch))
                    .await?;
            }
            let ready = status.conditions.unwrap_or_default();
            let ready = ready.iter().any(|c| c.type_ == "Ready" && c.status == "True");
            ensure!(ready && amount(status.allocatable) == want, "not yet");
            Ok(())
        })
        .await
    }

    /// Why a need is not met; none if it is met.
    pub(crate) fn unmet(&self, need: Need) -> Option<&'static str> {
        match need {
            Need::OwnCluster => self.nodes.is_none().then_some("only on a cluster of its own"),
            Need::Ipv6 => match self.nodes {
                Some(_) => Family::V6.missing(),
                None => Some("only on a cluster of its own"),
            },
            Need::Bucket => self
                .bucket
                .is_none()
                .then_some("no bucket: run scripts/setup-stores.sh"),
            Need::Prometheus => prometheus::programs()
                .is_none()
                .then_some("no Prometheus: run scripts/setup-prometheus.sh"),
            Need::NextImages => images(NEXT_IMAGES)
                .is_err()
                .then_some("no images of a next build: run images/next.sh"),
            Need::Kueue => built_kueue()
                .is_none()
                .then_some("no controller of Kueue: run scripts/setup-kueue.sh with a checkout"),
        }
    }

    /// Creates a job in a namespace of its own.
    ///
    /// # Errors
    /// The API server refuses the job.
    pub(crate) async fn job(&mut self, case: &str, mut document: Value) -> Result<Job> {
        self.cases += 1;
        if self.nodes.is_none()
            && let Some(spec) = document["spec"].as_object_mut()
        {
            // The coordinator's template names a node of the tests' own cluster.
            spec.remove("coordinator");
        }
        let namespace = self.cluster.namespace(&format!("e2e-{case}-{}", self.cases))?;
        if document["metadata"]["labels"].is_object() {
            self.add_queue(&namespace).await?;
        }
        Job::create(&self.client, &namespace, OPERATOR, document).await
    }

    /// Starts Kueue's controller, unless it is running, and adds a queue for the jobs of a namespace.
    async fn add_queue(&mut self, namespace: &str) -> Result<()> {
        if self.kueue.is_none() {
            let folder = self
                .cluster
                .state()
                .context("a cluster of its own")?
                .join("kueue");
            std::fs::create_dir_all(&folder)?;
            self.kueue = Some(KueueController::start(&self.cluster, &folder)?);
        }
        for object in kueue_queues(namespace, QUOTA, &json!({})) {
            eventually("Kueue's resources are served", || async {
                let apply = self.cluster.kubectl(&["apply", "-f", "-"], &object.to_string());
                apply.map(|_| ())
            })
            .await?;
        }
        Ok(())
    }

    /// Adds checkpoints in the bucket to a job.
    pub(crate) fn with_checkpoints(&self, document: Value, case: &str) -> Value {
        let uri = format!("s3://{}/{case}-{}", store::BUCKET, self.cases);
        let bucket = self.bucket.as_ref();
        with_checkpoints(
            document,
            &uri,
            bucket.map_or(vec![], |b| b.variables(&b.endpoint)),
        )
    }

    /// The operator's pods that are running.
    ///
    /// # Errors
    /// The API server does not answer.
    pub(crate) async fn operators(&self) -> Result<Vec<Pod>> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), OPERATOR);
        // The pod of `helm test` has ended, but remains.
        let operators = ListParams::default().labels("app.kubernetes.io/name=varuna-operator");
        Ok(pods.list(&operators).await?.items)
    }

    /// The name of the pod that leads, according to the Lease.
    ///
    /// # Errors
    /// No pod leads.
    pub(crate) fn leader(&self) -> Result<String> {
        let arguments = [
            "-n",
            OPERATOR,
            "get",
            "lease",
            "v-varuna-operator",
            "-o",
            "jsonpath={.spec.holderIdentity}",
        ];
        let holder = self.cluster.kubectl(&arguments, "")?;
        ensure!(!holder.trim().is_empty(), "nobody leads");
        Ok(holder.trim().to_owned())
    }
}

fn own(family: Family) -> Result<(Cluster, Option<Nodes>)> {
    let images = images(IMAGES)?;
    let folder = tempfile::tempdir()?;
    let mut nodes = Nodes::prepare(&folder.path().join("state"), family)?;
    let mut options = family.options();
    options.push("--fast-nodes".to_owned());
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let cluster = Cluster::own(folder, &options)?;
    nodes.start_dns()?;
    nodes.add(&NODES, &images)?;
    Ok((cluster, Some(nodes)))
}
