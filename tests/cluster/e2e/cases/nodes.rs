//! Nodes that go away with all their pods, and come back.

use super::{CaseRun, node_of, process_of};
use crate::evictions::Evictions;
use crate::job::Observation;
use crate::takeover::{AFTER_CUT_MAX, within};
use crate::world::NODES;
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use nix::sys::signal::kill;
use serde_json::json;
use varuna_cluster_tests::{eventually, jobs};
use varuna_operator::decide::objects::COORDINATOR_LABEL;

impl CaseRun<'_> {
    /// The node with most of the job's pods.
    async fn busiest(&self) -> Result<String> {
        let pods = self.job.pods().await?;
        let on = |node: &str| pods.iter().filter(|p| node_of(p) == node).count();
        let names: Vec<String> = NODES[1..].iter().map(|n| format!("t{n}")).collect();
        let most = names.into_iter().max_by_key(|n| on(n)).context("nodes")?;
        ensure!(on(&most) > 0, "no pods");
        Ok(most)
    }

    async fn empty(&self, node: &str) -> Result<()> {
        eventually(&format!("no pod on {node}"), || async {
            let pods = self.job.pods().await?;
            ensure!(
                pods.len() == 4 && pods.iter().all(|p| node_of(p) != node),
                "{} pods",
                pods.len()
            );
            Ok(())
        })
        .await
    }

    pub(super) async fn spot_taint(&mut self) -> Result<()> {
        let (before, node) = (self.job.now()?, self.busiest().await?);
        self.kubectl(&[
            "taint",
            "node",
            &node,
            "aws-node-termination-handler/spot-itn=x:NoSchedule",
        ])?;
        let result = async {
            self.empty(&node).await?;
            self.job.trains(4).await?;
            self.job.event("WorkerNoticed", &node).await?;
            self.is_reported(&before).await
        }
        .await;
        self.kubectl(&["taint", "node", &node, "aws-node-termination-handler/spot-itn-"])?;
        result
    }

    /// Some clouds announce the end of a node only by a condition, and no taint keeps new pods off the node.
    pub(super) async fn node_announced(&mut self) -> Result<()> {
        let (before, node) = (self.job.now()?, self.busiest().await?);
        let nodes: Api<Node> = Api::all(self.job.client.clone());
        let set = |status: &'static str| {
            let condition = json!({ "type": "VMEventScheduled", "status": status, "reason": "Preempt" });
            let patch = Patch::Strategic(json!({ "status": { "conditions": [condition] } }));
            let (nodes, node) = (nodes.clone(), node.clone());
            async move {
                nodes
                    .patch_status(&node, &PatchParams::default(), &patch)
                    .await
                    .map(drop)
            }
        };
        set("True").await?;
        let result = async {
            self.empty(&node).await?;
            self.job.trains(4).await?;
            let pods = self.job.pods().await?;
            ensure!(
                pods.iter().all(|p| node_of(p) != node),
                "a new pod is on {node} again"
            );
            self.is_reported(&before).await
        }
        .await;
        set("False").await?;
        result
    }

    /// Runs `kubectl drain`, as an administrator would.
    fn drain_node(&self, node: &str) -> Result<String> {
        self.kubectl(&[
            "drain",
            node,
            "--force",
            "--ignore-daemonsets",
            "--delete-emptydir-data",
            "--timeout=120s",
        ])
    }

    /// Twice as many workers as in the other cases: half of them are lost with their node, and come back. On two cores some of so many
    /// workers may compute so slowly that they get no place in the plan. Then the coordinator must have said so.
    pub(super) async fn eight_workers(&mut self) -> Result<()> {
        let (before, node) = (self.job.now()?, self.busiest().await?);
        let evictions = Evictions::from(&self.job, &node);
        let drained = self.drain_node(&node);
        let result = async {
            drained?;
            evictions.check_one_at_a_time(4)?;
            self.job
                .until("the other four are left, and training goes on", |l| {
                    l.attached() == 4 && l.phase() == "Training" && l.step() > before.step()
                })
                .await
        }
        .await;
        self.kubectl(&["uncordon", &node])?;
        let with_four = result?;
        Self::only_slow_ones_are_idle(&with_four)?;
        println!(
            "  {} of four workers continue from step {}",
            with_four.members(),
            with_four.step()
        );
        // New workers follow the run while it trains, before a plan includes them.
        eventually(
            "eight are there again and have their places, and training goes on",
            || async {
                let now = self.job.now()?;
                ensure!(
                    now.attached() == 8 && now.phase() == "Training" && now.step() > with_four.step() + 3,
                    "{}",
                    now.status
                );
                Self::only_slow_ones_are_idle(&now)
            },
        )
        .await?;
        self.is_reported(&before).await
    }

    /// Checks that the status names each worker without a place as a slow one.
    fn only_slow_ones_are_idle(seen: &Observation) -> Result<()> {
        let left_out = seen.status["plan"]["leftOut"].as_array();
        let slow = left_out.map_or(0, |all| all.iter().filter(|w| w["reason"] == "slow").count());
        ensure!(
            seen.attached() - seen.members() == i64::try_from(slow)?,
            "{} of {} workers have a place, and {slow} are said to be slow: {}",
            seen.members(),
            seen.attached(),
            seen.status
        );
        Ok(())
    }

    pub(super) async fn drain(&mut self) -> Result<()> {
        let (before, node) = (self.job.now()?, self.busiest().await?);
        let evictions = Evictions::from(&self.job, &node);
        let drained = self.drain_node(&node);
        let result = async {
            drained?;
            evictions.check_one_at_a_time(2)?;
            self.empty(&node).await?;
            self.job.trains(4).await?;
            self.is_reported(&before).await
        }
        .await;
        self.kubectl(&["uncordon", &node])?;
        result
    }

    pub(super) async fn node_cut(&mut self) -> Result<()> {
        let (before, node) = (self.job.now()?, self.busiest().await?);
        let number: u8 = node.trim_start_matches('t').parse()?;
        self.network(number, false)?;
        let result = async {
            let next = self
                .job
                .until("the next step without the node", |l| {
                    l.generation() > before.generation() && l.step() > before.step()
                })
                .await?;
            println!(
                "  next plan and step seen after {:.1} s",
                (next.at - before.at).as_secs_f64()
            );
            self.job.event("WorkerLost", &node).await?;
            self.job.trains(4).await
        }
        .await;
        self.network(number, true)?;
        result?;
        // Processes on the node do not know what has happened since, and must do no harm.
        let gpus = 4;
        self.world.gpus(number, gpus).await?;
        self.job.trains(4).await?;
        self.is_reported(&before).await
    }

    /// The coordinator's node is disconnected; its workers are on other nodes.
    pub(super) async fn coordinator_cut(&mut self) -> Result<()> {
        let number = 4;
        ensure!(
            node_of(&self.job.coordinator().await?) == "t4",
            "the coordinator is elsewhere"
        );
        let began = std::time::Instant::now();
        self.network(number, false)?;
        // Its next pod may use any node that is reachable.
        let patch = json!({ "spec": { "coordinator": { "template": null } } });
        let result = async {
            jobs(&self.job.client, &self.job.namespace)
                .patch("j", &PatchParams::default(), &Patch::Merge(&patch))
                .await?;
            let took = self.job.wait_for_leader(2, began).await?;
            self.job.trains(4).await?;
            anyhow::Ok(took)
        }
        .await;
        self.network(number, true)?;
        let took = result?;
        self.world.gpus(number, 4).await?;
        // The first coordinator learns that another one leads, and ends. Its pod may remain for its log.
        eventually("one coordinator is left", || async {
            let all = self.kubectl(&[
                "-n",
                &self.job.namespace,
                "get",
                "pods",
                "-l",
                COORDINATOR_LABEL,
                "--field-selector=status.phase!=Succeeded,status.phase!=Failed",
                "-o",
                "name",
            ])?;
            let left = all.lines().filter(|line| line.starts_with("pod/")).count();
            ensure!(left == 1, "{all}");
            Ok(())
        })
        .await?;
        self.job.trains(4).await?;
        within("operator.coordinator_cut_replaced_s", took, AFTER_CUT_MAX)
    }

    fn network(&self, number: u8, on: bool) -> Result<()> {
        self.world.nodes.as_ref().context("nodes")?.network(number, on)
    }

    async fn not_ready(&self, node: &str) -> Result<()> {
        eventually("the node is not ready", || async {
            let arguments = [
                "get",
                "node",
                node,
                "-o",
                "jsonpath={.status.conditions[?(@.type=='Ready')].status}",
            ];
            let ready = self.kubectl(&arguments)?;
            ensure!(ready.trim() != "True", "{ready}");
            Ok(())
        })
        .await
    }

    pub(super) async fn kubelet_killed(&mut self) -> Result<()> {
        let (before, node) = (self.job.now()?, self.busiest().await?);
        let number: u8 = node.trim_start_matches('t').parse()?;
        self.world.nodes.as_mut().context("nodes")?.kill_kubelet(number);
        let result = async {
            self.not_ready(&node).await?;
            // Its workers continue to train, because they do not depend on the kubelet.
            let there = self.job.now()?;
            self.job
                .until("training goes on without the kubelet", |l| {
                    l.step() > there.step() + 10
                })
                .await
        }
        .await;
        self.world
            .nodes
            .as_mut()
            .context("nodes")?
            .start_kubelet(number)?;
        self.world.gpus(number, 4).await?;
        result?;
        self.job.trains(4).await?;
        ensure!(self.job.now()?.step() > before.step(), "no progress");
        Ok(())
    }

    pub(super) async fn containerd_killed(&mut self) -> Result<()> {
        let (before, node) = (self.job.now()?, self.busiest().await?);
        let number: u8 = node.trim_start_matches('t').parse()?;
        self.world.nodes.as_mut().context("nodes")?.kill_runtime(number);
        let result = self.workers_continue(&before).await;
        self.containerd_back(number).await?;
        result?;
        self.replaced_on(&node).await?;

        // Long enough for the kubelet to report it. Then Kubernetes deletes the pods, and their workers train until they are replaced.
        let before = self.job.now()?;
        self.world.nodes.as_mut().context("nodes")?.kill_runtime(number);
        let result = async {
            self.not_ready(&node).await?;
            let there = self.job.now()?;
            self.job
                .until("training goes on beside a node that is not ready", |l| {
                    l.step() > there.step() + 10
                })
                .await
        }
        .await;
        self.containerd_back(number).await?;
        result?;
        self.job.trains(4).await?;
        ensure!(self.job.now()?.step() > before.step(), "no progress");
        Ok(())
    }

    async fn containerd_back(&mut self, number: u8) -> Result<()> {
        self.world
            .nodes
            .as_mut()
            .context("nodes")?
            .start_runtime(number)?;
        self.world.gpus(number, 4).await
    }

    /// Containers are not child processes of containerd, so the same processes continue to train.
    async fn workers_continue(&self, before: &Observation) -> Result<()> {
        let pods = self.job.pods().await?;
        let workers = pods.iter().map(|p| process_of(p, "varuna-worker"));
        let workers = workers.collect::<Result<Vec<_>>>()?;
        let on = self
            .job
            .until("training goes on without containerd", |l| {
                l.step() > before.step() + 10
            })
            .await?;
        ensure!(on.members() == 4, "{} workers train", on.members());
        for worker in workers {
            kill(worker, None).context("a worker has ended with its node's containerd")?;
        }
        Ok(())
    }

    /// The restarted containerd stops containers of its predecessor and starts new ones: a worker that is deleted ends, and its replacement
    /// can only run on this node.
    async fn replaced_on(&self, node: &str) -> Result<()> {
        let before = self.job.now()?;
        let pods = self.job.pods().await?;
        let there = pods.iter().find(|p| node_of(p) == node).context("a pod there")?;
        let (name, process) = (there.name_any(), process_of(there, "varuna-worker")?);
        let others = NODES[1..].iter().map(|n| format!("t{n}"));
        let others: Vec<String> = others.filter(|n| n != node).collect();
        for other in &others {
            self.kubectl(&["cordon", other])?;
        }
        let result = async {
            let namespace = self.job.namespace.as_str();
            self.kubectl(&["-n", namespace, "delete", "pod", &name, "--timeout=60s"])?;
            ensure!(
                kill(process, None).is_err(),
                "the worker of {name} is still there"
            );
            self.replaced(&before, &name).await?;
            let now = self.job.pods().await?;
            let new = now
                .iter()
                .find(|p| pods.iter().all(|old| old.name_any() != p.name_any()));
            let new = new.context("a pod in its place")?;
            ensure!(node_of(new) == node, "{} is on {}", new.name_any(), node_of(new));
            Ok(())
        }
        .await;
        for other in &others {
            self.kubectl(&["uncordon", other])?;
        }
        result
    }
}
