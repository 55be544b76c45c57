//! Assigns a GPU to each worker of this machine.
//!
//! A worker uses the first GPU that it sees, and is shown only one (`CUDA_VISIBLE_DEVICES`). So workers are spread over GPUs although this
//! program, which has no CUDA, knows GPUs only by their files. If there are no such files, or too few GPUs, a worker is told its place
//! among the workers instead, and counts GPUs itself.

use std::path::Path;
use varuna_api::WorkerDevice;

/// The variable that restricts the GPUs that a process sees.
pub const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// The GPUs that workers are spread over.
#[derive(PartialEq, Eq, Debug)]
pub enum Gpus {
    /// By the names that the variable takes: a number, or what the user wrote. None for workers that compute on the processor.
    Named(Vec<String>),
    /// Not counted, or too few: each worker counts them itself. No file tells how many there are, or whether there are any (under WSL, for example, no
    /// GPU has a file of its own), or there are fewer than workers, which must not share them.
    Uncounted,
}

impl Gpus {
    /// The GPUs of this machine for a job's device.
    pub fn of_machine(device: WorkerDevice) -> Gpus {
        let visible = std::env::var(VISIBLE).ok();
        let names = |folder: &str| {
            let entries = std::fs::read_dir(Path::new(folder)).into_iter().flatten();
            let names = entries
                .flatten()
                .map(|e| e.file_name().to_string_lossy().into_owned());
            names.collect::<Vec<_>>()
        };
        let present = count(&names("/dev"), &names("/proc/driver/nvidia/gpus"));
        Gpus::choose(device, visible.as_deref(), present)
    }

    /// None for workers that compute on the processor; otherwise the GPUs that the user's variable allows, or all that are `present`.
    pub fn choose(device: WorkerDevice, visible: Option<&str>, present: usize) -> Gpus {
        match (device, visible) {
            (WorkerDevice::Cpu, _) => Gpus::Named(Vec::new()),
            // Like CUDA, ignore the rest of the list after the first invalid name.
            (WorkerDevice::Auto | WorkerDevice::Cuda, Some(list)) => {
                let names = list.split(',').map(str::trim);
                let valid = names.take_while(|name| !name.is_empty() && !name.starts_with('-'));
                Gpus::Named(valid.map(str::to_owned).collect())
            }
            (WorkerDevice::Auto | WorkerDevice::Cuda, None) => match present {
                0 => Gpus::Uncounted,
                _ => Gpus::Named((0..present).map(|number| number.to_string()).collect()),
            },
        }
    }

    /// How many there are, if there are some, but not one for each of so many workers.
    pub fn fewer_than(&self, workers: usize) -> Option<usize> {
        match self {
            Gpus::Named(names) => Some(names.len()).filter(|count| (1..workers).contains(count)),
            Gpus::Uncounted => None,
        }
    }
}

/// The index below `count` for the next worker, of which the running ones have `taken`: the first among those that the fewest have. So the
/// first workers take one GPU after the other, and a worker that replaces another takes its GPU.
pub(crate) fn least_taken(count: usize, taken: &[usize]) -> Option<usize> {
    let mut workers = vec![0_usize; count];
    for index in taken {
        if let Some(workers) = workers.get_mut(*index) {
            *workers += 1;
        }
    }
    let all = workers.iter().enumerate();
    let least = all.min_by_key(|(index, workers)| (**workers, *index));
    least.map(|(index, _)| index)
}

/// Counts GPUs by their device files (a container has those that it may use). If there are none yet, since the driver creates them when it
/// is first used, it counts the driver's folders, one per GPU.
fn count(device_files: &[String], driver_folders: &[String]) -> usize {
    let number = |name: &&String| {
        let rest = name.strip_prefix("nvidia");
        rest.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
    };
    match device_files.iter().filter(number).count() {
        0 => driver_folders.len(),
        files => files,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&n| n.to_owned()).collect()
    }

    #[test]
    fn gpus_are_those_of_the_machine_or_those_that_the_user_leaves() {
        let named = |list: &[&str]| Gpus::Named(names(list));
        for device in [WorkerDevice::Auto, WorkerDevice::Cuda] {
            let choose = |visible, present| Gpus::choose(device, visible, present);
            assert_eq!(choose(None, 2), named(&["0", "1"]));
            assert_eq!(
                choose(Some("3, GPU-8f5e,MIG-1"), 8),
                named(&["3", "GPU-8f5e", "MIG-1"])
            );
            assert_eq!(choose(Some("1,-1,0"), 8), named(&["1"]));
            // The user hid all: workers inherit that.
            assert_eq!(choose(Some(""), 8), named(&[]));
            assert_eq!(choose(Some(""), 0), named(&[]));
            assert_eq!(choose(None, 0), Gpus::Uncounted);
        }
        assert_eq!(Gpus::choose(WorkerDevice::Cpu, Some("0,1"), 2), named(&[]));
        assert_eq!(Gpus::choose(WorkerDevice::Cpu, None, 0), named(&[]));
    }

    #[test]
    fn gpus_are_fewer_than_workers_where_some_are_counted() {
        let gpus = |present| Gpus::choose(WorkerDevice::Auto, None, present);
        assert_eq!(gpus(2).fewer_than(3), Some(2));
        assert_eq!(gpus(2).fewer_than(2), None);
        assert_eq!(gpus(0).fewer_than(3), None);
        assert_eq!(Gpus::Named(Vec::new()).fewer_than(3), None);
    }

    #[test]
    fn workers_take_gpus_in_turn() {
        let mut taken = Vec::new();
        for _ in 0..5 {
            taken.push(least_taken(3, &taken).unwrap());
        }
        assert_eq!(taken, [0, 1, 2, 0, 1]);
        assert_eq!(least_taken(3, &[0, 2, 0]), Some(1));
        assert_eq!(least_taken(0, &[0]), None);
    }

    #[test]
    fn gpus_are_counted_by_device_files_or_driver_folders() {
        let files = names(&["null", "nvidia3", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia"]);
        let folders = names(&["0000:01:00.0", "0000:02:00.0", "0000:03:00.0"]);
        assert_eq!(count(&files, &folders), 2);
        assert_eq!(count(&names(&["nvidiactl"]), &folders), 3);
        assert_eq!(count(&[], &[]), 0);
    }
}
