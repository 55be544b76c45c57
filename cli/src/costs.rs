//! Where the costs of a plan come from: an estimate for a kind of device, or a measured profile.

use crate::failure::Failure;
use crate::io::read;
use std::path::{Path, PathBuf};
use varuna_api::Job;
use varuna_plan::CostPlanner;
use varuna_plan::device::DeviceKind;
use varuna_plan::profile::Profile;

/// Options shared by the commands that plan without running.
#[derive(clap::Args)]
pub(crate) struct CostSource {
    /// Estimate costs for this kind of device, for example h100-80g, and stay within its memory [default: one CPU core].
    #[arg(long, value_name = "KIND")]
    device: Option<String>,
    /// Take costs from this profile instead of an estimate (see varuna profile).
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Table of message times that replaces the profile's links: a CSV file with the columns bytes,us.
    #[arg(long, value_name = "FILE", requires = "profile")]
    links: Option<PathBuf>,
}

impl CostSource {
    /// The job's planner with these costs. `one_node`: all workers share one node (its links are faster).
    pub(crate) fn planner(&self, job: &Job, one_node: bool) -> Result<CostPlanner, Failure> {
        let mut planner = varuna_api::planner(job);
        if let Some(name) = &self.device {
            let kind = DeviceKind::named(name).map_err(|e| Failure::Input(e.to_string()))?;
            let device = kind.device(one_node, job.precision.element_bytes());
            planner.costs = varuna_api::estimated_costs(job, device);
            let memory = &mut planner.constraints.device_memory_bytes;
            *memory = Some(memory.map_or(kind.usable_bytes(), |m| m.min(kind.usable_bytes())));
        }
        if let Some(path) = &self.profile {
            let profile = read_profile(path, self.links.as_deref())?;
            planner.costs = varuna_api::measured_costs(&profile, job)
                .map_err(|why| Failure::Input(format!("{}: {why}", path.display())))?;
        }
        Ok(planner)
    }
}

/// Reads a profile. `links`: a table that replaces its link times.
pub(crate) fn read_profile(path: &Path, links: Option<&Path>) -> Result<Profile, Failure> {
    let text = read(path)?;
    let links = links
        .map(|l| Ok::<_, Failure>((l.display().to_string(), read(l)?)))
        .transpose()?;
    let links = links.as_ref().map(|(file, text)| (file.as_str(), text.as_str()));
    Profile::read(&path.display().to_string(), &text, links).map_err(|e| Failure::Input(e.to_string()))
}
