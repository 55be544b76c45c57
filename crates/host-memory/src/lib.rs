//! How much of its machine's memory a process may use: the memory that nobody else uses, within the limits of its control groups. And the
//! peak memory that it has used.
//!
//! [`available`] and [`most_used`] read files; pure functions interpret them. This crate must never guess: if the system does not report a
//! value, the answer is none, and nothing is limited by it.

use std::fs;
use std::path::{Path, PathBuf};

/// Where the control groups of both versions are mounted.
const GROUPS: &str = "/sys/fs/cgroup";
/// In a group's folder: where its memory went, a name and a number of bytes in each line.
const STATISTICS: &str = "memory.stat";
/// Version 1 has no value for "no limit": it shows the largest number of whole pages.
const NO_LIMIT: u64 = 1 << 62;

/// Bytes that may be allocated now; none if the system does not report it.
#[must_use]
pub fn available() -> Option<u64> {
    let read = |path: &Path| fs::read_to_string(path).ok();
    let machine = read(Path::new("/proc/meminfo")).and_then(|text| machine_available(&text));
    let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let of_groups = limit_files(&groups).into_iter().filter_map(|limit| {
        let used = read(&limit.with_file_name(usage_file(&limit)));
        let statistics = read(&limit.with_file_name(STATISTICS));
        group_available(&read(&limit)?, used.as_deref(), statistics.as_deref())
    });
    least(machine, of_groups)
}

/// Peak memory of this process since it started, bytes; none if the system does not report it.
#[must_use]
pub fn most_used() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    kib_of(&status, "VmHWM:")
}

/// The share of each of `processes` processes that start together.
#[must_use]
pub fn share(available: u64, processes: usize) -> u64 {
    available / (processes.max(1) as u64)
}

fn least(machine: Option<u64>, groups: impl Iterator<Item = u64>) -> Option<u64> {
    machine.into_iter().chain(groups).min()
}

/// `MemAvailable` of `/proc/meminfo` in bytes: free memory and memory that the kernel could reclaim.
fn machine_available(meminfo: &str) -> Option<u64> {
    kib_of(meminfo, "MemAvailable:")
}

/// The bytes of a line of `/proc` that has this name and a number of KiB.
fn kib_of(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The files with the limits of a process's control group and of all groups around it, from its `/proc/self/cgroup`. In a container the
/// path may be that of the host, which is not mounted there: then the mounted group is the container's own, so it is included too.
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
        // No group name contains `..`; such a path would leave the folder.
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

/// The file beside a group's limit that says how much is used in it.
fn usage_file(limit: &Path) -> &'static str {
    match limit.file_name().is_some_and(|name| name == "memory.max") {
        true => "memory.current",
        false => "memory.usage_in_bytes",
    }
}

/// Bytes that a control group lets its processes take still: others in it may have taken most of its limit. What it keeps of files counts as used,
/// but the kernel gives that back before the limit is reached, as `MemAvailable` has it for the machine. None where the group has no limit.
fn group_available(limit: &str, used: Option<&str>, statistics: Option<&str>) -> Option<u64> {
    let limit = group_limit(limit)?;
    let used = used.and_then(|text| text.trim().parse().ok()).unwrap_or(0_u64);
    let kept = of_files(statistics.unwrap_or_default());
    Some(limit.saturating_sub(used.saturating_sub(kept)))
}

/// What a group keeps of files, bytes. Version 1 counts the groups below it under names of their own.
fn of_files(statistics: &str) -> u64 {
    let bytes = |name: &str| -> Option<u64> {
        let mut lines = statistics.lines().filter_map(|line| line.split_once(' '));
        lines.find(|(own, _)| *own == name)?.1.trim().parse().ok()
    };
    let inactive = bytes("total_inactive_file").or_else(|| bytes("inactive_file"));
    let active = bytes("total_active_file").or_else(|| bytes("active_file"));
    inactive.unwrap_or(0).saturating_add(active.unwrap_or(0))
}

/// A control group's limit in bytes; none if it has no limit.
fn group_limit(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|bytes| *bytes < NO_LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peak_memory_grows_and_stays() {
        let taken = vec![1u8; 64 << 20];
        let with = most_used().unwrap();
        assert!(with >= 64 << 20, "{with}");
        drop(std::hint::black_box(taken));
        // The kernel counts the pages of each CPU in batches.
        assert!(most_used().unwrap() >= with.min(64 << 20));
        let status = "VmPeak:\t  9000 kB\nVmHWM:\t    1234 kB\nVmRSS:\t 1000 kB\n";
        assert_eq!(kib_of(status, "VmHWM:"), Some(1234 << 10));
        assert_eq!(kib_of("VmHWM:\t many kB\n", "VmHWM:"), None);
    }

    #[test]
    fn available_memory_is_parsed_in_bytes() {
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
    fn group_limit_counts_others_but_not_cached_files() {
        let statistics = "anon 6000\nfile 900\ninactive_file 300\nactive_file 100\n";
        assert_eq!(
            group_available("10000\n", Some("7000\n"), Some(statistics)),
            Some(3400)
        );
        let version_1 = "inactive_file 1\nactive_file 1\ntotal_inactive_file 300\ntotal_active_file 100\n";
        assert_eq!(
            group_available("10000", Some("7000"), Some(version_1)),
            Some(3400)
        );
        assert_eq!(group_available("10000", Some("7000"), None), Some(3000));
        assert_eq!(group_available("10000", None, Some(statistics)), Some(10_000));
        assert_eq!(group_available("10000", Some("12000"), None), Some(0));
        assert_eq!(group_available("max", Some("7000"), Some(statistics)), None);
        let names = ["memory.max", "memory.limit_in_bytes"].map(|name| usage_file(Path::new(name)));
        assert_eq!(names, ["memory.current", "memory.usage_in_bytes"]);
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
