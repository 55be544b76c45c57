//! The groups of a job's workers: the settings of each group's pods, and their number.

use crate::job::{Job, WorkerGroup, Workers};
use serde_json::Value;

/// Pods of one kind that a job should have.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PodGroup<'a> {
    /// The group's name; none for a job without groups.
    pub name: Option<&'a str>,
    /// Settings of the group's workers.
    pub workers: &'a Workers,
    /// How many there should be.
    pub pods: u32,
}

impl<'a> PodGroup<'a> {
    fn of(group: &'a WorkerGroup, pods: u32) -> PodGroup<'a> {
        PodGroup {
            name: Some(&group.name),
            workers: &group.workers,
            pods,
        }
    }
}

/// Number of pods of each group for at most `most` workers. Each group first gets its `minWorkers`, and then, in order, as many of the rest
/// as it may have. Only whole pods are counted, so a group whose pods hold several workers may leave some workers for the next group.
pub(crate) fn pods_of_groups(groups: &[WorkerGroup], most: u32) -> Vec<u32> {
    let mut counts = vec![0; groups.len()];
    let mut left = most;
    for only_least in [true, false] {
        for (count, group) in counts.iter_mut().zip(groups) {
            let per_pod = group.workers.gpus_per_pod;
            let wanted = if only_least {
                Some(group.min_workers)
            } else {
                group.max_workers
            };
            let more = wanted.map_or(left, |wanted| wanted.saturating_sub(*count * per_pod));
            let pods = more.min(left) / per_pod;
            *count += pods;
            left -= pods * per_pod;
        }
    }
    counts
}

impl Job {
    /// The pods that the job should have in a cluster, in the order of its groups: one group if the job has none.
    #[must_use]
    pub fn pod_groups(&self) -> Vec<PodGroup<'_>> {
        // In a cluster a job always has a maximum: the definition has a default.
        let most = self.elasticity.max_workers.unwrap_or(1);
        if self.worker_groups.is_empty() {
            let workers = &self.workers;
            let pods = most / workers.gpus_per_pod;
            return vec![PodGroup {
                name: None,
                workers,
                pods,
            }];
        }
        let counts = pods_of_groups(&self.worker_groups, most);
        let groups = self.worker_groups.iter().zip(counts);
        groups.map(|(group, pods)| PodGroup::of(group, pods)).collect()
    }

    /// The same job, with the workers of a group.
    #[must_use]
    pub fn of_group(&self, group: &PodGroup<'_>) -> Job {
        Job {
            workers: group.workers.clone(),
            ..self.clone()
        }
    }
}

/// Adds to a document the fields that it is missing from the other, also within mappings. Lists count as values: a given list is kept.
pub fn fill_in(given: &mut Value, defaults: &Value) {
    match (given, defaults) {
        (Value::Object(given), Value::Object(defaults)) => {
            for (key, default) in defaults {
                fill_in(given.entry(key.clone()).or_insert(Value::Null), default);
            }
        }
        (given @ Value::Null, defaults) => *given = defaults.clone(),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use crate::parse_job;
    use crate::resolve::tests::{MINIMAL, with};

    /// The pods of each group. A group has its minimum and maximum number of workers, and its workers per pod.
    fn pods(most: u32, groups: &[(u32, Option<u32>, u32)]) -> Vec<u32> {
        let groups = groups.iter().enumerate().map(|(i, (least, most, per_pod))| {
            let most = most.map_or(String::new(), |most| format!(", maxWorkers: {most}"));
            format!("{{name: g{i}, minWorkers: {least}, gpusPerPod: {per_pod}{most}}}")
        });
        let groups = groups.collect::<Vec<_>>().join(", ");
        let spec = format!("spec:\n  elasticity: {{maxWorkers: {most}}}\n  workerGroups: [{groups}]");
        let job = parse_job(&with(MINIMAL, "spec:", &spec)).unwrap();
        job.pod_groups().iter().map(|group| group.pods).collect()
    }

    #[test]
    fn each_group_gets_its_least_then_the_first_what_it_may_have() {
        let groups = [(0, Some(12), 1), (2, Some(4), 1)];
        assert_eq!(pods(16, &groups), [12, 4]);
        assert_eq!(pods(8, &groups), [6, 2], "the second has its least first");
        assert_eq!(pods(2, &groups), [0, 2]);
        assert_eq!(pods(9, &[(1, None, 1), (2, None, 1)]), [7, 2]);
    }

    #[test]
    fn pods_are_whole_and_what_one_group_cannot_use_is_for_the_next() {
        assert_eq!(pods(11, &[(0, None, 8), (0, None, 1)]), [1, 3]);
        assert_eq!(pods(11, &[(0, Some(7), 8), (0, None, 4)]), [0, 2]);
    }

    #[test]
    fn a_least_that_whole_pods_hold_is_taken() {
        let spec = "spec:\n  elasticity: {minWorkers: 10, maxWorkers: 16}\n  workerGroups: [{name: a, gpusPerPod: 8}]";
        let job = parse_job(&with(MINIMAL, "spec:", spec)).unwrap();
        assert_eq!(job.pod_groups()[0].pods, 2);
    }

    #[test]
    fn a_job_without_groups_is_one_group_without_a_name() {
        let job = parse_job(&with(
            MINIMAL,
            "spec:",
            "spec:\n  elasticity: {maxWorkers: 9}\n  workers: {gpusPerPod: 4}",
        ))
        .unwrap();
        let groups = job.pod_groups();
        assert_eq!((groups.len(), groups[0].name, groups[0].pods), (1, None, 2));
        assert_eq!(groups[0].workers, &job.workers);
    }
}
