//! Which kubeconfig is used: the same as kubectl uses.
//!
//! kube's own reader refuses a list in which a file is missing, and takes an empty `current-context` for a name. kubectl skips both. So the
//! same list works on several machines, and a file that `kubectl config` has made can come first.

use kube::config::{Kubeconfig, KubeconfigError};
use std::ffi::OsStr;
use std::path::PathBuf;

/// The files of a list that are there, of each name the first; the file in the home folder where the list is empty. `list`: the variable `KUBECONFIG`.
pub(super) fn read(list: Option<&OsStr>) -> Result<Kubeconfig, KubeconfigError> {
    let named = list.into_iter().flat_map(std::env::split_paths);
    let named: Vec<PathBuf> = named.filter(|path| !path.as_os_str().is_empty()).collect();
    if named.is_empty() {
        return Kubeconfig::read();
    }
    let is_there = |path: &&PathBuf| path.try_exists().unwrap_or(true);
    let there: Vec<&PathBuf> = named.iter().filter(is_there).collect();
    if there.is_empty() {
        // The error names the file.
        return Kubeconfig::read_from(&named[0]);
    }
    there.into_iter().try_fold(Kubeconfig::default(), |merged, path| {
        let mut next = Kubeconfig::read_from(path)?;
        next.current_context = next.current_context.filter(|name| !name.is_empty());
        merged.merge(next)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kubeconfig with one cluster.
    fn file(current: &str, cluster: &str, server: &str) -> String {
        format!(
            "{{current-context: '{current}', contexts: [], users: [], clusters: [{{name: {cluster}, cluster: {{server: '{server}'}}}}]}}"
        )
    }

    #[test]
    fn missing_files_and_empty_context_are_ignored() {
        let temp = tempfile::tempdir().unwrap();
        let [missing, one, two] = ["missing", "one", "two"].map(|name| temp.path().join(name));
        std::fs::write(&one, file("", "a", "https://first.example")).unwrap();
        std::fs::write(&two, file("near", "a", "https://second.example")).unwrap();
        let list = std::env::join_paths([&missing, &one, &two]).unwrap();
        let merged = read(Some(list.as_os_str())).unwrap();
        assert_eq!(merged.current_context.as_deref(), Some("near"));
        let servers: Vec<_> = merged
            .clusters
            .iter()
            .filter_map(|c| c.cluster.as_ref()?.server.as_deref())
            .collect();
        assert_eq!(servers, ["https://first.example"]);
        let why = read(Some(missing.as_os_str())).unwrap_err().to_string();
        assert!(why.contains("missing"), "{why}");
    }
}
