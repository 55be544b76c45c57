//! The results of the benchmark with many jobs, and their RESULT lines.

use crate::effects::Effects;
use crate::quantile;

/// Results for events.
pub(crate) struct EventResults {
    pub(crate) effects: Effects,
    pub(crate) events: usize,
    /// CPU use of the machine during the events, in percent.
    pub(crate) busy: f64,
}

impl EventResults {
    pub(crate) fn print(&self, name: &str) {
        let quantile = |share| quantile(&self.effects.ms, share);
        println!("RESULT operator.{name}effect_p50_ms {:.0}", quantile(0.5));
        println!("RESULT operator.{name}effect_p99_ms {:.0}", quantile(0.99));
        println!("RESULT operator.{name}events {}", self.events);
        println!("RESULT operator.{name}effects_missing {}", self.effects.missing);
        println!("RESULT operator.{name}busy_percent {:.0}", self.busy);
    }
}

/// Results for many events at once.
pub(crate) struct Storm {
    pub(crate) answered: EventResults,
    /// How often the operator lost its Lease and was started again.
    pub(crate) restarts: usize,
}

impl Storm {
    pub(crate) fn print(&self) {
        self.answered.print("storm_");
        let longest = quantile(&self.answered.effects.ms, 1.0);
        println!("RESULT operator.storm_effect_max_ms {longest:.0}");
        println!("RESULT operator.storm_restarts {}", self.restarts);
    }
}

/// Results for an idle cluster.
pub(crate) struct IdleResults {
    pub(crate) cores: f64,
    pub(crate) mb: f64,
    /// CPU use of the machine, in percent.
    pub(crate) busy: f64,
    /// Requests of the operator for each job and minute.
    pub(crate) requests: f64,
    /// Requests of a job's coordinator in a minute.
    pub(crate) coordinator_requests: f64,
}

impl IdleResults {
    pub(crate) fn print(&self, name: &str) {
        println!("RESULT operator.{name}rest_cores {:.4}", self.cores);
        println!("RESULT operator.{name}rest_mb {:.0}", self.mb);
        println!("RESULT operator.{name}rest_busy_percent {:.0}", self.busy);
        println!(
            "RESULT operator.{name}rest_requests_per_job_min {:.3}",
            self.requests
        );
        println!(
            "RESULT operator.{name}rest_coordinator_requests_per_min {:.3}",
            self.coordinator_requests
        );
    }
}
