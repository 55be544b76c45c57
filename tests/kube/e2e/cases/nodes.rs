//! Nodes that go, with all that runs on them, and come back.

use super::{Scene, node_of};
use crate::world::NODES;
use anyhow::{Context as _, Result, ensure};
use varuna_kube_tests::eventually;

impl Scene<'_> {
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
            self.told(&before).await
        }
        .await;
        self.kubectl(&["taint", "node", &node, "aws-node-termination-handler/spot-itn-"])?;
        result
    }

    pub(super) async fn drain(&mut self) -> Result<()> {
        let (before, node) = (self.job.now()?, self.busiest().await?);
        self.kubectl(&[
            "drain",
            &node,
            "--force",
            "--ignore-daemonsets",
            "--delete-emptydir-data",
            "--timeout=60s",
        ])?;
        let result = async {
            self.empty(&node).await?;
            self.job.trains(4).await?;
            self.told(&before).await
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
        // What ran there knows nothing of what has happened meanwhile: it must not do any harm.
        let gpus = 4;
        self.world.gpus(number, gpus).await?;
        self.job.trains(4).await?;
        self.told(&before).await
    }

    fn network(&self, number: u8, on: bool) -> Result<()> {
        self.world.nodes.as_ref().context("nodes")?.network(number, on)
    }

    pub(super) async fn kubelet_killed(&mut self) -> Result<()> {
        let (before, node) = (self.job.now()?, self.busiest().await?);
        let number: u8 = node.trim_start_matches('t').parse()?;
        self.world.nodes.as_mut().context("nodes")?.kill_kubelet(number);
        let result = async {
            eventually("the node is not ready", || async {
                let arguments = [
                    "get",
                    "node",
                    &node,
                    "-o",
                    "jsonpath={.status.conditions[?(@.type=='Ready')].status}",
                ];
                let ready = self.kubectl(&arguments)?;
                ensure!(ready.trim() != "True", "{ready}");
                Ok(())
            })
            .await?;
            // Its workers train on: they answer, whatever their kubelet does.
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
}
