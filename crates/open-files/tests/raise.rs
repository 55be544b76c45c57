//! The limit of open files of a real process.

use std::fs::File;
use std::process::Command;

const NAME: &str = "raised_limit_allows_more_open_files";
/// This variable is set in the child process of this test.
const CHILD: &str = "VARUNA_TEST_FEW_FILES";

fn open(files: usize) -> std::io::Result<Vec<File>> {
    (0..files).map(|_| File::open("/dev/null")).collect()
}

#[test]
fn raised_limit_allows_more_open_files() {
    if std::env::var_os(CHILD).is_some() {
        assert!(open(100).is_err(), "the shell has set a limit");
        varuna_open_files::raise();
        assert_eq!(open(100).unwrap().len(), 100);
        return;
    }
    let limited = Command::new("sh")
        .args(["-c", "ulimit -S -n 64 && exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&limited.stdout);
    assert!(
        limited.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&limited.stderr)
    );
    assert!(said.contains("1 passed"), "{said}");
}
