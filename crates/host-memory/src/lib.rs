//! How much of its machine's memory a process may use: what nobody else uses, within the limits of its control groups. And how much it
//! has used at most.
//!
//! Reading files is [`available`] and [`most_used`]; what they mean is decided by pure functions. It must never guess: where the system does not say, the
//! answer is none, and nothing is limited by it.

use std::fs;
use std::path::{Path, PathBuf};

/// Where the control groups of both versions are mounted.
const GROUPS: &str = "/sys/fs/cgroup";
/// Version 1 has no word for "no limit": it shows the largest number of whole pages.
const NO_LIMIT: u64 = 1 << 62;

/// Bytes that may be taken now; none where the system does not say.
#[must_use]
pub fn available() -> Option<u64> {
    let read = |path: &Path| fs::read_to_string(path).ok();
    let machine = read(Path::new("/proc/meminfo")).and_then(|text| machine_available(&text));
    let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let limits = limit_files(&groups).into_iter().filter_map(|path| read(&path));
    least(machine, limits.filter_map(|text| group_limit(&text)))
}

/// The most memory that this process had at once since it began, bytes; none where the system does not say.
#[must_use]
pub fn most_used() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    kib_of(&status, "VmHWM:")
}

/// The share of each of so many processes that start together.
#[must_use]
pub fn share(available: u64, processes: usize) -> u64 {
    available / (processes.max(1) as u64)
}

fn least(machine: Option<u64>, groups: impl Iterator<Item = u64>) -> Option<u64> {
    machine.into_iter().chain(groups).min()
}

/// `MemAvailable` of `/proc/meminfo`: free, and what the kernel would give back, in bytes.
fn machine_available(meminfo: &str) -> Option<u64> {
    kib_of(meminfo, "MemAvailable:")
}

/// The bytes of a line of `/proc` that has this name and a number of KiB.
fn kib_of(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The files with the limits of a process' control group and of all groups around it, by its `/proc/self/cgroup`. In a container the path
/// may be that of the host, which is not mounted there: the group that is mounted is then the container's own, and is looked at too.
fn limit_files(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let (root, file) = if controllers.is_empty() {
            (PathBuf::from(GROUPS), "memory.max")
        } else if controllers.split(',').any(|c| c == "memory") {
            (Path::new(GROUPS).join("memory"), "memory.limit_in_bytes")
        } else {
            continue;
        };
        let relative = Path::new(path.trim_start_matches('/'));
        // No group is named by its parent; such a path would leave the folder.
        if relative
            .components()
            .any(|c| c == std::path::Component::ParentDir)
        {
            files.push(root.join(file));
            continue;
        }
        files.extend(relative.ancestors().map(|at| root.join(at).join(file)));
    }
    files
}

/// A control group's limit in bytes; none where it has none.
fn group_limit(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|bytes| *bytes < NO_LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_that_a_process_had_grows_with_it_and_stays_when_memory_is_given_back() {
        let taken = vec![1u8; 64 << 20];
        let with = most_used().unwrap();
        assert!(with >= 64 << 20, "{with}");
        drop(std::hint::black_box(taken));
        // The kernel counts pages of each processor in batches.
        assert!(most_used().unwrap() >= with.min(64 << 20));
        let status = "VmPeak:\t  9000 kB\nVmHWM:\t    1234 kB\nVmRSS:\t 1000 kB\n";
        assert_eq!(kib_of(status, "VmHWM:"), Some(1234 << 10));
        assert_eq!(kib_of("VmHWM:\t many kB\n", "VmHWM:"), None);
    }

    #[test]
    fn what_is_available_is_read_in_bytes_and_anything_else_is_not_known() {
        let text = "MemTotal:       65842532 kB\nMemFree:         1234 kB\nMemAvailable:   41943040 kB\n";
        assert_eq!(machine_available(text), Some(40 << 30));
        for text in [
            "",
            "MemTotal: 1 kB\n",
            "MemAvailable: 12 MB\n",
            "MemAvailable: x kB\n",
            "MemAvailable: 18446744073709551615 kB\n",
        ] {
            assert_eq!(machine_available(text), None, "{text:?}");
        }
    }

    #[test]
    fn the_limits_of_both_versions_are_looked_for_up_to_the_root() {
        let names = |groups: &str| -> Vec<String> {
            let files = limit_files(groups);
            files.iter().map(|f| f.display().to_string()).collect()
        };
        assert_eq!(
            names("0::/kubepods/pod1/box\n"),
            [
                "/sys/fs/cgroup/kubepods/pod1/box/memory.max",
                "/sys/fs/cgroup/kubepods/pod1/memory.max",
                "/sys/fs/cgroup/kubepods/memory.max",
                "/sys/fs/cgroup/memory.max",
            ]
        );
        assert_eq!(names("0::/\n"), ["/sys/fs/cgroup/memory.max"]);
        assert_eq!(
            names("11:cpu,cpuacct:/a\n4:hugetlb,memory:/docker/1\n"),
            [
                "/sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/docker/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            ]
        );
        // A process outside of its namespace's root.
        assert_eq!(names("0::/../other\n"), ["/sys/fs/cgroup/memory.max"]);
        assert!(names("").is_empty() && names("nonsense\n").is_empty());
    }

    #[test]
    fn a_limit_is_a_number_of_bytes_and_both_versions_may_have_none() {
        assert_eq!(group_limit("34359738368\n"), Some(32 << 30));
        assert_eq!(group_limit("max\n"), None);
        assert_eq!(group_limit("9223372036854771712\n"), None);
        assert_eq!(group_limit(""), None);
    }

    #[test]
    fn the_least_of_machine_and_groups_counts() {
        assert_eq!(least(Some(40), [32, 64].into_iter()), Some(32));
        assert_eq!(least(Some(40), [].into_iter()), Some(40));
        assert_eq!(least(None, [64].into_iter()), Some(64));
        assert_eq!(least(None, [].into_iter()), None);
    }

    #[test]
    fn processes_that_start_together_share_evenly() {
        assert_eq!(share(62, 4), 15);
        assert_eq!(share(62, 0), 62);
    }

    #[test]
    fn this_machine_says_what_is_available() {
        let bytes = available().expect("this system has /proc/meminfo");
        assert!(bytes > 1 << 20, "{bytes}");
    }
}
