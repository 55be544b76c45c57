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
    /// Index of its GPU, and the name by which it is shown to the worker.
    pub gpu: Option<(usize, String)>,
    /// Workers on that GPU.
    pub workers_on_gpu: usize,
    /// Host memory, bytes.
    pub host_bytes: Option<u64>,
}

impl Machine {
    /// Before the first worker is started.
    pub fn at_start(gpus: Gpus, workers: usize) -> Machine {
        Machine {
            gpus,
            available: varuna_host_memory::available(),
            workers,
        }
    }

    /// The resources for one more worker, given the GPU indices of the running ones.
    pub fn give(&self, running: &[Option<usize>]) -> WorkerResources {
        let taken = || running.iter().copied().flatten();
        let gpu = self.gpus.next(taken());
        let gpu = gpu.map(|(place, name)| (place, name.to_owned()));
        let beside = gpu
            .as_ref()
            .map_or(0, |(own, _)| taken().filter(|place| place == own).count());
        let planned = self.workers.div_ceil(self.gpus.count().max(1));
        let workers = self.workers.max(running.len() + 1);
        WorkerResources {
            workers_on_gpu: match gpu {
                Some(_) => planned.max(beside + 1).min(ON_ONE_GPU_MAX),
                None => 1,
            },
            gpu,
            host_bytes: self.available.map(|all| varuna_host_memory::share(all, workers)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varuna_api::WorkerDevice;

    fn machine(gpus: usize, workers: usize) -> Machine {
        Machine {
            gpus: Gpus::choose(WorkerDevice::Auto, None, gpus),
            available: Some(60 << 30),
            workers,
        }
    }

    /// What workers are given that are started one after the other.
    fn started(machine: &Machine, count: usize) -> Vec<WorkerResources> {
        let mut running = Vec::new();
        let mut given = Vec::new();
        for _ in 0..count {
            let next = machine.give(&running);
            running.push(next.gpu.as_ref().map(|(place, _)| *place));
            given.push(next);
        }
        given
    }

    #[test]
    fn the_workers_of_a_run_divide_what_was_available_when_it_began() {
        let machine = machine(0, 4);
        for given in started(&machine, 4) {
            assert_eq!(given.host_bytes, Some(15 << 30));
            assert_eq!((given.gpu, given.workers_on_gpu), (None, 1));
        }
        // In the place of one that has ended, whatever the others hold by now.
        assert_eq!(machine.give(&[None, None, None]).host_bytes, Some(15 << 30));
        // `varuna scale` to more of them.
        assert_eq!(machine.give(&[None; 5]).host_bytes, Some(10 << 30));
    }

    #[test]
    fn workers_divide_each_gpu_by_those_that_it_gets() {
        let alone = started(&machine(4, 4), 4);
        let places: Vec<_> = alone
            .iter()
            .map(|g| (g.gpu.as_ref().unwrap().0, g.workers_on_gpu))
            .collect();
        assert_eq!(places, [(0, 1), (1, 1), (2, 1), (3, 1)]);
        // The first one knows of the second already.
        let crowded = started(&machine(2, 3), 3);
        let places: Vec<_> = crowded
            .iter()
            .map(|g| (g.gpu.as_ref().unwrap().0, g.workers_on_gpu))
            .collect();
        assert_eq!(places, [(0, 2), (1, 2), (0, 2)]);
        assert_eq!(machine(1, 1).give(&[Some(0), Some(0)]).workers_on_gpu, 3);
        assert_eq!(machine(1, 1000).give(&[]).workers_on_gpu, ON_ONE_GPU_MAX);
    }

    #[test]
    fn nothing_is_divided_where_the_system_does_not_say_what_there_is() {
        let unknown = Machine {
            available: None,
            ..machine(0, 2)
        };
        assert_eq!(unknown.give(&[]).host_bytes, None);
    }
}
