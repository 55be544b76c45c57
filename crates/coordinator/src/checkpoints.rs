//! The coordinator's eye on the checkpoint store: which checkpoints may be resumed from, and retention.
//!
//! One task asks the store; the driver never waits for it. A store that is slow or fails is answered for from what was last
//! known, so that a recovery from memory does not depend on it.

use crate::claim::has_ended;
use crate::driver::Inbound;
use crate::serve::Checkpointing;
use crate::words;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::Sender;
use tokio::sync::{Notify, watch};
use varuna_checkpoint::{CheckpointError, Listed, Standing};
use varuna_plan::StateId;

/// The store is looked at so often without being asked to.
const EVERY: Duration = Duration::from_secs(5);
/// A recovery waits so long for a fresh answer where an older one is known.
const PATIENCE: Duration = Duration::from_secs(1);

/// A store that has never answered is not asked again sooner.
const PAUSE: Duration = Duration::from_secs(1);

/// A store gets so long to take the last word.
const FAREWELL: Duration = Duration::from_secs(2);

/// What is known of the checkpoints.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// The store has answered at least once.
    pub(crate) answered: bool,
    /// Those that may be resumed from, oldest first.
    pub(crate) usable: Vec<StateId>,
    /// Why the store could not be asked the last time.
    pub(crate) failing: Option<String>,
}

/// The handle to the task.
pub(crate) struct Watch {
    ask: Arc<Notify>,
    end: Arc<Notify>,
    task: tokio::task::JoinHandle<()>,
    /// States that must stay, whatever retention says.
    protected: watch::Sender<Vec<StateId>>,
}

impl Watch {
    /// Starts the task; it tells `inbound`, and ends when nobody listens there.
    pub(crate) fn start(given: Checkpointing, inbound: Sender<Inbound>) -> Watch {
        let (ask, end) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (protected, protects) = watch::channel(Vec::new());
        let eye = Eye {
            given,
            protects,
            verdicts: BTreeMap::new(),
            known: Known::default(),
            refused: None,
            standing: None,
        };
        let task = tokio::spawn(eye.work(Arc::clone(&ask), Arc::clone(&end), inbound));
        Watch {
            ask,
            end,
            task,
            protected,
        }
    }

    /// Gives the place up, if the store takes that within a moment: if not, the next run waits until this one counts as gone.
    pub(crate) async fn end(self) {
        self.end.notify_one();
        let _ = tokio::time::timeout(FAREWELL, self.task).await;
    }

    /// Wants a fresh answer.
    pub(crate) fn ask(&self) {
        self.ask.notify_one();
    }

    pub(crate) fn protect(&self, states: Vec<StateId>) {
        // The task has ended where nobody receives.
        let _ = self.protected.send(states);
    }
}

/// What `work` gives, and whether somebody has asked meanwhile: from then on it has [`PATIENCE`], and gives nothing after that.
async fn unless_asked<T>(ask: &Notify, work: impl Future<Output = T>) -> (Option<T>, bool) {
    tokio::pin!(work);
    tokio::select! {
        done = &mut work => return (Some(done), false),
        () = ask.notified() => {}
    }
    (tokio::time::timeout(PATIENCE, work).await.ok(), true)
}

struct Eye {
    given: Checkpointing,
    protects: watch::Receiver<Vec<StateId>>,
    /// Manifests never change: each is judged once.
    verdicts: BTreeMap<StateId, bool>,
    known: Known,
    standing: Option<Standing>,
    /// Another run's claim stands in the way: since when, and whose.
    refused: Option<(Instant, String)>,
}

impl Eye {
    async fn work(mut self, ask: Arc<Notify>, end: Arc<Notify>, inbound: Sender<Inbound>) {
        let mut owned: Option<Instant> = None;
        // The machine has asked while something else was done.
        let mut hurry = false;
        loop {
            // Others may ask without a pause: a claim stays alive all the same.
            if !hurry && owned.is_none_or(|at| at.elapsed() >= EVERY) {
                owned = Some(Instant::now());
                hurry = self.renew(&ask).await;
                if let Some(Standing::Taken(run)) = &self.standing {
                    let _ = inbound.send(Inbound::Taken(run.clone())).await;
                }
            }
            let asked = std::mem::take(&mut hurry)
                || tokio::select! {
                    () = ask.notified() => true,
                    () = tokio::time::sleep(EVERY) => false,
                    () = end.notified() => return self.give_up().await,
                };
            let known = match self.stranger() {
                Some(run) => Known {
                    failing: Some(format!(
                        "the place is run {run}'s; waiting for a sign that it has gone"
                    )),
                    ..Known::default()
                },
                None if asked => self.look(true).await,
                None => match unless_asked(&ask, self.look(false)).await.0 {
                    Some(known) => known,
                    None => self.look(true).await,
                },
            };
            let pause = !known.answered;
            if inbound.send(Inbound::Checkpoints(known)).await.is_err() {
                return;
            }
            if pause {
                // Whoever waits to know whether there is a checkpoint asks without a pause.
                tokio::time::sleep(PAUSE).await;
            }
            if !asked {
                hurry = unless_asked(&ask, self.prune()).await.1;
            }
        }
    }

    /// Gets, or keeps, the right to write; whether the machine has asked meanwhile. A place that is this run's is kept by one
    /// idempotent write, which may be cut short; one that is not yet comes first, for nothing may begin without it.
    async fn renew(&mut self, ask: &Notify) -> bool {
        if self.given.ownership.is_none() {
            self.standing = self.own().await;
            return false;
        }
        let (standing, asked) = unless_asked(ask, self.own()).await;
        self.standing = standing.flatten();
        asked
    }

    /// The other run that may still be at work in the place. Nothing begins until that is settled: it would start from states that
    /// are not its own, and the other one would take this one's for its own.
    fn stranger(&self) -> Option<&str> {
        let refused = self.refused.as_ref().filter(|_| self.given.ownership.is_none());
        refused.map(|(_, run)| run.as_str())
    }

    /// Gets, or keeps, the right to write; none where the store does not tell.
    async fn own(&mut self) -> Option<Standing> {
        let place = self.given.store.location();
        let outcome = match &self.given.ownership {
            Some(ownership) => ownership.renew().await,
            None => match place.claim(self.given.claim.clone(), has_ended).await {
                Ok(ownership) => {
                    self.given.ownership = Some(ownership);
                    Ok(Standing::Owner)
                }
                Err(CheckpointError::Owned { run, .. }) => {
                    // An owner that was killed gives no sign of life from now on; one that lives does.
                    let (since, _) = self.refused.get_or_insert_with(|| (Instant::now(), run.clone()));
                    if since.elapsed() < varuna_checkpoint::LEASE + 2 * EVERY {
                        return None;
                    }
                    Ok(Standing::Taken(run))
                }
                Err(error) => Err(error),
            },
        };
        outcome
            .inspect_err(|error| tracing::warn!(%error, "the place of the checkpoints cannot be claimed now"))
            .ok()
    }

    async fn give_up(mut self) {
        self.standing = self.own().await;
        // At the end as many are there as shall stay.
        self.prune().await;
        if let Some(ownership) = &self.given.ownership
            && let Err(error) = ownership.release().await
        {
            tracing::warn!(%error, "the place of the checkpoints is not given up");
        }
    }

    /// What is known now.
    async fn look(&mut self, asked: bool) -> Known {
        let hurry = asked && self.known.answered;
        let patience = if hurry { PATIENCE } else { Duration::from_secs(30) };
        let failing = match tokio::time::timeout(patience, self.list()).await {
            Ok(Ok(usable)) => {
                self.known.answered = true;
                self.known.usable = usable;
                None
            }
            Ok(Err(error)) => Some(words::in_short(&error.to_string())),
            Err(_) => Some(format!("no answer within {} s", patience.as_secs())),
        };
        if let Some(why) = failing
            .as_ref()
            .filter(|why| self.known.failing.as_ref() != Some(*why))
        {
            tracing::warn!(why, "the checkpoint store cannot be asked");
        }
        self.known.failing = failing;
        self.known.clone()
    }

    async fn list(&mut self) -> Result<Vec<StateId>, CheckpointError> {
        let all = self.given.store.location().list().await?;
        self.verdicts.retain(|id, _| all.iter().any(|l| l.id == *id));
        let mut usable = Vec::new();
        for listed in all.iter().filter(|l| l.is_usable()) {
            if self.judge(listed).await? {
                usable.push(listed.id);
            }
        }
        Ok(usable)
    }

    async fn judge(&mut self, listed: &Listed) -> Result<bool, CheckpointError> {
        if let Some(verdict) = self.verdicts.get(&listed.id) {
            return Ok(*verdict);
        }
        let verdict = match self.given.store.check(listed).await {
            Ok(_) => true,
            Err(error) if error.is_final() => {
                tracing::warn!(%error, "a checkpoint is left out");
                if matches!(error, CheckpointError::Damaged { .. }) {
                    // Retention must not count it among those that are kept.
                    self.given
                        .store
                        .location()
                        .refuse(listed.id, &error.to_string())
                        .await?;
                }
                false
            }
            Err(error) => return Err(error),
        };
        self.verdicts.insert(listed.id, verdict);
        Ok(verdict)
    }

    /// Only in a place of its own: another run, or another leader of this one, knows better which states must stay.
    async fn prune(&mut self) {
        if self.standing != Some(Standing::Owner) {
            return;
        }
        let protected = self.protects.borrow().clone();
        match self
            .given
            .store
            .location()
            .prune(self.given.keep, &protected)
            .await
        {
            Ok(pruned) if pruned.checkpoints.is_empty() && pruned.orphans.is_empty() => {}
            Ok(pruned) => tracing::info!(
                checkpoints = pruned.checkpoints.len(),
                orphans = pruned.orphans.len(),
                "old checkpoints deleted"
            ),
            Err(error) => tracing::warn!(%error, "old checkpoints are not deleted"),
        }
    }
}
