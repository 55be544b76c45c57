//! What people see of a run: metrics, diary, status.

use super::{Driver, STATUS};
use crate::folder::{Metric, now_ms};
use crate::in_order::InOrder;
use crate::narrator::Stored;
use crate::serve::Saved;
use crate::words::status_document;
use std::time::Instant;
use varuna_plan::Step;
use varuna_protocol::coordinator::Event;

impl Driver {
    pub(super) fn publish_steps(&mut self, due: Vec<Metric>) {
        for metric in due {
            self.folder.metric(metric.clone());
            self.view.metric = Some(metric);
        }
    }

    pub(super) fn tell(&mut self, event: &Event) {
        self.note(event);
        if let Event::Committed {
            id,
            generation,
            step,
            loss,
            eval_loss,
            gradient_norm,
            overflow,
        } = event
        {
            let snapshot = self.machine.snapshot();
            let job = &self.options.job;
            let metric = Metric {
                step: *step,
                loss: *loss,
                eval_loss: *eval_loss,
                gradient_norm: *gradient_norm,
                overflow: *overflow,
                generation: *generation,
                workers: snapshot.members,
                plan: snapshot.plan.unwrap_or_default(),
                tokens: job.training.global_batch_size * u64::from(job.model.sequence_length),
                step_ms: self.step_at.elapsed().as_secs_f64() * 1e3,
                time_ms: now_ms(),
                state: *id,
            };
            self.step_at = Instant::now();
            let due = self.order.offer(Instant::now(), metric);
            self.publish_steps(due);
            return;
        }
        let mut entry = serde_json::to_value(event).unwrap_or_default();
        let mut lost = 0;
        if let Event::Resumed {
            base, restored: true, ..
        } = event
        {
            let reached = self.folder.last().map_or(Step(0), |m| m.step);
            lost = reached.0.saturating_sub(base.step.0);
            entry["stepsLost"] = lost.into();
            // Steps after the base are run, and published, once more.
            self.order = InOrder::after(base.step);
        }
        let text = self.narrator.sentence(self.start.elapsed(), event, lost);
        self.say(entry, text);
    }

    /// What the store of the checkpoints shows.
    pub(super) fn tell_stored(&mut self, news: &Stored) {
        self.say(serde_json::to_value(news).unwrap_or_default(), news.sentence());
    }

    fn note(&mut self, event: &Event) {
        let step = |e: &Event| matches!(e, Event::Committed { .. });
        let happened = &mut self.view.happened;
        if step(event) && happened.back().is_some_and(|(_, _, last)| step(last)) {
            return;
        }
        let number = happened.back().map_or(0, |(number, _, _)| *number) + 1;
        happened.push_back((number, self.start.elapsed(), event.clone()));
        if happened.len() > 64 {
            happened.pop_front();
        }
    }

    /// An entry for tools, and the same for people.
    fn say(&mut self, entry: serde_json::Value, text: String) {
        let snapshot = self.machine.snapshot();
        tracing::info!(
            generation = snapshot.generation.0,
            step = snapshot.step.0,
            "{text}"
        );
        self.folder.event(entry);
        self.diary_number += 1;
        self.view.diary.push_back((self.diary_number, text));
        if self.view.diary.len() > 64 {
            self.view.diary.pop_front();
        }
    }

    pub(super) fn show(&mut self) {
        self.published_at = Instant::now();
        let snapshot = Some(self.machine.snapshot());
        let saved = self.options.job.checkpoint.as_ref().map(|_| Saved {
            newest: self.known.usable.iter().max().map(|id| id.step),
            failing: self.known.failing.clone(),
            stale: self.stale,
        });
        let told = (
            self.diary_number,
            self.view.happened.back().map(|(number, _, _)| *number),
            self.view.metric.as_ref().map(|m| m.state),
        );
        // A run at rest costs nothing: a process may have thousands.
        if self.view.snapshot != snapshot || self.view.saved != saved || self.shown != told {
            self.shown = told;
            self.status_due = true;
            self.view.snapshot = snapshot;
            self.view.saved = saved;
            // Nobody may be watching.
            let _ = self.publish.send(self.view.clone());
        }
        if self.status_due && (self.status_at.elapsed() >= STATUS || self.outcome.is_some()) {
            self.status_at = Instant::now();
            self.status_due = false;
            let status = status_document(
                &self.machine.snapshot(),
                &self.options.job,
                &self.folder,
                &self.streams,
                &self.known,
            );
            self.folder.status(&status);
        }
    }
}
