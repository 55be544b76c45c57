//! What workers share that run on one machine, under `varuna run` or in a pod: its GPUs and its memory.
//!
//! The rule: the memory available when the run begins is divided by the number of workers with which it begins; on each GPU, by the number
//! of workers on it. A worker that is started later as a replacement gets the same share. A worker beyond the original number gets the
//! smaller share for that many workers. Running workers keep their share until they end, because they have already reported how much they
//! may use.

pub mod gpus;

pub use gpus::Gpus;

/// Maximum number of workers on one GPU, as `varuna-worker` accepts it.
const ON_ONE_GPU_MAX: usize = 64;

/// What the workers of this machine share.
pub struct Machine {
    gpus: Gpus,
    /// Available memory when the run began, bytes; none if the system does not report it.
    available: Option<u64>,
    /// Workers that the run began with.
    workers: usize,
}

/// What one worker is given.
#[derive(PartialEq, Eq, Debug)]
pub struct WorkerResources {
    /// None if it computes on the processor.
    pub gpu: Option<GivenGpu>,
    /// Host memory, bytes.
    pub host_bytes: Option<u64>,
}

/// A worker's GPU.
#[derive(PartialEq, Eq, Debug)]
pub enum GivenGpu {
    /// The worker is shown this GPU alone.
    Shown {
        /// Its index.
        index: usize,
        /// The name by which it is shown.
        name: String,
        /// Workers on that GPU.
        workers: usize,
    },
    /// GPUs are not counted, or too few: the worker takes the one of its place among those that the driver shows it.
    Place {
        /// Its place among the workers of the machine.
        index: usize,
        /// How many places there are.
        places: usize,
    },
}

impl WorkerResources {
    /// Index of its GPU or of its place, for [`Machine::give`] while it runs.
    pub fn index(&self) -> Option<usize> {
        match &self.gpu {
            Some(GivenGpu::Shown { index, .. } | GivenGpu::Place { index, .. }) => Some(*index),
            None => None,
        }
    }

    /// What [`gpus::VISIBLE`] is for the worker; none if it inherits that.
    pub fn shown(&self) -> Option<&str> {
        match &self.gpu {
            Some(GivenGpu::Shown { name, .. }) => Some(name),
            Some(GivenGpu::Place { .. }) | None => None,
        }
    }

    /// What the worker is told of it on its command line.
    pub fn arguments(&self) -> Vec<String> {
        let host = self.host_bytes.map(|bytes| ("--host-memory", bytes.to_string()));
        let gpu = self.gpu.as_ref().map(|gpu| match gpu {
            GivenGpu::Shown { workers, .. } => ("--workers-on-gpu", workers.to_string()),
            GivenGpu::Place { index, places } => ("--gpu-place", format!("{index}/{places}")),
        });
        let told = host.into_iter().chain(gpu);
        told.flat_map(|(name, value)| [name.to_owned(), value]).collect()
    }
}

impl Machine {
    /// The machine before the first worker is started.
    pub fn at_start(gpus: Gpus, workers: usize) -> Machine {
        Machine {
            gpus,
            available: varuna_host_memory::available(),
            workers,
        }
    }

    /// The resources for one more worker, given the indices of the running ones ([`WorkerResources::index`]).
    pub fn give(&self, running: &[Option<usize>]) -> WorkerResources {
        let taken: Vec<usize> = running.iter().copied().flatten().collect();
        let workers = self.workers.max(running.len() + 1);
        WorkerResources {
            gpu: match &self.gpus {
                Gpus::Named(names) => self.shown_gpu(names, &taken),
                Gpus::Uncounted => gpus::least_taken(workers, &taken).map(|index| GivenGpu::Place {
                    index,
                    places: workers,
                }),
            },
            host_bytes: self.available.map(|all| varuna_host_memory::share(all, workers)),
        }
    }

    fn shown_gpu(&self, names: &[String], taken: &[usize]) -> Option<GivenGpu> {
        let index = gpus::least_taken(names.len(), taken)?;
        let beside = taken.iter().filter(|other| **other == index).count();
        let planned = self.workers.div_ceil(names.len());
        Some(GivenGpu::Shown {
            index,
            name: names[index].clone(),
            workers: planned.max(beside + 1).min(ON_ONE_GPU_MAX),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varuna_api::WorkerDevice;

    fn machine(gpus: Gpus, workers: usize) -> Machine {
        Machine {
            gpus,
            available: Some(60 << 30),
            workers,
        }
    }

    /// So many GPUs that were counted.
    fn counted(gpus: usize) -> Gpus {
        Gpus::choose(WorkerDevice::Auto, None, gpus)
    }

    fn processor() -> Gpus {
        Gpus::choose(WorkerDevice::Cpu, None, 0)
    }

    /// What workers are given that are started one after the other.
    fn started(machine: &Machine, count: usize) -> Vec<WorkerResources> {
        let mut running = Vec::new();
        let mut given = Vec::new();
        for _ in 0..count {
            let next = machine.give(&running);
            running.push(next.index());
            given.push(next);
        }
        given
    }

    /// Index of the GPU, and workers on it.
    fn shown(given: &WorkerResources) -> (usize, usize) {
        match given.gpu {
            Some(GivenGpu::Shown { index, workers, .. }) => (index, workers),
            _ => panic!("{given:?}"),
        }
    }

    #[test]
    fn the_workers_of_a_run_divide_what_was_available_when_it_began() {
        let machine = machine(processor(), 4);
        for given in started(&machine, 4) {
            assert_eq!(given.host_bytes, Some(15 << 30));
            assert_eq!((&given.gpu, given.shown()), (&None, None));
            assert_eq!(given.arguments(), ["--host-memory", "16106127360"]);
        }
        // The replacement of a worker that has ended gets the same, whatever the others use by now.
        assert_eq!(machine.give(&[None, None, None]).host_bytes, Some(15 << 30));
        // After `varuna scale` to more workers.
        assert_eq!(machine.give(&[None; 5]).host_bytes, Some(10 << 30));
    }

    #[test]
    fn workers_divide_each_gpu_by_those_that_it_gets() {
        let alone = started(&machine(counted(4), 4), 4);
        let places: Vec<_> = alone.iter().map(shown).collect();
        assert_eq!(places, [(0, 1), (1, 1), (2, 1), (3, 1)]);
        // The first one knows of the second already.
        let crowded = started(&machine(counted(2), 3), 3);
        let places: Vec<_> = crowded.iter().map(shown).collect();
        assert_eq!(places, [(0, 2), (1, 2), (0, 2)]);
        assert_eq!(crowded[1].shown(), Some("1"));
        assert_eq!(crowded[1].arguments()[2..], ["--workers-on-gpu", "2"]);
        assert_eq!(shown(&machine(counted(1), 1).give(&[Some(0), Some(0)])), (0, 3));
        assert_eq!(shown(&machine(counted(1), 1000).give(&[])), (0, ON_ONE_GPU_MAX));
    }

    #[test]
    fn where_gpus_are_not_counted_each_worker_is_told_its_place() {
        let machine = machine(counted(0), 3);
        let told: Vec<_> = started(&machine, 4)
            .iter()
            .map(|given| (given.shown().is_none(), given.arguments()[2..].to_vec()))
            .collect();
        let expected = ["0/3", "1/3", "2/3", "3/4"].map(|place| {
            let arguments = ["--gpu-place", place].map(str::to_owned).to_vec();
            (true, arguments)
        });
        assert_eq!(told, expected);
        // One that replaces another takes its place.
        assert_eq!(machine.give(&[Some(0), Some(2)]).index(), Some(1));
    }

    #[test]
    fn unknown_amounts_are_not_divided() {
        let unknown = Machine {
            available: None,
            ..machine(processor(), 2)
        };
        assert_eq!(unknown.give(&[]).host_bytes, None);
        assert!(unknown.give(&[]).arguments().is_empty());
    }
}
