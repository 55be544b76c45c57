//! The servers: each starts at an address of its own, is ready when it answers, and is killed when dropped.

use crate::loopback::address;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, Mac};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use varuna_checkpoint::Location;

const PATIENCE: Duration = Duration::from_secs(60);
const GLANCE: Duration = Duration::from_millis(20);
const BUCKET: &str = "bucket";
/// The account that every Azurite has. Its key is public.
const AZURE_ACCOUNT: &str = "devstoreaccount1";
const AZURE_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// A running blob store with one empty bucket.
pub struct Server {
    child: Child,
    folder: TempDir,
    /// URL of the server: `http://address:port`.
    pub endpoint: String,
    /// URI of the bucket.
    pub uri: String,
    /// The settings of `object_store`, as the environment variables that users set.
    pub settings: Vec<(String, String)>,
    translator: Option<tokio::task::JoinHandle<()>>,
}

impl Server {
    /// A location: the bucket, or a folder in it.
    ///
    /// # Panics
    /// The settings are not valid.
    #[must_use]
    pub fn place(&self, folder: &str) -> Location {
        let settings = self
            .settings
            .iter()
            .map(|(k, v)| (k.to_ascii_lowercase(), v.clone()));
        Location::open_with(&format!("{}/{folder}", self.uri), settings).expect("a valid place")
    }

    /// Uploads the files of a dataset to a folder of the bucket. Returns the dataset's URL.
    ///
    /// # Panics
    /// A file cannot be read, or the store fails.
    pub async fn upload_dataset(&self, prefix: &Path, folder: &str) -> String {
        let settings = self
            .settings
            .iter()
            .map(|(k, v)| (k.to_ascii_lowercase(), v.clone()));
        let place = varuna_blob_store::open_with(&format!("{}/{folder}", self.uri), settings);
        let place = place.expect("a valid place");
        for extension in ["bin", "idx", "json"] {
            let bytes = std::fs::read(prefix.with_extension(extension)).expect("a dataset");
            let object = place.path.child(format!("data.{extension}"));
            let put = place.store.put(&object, bytes.into()).await;
            put.expect("a store that answers");
        }
        format!("{}/{folder}/data", self.uri)
    }

    /// The settings with another endpoint, such as that of a [`crate::FaultyProxy`].
    #[must_use]
    pub fn settings_by(&self, endpoint: &str) -> Vec<(String, String)> {
        let through = |v: &String| v.replace(&self.endpoint, endpoint);
        self.settings
            .iter()
            .map(|(k, v)| (k.clone(), through(v)))
            .collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(translator) = &self.translator {
            translator.abort();
        }
    }
}

/// A program that `scripts/setup-stores.sh` provides.
fn program(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../.cache/stores")
        .join(name);
    assert!(
        path.exists(),
        "{} is missing: run `scripts/setup-stores.sh all` first",
        path.display()
    );
    path
}

/// Waits until a server answers at this URL, with any status.
async fn ready(url: &str, server: &mut Server) {
    let start = Instant::now();
    while reqwest::get(url).await.is_err() {
        let said = || std::fs::read_to_string(log_of(&server.folder)).unwrap_or_default();
        if let Ok(Some(status)) = server.child.try_wait() {
            panic!("the server ended before it answered: {status}\n{}", said());
        }
        assert!(start.elapsed() < PATIENCE, "{url} does not answer\n{}", said());
        tokio::time::sleep(GLANCE).await;
    }
}

/// The file with the output of a server.
fn log_of(folder: &TempDir) -> PathBuf {
    folder.path().join("log")
}

fn start(command: &mut Command, folder: &TempDir) -> Child {
    let log = std::fs::File::create(log_of(folder)).expect("a writable folder");
    let child = command
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a second handle"))
        .stderr(log)
        .spawn();
    child.expect("the server starts")
}

fn pairs(settings: &[(&str, &str)]) -> Vec<(String, String)> {
    settings
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

/// S3: a `MinIO`.
///
/// # Panics
/// The server does not start.
pub async fn minio() -> Server {
    let folder = TempDir::new().expect("a temporary folder");
    // MinIO treats a folder in its root as a bucket.
    std::fs::create_dir_all(folder.path().join("data").join(BUCKET)).expect("a writable folder");
    let address = format!("{}:9000", address());
    let child = start(
        Command::new(program("minio"))
            .args(["server", "--quiet", "--address", &address, "--console-address"])
            .arg(address.replace(":9000", ":9001"))
            .arg(folder.path().join("data"))
            .env("MINIO_ROOT_USER", "varuna-test")
            .env("MINIO_ROOT_PASSWORD", "varuna-test-secret")
            .env("MINIO_BROWSER", "off")
            .env("HOME", folder.path()),
        &folder,
    );
    let endpoint = format!("http://{address}");
    let health = format!("{endpoint}/minio/health/ready");
    // From here on the process is killed when this is dropped, whatever fails.
    let mut server = Server {
        child,
        folder,
        uri: format!("s3://{BUCKET}"),
        settings: pairs(&[
            ("AWS_ACCESS_KEY_ID", "varuna-test"),
            ("AWS_SECRET_ACCESS_KEY", "varuna-test-secret"),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ENDPOINT", &endpoint),
            ("AWS_ALLOW_HTTP", "true"),
        ]),
        endpoint,
        translator: None,
    };
    ready(&health, &mut server).await;
    server
}

/// Azure: an Azurite.
///
/// # Panics
/// The server does not start.
pub async fn azurite() -> Server {
    let folder = TempDir::new().expect("a temporary folder");
    std::fs::create_dir(folder.path().join("data")).expect("a writable folder");
    let host = address();
    let child = start(
        Command::new(program("azurite-blob"))
            .args([
                "--blobHost",
                &host,
                "--blobPort",
                "10000",
                "--silent",
                "--skipApiVersionCheck",
            ])
            .arg("--disableTelemetry")
            .arg("--location")
            .arg(folder.path().join("data")),
        &folder,
    );
    let root = format!("http://{host}:10000");
    let endpoint = format!("{root}/{AZURE_ACCOUNT}");
    let mut server = Server {
        child,
        folder,
        uri: format!("az://{BUCKET}"),
        settings: pairs(&[
            ("AZURE_STORAGE_ACCOUNT_NAME", AZURE_ACCOUNT),
            ("AZURE_STORAGE_ACCOUNT_KEY", AZURE_KEY),
            ("AZURE_STORAGE_ENDPOINT", &endpoint),
            ("AZURE_ALLOW_HTTP", "true"),
        ]),
        endpoint,
        translator: None,
    };
    ready(&root, &mut server).await;
    make_container(&server.endpoint).await;
    server
}

/// An administrator would create the container; here it is created with the account's key (Azure's "Shared Key" scheme).
async fn make_container(endpoint: &str) {
    let (version, date) = ("2021-12-02", "Sat, 21 Nov 2026 12:00:00 GMT");
    let words = format!(
        "PUT\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:{date}\nx-ms-version:{version}\n/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/{BUCKET}\nrestype:container"
    );
    let key = BASE64.decode(AZURE_KEY).expect("a published key");
    let mut mac = Hmac::<sha2::Sha256>::new_from_slice(&key).expect("any length");
    mac.update(words.as_bytes());
    let signature = BASE64.encode(mac.finalize().into_bytes());
    let answer = reqwest::Client::new()
        .put(format!("{endpoint}/{BUCKET}?restype=container"))
        .header("x-ms-date", date)
        .header("x-ms-version", version)
        .header("content-length", "0")
        .header("authorization", format!("SharedKey {AZURE_ACCOUNT}:{signature}"))
        .send()
        .await
        .expect("an answer");
    assert!(
        answer.status().is_success(),
        "{}",
        answer.text().await.unwrap_or_default()
    );
}

/// Google: a fake-gcs-server behind [`crate::google`].
///
/// # Panics
/// The server does not start.
pub async fn google() -> Server {
    let folder = TempDir::new().expect("a temporary folder");
    let host = address();
    let child = start(
        Command::new(program("fake-gcs-server"))
            .args([
                "-scheme", "http", "-host", &host, "-port", "4443", "-backend", "memory",
            ])
            .args(["-log-level", "error"]),
        &folder,
    );
    let behind = format!("http://{host}:4443");
    let mut server = Server {
        child,
        folder,
        uri: format!("gs://{BUCKET}"),
        settings: Vec::new(),
        endpoint: String::new(),
        translator: None,
    };
    ready(&format!("{behind}/storage/v1/b"), &mut server).await;
    let bucket = serde_json::json!({ "name": BUCKET }).to_string();
    let made = reqwest::Client::new().post(format!("{behind}/storage/v1/b"));
    let made = made
        .header("content-type", "application/json")
        .body(bucket)
        .send()
        .await;
    assert!(made.expect("an answer").status().is_success());
    let (endpoint, translator) = crate::google::start(behind).await;
    let account = serde_json::json!({
        "gcs_base_url": endpoint, "disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": "",
    });
    server.settings = pairs(&[
        ("GOOGLE_SERVICE_ACCOUNT_KEY", &account.to_string()),
        ("GOOGLE_ALLOW_HTTP", "true"),
    ]);
    server.endpoint = endpoint;
    server.translator = Some(translator);
    server
}
