//! Starting runs.

use crate::{JobFile, Run, prepare, program};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

impl Run {
    /// Writes the job and its data, and starts `varuna run` with so many workers.
    ///
    /// # Panics
    /// When something of the test's own set-up fails.
    #[must_use]
    pub fn start(job: &JobFile, workers: usize) -> Run {
        Run::start_with(job, workers, &[])
    }

    /// As [`Run::start`], with environment variables.
    ///
    /// # Panics
    /// As there.
    #[must_use]
    pub fn start_with(job: &JobFile, workers: usize, settings: &[(String, String)]) -> Run {
        let mut command = Command::new(program("varuna"));
        command.envs(settings.iter().cloned());
        Run::launch(job, workers, command)
    }

    /// As [`Run::start`], in a world where a small disk of its own, nearly full of a file `ballast`, lies at `place`.
    ///
    /// # Panics
    /// As there, and where a process may not have mounts of its own.
    #[must_use]
    pub fn start_on_small_disk(job: &JobFile, workers: usize, place: &Path, size: &str) -> Run {
        let script = "mount -t tmpfs -o size=$1 tmpfs \"$0\" && head -c $1 /dev/zero > \"$0/ballast\"; truncate -s -200K \"$0/ballast\"; shift; exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]);
        command.arg(place).arg(size).arg(program("varuna"));
        Run::launch(job, workers, command)
    }

    /// `varuna run`, by a command that ends in `varuna`.
    fn launch(job: &JobFile, workers: usize, mut command: Command) -> Run {
        let temp = TempDir::new().expect("a temporary folder");
        let job = prepare(temp.path(), job);
        let folder = temp.path().join("run");
        let child = command
            .arg("run")
            .arg(&job)
            .args(["--workers", &workers.to_string()])
            .arg("--run-dir")
            .arg(&folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(temp.path().join("stderr")).expect("a file for stderr"))
            .spawn()
            .expect("varuna starts");
        Run {
            child,
            workers: Vec::new(),
            folder,
            temp,
        }
    }

    /// A coordinator that stands alone, and so many workers that are started by hand. The workers log each committed step.
    ///
    /// # Panics
    /// When something of the test's own set-up fails.
    #[must_use]
    pub fn start_apart(job: &JobFile, workers: usize) -> Run {
        let temp = TempDir::new().expect("a temporary folder");
        let _ = prepare(temp.path(), job);
        let folder = temp.path().join("run");
        // A loopback address of its own: no other process's connection can take the port while the coordinator is away.
        let [_, _, high, low] = std::process::id().to_be_bytes();
        let child = coordinator(temp.path(), &folder, &format!("127.77.{high}.{}:0", low.max(1)));
        let mut run = Run {
            child,
            workers: Vec::new(),
            folder,
            temp,
        };
        let address = run.wait_for("an address", Run::address);
        std::fs::create_dir_all(run.folder.join("workers")).expect("a writable folder");
        for i in 0..workers {
            let log = std::fs::File::create(run.worker_log(i)).expect("a file for the log");
            let worker = Command::new(program("varuna-worker"))
                .args(["--coordinator", &address, "--name", &format!("w{i}")])
                .env("VARUNA_LOG", "info,varuna_worker=debug")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log)
                .spawn()
                .expect("varuna-worker starts");
            run.workers.push(worker);
        }
        run
    }
}

/// `varuna coordinator` on the job file that lies in `temp`.
pub(crate) fn coordinator(temp: &Path, folder: &Path, bind: &str) -> Child {
    let stderr = std::fs::File::options()
        .create(true)
        .append(true)
        .open(temp.join("stderr"));
    Command::new(program("varuna"))
        .args(["coordinator", "--bind", bind, "--job"])
        .arg(temp.join("job.yaml"))
        .arg("--run-dir")
        .arg(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(stderr.expect("a file for stderr"))
        .spawn()
        .expect("varuna starts")
}
