//! The bucket of the tests: MinIO, a real S3 server, on this machine.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use varuna_cluster_tests::root;

/// Name of the bucket.
pub(crate) const BUCKET: &str = "checkpoints";

/// The server, which ends when this is dropped.
pub(crate) struct Bucket {
    process: Child,
    user: String,
    folder: PathBuf,
    /// URL of the server.
    pub(crate) endpoint: String,
}

impl Drop for Bucket {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The program, if it was built.
pub(crate) fn program() -> Option<PathBuf> {
    ["stores/minio", "kube/minio"]
        .iter()
        .map(|p| root().join(".cache").join(p))
        .find(|p| p.exists())
}

impl Bucket {
    /// Starts the server with an empty bucket that only this user may open, at an address that pods can reach.
    ///
    /// # Errors
    /// The store does not start.
    pub(crate) fn start(folder: &Path, host: IpAddr, user: &str) -> Result<Bucket> {
        let program = program().context("MinIO is missing: run scripts/setup-stores.sh")?;
        // MinIO treats a folder as a bucket.
        std::fs::create_dir_all(folder.join(BUCKET))?;
        let address = std::net::TcpListener::bind(SocketAddr::new(host, 0))?.local_addr()?;
        let log = File::create(folder.with_extension("log"))?;
        let process = Command::new(program)
            .args([
                "server",
                "--quiet",
                "--address",
                &address.to_string(),
                "--console-address",
                "127.0.0.1:0",
            ])
            .arg(folder)
            .env("MINIO_ROOT_USER", user)
            .env("MINIO_ROOT_PASSWORD", format!("{user}-secret"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let bucket = Bucket {
            process,
            user: user.to_owned(),
            folder: folder.join(BUCKET),
            endpoint: format!("http://{address}"),
        };
        let began = Instant::now();
        while std::net::TcpStream::connect(address).is_err() {
            ensure!(
                began.elapsed() < Duration::from_secs(30),
                "MinIO does not listen: see {}",
                folder.display()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(bucket)
    }

    /// Stops the server from answering, like a store that is down or unreachable, or lets it answer again.
    pub(crate) fn pause(&self, paused: bool) {
        use nix::sys::signal::{Signal, kill};
        let signal = if paused { Signal::SIGSTOP } else { Signal::SIGCONT };
        if let Ok(id) = i32::try_from(self.process.id()) {
            let _ = kill(nix::unistd::Pid::from_raw(id), signal);
        }
    }

    /// The keys of the bucket's objects.
    ///
    /// # Errors
    /// The server's folder cannot be read.
    pub(crate) fn keys(&self) -> Result<Vec<String>> {
        let mut keys = Vec::new();
        let mut folders = vec![self.folder.clone()];
        while let Some(folder) = folders.pop() {
            // The server stores an object as a folder with this file.
            if folder.join("xl.meta").exists() {
                keys.push(folder.strip_prefix(&self.folder)?.display().to_string());
                continue;
            }
            for entry in std::fs::read_dir(&folder)? {
                let path = entry?.path();
                if path.is_dir() {
                    folders.push(path);
                }
            }
        }
        Ok(keys)
    }

    /// Environment variables for a container that uses this bucket's keys at an endpoint.
    pub(crate) fn variables(&self, endpoint: &str) -> Vec<Value> {
        vec![
            json!({ "name": "AWS_ACCESS_KEY_ID", "value": self.user }),
            json!({ "name": "AWS_SECRET_ACCESS_KEY", "value": format!("{}-secret", self.user) }),
            json!({ "name": "AWS_ENDPOINT", "value": endpoint }),
            json!({ "name": "AWS_REGION", "value": "us-east-1" }),
            json!({ "name": "AWS_ALLOW_HTTP", "value": "true" }),
        ]
    }
}
