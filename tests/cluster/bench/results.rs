//! What was measured of many jobs, and its RESULT lines.

use crate::effects::Effects;
use crate::quantile;

/// What was measured of events.
pub(crate) struct Answered {
    pub(crate) effects: Effects,
    pub(crate) events: usize,
    /// Of the machine while they were made, percent.
    pub(crate) busy: f64,
}

impl Answered {
    pub(crate) fn print(&self, name: &str) {
        let quantile = |share| quantile(&self.effects.ms, share);
        println!("RESULT operator.{name}effect_p50_ms {:.0}", quantile(0.5));
        println!("RESULT operator.{name}effect_p99_ms {:.0}", quantile(0.99));
        println!("RESULT operator.{name}events {}", self.events);
        println!("RESULT operator.{name}effects_missing {}", self.effects.missing);
        println!("RESULT operator.{name}busy_percent {:.0}", self.busy);
    }
}

/// What was measured of events at once.
pub(crate) struct Storm {
    pub(crate) answered: Answered,
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

/// What was measured at rest.
pub(crate) struct Rested {
    pub(crate) cores: f64,
    pub(crate) mb: f64,
    /// Of the machine, percent.
    pub(crate) busy: f64,
    /// Requests of the operator for each job in a minute.
    pub(crate) requests: f64,
}

impl Rested {
    pub(crate) fn print(&self, name: &str) {
        println!("RESULT operator.{name}rest_cores {:.4}", self.cores);
        println!("RESULT operator.{name}rest_mb {:.0}", self.mb);
        println!("RESULT operator.{name}rest_busy_percent {:.0}", self.busy);
        println!(
            "RESULT operator.{name}rest_requests_per_job_min {:.3}",
            self.requests
        );
    }
}
