//! Only the operator depends on Kubernetes' types: the worker, the simulator and the command line do not compile them.

use std::path::Path;
use std::process::Command;

/// The packages that a package needs to run, with the features that it enables itself.
fn needs(packages: &[&str]) -> Vec<String> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["tree", "--edges", "normal", "--prefix", "none", "--locked"]);
    for package in packages {
        command.args(["--package", package]);
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = command.current_dir(root).output().expect("cargo starts");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8_lossy(&output.stdout);
    let names = text.lines().filter_map(|line| line.split(' ').next());
    names.map(str::to_owned).collect()
}

#[test]
fn worker_simulator_and_cli_have_no_kubernetes_types() {
    let kubernetes = |name: &String| name == "k8s-openapi" || name.starts_with("kube");
    assert!(needs(&["varuna-operator"]).iter().any(kubernetes));
    let packages = ["varuna-worker", "varuna-sim", "varuna"];
    let found: Vec<_> = needs(&packages).into_iter().filter(kubernetes).collect();
    assert!(
        found.is_empty(),
        "{found:?}: only the operator enables varuna-api's feature `kubernetes`"
    );
}
